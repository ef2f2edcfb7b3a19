#include "copies/maps.hpp"

#include "copies/observer.hpp"

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
    TensorMapView decoded;
    or_fail(fiber, [&] { decoded = decode(map, true); });
    if (needs_sm_100(decoded) && !fiber.cluster->launch.has_wide_maps) {
        fail(fiber, FaultKind::kMapOfOtherChip);
    }
    return decoded;
}

void take_rows(Fiber& fiber, TensorMapView& map) {
    const bool is_tiled = map.kind == MapKind::kTiled && map.interleave == Interleave::kNone;
    if (!is_tiled || map.rows != 1) fail(fiber, {FaultKind::kRowsMap, map.rows});
    map.lists_rows = true;
    map.rows = kListedRows;
    detail::lay_out_rows(map);
}

void check_swizzle_alignment(Fiber& fiber, const TensorMapView& map, uint32_t shared) {
    if (map.swizzle == Swizzle::kNone || map.interleave != Interleave::kNone) return;
    const uint32_t period = period_of(map.swizzle);
    const uint32_t box = map.rows * map.row_pitch_bytes;
    const uint32_t pattern = std::min(period, box & -box);
    if (shared % pattern == 0) return;
    fail(
        fiber,
        {FaultKind::kSwizzledTilePlace, span_of(map.swizzle), shared_at(shared), pattern, period}
    );
}

}  // namespace tmaasync_emulate
