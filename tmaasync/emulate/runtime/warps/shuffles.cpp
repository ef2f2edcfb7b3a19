#include "warps/shuffles.hpp"

#include "schedule/faults.hpp"
#include "warps/lanes.hpp"

namespace tmaasync_emulate {

struct Shuffle {
    uint64_t value;
    uint32_t source;
    ShuffleKind kind;
    uint64_t result;
};

// Value read from a lane that does not participate: a NaN, unlikely as an integer.
constexpr uint64_t kNoLane = 0x7fff7fff7fff7fff;

// True if a lane's source must participate: a butterfly uses all lanes' values, a broadcast one.
static bool needs_source(Meeting& meeting, uint32_t lane) {
    const auto& shuffle = operands_of<Shuffle>(meeting, lane);
    if (shuffle.kind != ShuffleKind::kIndex) return shuffle.kind == ShuffleKind::kXor;
    for (uint32_t other = 0; other < 32; ++other) {
        if (!(meeting.arrived >> other & 1)) continue;
        if (operands_of<Shuffle>(meeting, other).source != shuffle.source) return false;
    }
    return true;
}

// A value that nobody needs is noted only: CUDA's samples add up a part of a warp with shuffles
// whose last lanes read beyond the mask.
static void check_source(Meeting& meeting, uint32_t lane) {
    const uint32_t source = operands_of<Shuffle>(meeting, lane).source;
    const Fiber& fiber = *meeting.fibers[lane];
    const Rules& rules = fiber.cluster->launch.rules;
    if (!needs_source(meeting, lane)) return rules.note(Rule::kShuffleSource, fiber.site);
    if (rules.pardons(Rule::kShuffleSource, fiber.site)) return;
    const bool is_launched = launched_lanes(fiber) >> source & 1;
    Reason state = is_launched ? FaultKind::kHasEnded : FaultKind::kWasNotLaunched;
    if (!(meeting.mask >> source & 1)) state = {FaultKind::kIsMasked, hexadecimal(meeting.mask)};
    report_fault(fiber, {FaultKind::kShuffleSource, lane, fiber.index / 32, source, state});
}

static void shuffle_values(Meeting& meeting) {
    for (uint32_t lane = 0; lane < 32; ++lane) {
        if (!(meeting.arrived >> lane & 1)) continue;
        auto& shuffle = operands_of<Shuffle>(meeting, lane);
        if (meeting.arrived >> shuffle.source & 1) {
            shuffle.result = operands_of<Shuffle>(meeting, shuffle.source).value;
            continue;
        }
        shuffle.result = kNoLane;
        check_source(meeting, lane);
    }
}

uint64_t shuffle_lanes(uint32_t mask, uint64_t value, uint32_t source, ShuffleKind kind) {
    Shuffle mine{value, source, kind, value};
    meet("shfl.sync", mask, &shuffle_values, &mine);
    return mine.result;
}

struct Vote {
    bool value;
    uint32_t ballot;
};

uint32_t ballot_lanes(uint32_t mask, bool value) {
    Vote mine{value, 0};
    meet(
        "vote.sync", mask,
        [](Meeting& meeting) {
            uint32_t ballot = 0;
            for (uint32_t lane = 0; lane < 32; ++lane) {
                if (!(meeting.arrived >> lane & 1)) continue;
                ballot |= static_cast<uint32_t>(operands_of<Vote>(meeting, lane).value) << lane;
            }
            for (uint32_t lane = 0; lane < 32; ++lane) {
                if (meeting.arrived >> lane & 1) operands_of<Vote>(meeting, lane).ballot = ballot;
            }
        },
        &mine
    );
    return mine.ballot;
}

void gather_words_of_lanes(Meeting& meeting) {
    for (uint32_t lane = 0; lane < 32; ++lane) {
        if (!(meeting.arrived >> lane & 1)) continue;
        const auto& reader = operands_of<GatheredWords>(meeting, lane);
        for (uint32_t other = 0; other < 32; ++other) {
            if (!(meeting.arrived >> other & 1)) continue;
            const auto& source = operands_of<GatheredWords>(meeting, other);
            const auto bytes = static_cast<std::size_t>(source.count) * sizeof(uint32_t);
            std::memcpy(reader.all + other * source.count, source.words, bytes);
        }
    }
}

struct Gathering {
    uint64_t value;
    uint64_t* values;
    uint32_t lanes;
};

uint32_t gather_lanes(const char* instruction, uint32_t mask, uint64_t value, uint64_t* values) {
    Gathering mine{value, values, 0};
    meet(
        instruction, mask,
        [](Meeting& meeting) {
            for (uint32_t to = 0; to < 32; ++to) {
                if (!(meeting.arrived >> to & 1)) continue;
                auto& receiver = operands_of<Gathering>(meeting, to);
                receiver.lanes = meeting.arrived;
                for (uint32_t from = 0; from < 32; ++from) {
                    receiver.values[from] = meeting.arrived >> from & 1
                                                ? operands_of<Gathering>(meeting, from).value
                                                : 0;
                }
            }
        },
        &mine
    );
    return mine.lanes;
}

}  // namespace tmaasync_emulate
