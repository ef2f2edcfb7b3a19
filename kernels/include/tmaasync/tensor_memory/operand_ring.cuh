#pragma once

#include <tmaasync/structured/ring.cuh>
#include <tmaasync/tcgen05.cuh>
#include <tmaasync/tma_sm100.cuh>

namespace tmaasync {

// A ring of operand tiles that TMA fills and tcgen05.mma reads (CUTLASS's PipelineTmaUmmaAsync).
// One thread consumes it: a stage that it releases is free when its mma have completed. With kCtas
// = 2 a pair of CTAs, a cluster of two, loads at the same time, each its own operands; the thread
// that multiplies is in the even CTA.
template <typename StageType, int kStageCount, int kCtas = 1>
struct Tcgen05Ring : Ring<StageType, kStageCount, ConsumerWarps<1>> {
    using Base = Ring<StageType, kStageCount, ConsumerWarps<1>>;

    [[nodiscard]] __device__ __forceinline__ RingProducer<Tcgen05Ring> producer() {
        return RingProducer<Tcgen05Ring>(*this);
    }
    [[nodiscard]] __device__ __forceinline__ RingConsumer<Tcgen05Ring, Proxy::kAsync> consumer() {
        return RingConsumer<Tcgen05Ring, Proxy::kAsync>(*this);
    }

    // Wait until the stage is free in this CTA. The even CTA expects the bytes of the pair.
    __device__ __forceinline__ void producer_acquire(
        const typename Base::State& state, u32 bytes = Base::kStageBytes, WaitLocation location = {}
    ) {
        this->empty[state.index].wait(state.phase, location);
        if (leads_pair<kCtas>()) this->full[state.index].expect_bytes(kCtas * bytes);
    }

    // Called by the thread that issues the mma.
    template <Proxy kReader>
    __device__ __forceinline__ void consumer_release(u32 stage) {
        static_assert(kReader == Proxy::kAsync, "only tcgen05.mma reads the stages");
        tcgen05_commit_to_pair<kCtas>(this->empty[stage]);
    }

    // Load a tile of this CTA into a stage.
    template <typename Tile>
    __device__ __forceinline__ static void load(
        const ProducerStage<Tcgen05Ring>& stage,
        const Tile& tile,
        typename Tile::Shared& shared,
        Coordinates<Tile::kRank> at
    ) {
        if constexpr (kCtas == 2) {
            tma_load_2sm(tile, stage.full(), shared, at);
        } else {
            tile.async_copy(shared, stage.full(), at);
        }
    }
};

}  // namespace tmaasync
