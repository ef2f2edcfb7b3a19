#include "copies/cluster_requests.hpp"

#include "copies/loads.hpp"
#include "copies/observer.hpp"
#include "memory/addresses.hpp"
#include "policy/start_order.hpp"
#include "schedule/scheduler.hpp"
#include "state/names.hpp"
#include "tma/rows.hpp"
#include "verify/sync_order.hpp"

namespace tmaasync_emulate {

static constexpr uint32_t kHasCluster = 1;
// The words of a failure that no one may read.
static constexpr uint32_t kUndefined = 0xa5a5a5a5;

// PTX ISA: another request after a failure that was observed is undefined.
static void check_no_failure_is_known(Fiber& fiber) {
    Detector* const detector = fiber.cluster->detector.get();
    for (const FailedRequest& failed : fiber.cluster->failed_requests) {
        const bool is_known = detector ? detector->knows(fiber.number, failed.thread, failed.epoch)
                                       : failed.thread == fiber.number;
        if (!is_known) continue;
        const Fiber& observer = fiber.cluster->fibers[failed.thread];
        fail(fiber, {FaultKind::kRequestAfterFailure, name_of({&observer, failed.site}, fiber)});
    }
}

// The response to a request. The chip may refuse at any time.
static std::array<uint32_t, 4> answered(Fiber& fiber) {
    Launch& launch = fiber.cluster->launch;
    uint64_t index = 0;
    const bool is_refused =
        launch.order ? launch.order->refuses(fiber) : fiber.cluster->choices.refuses_cluster();
    if (is_refused || !launch.unstarted->cancel(index)) {
        return {kUndefined, kUndefined, 0, 0};
    }
    if (launch.order) launch.order->note_grant(fiber);
    const uint3 first = launch.block_of(index, 0);
    return {first.x, first.y | first.z << 16, kHasCluster, 0};
}

void request_cluster(Fiber& fiber, uint32_t response, uint32_t barrier, bool is_for_all) {
    pause(fiber, true);
    const uint32_t offset = own_offset(fiber, response), counts = own_offset(fiber, barrier);
    or_fail(fiber, [&] { detail::check_shared_alignment(offset, kUnitBytes); });
    check_no_failure_is_known(fiber);
    Flight flight{.kind = Flight::Kind::kResponse};
    flight.bytes = kUnitBytes;
    flight.response = answered(fiber);
    const auto ctas = static_cast<uint32_t>(fiber.cluster->ctas.size());
    const uint32_t own = 1u << fiber.cta->rank, all = (1u << ctas) - 1;
    issue_multicast(fiber, flight, offset, {counts}, is_for_all ? all : own);
}

bool has_cluster(Fiber& fiber, const uint32_t* response) {
    if (response[2] & kHasCluster) return true;
    Detector* const detector = fiber.cluster->detector.get();
    const Epoch epoch = detector ? detector->mark(fiber.number) : 0;
    fiber.cluster->failed_requests.push_back({fiber.number, epoch, fiber.site});
    return false;
}

uint3 first_cta_of(Fiber& fiber, const uint32_t* response) {
    if (!(response[2] & kHasCluster)) break_rule(fiber, {FaultKind::kCtaidOfFailure});
    return {response[0], response[1] & 0xffff, response[1] >> 16};
}

}  // namespace tmaasync_emulate
