#pragma once

#include <tmaasync/barrier.cuh>
#include <tmaasync/bulk_group.cuh>
#include <tmaasync/ring.cuh>

namespace tmaasync {

// A ring buffer whose stages TMA fills and TMA drains, by one thread: for copies, gathers and other
// moves of tiles. kLoadsAhead loads are in flight; the other stages are being stored. The bulk
// groups of the thread stand in for empty barriers, and no proxy fence is needed. Make it a member
// of the CTA's shared memory, of which it is part for one transfer.
template <typename StageType, int kStageCount, int kLoadsInFlight>
struct StoreRing {
    using Stage = StageType;
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

    // Initialise the barriers, by the thread that calls transfer().
    __device__ __forceinline__ void init() {
        for (auto& barrier : full) barrier.init(1);
        fence_barrier_init();
    }

    // Move the tiles of the indices first, first + kStep, ... below end, by one thread.
    // load(stage, index) issues the copies into a ProducerStage, which expects bytes(index);
    // store(tiles, index) issues stores out of the stage. When it returns, all stores have read
    // their stages.
    template <int kStep = 1, typename Index, typename Load, typename Store, typename Bytes>
    __device__ __forceinline__ void transfer(
        Index first, Index end, Load load, Store store, Bytes bytes
    ) {
        using State = PipelineState<kStages>;
        auto loaded = State::for_consumer();
        auto stored = State::for_consumer();
        Index next = first;
        const auto load_next = [&] {
            full[loaded.index].expect_bytes(bytes(next));
            load(ProducerStage<StoreRing>(*this, loaded.index, 0), next);
            loaded.step();
            next += kStep;
        };

        for (int ahead = 0; ahead < kLoadsAhead && next < end; ++ahead) load_next();
        for (Index index = first; index < end; index += kStep, stored.step()) {
            full[stored.index].wait(stored.phase);
            store(stages[stored.index], index);
            commit_group();
            if (next < end) {
                // The stage about to be loaded was stored kStages - kLoadsAhead stores ago.
                wait_group_read<kStages - kLoadsAhead>();
                load_next();
            }
        }
        wait_group_read<0>();
    }

    // The same, where every load fills its stage.
    template <int kStep = 1, typename Index, typename Load, typename Store>
    __device__ __forceinline__ void transfer(Index first, Index end, Load load, Store store) {
        transfer<kStep>(first, end, load, store, [](Index) { return kStageBytes; });
    }
};

}  // namespace tmaasync
