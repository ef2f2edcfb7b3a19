#include "memory/addresses.hpp"

namespace tmaasync_emulate {

void note_remote(std::vector<Access>& noted, const Access& remote) {
    for (Access& access : noted) {
        if (access.agent != remote.agent) continue;
        access.epoch = std::max(access.epoch, remote.epoch);
        access.site = remote.site;
        return;
    }
    noted.push_back(remote);
}

Access remote_access(const Fiber& fiber) {
    const bool is_async = fiber.races.async_store != kNoAgent;
    return {
        .agent = is_async ? fiber.races.async_store : fiber.number,
        .epoch = is_async ? fiber.races.async_store_epoch
                          : fiber.cluster->detector->epoch_of(fiber.number),
        .thread = fiber.number,
        .site = fiber.site
    };
}

Place locate(Fiber& fiber, uint32_t address) {
    const uint32_t rank = address >> kRankShift;
    auto& ctas = fiber.cluster->ctas;
    if (is_no_shared_address(address)) fail(fiber, FaultKind::kPointerOutsideShared);
    if (rank >= ctas.size()) {
        fail(fiber, {FaultKind::kNoSuchCta, rank, ctas.size()});
    }
    Cta& cta = ctas[rank];
    if (cta.live == 0) {
        break_rule(fiber, {FaultKind::kCtaHasEnded, cta.rank});
    }
    return {&cta, address & kOffsetMask};
}

uint32_t own_offset(Fiber& fiber, uint32_t address) {
    const uint32_t rank = address >> kRankShift;
    if (is_no_shared_address(address)) fail(fiber, FaultKind::kPointerOutsideShared);
    if (rank && rank != fiber.cta->rank) fail(fiber, {FaultKind::kSharedOfOtherCta, rank});
    return address & kOffsetMask;
}

Place resolve(Fiber& fiber, uint32_t address) {
    const Place place = locate(fiber, address);
    if (place.cta != fiber.cta && fiber.cluster->detector) {
        note_remote(place.cta->races.remote, remote_access(fiber));
    }
    return place;
}

}  // namespace tmaasync_emulate
