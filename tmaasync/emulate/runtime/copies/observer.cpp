#include "copies/observer.hpp"

namespace tmaasync_emulate {

Fault fault_of_unwritten(
    const Fiber& issuer, const UnwrittenSource& source, const Words& what, uintptr_t site
) {
    Fault fault(
        what + " takes " + decimal(source.bytes) + " bytes at " + shared_at(source.offset) +
        ", which nothing has written. " +
        remedy_for_unwritten(
            issuer, *issuer.cta, source.offset, source.bytes,
            "Write the whole tile, by threads that each call fence_async_view_proxy() after it and "
            "then meet the one that issues the copy: __syncthreads()"
        )
    );
    fault.site = site;
    return fault;
}

}  // namespace tmaasync_emulate
