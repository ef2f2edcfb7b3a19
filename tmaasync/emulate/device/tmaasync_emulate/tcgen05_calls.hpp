// The calls of a kernel's code into the runtime for tcgen05 and tensor memory.
#pragma once

#include <tmaasync_emulate/calls.hpp>

// Defined for a chip without tcgen05: the reason, as a string.
#if defined(TMAASYNC_EMULATE_WITHOUT_TCGEN05)
#define TMAASYNC_EMULATE_TCGEN05 \
    [[gnu::error("tcgen05 " TMAASYNC_EMULATE_WHY_NOT_TCGEN05)]] TMAASYNC_EMULATE_CALL
#else
#define TMAASYNC_EMULATE_TCGEN05 TMAASYNC_EMULATE_CALL
#endif

namespace tmaasync_emulate {

// `group` is the number of cta_group, 1 or 2. A shared address may carry the rank of a CTA.
TMAASYNC_EMULATE_TCGEN05 void tcgen05_alloc(uint32_t group, uint32_t shared, uint32_t columns);
TMAASYNC_EMULATE_TCGEN05 void tcgen05_dealloc(uint32_t group, uint32_t address, uint32_t columns);
TMAASYNC_EMULATE_TCGEN05 void tcgen05_relinquish(uint32_t group);

// Shapes of tcgen05.ld and tcgen05.st.
enum class Tcgen05Shape : uint8_t { k32x32b, k16x64b, k16x128b, k16x256b, k16x32bx2 };

struct Tcgen05Transfer {
    Tcgen05Shape shape;
    uint32_t repeats;
    bool is_packed;      // pack::16b or unpack::16b
    uint32_t split = 0;  // immHalfSplitoff of 16x32bx2
};

// Registers that each thread has for one repeat.
constexpr uint32_t tcgen05_registers(Tcgen05Shape shape) {
    return shape == Tcgen05Shape::k16x128b ? 2 : shape == Tcgen05Shape::k16x256b ? 4 : 1;
}

// Columns that one repeat takes, without packing.
constexpr uint32_t tcgen05_columns(Tcgen05Shape shape) {
    constexpr uint32_t kColumns[] = {1, 2, 4, 8, 1};
    return kColumns[static_cast<uint32_t>(shape)];
}

TMAASYNC_EMULATE_TCGEN05 void tcgen05_load(
    const Tcgen05Transfer& transfer, uint32_t address, uint32_t* registers
);
TMAASYNC_EMULATE_TCGEN05 void tcgen05_store(
    const Tcgen05Transfer& transfer, uint32_t address, const uint32_t* registers
);
TMAASYNC_EMULATE_TCGEN05 void tcgen05_wait_load();
TMAASYNC_EMULATE_TCGEN05 void tcgen05_wait_store();
TMAASYNC_EMULATE_TCGEN05 void tcgen05_fence_before();
TMAASYNC_EMULATE_TCGEN05 void tcgen05_fence_after();

// The runtime is of no architecture.
#if !defined(TMAASYNC_EMULATE_ARCH)
#define TMAASYNC_EMULATE_ARCH 0
#endif

// One tcgen05.mma. Addresses are in tensor memory, descriptors name shared memory.
struct Tcgen05Mma {
    uint32_t group = 1;
    uint32_t d = 0;
    uint64_t a = 0;  // a descriptor, or an address in tensor memory
    uint64_t b = 0;
    uint32_t instruction = 0;  // the instruction descriptor
    uint32_t a_scales = 0;
    uint32_t b_scales = 0;
    uint32_t metadata = 0;
    uint64_t zero_columns = 0;
    uint32_t disabled_lanes[8] = {};
    Tcgen05Kind kind = Tcgen05Kind::kF16;
    uint8_t scale_vector = 0;  // 1, 2 or 4; 0 without block scales
    uint8_t scale_of_d = 0;    // scale-input-d
    bool a_in_tensor_memory = false;
    bool is_sparse = false;
    bool is_ws = false;
    bool accumulates = false;  // enable-input-d
    bool shifts_a = false;
    bool is_sm_103 = TMAASYNC_EMULATE_ARCH == 1030;
};
TMAASYNC_EMULATE_TCGEN05 void tcgen05_mma(const Tcgen05Mma& mma);

enum class Tcgen05CopyShape : uint8_t { k128x256b, k128x128b, k64x128b, k32x128b, k4x256b };
enum class Tcgen05Multicast : uint8_t { kNone, kX2_02_13, kX2_01_23, kX4 };
enum class Tcgen05Source : uint8_t { kWords, kB6x16P32, kB4x16P64 };

struct Tcgen05Copy {
    uint32_t group = 1;
    uint32_t address = 0;
    uint64_t matrix = 0;  // descriptor
    Tcgen05CopyShape shape = Tcgen05CopyShape::k128x256b;
    Tcgen05Multicast multicast = Tcgen05Multicast::kNone;
    Tcgen05Source source = Tcgen05Source::kWords;
};
TMAASYNC_EMULATE_TCGEN05 void tcgen05_copy(const Tcgen05Copy& copy);
TMAASYNC_EMULATE_TCGEN05 void tcgen05_shift(uint32_t group, uint32_t address);

// `cta_mask` names the CTAs of a multicast; 0 without one.
TMAASYNC_EMULATE_TCGEN05 void tcgen05_commit(uint32_t group, uint32_t barrier, uint32_t cta_mask);

}  // namespace tmaasync_emulate
