#pragma once

// What kernels share that multiply tiles out of a ring: the consumers, and with the headers below
// the ring, walks over the output, and the way of the sums to global memory. Such a kernel defines,
// before it includes this,
//
//   OperandA, OperandB    how wgmma reads the tiles: WgmmaOperand
//   StageExtras           what a stage has beside the tiles, or an empty struct
//
// and its host ATile, BTile, CTile and the constants that gemm.cu explains.
#include <tmaasync/tmaasync.cuh>
#include <tmaasync/wgmma.cuh>

#include "product_ring.cuh"

#include "product_output.cuh"
#include "product_walk.cuh"
#include "turns.cuh"

namespace tmaasync {

__device__ void fence_sums(Sums& sums) {
#pragma unroll
    for (int part = 0; part < kParts; ++part) {
        wgmma_fence_operands(sums[part]);
    }
}

// `on_issued` is called when the tensor cores have all their work.
template <typename OnIssued>
__device__ void multiply_tile(
    SharedMemory& shared,
    Ring& place,
    Sums& sums,
    int consumer,
    int k_blocks,
    const OnIssued& on_issued
) {
    u32 previous = 0;
    for (int block = 0; block < k_blocks; ++block, place.step()) {
        auto& stage = shared.stages[place.index];
        u64 a[kParts];
#pragma unroll
        for (int part = 0; part < kParts; ++part) {
            const int row = group_row(consumer) + part * kInstructionRows;
            a[part] = OperandA::descriptor(stage.a, row);
        }
        const u64 b = OperandB::descriptor(stage.b, 0);
        // The operands of this stage have landed.
        shared.full[place.index].wait(place.phase);
        fence_sums(sums);
        wgmma_fence();
#pragma unroll
        for (int part = 0; part < kParts; ++part) {
            wgmma_tile<OperandA, OperandB>(sums[part], a[part], b, block > 0);
        }
        wgmma_commit_group();
        // One group stays in flight, so the tensor cores never drain; the one before has finished.
        wgmma_wait_group<1>();
        fence_sums(sums);
        if (block > 0) release_stage(shared, previous);
        previous = place.index;
    }
    on_issued();
    wgmma_wait_group<0>();
    fence_sums(sums);
    release_stage(shared, previous);
}

// Each group has every second tile. It looks at the ring only in its turn: by then the other has
// seen all stages before its own land, and no phase is taken for one two laps later.
template <typename Walk, typename Finish>
__device__ void multiply_tiles_in_turns(
    SharedMemory& shared, const CTile& c, Walk walk, int consumer, const Finish& finish
) {
    auto place = Ring::for_consumer();
    u32 chunks = 0;
    bool has_turn = consumer == 0;
    if (!has_turn && !walk.done()) {
        walk.step();
        place.advance(walk.k_blocks);
    }
    while (!walk.done()) {
        const auto start = walk.start();
        walk.step();
        const bool is_last = walk.done();
        if (!has_turn) take_turn(consumer);
        has_turn = false;
        Sums sums;
        multiply_tile(shared, place, sums, consumer, walk.k_blocks, [&] {
            if (!is_last) pass_turn_to(1 - consumer);
        });
        finish.tile(sums, place, start);
        store_sums(shared, chunks, sums, finish, c, consumer, start);
        if (is_last) break;
        walk.step();
        place.advance(walk.k_blocks);
    }
    end_stores();
}

// All groups share every tile.
template <typename Walk, typename Finish>
__device__ void multiply_tiles_together(
    SharedMemory& shared, const CTile& c, Walk walk, int consumer, const Finish& finish
) {
    auto place = Ring::for_consumer();
    u32 chunks = 0;
    for (; !walk.done(); walk.step()) {
        const auto start = walk.start();
        Sums sums;
        multiply_tile(shared, place, sums, consumer, walk.k_blocks, [] {});
        finish.tile(sums, place, start);
        store_sums(shared, chunks, sums, finish, c, consumer, start);
    }
    end_stores();
}

// `walk` has the interface of TileWalk, `finish` that of Untouched.
template <typename Walk, typename Finish>
__device__ void multiply_tiles(
    SharedMemory& shared, const CTile& c, Walk walk, int consumer, const Finish& finish
) {
    if constexpr (PING_PONG) {
        multiply_tiles_in_turns(shared, c, walk, consumer, finish);
    } else {
        multiply_tiles_together(shared, c, walk, consumer, finish);
    }
}

// The roles of a CTA's warpgroups: `load(shared)` is that of one thread of the first, which puts
// tiles into the ring; `multiply(shared, consumer)` that of every other group, which takes them
// out. `tiles` are the parameters whose maps are fetched ahead.
template <typename Load, typename Multiply, typename... Tiles>
__device__ __forceinline__ void run_roles(Load load, Multiply multiply, const Tiles&... tiles) {
    auto& shared = dynamic_shared<SharedMemory>();
    const int group = warpgroup_index();

    // The next grid may open its rings while this one multiplies.
    launch_dependent_grids();
    if (threadIdx.x == 0) {
        (tiles.prefetch_descriptor(), ...);
        open_ring(shared);
    }
    if constexpr (CLUSTER == 1) {
        __syncthreads();
    } else {
        cluster_sync();
    }

    if (group == kProducer) {
        release_registers<kProducerRegisters>();
        if (warp_index() == 0 && elect()) {
            wait_for_previous_grids();
            load(shared);
        }
        // The consumers meet those of the other CTAs: see split_k.cuh.
        if constexpr (SPLIT_K > 1) {
            cluster_sync();
            cluster_sync();
        }
    } else {
        claim_registers<kConsumerRegisters>();
        multiply(shared, group - 1);
    }
    // No CTA leaves while a peer may still write into its shared memory or arrive on its barriers.
    if constexpr (CLUSTER > 1 && SPLIT_K == 1) cluster_sync();
}

}  // namespace tmaasync
