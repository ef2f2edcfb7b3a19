#pragma once

// The parts of structured kernels whose accumulators lie in tensor memory (sm_100a, sm_103a), in
// the folder `tensor_memory`, and the parts of <tmaasync/structured.cuh> for the same kernels.
#include <tmaasync/structured/cluster_shape.cuh>
#include <tmaasync/structured/count_tiles.cuh>
#include <tmaasync/structured/output_tiles.cuh>
#include <tmaasync/structured/ring.cuh>
#include <tmaasync/structured/roles.cuh>
#include <tmaasync/structured/static_scheduler.cuh>
#include <tmaasync/tcgen05.cuh>
#include <tmaasync/tensor_memory/accumulator_ring.cuh>
#include <tmaasync/tensor_memory/epilogue.cuh>
#include <tmaasync/tensor_memory/operand_ring.cuh>
#include <tmaasync/tmaasync.cuh>
