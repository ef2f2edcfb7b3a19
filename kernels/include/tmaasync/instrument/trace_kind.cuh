#pragma once

#include <tmaasync/operands/integers.cuh>

namespace tmaasync::instrument {

// The kinds of events in a trace, in the order of RecordKind in tmaasync/trace/chip/layout.py.
enum class TraceKind : u32 {
    kInit = 1,
    kExpect,
    kArrive,
    kWait,
    kLoad,
    kStore,
    kStoreCommit,
    kStoreWaitRead,
    kStoreWait,
    kMmaCommit,
    kMmaWait,
    kNamedArrive,
    kNamedWait,
    kClusterArrive,
    kClusterWait,
    kSignalWaitBegin,
    kSignalWait,
    kSignalGivenUp,
    kSignalPost,
    kSignalAdd,
};

}  // namespace tmaasync::instrument
