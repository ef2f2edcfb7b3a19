// Two warps fill two buffers alternately, two others read them: named barriers say when.
#include <tmaasync/warp.cuh>

using namespace tmaasync;

constexpr int kElements = 64;

extern "C" __global__ void handoff(const int* values, int* out, int steps) {
    __shared__ int buffers[2][kElements];
    const int thread = threadIdx.x % kElements;
    const bool fills = threadIdx.x < kElements;
    if (fills) {
        for (int step = 0; step < steps; ++step) {
            const unsigned buffer = step % 2;
            if (step >= 2) NamedBarrier<128>{3 + buffer}.sync();
            buffers[buffer][thread] = values[step * kElements + thread];
            NamedBarrier<128>{1 + buffer}.arrive();
        }
    } else {
        for (int step = 0; step < steps; ++step) {
            const unsigned buffer = step % 2;
            NamedBarrier<128>{1 + buffer}.sync();
            out[step * kElements + thread] = buffers[buffer][kElements - 1 - thread];
            if (step + 2 < steps) NamedBarrier<128>{3 + buffer}.arrive();
        }
    }
}
