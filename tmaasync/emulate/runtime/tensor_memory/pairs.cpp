#include "tensor_memory/pairs.hpp"

#include "state/names.hpp"

namespace tmaasync_emulate {

// True if a barrier has shown that the other CTA runs: some access of it happens before.
static bool is_known_to_run(const Fiber& fiber, const Cta& peer) {
    const uint32_t threads = fiber.cluster->launch.threads();
    for (uint32_t thread = peer.rank * threads; thread < (peer.rank + 1) * threads; ++thread) {
        if (fiber.cluster->detector->knows(fiber.number, thread, 1)) return true;
    }
    return false;
}

static void check_pair(Fiber& fiber, const char* instruction) {
    const Cta& peer = peer_of(*fiber.cluster, *fiber.cta);
    if (peer.live == 0) fail(fiber, {FaultKind::kTcgen05PairEnded, instruction, peer.rank});
    if (!fiber.cluster->detector || is_known_to_run(fiber, peer)) return;
    break_rule(fiber, {FaultKind::kTcgen05PairUnknown, instruction, peer.rank});
}

void check_group(Fiber& fiber, const char* instruction, uint32_t group) {
    TensorUnit& unit = fiber.cta->tensor;
    if (unit.group == 0) {
        unit.group = group;
        unit.group_site = fiber.site;
    }
    if (unit.group != group) {
        fail(
            fiber, {FaultKind::kTcgen05MixedGroups, instruction, group, unit.group,
                    line_of(fiber, unit.group_site)}
        );
    }
    const std::size_t ctas = fiber.cluster->ctas.size();
    if (group == 2 && ctas % 2) fail(fiber, {FaultKind::kTcgen05NoPair, instruction, ctas});
}

void check_running_group(Fiber& fiber, const char* instruction, uint32_t group) {
    check_group(fiber, instruction, group);
    if (group == 2) check_pair(fiber, instruction);
}

}  // namespace tmaasync_emulate
