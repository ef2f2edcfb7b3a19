// The functions that kernels call for warps.
#include <cstdio>

#include "schedule/caller.hpp"
#include "schedule/events.hpp"
#include "warps/active_lanes.hpp"
#include "warps/lanes.hpp"
#include "warps/matrices.hpp"
#include "warps/shuffles.hpp"

namespace tmaasync_emulate {

// Truncates a name that is too long.
static void name_role(Fiber& fiber, const char* name, uint32_t number) {
    char role[kRoleBytes]{};
    const bool is_numbered = *name && number != UINT32_MAX;
    std::snprintf(role, kRoleBytes, is_numbered ? "%s %u" : "%s", name, number);
    Warp& warp = *fiber.warp;
    if (std::strcmp(role, warp.role) == 0) return;
    std::memcpy(warp.role, role, kRoleBytes);
    record_role(fiber);
}

void set_role(const char* name, uint32_t number) {
    name_role(TMAASYNC_EMULATE_CALLER(), name, number);
}

void sync_warp(uint32_t mask) {
    TMAASYNC_EMULATE_CALLER();
    meet("__syncwarp", mask, &join_lanes, nullptr);
}

bool elect() {
    TMAASYNC_EMULATE_CALLER();
    return elect_lane();
}

uint64_t shuffle(uint32_t mask, uint64_t value, uint32_t source, ShuffleKind kind) {
    TMAASYNC_EMULATE_CALLER();
    return shuffle_lanes(mask, value, source, kind);
}

uint32_t ballot(uint32_t mask, bool value) {
    TMAASYNC_EMULATE_CALLER();
    return ballot_lanes(mask, value);
}

uint32_t gather(const char* instruction, uint32_t mask, uint64_t value, uint64_t* values) {
    TMAASYNC_EMULATE_CALLER();
    return gather_lanes(instruction, mask, value, values);
}

uint32_t active_lanes() {
    return find_active_lanes(TMAASYNC_EMULATE_CALLER());
}

void store_matrix(uint32_t row, int matrices, bool is_transposed, const uint32_t* values) {
    TMAASYNC_EMULATE_CALLER();
    StoreMatrix mine{.row = row, .matrices = matrices, .is_transposed = is_transposed};
    for (int matrix = 0; matrix < matrices; ++matrix) mine.values[matrix] = values[matrix];
    store_matrices_of_lane(mine);
}

void load_matrix(uint32_t row, int matrices, bool is_transposed, uint32_t* values) {
    TMAASYNC_EMULATE_CALLER();
    LoadMatrix mine{.row = row, .matrices = matrices, .is_transposed = is_transposed};
    load_matrices_of_lane(mine);
    for (int matrix = 0; matrix < matrices; ++matrix) values[matrix] = mine.values[matrix];
}

void store_byte_matrix(uint32_t row, int matrices, const uint32_t* values) {
    TMAASYNC_EMULATE_CALLER();
    StoreMatrix mine{.row = row, .matrices = matrices, .bytes = ByteMatrix::kTransposed};
    for (int matrix = 0; matrix < matrices; ++matrix) mine.values[matrix] = values[matrix];
    store_matrices_of_lane(mine);
}

void load_byte_matrix(uint32_t row, int matrices, ByteMatrix form, uint32_t* values) {
    TMAASYNC_EMULATE_CALLER();
    LoadMatrix mine{.row = row, .matrices = matrices, .bytes = form};
    load_matrices_of_lane(mine);
    for (int i = 0; i < matrices * mine.rows() / 8; ++i) values[i] = mine.values[i];
}

void gather_words(const char* instruction, const uint32_t* words, int count, uint32_t* all) {
    TMAASYNC_EMULATE_CALLER();
    GatheredWords mine{words, count, all};
    meet(instruction, kAllLanes, &gather_words_of_lanes, &mine);
}

}  // namespace tmaasync_emulate
