// Edits of a tensor map's fields, which tma/tensor_map.hpp decodes, and the instructions that make
// them.
#pragma once

#include <cstdint>
#include <tmaasync_emulate/calls.hpp>

#include "state/fiber.hpp"

namespace tmaasync_emulate {

void* shared_map_at(Fiber& fiber, uint32_t address);

// Edits a map in shared or global memory: an ordinary write of the whole map.
void edit_map(Fiber& fiber, void* map, MapField field, int ordinal, uint64_t value);

void copy_map_by_warp(Fiber& fiber, void* map, uint32_t shared_map);

}  // namespace tmaasync_emulate
