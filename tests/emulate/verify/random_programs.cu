// Runs a program of up to three atomic operations per block, and traps at one outcome of a block.
#include <tmaasync/ptx/gpu.cuh>

using namespace tmaasync;

enum Kind {
    kNone,
    kAdd,
    kExchange,
    kCompare,
    kMax,
    kMin,
    kInc,
    kRead,
    kWrite,
    kRedAdd,
    kRedMax,
    kCount,
    kAwait,
    kLock
};

#define RED(FORM, WORD, VALUE)                                                           \
    asm volatile("red.relaxed.gpu.global." FORM ".u32 [%0], %1;" ::"l"(WORD), "r"(VALUE) \
                 : "memor"                                                               \
                   "y")

// Each step has code of its own: a read that its thread repeats at one place is a poll.
#define STEP(i)                                                     \
    {                                                               \
        const int* op = program + (blockIdx.x * 3 + i) * 5;         \
        unsigned* const word = words + op[1];                       \
        const unsigned a = op[2], b = op[3];                        \
        if (i == 0 || op[4] < 0 || results[0] == unsigned(op[4])) { \
            switch (op[0]) {                                        \
                case kAdd:                                          \
                    results[i] = atomicAdd(word, a);                \
                    break;                                          \
                case kExchange:                                     \
                    results[i] = atomicExch(word, a);               \
                    break;                                          \
                case kCompare:                                      \
                    results[i] = atomicCAS(word, a, b);             \
                    break;                                          \
                case kMax:                                          \
                    results[i] = atomicMax(word, a);                \
                    break;                                          \
                case kMin:                                          \
                    results[i] = atomicMin(word, a);                \
                    break;                                          \
                case kInc:                                          \
                    results[i] = atomicInc(word, a);                \
                    break;                                          \
                case kRead:                                         \
                    results[i] = *(volatile unsigned*)word;         \
                    break;                                          \
                case kWrite:                                        \
                    *(volatile unsigned*)word = a;                  \
                    break;                                          \
                case kCount:                                        \
                    results[i] = ptx::atom_inc_up_to(word, a, b);   \
                    break;                                          \
                case kRedAdd:                                       \
                    RED("add", word, a);                            \
                    break;                                          \
                case kRedMax:                                       \
                    RED("max", word, a);                            \
                    break;                                          \
                case kAwait:                                        \
                    do results[i] = *(volatile unsigned*)word;      \
                    while (results[i] == a);                        \
                    break;                                          \
                case kLock:                                         \
                    do results[i] = atomicCAS(word, a, b);          \
                    while (results[i] != a);                        \
                    break;                                          \
            }                                                       \
        }                                                           \
    }

extern "C"
    __global__ void run(const int* program, unsigned* words, int block, const unsigned* wanted) {
    unsigned results[3] = {9, 9, 9};
    STEP(0)
    STEP(1)
    STEP(2)
    if (int(blockIdx.x) != block) return;
    if (results[0] == wanted[0] && results[1] == wanted[1] && results[2] == wanted[2]) __trap();
}
