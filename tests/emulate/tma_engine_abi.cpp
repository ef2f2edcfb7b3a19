// The TMA engine as test_tma_engine.py calls it: C functions, faults as -1 and their facts.
#include <cstdint>
#include <tma/bulk.hpp>
#include <tma/im2col.hpp>
#include <tma/tiled.hpp>

namespace {

using namespace tmaasync_emulate;

// Mirrored by the test's ctypes structures.
struct Access {
    uint64_t start;
    uint64_t bytes;
    uint32_t is_global;
    uint32_t is_write;
};

struct Observer {
    static constexpr uint32_t kCapacity = 4096;

    uint64_t array_start;
    uint64_t array_bytes;
    uint32_t accesses;
    uint32_t padding;
    Access log[kCapacity];

    void shared(uint32_t offset, uint32_t bytes, bool is_write) {
        add({offset, bytes, false, is_write});
    }

    void global(const void* pointer, uint64_t bytes, bool is_write) {
        add({reinterpret_cast<uintptr_t>(pointer), bytes, true, is_write});
    }

    bool is_inside(const void* pointer, uint64_t bytes) const {
        const uint64_t offset = reinterpret_cast<uintptr_t>(pointer) - array_start;
        return offset <= array_bytes && bytes <= array_bytes - offset;
    }

private:
    void add(Access access) {
        if (accesses < kCapacity) log[accesses] = access;
        ++accesses;
    }
};

Reason last_reason;

template <class Act>
int64_t guarded(Act act) {
    try {
        return act();
    } catch (const Fault& fault) {
        last_reason = fault.reason;
        return -1;
    }
}

}  // namespace

extern "C" {

// Mirrored by the test's ctypes structure.
struct Faulted {
    FaultKind kind;
    uint64_t mentions;
    const Mention* mention;
    const char* texts;
};

Faulted tma_reason() {
    const auto& mentions = last_reason.mentions();
    return {last_reason.kind(), mentions.size(), mentions.data(), last_reason.texts().data()};
}

// Everything the view holds, as plain numbers.
int64_t tma_decode(const void* map128, int64_t* numbers) {
    return guarded([&] {
        const TensorMapView map = decode(map128);
        int64_t* next = numbers;
        for (const int64_t number : {
                 static_cast<int64_t>(map.address),
                 int64_t{map.kind != MapKind::kTiled},
                 int64_t{map.rank},
                 static_cast<int64_t>(map.type),
                 static_cast<int64_t>(map.interleave),
                 static_cast<int64_t>(map.swizzle),
                 int64_t{map.fills_nan},
                 int64_t{map.box_bytes},
             }) {
            *next++ = number;
        }
        for (int dim = 0; dim < map.rank; ++dim) {
            *next++ = map.extents[dim];
            *next++ = static_cast<int64_t>(map.strides_bytes[dim]);
            *next++ = map.element_strides[dim];
        }
        for (int dim = 0; map.kind != MapKind::kTiled && dim < map.rank - 2; ++dim) {
            *next++ = map.lower_corner[dim];
            *next++ = map.upper_corner[dim];
        }
        return static_cast<int64_t>(next - numbers);
    });
}

int64_t tma_tiled_load(
    const void* map128, const int32_t* at, uint8_t* shared, uint32_t offset, Observer* observer
) {
    return guarded([&] { return tiled_load(decode(map128), at, shared, offset, *observer); });
}

// The same without an observer: the default compiles, and costs and changes nothing.
int64_t tma_tiled_load_unobserved(
    const void* map128, const int32_t* at, uint8_t* shared, uint32_t offset
) {
    return guarded([&] { return tiled_load(decode(map128), at, shared, offset); });
}

int64_t tma_tiled_store(
    const void* map128,
    const int32_t* at,
    const uint8_t* shared,
    uint32_t offset,
    Observer* observer
) {
    return guarded([&] {
        tiled_store(decode(map128), at, shared, offset, *observer);
        return 0;
    });
}

int64_t tma_tiled_reduce(
    int op,
    const void* map128,
    const int32_t* at,
    const uint8_t* shared,
    uint32_t offset,
    Observer* observer
) {
    return guarded([&] {
        tiled_reduce(static_cast<ReduceOp>(op), decode(map128), at, shared, offset, *observer);
        return 0;
    });
}

int64_t tma_im2col_load(
    const void* map128,
    const int32_t* at,
    const uint16_t* offsets,
    uint8_t* shared,
    uint32_t offset,
    Observer* observer
) {
    return guarded([&] {
        return im2col_load(decode(map128), at, offsets, shared, offset, *observer);
    });
}

int64_t tma_bulk_load(
    const void* global, uint32_t bytes, uint8_t* shared, uint32_t offset, Observer* observer
) {
    return guarded([&] { return bulk_load(global, bytes, shared, offset, *observer); });
}

int64_t tma_bulk_store(
    void* global, uint32_t bytes, const uint8_t* shared, uint32_t offset, Observer* observer
) {
    return guarded([&] { return bulk_store(global, bytes, shared, offset, *observer); });
}

}  // extern "C"
