// Operations that the lanes of a warp, or the threads of a CTA, execute together.
#pragma once

#include <cstring>
#include <utility>

#include "accesses.hpp"

namespace tmaasync_emulate {

// --- masks ---------------------------------------------------------------------------------------

constexpr uint32_t kAllLanes = 0xffffffff;

// Names the lanes of a mask: "lane 4", "lanes 16 to 31", or "lanes 0, 2".
inline Words lanes_of(uint32_t mask) {
    const int first = __builtin_ctz(mask), count = __builtin_popcount(mask);
    if (count == 1) return "lane " + decimal(first);
    if (mask >> first == (uint64_t{1} << count) - 1) {
        return "lanes " + decimal(first) + " to " + decimal(first + count - 1);
    }
    Words words;
    for (uint32_t lane = 0; lane < 32; ++lane) {
        if (mask >> lane & 1) words << (words.is_empty() ? "lanes " : ", ") + decimal(lane);
    }
    return words;
}

// The lanes that the warp was launched with.
inline uint32_t launched_lanes(const Fiber& fiber) {
    const uint32_t threads = fiber.cluster->launch().threads() - fiber.index / 32 * 32;
    return threads < 32 ? (1u << threads) - 1 : kAllLanes;
}

inline Words name_of_warp(const Fiber& fiber) {
    return " of warp " + decimal(fiber.index / 32);
}

inline Fiber& lane_of_warp(Fiber& fiber, uint32_t lane) {
    return *(&fiber - fiber.lane + lane);
}

// PTX ISA: undefined unless all live lanes that a mask names execute the instruction with that
// mask. Reports lanes that executed it with another mask before they ended.
inline void check_masks_agree(const Meeting& meeting, Fiber& fiber) {
    const uint32_t ended = meeting.mask & launched_lanes(fiber) & ~meeting.arrived;
    uint32_t others = 0, mask = 0;
    for (uint32_t lane = 0; lane < 32; ++lane) {
        const Fiber& other = lane_of_warp(fiber, lane);
        if (!(ended >> lane & 1) || other.met_at != fiber.met_at) continue;
        if (other.met_mask == meeting.mask || (mask && other.met_mask != mask)) continue;
        mask = other.met_mask;
        others |= 1u << lane;
    }
    if (!others) return;
    fiber.cluster->report_fault(
        fiber, lanes_of(meeting.arrived) + name_of_warp(fiber) + " execute " + meeting.instruction +
                   " with the mask " + hexadecimal(meeting.mask) + ", and " + lanes_of(others) +
                   ", which it names, with the mask " + hexadecimal(mask) +
                   ": the result is undefined. Pass one mask in all lanes that it names"
    );
}

// --- meetings of lanes ---------------------------------------------------------------------------

inline void hold_if_complete(Cluster& cluster, Warp& warp, Meeting& meeting, Fiber* arriving) {
    if (meeting.arrived == 0 || meeting.arrived != (meeting.mask & warp.live_lanes)) return;
    check_masks_agree(meeting, *meeting.fibers[__builtin_ctz(meeting.arrived)]);
    meeting.act(meeting);
    for (uint32_t lane = 0; lane < 32; ++lane) {
        Fiber* fiber = meeting.fibers[lane];
        if ((meeting.arrived >> lane & 1) && fiber != arriving) cluster.wake(fiber);
    }
    meeting.arrived = 0;
    meeting.instruction = nullptr;
}

inline Meeting& meeting_for(Warp& warp, uint32_t mask) {
    Meeting* free = nullptr;
    for (Meeting& meeting : warp.meetings) {
        if (meeting.arrived && meeting.mask == mask) return meeting;
        if (!meeting.arrived) free = &meeting;
    }
    if (!free) {
        // Lanes that wait hold no reference, so the vector may move.
        warp.meetings.emplace_back();
        free = &warp.meetings.back();
    }
    free->mask = mask;
    return *free;
}

// Waits until every live lane of the mask is here. Then the last one acts for all. The operands
// stay where each lane put them.
inline void meet(const char* instruction, uint32_t mask, void (*act)(Meeting&), void* operands) {
    Fiber& fiber = current_fiber();
    if (!(mask >> fiber.lane & 1)) {
        fiber.cluster->fail(
            fiber, "lane " + decimal(fiber.lane) + name_of_warp(fiber) + " executes " +
                       instruction + " with the mask " + hexadecimal(mask) +
                       ", which does not name it: the result is undefined. Name every lane that "
                       "executes it, and no other"
        );
    }
    Meeting& meeting = meeting_for(*fiber.warp, mask);
    if (meeting.arrived && std::strcmp(meeting.instruction, instruction) != 0) {
        fiber.cluster->fail(
            fiber, "the lanes of one warp are at " + Words(meeting.instruction) + " (" +
                       lanes_of(meeting.arrived) +
                       at_line(fiber.cluster->launch().address_in_library(
                           meeting.fibers[__builtin_ctz(meeting.arrived)]->met_at
                       )) +
                       ") and at " + instruction + " (lane " + decimal(fiber.lane) +
                       "); all lanes of the mask " + hexadecimal(mask) + " execute the same one"
        );
    }
    fiber.met_at = fiber.site;
    fiber.met_mask = mask;
    meeting.instruction = instruction;
    meeting.act = act;
    meeting.arrived |= 1u << fiber.lane;
    meeting.operands[fiber.lane] = operands;
    meeting.fibers[fiber.lane] = &fiber;
    hold_if_complete(*fiber.cluster, *fiber.warp, meeting, &fiber);
    // A complete meeting has no arrivals left, so this lane waits only if it is still counted.
    if (meeting.instruction && (meeting.arrived >> fiber.lane & 1)) {
        fiber.cluster->block(fiber, {Wait::Kind::kWarp, instruction});
    }
}

template <typename Operands>
Operands& operands_of(Meeting& meeting, uint32_t lane) {
    return *static_cast<Operands*>(meeting.operands[lane]);
}

// Orders each lane's accesses before the meeting before all lanes' accesses after it.
inline void join_lanes(Meeting& meeting) {
    View all;
    Detector* detector = nullptr;
    for (uint32_t lane = 0; lane < 32; ++lane) {
        if (!(meeting.arrived >> lane & 1)) continue;
        detector = meeting.fibers[lane]->cluster->detector();
        if (!detector) return;
        detector->release(meeting.fibers[lane]->number, all);
    }
    for (uint32_t lane = 0; lane < 32; ++lane) {
        if (meeting.arrived >> lane & 1) detector->acquire(meeting.fibers[lane]->number, all);
    }
}

// PTX ISA: elect.sync waits for every thread of its mask, and none of them may have ended.
inline void elect_one_lane(Meeting& meeting) {
    const auto lane = static_cast<uint32_t>(__builtin_ctz(meeting.arrived));
    operands_of<bool>(meeting, lane) = true;
    const Fiber& elected = *meeting.fibers[lane];
    const uint32_t ended = launched_lanes(elected) & ~meeting.arrived;
    if (ended == 0) return;
    elected.cluster->report_fault(
        elected, "elect.sync is executed by " + lanes_of(meeting.arrived) + " of warp " +
                     decimal(elected.index / 32) + ", and " + lanes_of(ended) +
                     " have ended; it takes the whole warp. Elect before lanes leave, or choose "
                     "the thread by its index"
    );
}

inline bool elect_lane() {
    bool elected = false;
    meet("elect.sync", kAllLanes, &elect_one_lane, &elected);
    return elected;
}

inline bool waits_for_lanes(const Fiber& fiber, uint32_t lanes) {
    const Wait::Kind kind = fiber.wait.kind;
    if (kind == Wait::Kind::kWarp) return (fiber.met_mask & lanes) != 0;
    return kind == Wait::Kind::kNamedBarrier || kind == Wait::Kind::kCluster;
}

// Reports lanes that wait for others of their warp, which wait for the block, the cluster or them.
inline bool reports_lone_lanes(Cluster& cluster, Fiber& fiber) {
    if (fiber.is_done || fiber.wait.kind != Wait::Kind::kWarp) return false;
    for (const Meeting& meeting : fiber.warp->meetings) {
        const uint32_t lone = meeting.arrived;
        if (!(lone >> fiber.lane & 1)) continue;
        const uint32_t missing = meeting.mask & fiber.warp->live_lanes & ~lone;
        for (uint32_t lane = 0; lane < 32; ++lane) {
            if (!(missing >> lane & 1)) continue;
            const Fiber& other = lane_of_warp(fiber, lane);
            if (!waits_for_lanes(other, lone)) continue;
            const bool is_met = other.wait.kind == Wait::Kind::kWarp;
            cluster.report_fault(
                fiber, lanes_of(lone) + name_of_warp(fiber) + " execute " + meeting.instruction +
                           " with the mask " + hexadecimal(meeting.mask) + ", and " +
                           lanes_of(missing) + ", which it names, do not: lane " + decimal(lane) +
                           " waits in " + other.wait.instruction +
                           at_line(cluster.launch().address_in_library(other.site)) +
                           (is_met ? " with the mask " + hexadecimal(other.met_mask) : "") +
                           ". Let all lanes that the mask names execute it, and pass one mask"
            );
            return true;
        }
    }
    return false;
}

struct Shuffle {
    uint64_t value;
    uint32_t source;
    ShuffleKind kind;
    uint64_t result;
};

// Value read from a lane that does not participate: a NaN, unlikely as an integer.
constexpr uint64_t kNoLane = 0x7fff7fff7fff7fff;

// True if a lane's source must participate: a butterfly uses all lanes' values, a broadcast one.
inline bool needs_source(Meeting& meeting, uint32_t lane) {
    const auto& shuffle = operands_of<Shuffle>(meeting, lane);
    if (shuffle.kind != ShuffleKind::kIndex) return shuffle.kind == ShuffleKind::kXor;
    for (uint32_t other = 0; other < 32; ++other) {
        if (!(meeting.arrived >> other & 1)) continue;
        if (operands_of<Shuffle>(meeting, other).source != shuffle.source) return false;
    }
    return true;
}

inline void check_source(Meeting& meeting, uint32_t lane) {
    const uint32_t source = operands_of<Shuffle>(meeting, lane).source;
    if (!needs_source(meeting, lane)) return;
    const Fiber& fiber = *meeting.fibers[lane];
    const bool is_masked = !(meeting.mask >> source & 1);
    const bool is_launched = launched_lanes(fiber) >> source & 1;
    fiber.cluster->report_fault(
        fiber,
        "shfl.sync: lane " + decimal(lane) + " of warp " + decimal(fiber.index / 32) +
            " reads from lane " + decimal(source) +
            (is_masked     ? ", which is not in the mask " + hexadecimal(meeting.mask)
             : is_launched ? ", which has ended"
                           : ", which the block does not have") +
            ": what it gets is undefined. Let every lane that is read from take part, and name it "
            "in the mask"
    );
}

inline void shuffle_values(Meeting& meeting) {
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

inline uint64_t shuffle_lanes(uint32_t mask, uint64_t value, uint32_t source, ShuffleKind kind) {
    Shuffle mine{value, source, kind, value};
    meet("shfl.sync", mask, &shuffle_values, &mine);
    return mine.result;
}

struct Vote {
    bool value;
    uint32_t ballot;
};

inline uint32_t ballot_lanes(uint32_t mask, bool value) {
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

// --- mma.sync ------------------------------------------------------------------------------------

struct GatheredWords {
    const uint32_t* words;
    int count;
    uint32_t* all;
};

inline void gather_words_of_lanes(Meeting& meeting) {
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

inline uint32_t gather_lanes(
    const char* instruction, uint32_t mask, uint64_t value, uint64_t* values
) {
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

// --- lanes that go on together -------------------------------------------------------------------

// The lanes of the warp that wait for the result of this call of __activemask().
inline uint32_t lanes_at_active_site(Fiber& fiber) {
    uint32_t lanes = 0;
    for (uint32_t lane = 0; lane < 32; ++lane) {
        if (!(fiber.warp->live_lanes >> lane & 1)) continue;
        const Fiber& other = lane_of_warp(fiber, lane);
        if (other.active_site == fiber.active_site && !other.active_lanes) lanes |= 1u << lane;
    }
    return lanes;
}

// True if another lane of the warp can run and has not come here yet. A lane that waits in a later
// call of __activemask() does not come: it waits for this lane, as lanes do after a branch.
inline bool may_be_joined(Fiber& fiber) {
    const uint32_t others = fiber.warp->live_lanes & ~lanes_at_active_site(fiber);
    for (uint32_t lane = 0; lane < 32; ++lane) {
        if (!(others >> lane & 1)) continue;
        const Fiber& other = lane_of_warp(fiber, lane);
        const bool is_later_here = other.active_site <= fiber.active_site;
        if (other.wait.kind == Wait::Kind::kNone && is_later_here) return true;
    }
    return false;
}

// The chip's lanes stay together unless they branch. Here a lane waits for those still to come.
inline uint32_t find_active_lanes(Fiber& fiber) {
    // Turns of the other lanes, which may be in a loop that waits for this lane.
    constexpr int kTurns = 64;
    fiber.active_site = fiber.site;
    for (int turn = 0; turn < kTurns && !fiber.active_lanes && may_be_joined(fiber); ++turn) {
        fiber.cluster->yield(fiber);
    }
    if (!fiber.active_lanes) {
        const uint32_t lanes = lanes_at_active_site(fiber);
        for (uint32_t lane = 0; lane < 32; ++lane) {
            if (lanes >> lane & 1) lane_of_warp(fiber, lane).active_lanes = lanes;
        }
    }
    fiber.active_site = 0;
    return std::exchange(fiber.active_lanes, 0);
}

// --- stmatrix and ldmatrix -----------------------------------------------------------------------

template <bool kStores>
struct LaneMatrices {
    static constexpr const char* kName = kStores ? "stmatrix" : "ldmatrix";
    static constexpr Operation kOperation = kStores ? Operation::kStmatrix : Operation::kLdmatrix;
    static constexpr bool kWrites = kStores;

    uint32_t row;
    int matrices;
    bool is_transposed;
    uint32_t values[4];
    Fiber* fiber;
};
using StoreMatrix = LaneMatrices<true>;
using LoadMatrix = LaneMatrices<false>;

// Calls act(held, half, address) for both elements that a lane holds of every matrix. Lane l gives
// the address of row l % 8 of matrix l / 8.
template <typename Operands, typename Act>
void for_each_element(Meeting& meeting, Act act) {
    for (int matrix = 0; matrix < operands_of<Operands>(meeting, 0).matrices; ++matrix) {
        for (uint32_t lane = 0; lane < 32; ++lane) {
            auto& held = operands_of<Operands>(meeting, lane);
            for (uint32_t half = 0; half < 2; ++half) {
                uint32_t row = lane / 4, column = lane % 4 * 2 + half;
                if (held.is_transposed) std::swap(row, column);
                const auto owner = static_cast<uint32_t>(matrix) * 8 + row;
                const auto& target = operands_of<Operands>(meeting, owner);
                act(held.values[matrix], half, target.fiber->cta->window + target.row + column * 2);
            }
        }
    }
}

inline void store_matrices(Meeting& meeting) {
    for_each_element<StoreMatrix>(meeting, [](uint32_t held, uint32_t half, uint8_t* where) {
        const auto value = static_cast<uint16_t>(held >> 16 * half);
        std::memcpy(where, &value, sizeof(value));
    });
}

inline void load_matrices(Meeting& meeting) {
    for_each_element<LoadMatrix>(meeting, [](uint32_t& held, uint32_t half, const uint8_t* where) {
        uint16_t value;
        std::memcpy(&value, where, sizeof(value));
        held = half ? (held & 0xffff) | uint32_t{value} << 16 : value;
    });
}

// Checks the lane and the row that it names, then executes the instruction with the whole warp.
template <typename Operands>
void meet_for_matrices(Operands& mine, void (*act)(Meeting&)) {
    Fiber& fiber = current_fiber();
    const Words name = Operands::kName;
    mine.fiber = &fiber;
    if (fiber.warp->live_lanes != kAllLanes) {
        fiber.cluster->fail(
            fiber, name + " in a warp some lanes of which have ended or never were"
        );
    }
    if (fiber.lane < static_cast<uint32_t>(mine.matrices) * 8) {
        check_inside_shared(fiber, mine.row, 16, Operands::kName);
        if (mine.row % 16) {
            fiber.cluster->fail(
                fiber, name + " is given the shared address " + decimal(mine.row) +
                           "; it must be a multiple of 16"
            );
        }
        if (fiber.cluster->detector()) {
            const uint32_t rank = fiber.cta->rank;
            Operands::kWrites ? check_no_barrier(fiber, rank, mine.row, 16)
                              : check_is_written(fiber, rank, mine.row, 16);
            touch_shared(
                fiber, Operands::kOperation, fiber.cta->rank, mine.row, 16, Operands::kWrites
            );
        }
    }
    meet(Operands::kName, kAllLanes, act, &mine);
}

inline void store_matrices_of_lane(StoreMatrix& mine) {
    meet_for_matrices(mine, &store_matrices);
}

inline void load_matrices_of_lane(LoadMatrix& mine) {
    meet_for_matrices(mine, &load_matrices);
}

// --- barriers of the CTA -------------------------------------------------------------------------

// Completes the barrier if all threads have arrived; in one of the whole CTA, all live threads.
inline void release_if_complete(Cluster& cluster, Cta& cta, uint32_t number) {
    NamedBarrier& barrier = cta.named[number];
    const uint32_t needed = barrier.threads ? barrier.threads : cta.live;
    if (barrier.arrived == 0 || barrier.arrived < needed) return;
    barrier.arrived = 0;
    barrier.lines = {};
    if (Detector* detector = cluster.detector()) {
        for (const Fiber* waiter : barrier.waiters) {
            detector->acquire(waiter->number, barrier.gathered);
        }
        barrier.gathered = {};
    }
    cluster.wake_all(barrier.waiters);
}

// __syncthreads() is bar.sync, which all threads of a warp execute together.
inline void check_warp_is_together(Fiber& fiber, NamedBarrier& barrier, uint32_t line) {
    const uint32_t warp = fiber.index / 32;
    uint32_t& first = barrier.lines[warp];
    if (first == 0) first = line;
    if (first == line) return;
    fiber.cluster->fail(
        fiber, "threads of warp " + decimal(warp) + " wait at the __syncthreads() of line " +
                   decimal(line) + " and others at the one of line " + decimal(first) +
                   ". All threads of a warp must reach the same one: move it out of the branch"
    );
}

// `threads` 0 means all of the CTA. `line` 0 means that the line of the call is unknown.
inline void arrive_at_named(
    Fiber& fiber, uint32_t number, uint32_t threads, bool waits, uint32_t line = 0
) {
    Cluster& cluster = *fiber.cluster;
    cluster.maybe_yield(fiber);
    if (number >= fiber.cta->named.size() || threads % 32) {
        cluster.fail(
            fiber, "barrier " + decimal(number) + " of " + decimal(threads) +
                       " threads; barriers are 0 to 15 and take whole warps"
        );
    }
    NamedBarrier& barrier = fiber.cta->named[number];
    const auto whole = static_cast<uint32_t>(fiber.cta->warps.size() * 32);
    const auto count_of = [&](uint32_t given) { return given ? given : whole; };
    if (barrier.arrived && count_of(barrier.threads) != count_of(threads)) {
        cluster.fail(
            fiber, "barrier " + decimal(number) + " is used for " + decimal(count_of(threads)) +
                       " and for " + decimal(count_of(barrier.threads)) + " threads at once"
        );
    }
    // A call with the block's size and another with 0 mean the same.
    if (!barrier.arrived || barrier.threads) barrier.threads = threads;
    if (line) check_warp_is_together(fiber, barrier, line);
    const bool is_noted = cluster.stands_for_warp(fiber);
    if (is_noted) cluster.record(fiber, {.barrier = number, .kind = EventKind::kNamedArrive});
    ++barrier.arrived;
    if (Detector* detector = cluster.detector()) {
        detector->release(fiber.number, barrier.gathered);
        // The last thread does not wait, so it acquires here.
        if (waits) detector->acquire(fiber.number, barrier.gathered);
    }
    if (waits) barrier.waiters.push_back(&fiber);
    const uint32_t needed = barrier.threads ? barrier.threads : fiber.cta->live;
    if (barrier.arrived >= needed) {
        if (waits) barrier.waiters.pop_back();
        release_if_complete(cluster, *fiber.cta, number);
    } else if (waits) {
        cluster.block(fiber, {Wait::Kind::kNamedBarrier, "barrier.cta.sync", fiber.cta, number});
    }
    if (waits && is_noted) {
        cluster.record(fiber, {.barrier = number, .kind = EventKind::kNamedWaitEnd});
    }
}

// __syncthreads_count. A CTA's votes use three counters in rotation. A thread that has completed
// one vote clears the counter of the vote after the next, which no thread can have begun.
inline uint32_t count_at_barrier(Fiber& fiber, bool value, uint32_t line) {
    auto& votes = fiber.cta->votes;
    const uint32_t place = fiber.votes++ % votes.size();
    votes[place] += value;
    arrive_at_named(fiber, 0, 0, true, line);
    votes[(place + 2) % votes.size()] = 0;
    return votes[place];
}

}  // namespace tmaasync_emulate
