#pragma once

#include <tmaasync/operands/integers.cuh>

namespace tmaasync::ptx {

// The response to clusterlaunchcontrol.try_cancel.
struct alignas(16) ClusterResponse {
    u64 low;
    u64 high;
};

// The position of a block in the grid.
struct Ctaid {
    u32 x;
    u32 y;
    u32 z;
};

}  // namespace tmaasync::ptx
