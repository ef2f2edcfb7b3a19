// Special registers, and the instructions that end a thread or the kernel.
#pragma once

#include <cuda/detail/ptx_tags.hpp>
#include <tmaasync/ptx/setmaxnreg.cuh>
#include <tmaasync_emulate/inline_ptx/threads.hpp>

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
TMAASYNC_EMULATE_SREG(warpid, tmaasync_emulate::inline_ptx::thread_in_block() / 32)
TMAASYNC_EMULATE_SREG(nwarpid, tmaasync_emulate::inline_ptx::kWarpsOfMultiprocessor)
TMAASYNC_EMULATE_SREG(smid, tmaasync_emulate::inline_ptx::sm_of_block())
TMAASYNC_EMULATE_SREG(nsmid, tmaasync_emulate::launch_shape().sms)
TMAASYNC_EMULATE_SREG(cluster_ctarank, own.rank)
TMAASYNC_EMULATE_SREG(cluster_nctarank, own.ctas)
TMAASYNC_EMULATE_SREGS(cluster_nctaid, own.cluster_dim)
TMAASYNC_EMULATE_SREGS(cluster_ctaid, tmaasync_emulate::inline_ptx::block_in_cluster())
TMAASYNC_EMULATE_SREGS(clusterid, tmaasync_emulate::inline_ptx::cluster_in_grid())
TMAASYNC_EMULATE_SREGS(nclusterid, tmaasync_emulate::inline_ptx::clusters_of_grid())
TMAASYNC_EMULATE_SREG(is_explicit_cluster, own.ctas > 1)
TMAASYNC_EMULATE_SREG(dynamic_smem_size, tmaasync_emulate::launch_shape().dynamic_shared_bytes)
TMAASYNC_EMULATE_SREG(total_smem_size, tmaasync_emulate::launch_shape().shared_bytes)
TMAASYNC_EMULATE_SREG(aggr_smem_size, tmaasync_emulate::launch_shape().shared_bytes)
#undef TMAASYNC_EMULATE_SREGS
#undef TMAASYNC_EMULATE_SREG

TMAASYNC_EMULATE_INLINE uint64_t get_sreg_clock64() {
    return static_cast<uint64_t>(clock64());
}
TMAASYNC_EMULATE_INLINE uint32_t get_sreg_clock() {
    return static_cast<uint32_t>(clock64());
}
TMAASYNC_EMULATE_INLINE uint32_t get_sreg_clock_hi() {
    return static_cast<uint32_t>(get_sreg_clock64() >> 32);
}
TMAASYNC_EMULATE_INLINE uint64_t get_sreg_globaltimer() {
    return tmaasync_emulate::inline_ptx::nanoseconds();
}
TMAASYNC_EMULATE_INLINE uint32_t get_sreg_globaltimer_lo() {
    return static_cast<uint32_t>(get_sreg_globaltimer());
}
TMAASYNC_EMULATE_INLINE uint32_t get_sreg_globaltimer_hi() {
    return static_cast<uint32_t>(get_sreg_globaltimer() >> 32);
}
TMAASYNC_EMULATE_INLINE uint64_t get_sreg_gridid() {
    return 1;
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
TMAASYNC_EMULATE_INLINE void exit() {
    tmaasync_emulate::end_thread();
}

}  // namespace cuda::ptx
