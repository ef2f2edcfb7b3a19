#include "state/names.hpp"

#include "state/cluster.hpp"

namespace tmaasync_emulate {

Words of_cta(const Fiber& fiber, const Cta& cta) {
    if (fiber.cta == &cta) return "";
    return " of CTA " + decimal(cta.rank) + " of the cluster";
}

Words name_of_issuer(const Fiber& issuer, uintptr_t site) {
    const Words role = issuer.warp->role, thread = "thread " + decimal(issuer.index);
    return (role.is_empty() ? thread : role + " (" + thread + ")") +
           at_line(issuer.cluster->launch.memory.address_in_library(site));
}

Words name_of_issuer(const Fiber& issuer, uintptr_t site, const Fiber& other) {
    return name_of_issuer(issuer, site) + of_cta(other, *issuer.cta);
}

Words name_of(const Deed& deed) {
    return name_of_issuer(*deed.fiber, deed.site);
}

Words name_of(const Flight& flight) {
    if (flight.kind != Flight::Kind::kPush) return "a TMA load";
    return flight.reduction ? "a TMA reduction between CTAs" : "a TMA copy between CTAs";
}

uint32_t warp_number(const Fiber& fiber) {
    return fiber.rank * static_cast<uint32_t>(fiber.cta->warps.size()) + fiber.index / 32;
}

}  // namespace tmaasync_emulate
