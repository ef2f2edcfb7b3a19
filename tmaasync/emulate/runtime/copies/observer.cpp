#include "copies/observer.hpp"

#include "state/names.hpp"

namespace tmaasync_emulate {

Reason reason_of_unwritten(
    const Fiber& issuer, const UnwrittenSource& source, Operation operation
) {
    return {
        FaultKind::kUnwrittenSource, name_of(operation), source.bytes, shared_at(source.offset),
        remedy_for_unwritten(
            issuer, *issuer.cta, source.offset, source.bytes, FaultKind::kWriteSource
        )
    };
}

}  // namespace tmaasync_emulate
