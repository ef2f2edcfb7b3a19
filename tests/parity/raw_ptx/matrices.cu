// A of 64 x 16 in registers, B of 8 x 16 in shared memory, K-major and not swizzled; twice.
extern "C" __global__ void wgmma_registers(const unsigned* x, const unsigned* y, float* out) {
    __shared__ __align__(128) unsigned tile[64];
    const int t = threadIdx.x, row = t / 32 * 16 + t % 32 / 4, lane = t % 4;
    if (t < 64) tile[t / 32 * 32 + t % 32] = y[t % 32 / 4 * 8 + t / 32 * 4 + t % 4];
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
    __syncthreads();
    unsigned a[4];
    for (int i = 0; i < 4; ++i) a[i] = x[(row + i % 2 * 8) * 8 + i / 2 * 4 + lane];
    const unsigned long long address = __cvta_generic_to_shared(tile);
    const unsigned long long b = address >> 4 | 8ull << 16 | 8ull << 32;
    float d[4];
    // Registers of operands are written before the fence.
    unsigned other[4];
    asm volatile("mov.b32 %0, %4; mov.b32 %1, %5; mov.b32 %2, %6; mov.b32 %3, 0x3c003c00;"
                 : "=&r"(other[0]), "=&r"(other[1]), "=&r"(other[2]), "=&r"(other[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]));
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
    asm volatile(
        "{ .reg .pred p; setp.ne.b32 p, 0, 0;\n"
        "wgmma.mma_async.sync.aligned.m64n8k16.f32.f16.f16 {%0, %1, %2, %3}, "
        "{%4, %5, %6, %7}, %8, p, 1, 1, 0; }"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b)
    );
    asm volatile(
        "{ .reg .pred p; setp.eq.b32 p, 0, 0;\n"
        "wgmma.mma_async.sync.aligned.m64n8k16.f32.f16.f16 {%0, %1, %2, %3}, "
        "{%4, %5, %6, %7}, %8, p, 1, -1, 0; }"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(other[0]), "r"(other[1]), "r"(other[2]), "r"(other[3]), "l"(b)
    );
    asm volatile("wgmma.commit_group.sync.aligned;\n\twgmma.wait_group.sync.aligned 0;" ::
                     : "memory");
    asm volatile("" : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])::"memory");
    for (int i = 0; i < 4; ++i) out[(row + i / 2 * 8) * 8 + lane * 2 + i % 2] = d[i];
}

// The transpose of 16 x 16 halves.
extern "C" __global__ void turned(const unsigned* x, unsigned* out) {
    __shared__ __align__(128) unsigned tile[128];
    const int t = threadIdx.x;
    for (int i = t; i < 128; i += 32) tile[i] = x[i];
    __syncwarp();
    unsigned m[4];
    asm volatile(
        "ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
        : "=r"(m[0]), "=r"(m[1]), "=r"(m[2]), "=r"(m[3])
        : "r"((unsigned)__cvta_generic_to_shared(tile) + (t % 8 + t / 16 * 8) * 32 + t / 8 % 2 * 16)
    );
    for (int i = 0; i < 4; ++i) out[(t / 4 + i % 2 * 8) * 8 + i / 2 * 4 + t % 4] = m[i];
}

// m16n8k16, then m8n8k4 of the first columns.
extern "C" __global__ void doubles(const double* x, const double* y, double* out) {
    const int row = threadIdx.x / 4, t = threadIdx.x % 4;
    double a[8], b[4], d[4] = {}, e[2] = {};
    for (int i = 0; i < 8; ++i) a[i] = x[(row + i % 2 * 8) * 16 + i / 2 * 4 + t];
    for (int i = 0; i < 4; ++i) b[i] = y[row * 16 + i * 4 + t];
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f64.f64.f64.f64 {%0, %1, %2, %3}, "
        "{%4, %5, %6, %7, %8, %9, %10, %11}, {%12, %13, %14, %15}, {%0, %1, %2, %3};"
        : "+d"(d[0]), "+d"(d[1]), "+d"(d[2]), "+d"(d[3])
        : "d"(a[0]), "d"(a[1]), "d"(a[2]), "d"(a[3]), "d"(a[4]), "d"(a[5]), "d"(a[6]), "d"(a[7]),
          "d"(b[0]), "d"(b[1]), "d"(b[2]), "d"(b[3])
    );
    asm volatile("mma.sync.aligned.m8n8k4.row.col.f64.f64.f64.f64 {%0, %1}, {%2}, {%3}, {%0, %1};"
                 : "+d"(e[0]), "+d"(e[1])
                 : "d"(a[0]), "d"(b[0]));
    for (int i = 0; i < 4; ++i) out[(row + i / 2 * 8) * 8 + t * 2 + i % 2] = d[i];
    for (int i = 0; i < 2; ++i) out[128 + row * 8 + t * 2 + i] = e[i];
}

// 32 times 2 x 2 is added to a number near the largest, and to the smallest.
extern "C" __global__ void saturated(int* out) {
    const unsigned twos = 0x02020202;
    for (int part = 0; part < 2; ++part) {
        int d[4], c = part ? -0x7fffffff - 1 : 0x7fffffff - 3;
        asm volatile(
            "mma.sync.aligned.m16n8k32.row.col.satfinite.s32.s8.s8.s32 {%0, %1, %2, %3}, "
            "{%4, %4, %4, %4}, {%4, %4}, {%5, %5, %5, %5};"
            : "=r"(d[0]), "=r"(d[1]), "=r"(d[2]), "=r"(d[3])
            : "r"(twos), "r"(c)
        );
        for (int i = 0; i < 4; ++i) out[threadIdx.x * 8 + part * 4 + i] = d[i];
    }
}

extern "C" __global__ void moved(const unsigned* x, unsigned* out) {
    asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;"
                 : "=r"(out[threadIdx.x])
                 : "r"(x[threadIdx.x]));
}
