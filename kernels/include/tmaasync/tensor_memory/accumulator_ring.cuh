#pragma once

#include <tmaasync/pipeline.cuh>
#include <tmaasync/tcgen05.cuh>
#include <tmaasync/warp.cuh>

namespace tmaasync {

template <typename Ring>
class AccumulatorProducer;
template <typename Ring>
class AccumulatorConsumer;

// The barriers of a ring of accumulators in tensor memory (CUTLASS's PipelineUmmaAsync): with two
// stages, the mma of a tile run while the epilogue reads the tile before. Stage i has kColumns
// columns from i * kColumns on. Make it a member of the CTA's shared memory; one thread calls
// init(), then the CTA synchronises. The tile has 128 rows: four warps
// read it, or kReaders, a multiple of four. With kCtas = 2 a
// pair of CTAs, a cluster of two, has 128 rows each, and the even one multiplies.
template <typename T, int kColumns, int kStageCount, int kPairedCtas = 1, int kReaders = 4>
struct AccumulatorRing {
    static constexpr int kCtas = kPairedCtas;
    using Tile = TmemTile<T, kColumns>;
    using State = PipelineState<kStageCount>;
    static constexpr int kStages = kStageCount;
    static constexpr int kReaderWarps = kReaders;
    // Columns to allocate: a power of two.
    static constexpr int kAllColumns = tmem_columns(kStages * kColumns);
    static_assert(kStages * kColumns <= 512, "tensor memory has 512 columns");

    SharedMemBarrier full[kStages];
    SharedMemBarrier empty[kStages];
    u32 address;  // of the allocation

    __device__ __forceinline__ void init() {
        for (int stage = 0; stage < kStages; ++stage) {
            full[stage].init(1);
            empty[stage].init(kCtas * kReaderWarps);
        }
        fence_barrier_init();
    }

    // The side of the thread that issues the mma, and of the warps that read: one object each, for
    // the lifetime of the ring. `first` is the tile of the first stage.
    [[nodiscard]] __device__ __forceinline__ AccumulatorProducer<AccumulatorRing> producer(
        const Tile& first
    ) {
        return {*this, first};
    }
    [[nodiscard]] __device__ __forceinline__ AccumulatorConsumer<AccumulatorRing> consumer(
        const Tile& first
    ) {
        return {*this, first};
    }

    __device__ __forceinline__ static Tile tile_of(const Tile& first, u32 stage) {
        return {first.address + stage * kColumns};
    }
};

// The thread that multiplies into the accumulators.
template <typename Ring>
class AccumulatorProducer {
public:
    __device__ __forceinline__ AccumulatorProducer(Ring& ring, const typename Ring::Tile& first)
        : ring_(ring), first_(first) {}
    AccumulatorProducer(const AccumulatorProducer&) = delete;
    AccumulatorProducer& operator=(const AccumulatorProducer&) = delete;

    // Wait until the next accumulators have been read.
    __device__ __forceinline__ typename Ring::Tile acquire(WaitLocation location = {}) const {
        ring_.empty[state_.index].wait(state_.phase, location);
        tcgen05_fence_after_thread_sync();
        return Ring::tile_of(first_, state_.index);
    }

    // Hand them on when all mma of this thread have completed.
    __device__ __forceinline__ void commit() {
        tcgen05_commit_to_pair<Ring::kCtas>(ring_.full[state_.index]);
        state_.step();
    }

private:
    Ring& ring_;
    typename Ring::Tile first_;
    typename Ring::State state_ = Ring::State::for_producer();
};

// The warps that read the accumulators.
template <typename Ring>
class AccumulatorConsumer {
public:
    __device__ __forceinline__ AccumulatorConsumer(Ring& ring, const typename Ring::Tile& first)
        : ring_(ring), first_(first) {}
    AccumulatorConsumer(const AccumulatorConsumer&) = delete;
    AccumulatorConsumer& operator=(const AccumulatorConsumer&) = delete;

    // Wait for the next accumulators.
    __device__ __forceinline__ typename Ring::Tile acquire(WaitLocation location = {}) const {
        ring_.full[state_.index].wait(state_.phase, location);
        tcgen05_fence_after_thread_sync();
        return Ring::tile_of(first_, state_.index);
    }

    // Release them, after tmem_wait_loads(). Called by the whole warp.
    __device__ __forceinline__ void release() {
        tcgen05_fence_before_thread_sync();
        __syncwarp();
        auto& empty = ring_.empty[state_.index];
        if (lane_index() == 0) {
            if (leads_pair<Ring::kCtas>()) {
                empty.arrive();
            } else {
                empty.arrive_cluster(block_rank_in_cluster() - 1);
            }
        }
        state_.step();
    }

private:
    Ring& ring_;
    typename Ring::Tile first_;
    typename Ring::State state_ = Ring::State::for_consumer();
};

}  // namespace tmaasync
