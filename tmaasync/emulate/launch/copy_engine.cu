// Kernels of one thread that do the work of copy engines, for the queues of emulated streams.
#include <tmaasync/tmaasync.cuh>

using namespace tmaasync;

extern "C" __global__ void stream_write(const Signals signals, u32 to, u32 signal, u32 epoch) {
    signals.post(to, signal, epoch);
}

extern "C" __global__ void stream_wait(const Signals signals, u32 signal, u32 epoch) {
    signals.wait(signal, epoch);
}

template <typename Word>
__device__ void copy(void* target, const void* source, u64 bytes) {
    const auto to = static_cast<Word*>(target);
    const auto from = static_cast<const Word*>(source);
    // TMA may have written the source, and may read the target.
    ptx::fence_proxy_async_global();
    for (u64 i = 0; i < bytes / sizeof(Word); ++i) to[i] = from[i];
    ptx::fence_proxy_async_global();
}

extern "C" __global__ void stream_copy(void* target, const void* source, u64 bytes) {
    const u64 all = reinterpret_cast<u64>(target) | reinterpret_cast<u64>(source) | bytes;
    if (all % sizeof(u64) == 0) {
        copy<u64>(target, source, bytes);
    } else {
        copy<unsigned char>(target, source, bytes);
    }
}
