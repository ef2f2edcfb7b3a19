// Special registers, and what ends a thread or the kernel.
#pragma once

#include <cstdint>
#include <cuda/detail/ptx_tags.hpp>
#include <tmaasync/ptx/setmaxnreg.cuh>
#include <tmaasync_emulate/calls.hpp>

namespace cuda::ptx {

using ::std::uint32_t;
using ::std::uint64_t;

#define TMAASYNC_EMULATE_SREG(NAME, VALUE)                    \
    TMAASYNC_EMULATE_INLINE uint32_t get_sreg_##NAME() {      \
        const auto& own = tmaasync_emulate::current_thread(); \
        (void)own;                                            \
        return VALUE;                                         \
    }
#define TMAASYNC_EMULATE_SREGS(NAME, VALUE)    \
    TMAASYNC_EMULATE_SREG(NAME##_x, (VALUE).x) \
    TMAASYNC_EMULATE_SREG(NAME##_y, (VALUE).y) \
    TMAASYNC_EMULATE_SREG(NAME##_z, (VALUE).z)
TMAASYNC_EMULATE_SREGS(tid, own.thread)
TMAASYNC_EMULATE_SREGS(ntid, own.block_dim)
TMAASYNC_EMULATE_SREGS(ctaid, own.block)
TMAASYNC_EMULATE_SREGS(nctaid, own.grid_dim)
TMAASYNC_EMULATE_SREG(laneid, own.lane)
TMAASYNC_EMULATE_SREG(lanemask_eq, 1u << own.lane)
TMAASYNC_EMULATE_SREG(lanemask_lt, (1u << own.lane) - 1)
TMAASYNC_EMULATE_SREG(lanemask_le, (2u << own.lane) - 1)
TMAASYNC_EMULATE_SREG(lanemask_gt, ~((2u << own.lane) - 1))
TMAASYNC_EMULATE_SREG(lanemask_ge, ~((1u << own.lane) - 1))
TMAASYNC_EMULATE_SREG(
    warpid, (own.thread.x + own.block_dim.x * (own.thread.y + own.block_dim.y * own.thread.z)) / 32
)
TMAASYNC_EMULATE_SREG(nwarpid, (own.block_dim.x * own.block_dim.y * own.block_dim.z + 31) / 32)
TMAASYNC_EMULATE_SREG(cluster_ctarank, own.rank)
TMAASYNC_EMULATE_SREG(cluster_nctarank, own.ctas)
TMAASYNC_EMULATE_SREGS(cluster_nctaid, own.cluster_dim)
TMAASYNC_EMULATE_SREG(cluster_ctaid_x, own.block.x % own.cluster_dim.x)
TMAASYNC_EMULATE_SREG(cluster_ctaid_y, own.block.y % own.cluster_dim.y)
TMAASYNC_EMULATE_SREG(cluster_ctaid_z, own.block.z % own.cluster_dim.z)
TMAASYNC_EMULATE_SREG(clusterid_x, own.block.x / own.cluster_dim.x)
TMAASYNC_EMULATE_SREG(clusterid_y, own.block.y / own.cluster_dim.y)
TMAASYNC_EMULATE_SREG(clusterid_z, own.block.z / own.cluster_dim.z)
TMAASYNC_EMULATE_SREG(nclusterid_x, own.grid_dim.x / own.cluster_dim.x)
TMAASYNC_EMULATE_SREG(nclusterid_y, own.grid_dim.y / own.cluster_dim.y)
TMAASYNC_EMULATE_SREG(nclusterid_z, own.grid_dim.z / own.cluster_dim.z)
#undef TMAASYNC_EMULATE_SREGS
#undef TMAASYNC_EMULATE_SREG

TMAASYNC_EMULATE_INLINE uint64_t get_sreg_clock64() {
    return static_cast<uint64_t>(clock64());
}
TMAASYNC_EMULATE_INLINE uint32_t get_sreg_clock() {
    return static_cast<uint32_t>(clock64());
}

TMAASYNC_EMULATE_INLINE bool elect_sync(uint32_t) {
    return tmaasync_emulate::elect();
}
template <int kRegisters>
TMAASYNC_EMULATE_INLINE void setmaxnreg_inc(n32_t<kRegisters> = {}) {
    ::tmaasync::ptx::setmaxnreg_inc<kRegisters>();
}
template <int kRegisters>
TMAASYNC_EMULATE_INLINE void setmaxnreg_dec(n32_t<kRegisters> = {}) {
    ::tmaasync::ptx::setmaxnreg_dec<kRegisters>();
}
TMAASYNC_EMULATE_INLINE void trap() {
    __trap();
}

}  // namespace cuda::ptx
