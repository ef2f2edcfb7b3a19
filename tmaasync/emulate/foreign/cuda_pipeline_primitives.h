// Copies of the CUDA C++ Programming Guide's primitives interface: cp.async of each thread.
#pragma once

#include <cuda_awbarrier_primitives.h>

// Copies all but the last `zfill` bytes of the source. The rest of the target becomes zeros.
TMAASYNC_EMULATE_INLINE void __pipeline_memcpy_async(
    void* __restrict__ shared,
    const void* __restrict__ global,
    ::std::size_t bytes_and_alignment,
    ::std::size_t zfill = 0
) {
    if ((bytes_and_alignment != 4 && bytes_and_alignment != 8 && bytes_and_alignment != 16) ||
        zfill > bytes_and_alignment) {
        tmaasync_emulate::fail(tmaasync_emulate::FaultKind::kPipelineSize);
    }
    tmaasync_emulate::thread_copy(
        cuda::detail::shared_address(shared), global,
        static_cast<::std::uint32_t>(bytes_and_alignment),
        static_cast<::std::uint32_t>(bytes_and_alignment - zfill)
    );
}
TMAASYNC_EMULATE_INLINE void __pipeline_commit() {
    tmaasync_emulate::thread_copies_commit();
}
// As on the chip, a wait distinguishes at most 8 groups.
TMAASYNC_EMULATE_INLINE void __pipeline_wait_prior(::std::size_t pending) {
    tmaasync_emulate::thread_copies_wait(static_cast<::std::uint32_t>(pending < 8 ? pending : 8));
}
TMAASYNC_EMULATE_INLINE void __pipeline_arrive_on(__mbarrier_t* barrier) {
    cuda::ptx::cp_async_mbarrier_arrive(barrier);
}
