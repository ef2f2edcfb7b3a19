// The faults of a kernel, and the facts about one. Python writes the sentences
// (emulate/report/sentences.py, in this order); tests/emulate/test_abi.py compares both sides.
#pragma once

#include <cstdint>

namespace tmaasync_emulate {

enum class FaultKind : uint32_t {
    // parts of sentences
    kNone,
    kThread,
    kThreadOfRole,
    kOfCta,
    kTo,
    kReads,
    kWrites,
    kMbarrier,
    kTensorMap,
    kMmaOperand,
    kPushSource,
    kCopy,
    kBulkLoad,
    kBulkStore,
    kBulkReduction,
    kBulkPrefetch,
    kPush,
    // mbarriers and other barriers
    kMbarrierPlace,
    kMbarrierCount,
    kMbarrierUninitialised,
    kMbarrierInvalidated,
    kMbarrierOverwritten,
    kMbarrierInitAgain,
    kWhileInUse,
    kWithoutInval,
    kMbarrierIsAwaited,
    kOldStateToken,
    kParity,
    kMissedPhase,
    kCountsTooFew,
    kArrivalCompletes,
    kNoArrivals,
    kTooManyBytes,
    kTooManyArrivals,
    kOneArrival,
    kArrivals,
    kNoMore,
    kArrivedFirst,
    kUntilLanded,
    kUntilExpected,
    kWarpApartAtBarrier,
    kNamedBarrierShape,
    kNamedBarrierThreads,
    kClusterArrivalTwice,
    kGridIsNotCooperative,
    kAheadOfPreviousGrids,
    // warps
    kShuffleSource,
    kIsMasked,
    kHasEnded,
    kWasNotLaunched,
    kMatrixOfPart,
    kMatrixRow,
    kMasksDiffer,
    kMaskOfOthers,
    kLanesApart,
    kElectOfPart,
    kLanesMissing,
    kWithMask,
    // memory and crashes
    kNoSuchCta,
    kCtaHasEnded,
    kReachesBeyondShared,
    kBeyondShared,
    kBeyondArrays,
    kOtherArray,
    kMisaligned,
    kStackOverflow,
    kChangedReadOnlyLoad,
    kFreeOfNoBlock,
    kWriteOverMbarrier,
    kUnwrittenRead,
    kUnwrittenSource,
    kUnwrittenOperand,
    kInitialise,
    kInitialiseOperand,
    kWriteSource,
    kInFlight,
    kWaitForPhase,
    kPeerWaits,
    kGaveUp,
    kPassedAtFirst,
    kLastWaitedFor,
    kEndedEarly,
    kLoadPassedAtFirst,
    kStaleStage,
    kRepeatedWait,
    kNeverReleased,
    kReleasedFirst,
    kNotReleased,
    kNobodyReleased,
    kTooFewCounted,
    kWarpsOfCta,
    kWaitForArrival,
    kCommitAndWait,
    kWaitForGroup,
    kDivision,
    kUnreachable,
    kAborted,
    kBelowStack,
    kNoMemory,
    kCppException,
    // copies
    kOfLoad,
    kOfStore,
    kLoadCreditsOtherCta,
    kLoadCreditsOtherPair,
    kMulticastMask,
    kPushOfOtherCta,
    kSwizzledTilePlace,
    kCopyOverMbarrier,
    kUnreadStores,
    kAwaitStores,
    kCommitStores,
    kThreadCopySize,
    kThreadCopyPlace,
    kThreadCopyOutside,
    kUnawaitedThreadCopies,
    kTooManyThreadCopies,
    // tensor maps
    kMapRank,
    kMapOfOtherChip,
    kRowsMap,
    kMapEditPlace,
    kMapInShared,
    kMapInLocal,
    kMapFieldRange,
    kMapFieldGranule,
    kMapPlace,
    kNoMap,
    kItsRank,
    kItsInterleave,
    kItsType,
    kItsBits,
    kItsPattern,
    kMapAddress,
    kMapBox,
    // the TMA engine
    kMapKind,
    kTiled,
    kIm2col,
    kIm2colW,
    kIm2colW128,
    kSharedAlignment,
    kInnerCoordinate,
    kNegativeCoordinate,
    kCopyOutside,
    kLoadOutside,
    kNoReduction,
    kIm2colOffset,
    kIm2colInterleave,
    kWideOffset,
    kHalo,
    kWidthOffset,
    kLoadOnlyType,
    kBulkAddress,
    kBulkOutside,
    kBulkSize,
    // wgmma, setmaxnreg and signals
    kMmaOperandsDiffer,
    kUnsetAccumulators,
    kMmaOfPartialWarpgroup,
    kMmaWithoutFence,
    kWarpsWaitForOtherGroups,
    kOperandSwizzle,
    kSwizzle,
    kNoSwizzle,
    kOperandPattern,
    kUnawaitedMmas,
    kUncommittedMmas,
    kPartialWarpgroup,
    kMmaCallsDiffer,
    kRegistersOfPart,
    kRegistersDiffer,
    kRegisterDirection,
    kRegisterShortage,
    kClaim,
    kRelease,
    kLaunchedWith,
    kHold,
    kAreFree,
    kNothingReleased,
    kClaimLess,
    kEpochNotIncreased,
    kPostedDifferently,
    // the end of a CTA
    kEndsInPush,
    kEndsInThreadCopies,
    kEndsInFlight,
    kEndsAfterEarlyPhase,
    kEndsWithBytes,
    kStillExpects,
    kHasMore,
    kUnawaitedLoad,
    kEndsBeforePeer,
    kPeerCopied,
    kPeerReached,
    // device headers
    kCalled,
    kCalledExit,
    kAssertion,
    kLocalArray,
    kArgument,
    kMapaRank,
    kPointerOutsideShared,
    kSharedOfOtherCta,
    kStBulkSize,
    kAlignment,
    kGenericAddress,
    kGenericOutsideShared,
    kRegisterCount,
    kPartialReduction,
    kScatteredAccumulators,
    kOperandText,
    kWmmaPitch,
    kTileSize,
    kTileParent,
    kBinaryPartition,
    kMemcpySize,
    kPipelineSize,
};

// The kinds of facts.
enum class MentionKind : uint32_t {
    kNumeral,        // a signed number
    kUnsigned,       // an unsigned number of 64 bits
    kHexadecimal,    // "0x7f0010 (total[12])": a mask, or an address in global memory
    kText,           // a name of the kernel or of PTX: the offset of a text
    kPhrase,         // a FaultKind, with the facts that follow
    kList,           // the count of facts that follow, with commas between them
    kBarrier,        // the mbarrier at a shared offset
    kSharedOffset,   // "shared offset 512 (tiles[1])"
    kSharedBytes,    // "shared bytes 512 (tiles[1])"
    kSharedName,     // the variable at a shared offset alone: "tiles[1]"
    kFullBarrier,    // ": ring.full[1] ends the loads into the stage", for an offset in a stage
    kLine,           // " at kernel.cu:38", for an address in the kernel's library
    kSizeConstant,   // the constant that states the size of the dynamic shared memory
    kAccess,         // "a write" for 1, "a read" for 0
    kOperation,      // "TMA load": an Operation
    kLanes,          // "lane 4", "lanes 16 to 31" or "lanes 0, 2": a mask
    kWarps,          // "warp 4" or "warps 4, 5, 6": a mask
    kWrittenBefore,  // " as scaled[3] of scale", of the launch before: an address
    kOutsideArray    // "scale[4], right after the end of scale": the array's number, and an address
};
// The address of an array takes these bits of a fact, and the number lies above.
constexpr uint32_t kAddressBits = 48;

struct Mention {
    uint64_t value;
    MentionKind kind;
};

}  // namespace tmaasync_emulate
