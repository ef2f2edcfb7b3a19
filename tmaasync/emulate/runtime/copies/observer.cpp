#include "copies/observer.hpp"

#include "state/names.hpp"

namespace tmaasync_emulate {

Reason reason_of_source(const Fiber& issuer, const WrongSource& source, Operation operation) {
    if (source.is_barrier) {
        return {
            FaultKind::kSourceOverMbarrier, name_of(operation), source.bytes,
            shared_at(source.offset), barrier_at(source.offset)
        };
    }
    return {
        FaultKind::kUnwrittenSource, name_of(operation), source.bytes, shared_at(source.offset),
        remedy_for_unwritten(
            issuer, *issuer.cta, source.offset, source.bytes, FaultKind::kWriteSource
        )
    };
}

}  // namespace tmaasync_emulate
