// The rules that a launch may relax, and its notes on the rules that it broke.
#pragma once

#include <cstdint>

#include "abi.hpp"

namespace tmaasync_emulate {

// The rule that a fault breaks; kNone for a rule that no launch may relax.
constexpr Rule rule_of(FaultKind kind) {
    switch (kind) {
        case FaultKind::kUnawaitedThreadCopies:
        case FaultKind::kEndsInThreadCopies:
            return Rule::kCpAsyncAtExit;
        case FaultKind::kUnreadStores:
            return Rule::kStoreAtExit;
        case FaultKind::kEndsInFlight:
        case FaultKind::kUnawaitedLoad:
            return Rule::kLoadAtExit;
        case FaultKind::kEndsWithBytes:
            return Rule::kBytesAtExit;
        case FaultKind::kUnawaitedMmas:
        case FaultKind::kUncommittedMmas:
            return Rule::kWgmmaAtExit;
        case FaultKind::kEndsBeforePeer:
        case FaultKind::kEndsInPush:
        case FaultKind::kCtaHasEnded:
            return Rule::kExitBeforePeer;
        case FaultKind::kChangedReadOnlyLoad:
            return Rule::kReadOnlyLoad;
        case FaultKind::kUnwrittenRead:
        case FaultKind::kUnwrittenSource:
        case FaultKind::kUnwrittenOperand:
            return Rule::kUnwrittenShared;
        case FaultKind::kReadOverMbarrier:
        case FaultKind::kSourceOverMbarrier:
            return Rule::kMbarrierRead;
        case FaultKind::kParity:
            return Rule::kWaitParity;
        case FaultKind::kUnsetAccumulators:
            return Rule::kUnwrittenAccumulators;
        case FaultKind::kOperandSwizzle:
            return Rule::kWgmmaSwizzle;
        case FaultKind::kAheadOfPreviousGrids:
            return Rule::kPdlWait;
        case FaultKind::kWarpApartAtBarrier:
            return Rule::kSyncthreadsApart;
        case FaultKind::kElectOfPart:
            return Rule::kElectOfPart;
        case FaultKind::kShuffleSource:
            return Rule::kShuffleSource;
        case FaultKind::kOtherArray:
            return Rule::kOtherArray;
        case FaultKind::kTcgen05ByLanes:
            return Rule::kTcgen05ByLanes;
        case FaultKind::kTcgen05InFlight:
            return Rule::kTcgen05AtExit;
        case FaultKind::kTensorLaneOwner:
            return Rule::kTensorMemoryLanes;
        case FaultKind::kUnwrittenTensor:
            return Rule::kUnwrittenTensorMemory;
        case FaultKind::kTcgen05PairUnknown:
            return Rule::kTcgen05PairStart;
        case FaultKind::kCtaidOfFailure:
            return Rule::kCtaidOfFailure;
        default:
            return Rule::kNone;
    }
}

struct Rules {
    uint64_t tolerated = 0;  // one bit for each rule
    RuleNotes* notes = nullptr;
    Array library{};

    bool tolerates(Rule rule) const { return tolerated >> static_cast<int>(rule) & 1; }

    // Counts a violation, and keeps the place of the first. Clusters may run on several cores.
    void note(Rule rule, uintptr_t site) const {
        const auto number = static_cast<std::size_t>(rule);
        __atomic_fetch_or(&notes->broken, uint64_t{1} << number, __ATOMIC_RELAXED);
        RuleNote& note = notes->note[number];
        if (__atomic_fetch_add(&note.count, 1, __ATOMIC_RELAXED)) return;
        note.address = library.holds(site, 1) ? site - 1 - library.start : 0;
    }

    void note_used_map() const { __atomic_fetch_or(&notes->broken, 1, __ATOMIC_RELAXED); }

    // True for a violation of a rule that the launch relaxes, which is noted.
    bool pardons(Rule rule, uintptr_t site) const {
        if (!tolerates(rule)) return false;
        note(rule, site);
        return true;
    }
};

}  // namespace tmaasync_emulate
