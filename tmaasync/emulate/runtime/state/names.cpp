#include "state/names.hpp"

#include "state/cluster.hpp"

namespace tmaasync_emulate {

Reason of_cta(const Fiber& fiber, const Cta& cta) {
    return fiber.cta == &cta ? Reason() : Reason(FaultKind::kOfCta, cta.rank);
}

Mention line_of(const Fiber& fiber, uintptr_t site) {
    return at_line(fiber.cluster->launch.memory.address_in_library(site));
}

Reason name_of(const Issuer& issuer, const Fiber& other) {
    const Fiber& fiber = *issuer.fiber;
    const Mention line = line_of(fiber, issuer.site);
    const Reason cta = of_cta(other, *fiber.cta);
    const char* const role = fiber.warp->role;
    return *role ? Reason(FaultKind::kThreadOfRole, role, fiber.index, line, cta)
                 : Reason(FaultKind::kThread, fiber.index, line, cta);
}

Reason name_of(const Issuer& issuer) {
    return name_of(issuer, *issuer.fiber);
}

Operation operation_of(const Flight& flight) {
    if (flight.kind == Flight::Kind::kResponse) return Operation::kClusterResponse;
    if (flight.kind != Flight::Kind::kPush) return Operation::kTmaLoad;
    return flight.reduction ? Operation::kTmaPushReduce : Operation::kTmaPush;
}

uint32_t warp_number(const Fiber& fiber) {
    return fiber.rank * static_cast<uint32_t>(fiber.cta->warps.size()) + fiber.index / 32;
}

}  // namespace tmaasync_emulate
