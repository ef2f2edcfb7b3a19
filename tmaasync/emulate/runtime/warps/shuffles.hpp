// Values that lanes exchange: shfl.sync, vote.sync, match.sync and the fragments of mma.sync.
#pragma once

#include <cstdint>
#include <tmaasync_emulate/calls.hpp>

#include "state/warp.hpp"

namespace tmaasync_emulate {

uint64_t shuffle_lanes(uint32_t mask, uint64_t value, uint32_t source, ShuffleKind kind);

uint32_t ballot_lanes(uint32_t mask, bool value);

struct GatheredWords {
    const uint32_t* words;
    int count;
    uint32_t* all;
};

void gather_words_of_lanes(Meeting& meeting);

uint32_t gather_lanes(const char* instruction, uint32_t mask, uint64_t value, uint64_t* values);

}  // namespace tmaasync_emulate
