#pragma once

#include <tmaasync/barrier.cuh>
#include <tmaasync/bulk_group.cuh>
#include <tmaasync/pipeline.cuh>
#include <tmaasync/shared.cuh>
#include <tmaasync/structured/ring_groups.cuh>
#include <tmaasync/structured/ring_stages.cuh>

namespace tmaasync {

template <typename Ring>
class RingTransfers;

// A ring buffer whose stages TMA fills and TMA drains, by one thread: for copies, gathers and other
// moves of tiles. kLoadsAhead loads are in flight; the other stages are being stored. The bulk
// groups of the thread stand in for empty barriers, and no proxy fence is needed. Make it a member
// of the CTA's shared memory.
template <typename StageType, int kStageCount, int kLoadsInFlight>
struct StoreRing {
    using Stage = StageType;
    using State = PipelineState<kStageCount>;
    using MulticastGroup = Multicast<1>;
    static constexpr int kStages = kStageCount;
    static constexpr int kLoadsAhead = kLoadsInFlight;
    static constexpr u32 kStageBytes = StageBytes<Stage>::kBytes;
    static_assert(
        0 < kLoadsAhead && kLoadsAhead <= kStages,
        "loads in flight take 1 stage at least, and all stages at most"
    );
    static_assert(kStageBytes <= SharedMemBarrier::kMaxCount, "a phase expects less than 1 MiB");
    static_assert(
        sizeof(Stage) * kStages <= kMaxSharedBytes, "the stages exceed the shared memory of a CTA"
    );

    Stage stages[kStages];
    SharedMemBarrier full[kStages];

    // Initialise the barriers, by the thread that has the object of transfers().
    __device__ __forceinline__ void init() {
        for (auto& barrier : full) barrier.init(1);
        fence_barrier_init();
    }

    // The stages as the thread sees them that loads and stores. A CTA has one, for the lifetime of
    // the ring.
    [[nodiscard]] __device__ __forceinline__ RingTransfers<StoreRing> transfers() {
        return RingTransfers<StoreRing>(*this);
    }
};

// One thread's side of a ring that it fills and drains.
template <typename Ring>
class RingTransfers {
public:
    __device__ __forceinline__ explicit RingTransfers(Ring& ring) : ring_(ring) {}
    RingTransfers(const RingTransfers&) = delete;
    RingTransfers& operator=(const RingTransfers&) = delete;

    // Move the tiles of the indices first, first + kStep, ... below end. load(stage, index) issues
    // the copies into a ProducerStage, which expects bytes(index); store(tiles, index) issues the
    // stores out of a stage. On return all stores have read their stages.
    template <int kStep = 1, typename Index, typename Load, typename Store, typename Bytes>
    __device__ __forceinline__ void run(
        Index first, Index end, const Load& load, const Store& store, const Bytes& bytes
    ) {
        auto loaded = stored_;
        Index next = first;
        const auto load_next = [&] {
            ring_.full[loaded.index].expect_bytes(bytes(next));
            load(ProducerStage<Ring>(ring_, loaded.index, 0), next);
            loaded.step();
            next += kStep;
        };

        for (int ahead = 0; ahead < Ring::kLoadsAhead && next < end; ++ahead) load_next();
        for (Index index = first; index < end; index += kStep, stored_.step()) {
            ring_.full[stored_.index].wait(stored_.phase);
            store(ring_.stages[stored_.index], index);
            commit_group();
            if (next < end) {
                // The stage about to be loaded was stored kStages - kLoadsAhead stores ago.
                wait_group_read<Ring::kStages - Ring::kLoadsAhead>();
                load_next();
            }
        }
        wait_group_read<0>();
    }

    // The same, where every load fills its stage.
    template <int kStep = 1, typename Index, typename Load, typename Store>
    __device__ __forceinline__ void run(
        Index first, Index end, const Load& load, const Store& store
    ) {
        run<kStep>(first, end, load, store, [](Index) { return Ring::kStageBytes; });
    }

private:
    Ring& ring_;
    typename Ring::State stored_ = Ring::State::for_consumer();
};

}  // namespace tmaasync
