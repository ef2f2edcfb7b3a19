#include "copies/map_edits.hpp"

#include "copies/map_history.hpp"
#include "memory/accesses.hpp"
#include "memory/addresses.hpp"
#include "warps/lanes.hpp"

namespace tmaasync_emulate {

// Sets `width` bits, at most 64, of the 128 bytes as one little-endian number.
static void set_map_bits(void* map, int bit, int width, uint64_t value) {
    uint64_t words[kMapBytes / 8];
    std::memcpy(words, map, kMapBytes);
    for (int index = 0; index < width; ++index) {
        const int at = bit + index;
        const uint64_t mask = uint64_t{1} << (at % 64);
        words[at / 64] = (words[at / 64] & ~mask) | ((value >> index & 1) << (at % 64));
    }
    std::memcpy(map, words, kMapBytes);
}

namespace detail {

inline void check_field(const char* field, uint64_t value, uint64_t low, uint64_t high) {
    if (value >= low && value <= high) return;
    fault(FaultKind::kMapFieldRange, field, value, low, high);
}

inline void check_granule(const char* field, uint64_t value) {
    if (value % kUnitBytes == 0) return;
    fault(FaultKind::kMapFieldGranule, field, hexadecimal(value));
}

inline void set_side(void* map, int bit, int width, const char* field, uint64_t side) {
    check_field(field, side, 1, uint64_t{1} << width);
    set_map_bits(map, bit, width, side - 1);
}

}  // namespace detail

static void replace_address(void* map, uint64_t address) {
    detail::check_granule("global_address", address);
    set_map_bits(map, 0, 64, address);
}

static void replace_rank(void* map, uint64_t rank_less_one) {
    detail::check_field("rank", rank_less_one, 0, kMaxRank - 1);
    set_map_bits(map, 68, 3, rank_less_one);
}

// Ordinals run innermost first, as coordinates do.
static void replace_extent(void* map, int ordinal, uint64_t extent) {
    detail::set_side(map, 256 + 32 * ordinal, 32, "global_dim", extent);
}

static void replace_stride(void* map, int ordinal, uint64_t stride_bytes) {
    detail::check_granule("global_stride", stride_bytes);
    detail::check_field("global_stride", stride_bytes, 0, (uint64_t{1} << 40) - kUnitBytes);
    set_map_bits(map, 96 + 32 * ordinal, 32, stride_bytes / kUnitBytes);
    set_map_bits(map, 224 + 4 * ordinal, 4, stride_bytes / kUnitBytes >> 32);
}

static void replace_box_side(void* map, int ordinal, uint64_t side) {
    detail::set_side(map, 440 + 8 * ordinal, 8, "box_dim", side);
}

static void replace_element_stride(void* map, int ordinal, uint64_t stride) {
    detail::set_side(map, 416 + 3 * ordinal, 3, "element_stride", stride);
}

// PTX ISA: 11 is tf32, and 12 is tf32 with subnormals flushed; 13 to 15 are packed types.
static void replace_type(void* map, uint64_t type) {
    detail::check_field("elemtype", type, 0, 15);
    const bool is_tf32 = type == 11 || type == 12;
    set_map_bits(map, 71, 4, is_tf32 ? type - 4 : type);
    set_map_bits(map, 80, 1, is_tf32);
}

static void replace_interleave(void* map, uint64_t layout) {
    detail::check_field("interleave_layout", layout, 0, 2);
    set_map_bits(map, 75, 2, layout);
}

// Measured: the word with the swizzle's period in bytes stays unchanged.
static void replace_swizzle(void* map, uint64_t mode) {
    if (mode == 4) detail::fault(FaultKind::kMapSwizzle96);
    detail::check_field("swizzle_mode", mode, 0, 3);
    set_map_bits(map, 77, 2, mode);
}

// Bytes of the atom: 0 is 16, 1 is 32, 2 is 32 with exchanged halves of 16, 3 is 64.
static void replace_atom(void* map, uint64_t atom) {
    detail::check_field("swizzle_atomicity", atom, 0, 3);
    set_map_bits(map, 83, 2, atom);
}

static void replace_fill(void* map, uint64_t fill) {
    detail::check_field("fill_mode", fill, 0, 1);
    set_map_bits(map, 79, 1, fill);
}

static void replace_field(void* map, MapField field, int ordinal, uint64_t value) {
    switch (field) {
        case MapField::kGlobalAddress:
            return replace_address(map, value);
        case MapField::kRank:
            return replace_rank(map, value);
        case MapField::kGlobalDim:
            return replace_extent(map, ordinal, value);
        case MapField::kGlobalStride:
            return replace_stride(map, ordinal, value);
        case MapField::kBoxDim:
            return replace_box_side(map, ordinal, value);
        case MapField::kElementStride:
            return replace_element_stride(map, ordinal, value);
        case MapField::kElementType:
            return replace_type(map, value);
        case MapField::kInterleave:
            return replace_interleave(map, value);
        case MapField::kSwizzle:
            return replace_swizzle(map, value);
        case MapField::kSwizzleAtom:
            return replace_atom(map, value);
        case MapField::kFill:
            return replace_fill(map, value);
    }
}

void* shared_map_at(Fiber& fiber, uint32_t address) {
    const uint32_t offset = own_offset(fiber, address);
    if (offset % kMapBytes) {
        fail(fiber, {FaultKind::kMapEditPlace, shared_at(offset)});
    }
    check_inside_shared(fiber, offset, kMapBytes, FaultKind::kTensorMap);
    return fiber.cta->window + offset;
}

void edit_map(Fiber& fiber, void* map, MapField field, int ordinal, uint64_t value) {
    touch(fiber, map, kMapBytes, true);
    const auto address = reinterpret_cast<uintptr_t>(map);
    const Cluster& cluster = *fiber.cluster;
    if (address - cluster.windows() >= cluster.windows_bytes()) note_edited_map(fiber, address);
    Reason reason;
    try {
        return replace_field(map, field, ordinal, value);
    } catch (const Fault& fault) {
        reason = fault.reason;
    }
    fail(fiber, reason);
}

struct MapCopy {
    void* target;
    void* source;
};

// The last lane copies the map. It sees other lanes' edits only after __syncwarp.
static void copy_map_and_join(Meeting& meeting) {
    const int lane = 31 - __builtin_clz(meeting.arrived);
    const Fiber& last = *meeting.fibers[static_cast<std::size_t>(lane)];
    const auto& copy = operands_of<MapCopy>(meeting, static_cast<uint32_t>(lane));
    std::memcpy(copy.target, copy.source, kMapBytes);
    if (Detector* detector = last.cluster->detector.get()) detector->release_maps(last.number);
    join_lanes(meeting);
}

void copy_map_by_warp(Fiber& fiber, void* map, uint32_t shared_map) {
    MapCopy copy{map, shared_map_at(fiber, shared_map)};
    const bool is_last = fiber.warp->live_lanes >> fiber.lane == 1;
    if (is_last) {
        touch(fiber, copy.source, kMapBytes, false);
        touch(fiber, map, kMapBytes, true);
        note_edited_map(fiber, reinterpret_cast<uintptr_t>(map));
    }
    meet("tensormap.cp_fenceproxy", kAllLanes, &copy_map_and_join, &copy);
}

}  // namespace tmaasync_emulate
