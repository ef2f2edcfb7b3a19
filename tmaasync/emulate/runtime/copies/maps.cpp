#include "copies/maps.hpp"

namespace tmaasync_emulate {

// TMA reads maps in parameters, constant memory and global memory only.
static void check_map_memory(Fiber& fiber, uintptr_t map) {
    const bool is_on_stack = (map ^ stack_pointer()) < kStackBytes;
    const bool is_shared = map - fiber.cluster->windows() < fiber.cluster->windows_bytes();
    if (!is_shared && !(is_on_stack && map < fiber.parameters)) return;
    fail(fiber, is_shared ? FaultKind::kMapInShared : FaultKind::kMapInLocal);
}

TensorMapView decode_for(Fiber& fiber, const void* map) {
    check_map_memory(fiber, reinterpret_cast<uintptr_t>(map));
    try {
        return decode(map);
    } catch (const Fault& fault) {
        fail(fiber, fault.reason);
    }
}

void check_swizzle_alignment(Fiber& fiber, const TensorMapView& map, uint32_t shared) {
    if (map.swizzle == Swizzle::kNone || map.interleave != Interleave::kNone) return;
    const uint32_t span = kUnitBytes << static_cast<int>(map.swizzle);
    const uint32_t box = map.rows * map.row_pitch_bytes;
    const uint32_t pattern = std::min(8 * span, box & -box);
    if (shared % pattern == 0) return;
    fail(fiber, {FaultKind::kSwizzledTilePlace, span, shared_at(shared), pattern, 8 * span});
}

}  // namespace tmaasync_emulate
