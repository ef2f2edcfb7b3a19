#pragma once

// The operands of a GEMM on wgmma of several ranks, without scales: consumer.cuh and producer.cuh
// as one type, so that a kernel of ranks takes operands with scales too (ScaledOperands).
#include "consumer.cuh"
#include "producer.cuh"

namespace tmaasync::kernels::gemm {

struct UnscaledOperands {
    using Memory = SharedMemory;
    __device__ static constexpr bool has_scales() { return false; }

    const BTile& b;

    // The last row of m at which a load of A may start, as in Epilogue.
    __device__ static constexpr int last_row(int m) { return gemm::last_row(m); }

    // Load the operands of every tile; part_of is as in load_tiles().
    template <typename PartOf, typename Schedule>
    __device__ void load(
        Memory& shared, PartOf part_of, const Schedule& schedule, int k_blocks, int m
    ) const {
        load_tiles(shared, part_of, b, schedule, k_blocks, m);
    }

    // Multiply every tile, and call store(accumulators, tile).
    template <typename Schedule, typename Store>
    __device__ static void multiply(
        Memory& shared, const Schedule& schedule, int k_blocks, int consumer, const Store& store
    ) {
        auto stages = shared.ring.consumer<Proxy::kAsync>();
        multiply_and_store<Loop>(stages, schedule, k_blocks, consumer, store);
    }
};

}  // namespace tmaasync::kernels::gemm
