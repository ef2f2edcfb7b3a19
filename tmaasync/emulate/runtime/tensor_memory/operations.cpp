#include "tensor_memory/operations.hpp"

#include "barriers/init_order.hpp"
#include "barriers/mbarrier.hpp"
#include "schedule/events.hpp"
#include "state/names.hpp"
#include "tensor_memory/multiplication.hpp"
#include "tensor_memory/pairs.hpp"
#include "tensor_memory/tensor_copies.hpp"
#include "verify/sync_order.hpp"

namespace tmaasync_emulate {

// PTX ISA: one thread issues these. If several lanes of a warp come, each of them issues it once.
static void note_issuer(Fiber& fiber, const char* instruction) {
    const uint32_t warp = fiber.index / 32;
    auto& issuers = fiber.cta->tensor.issuers;
    for (const IssuingLane& one : issuers) {
        if (one.site != fiber.site || one.warp != warp) continue;
        if (one.lane == fiber.lane) return;
        return break_rule(
            fiber, {FaultKind::kTcgen05ByLanes, instruction, one.lane, fiber.lane, warp}
        );
    }
    issuers.push_back({fiber.site, warp, fiber.lane});
}

static TensorOperation operation_of(
    Fiber& fiber, TensorOperation::Kind kind, const char* instruction, uint32_t group
) {
    check_running_group(fiber, instruction, group);
    note_issuer(fiber, instruction);
    TensorOperation operation{.kind = kind};
    operation.group = group;
    operation.issuer = &fiber;
    operation.site = fiber.site;
    return operation;
}

// The even CTA of a pair executes the operations of both.
static void enqueue(Fiber& fiber, TensorOperation operation) {
    Cluster& cluster = *fiber.cluster;
    Cta& owner = operation.group == 2 ? cluster.ctas[fiber.cta->rank & ~1u] : *fiber.cta;
    if (operation.group == 2 && cluster.detector &&
        operation.kind != TensorOperation::Kind::kCommit) {
        Cta& peer = peer_of(cluster, *fiber.cta);
        note_remote(peer.races.remote, cluster.tensor_races->last_of(fiber.number, fiber.site));
    }
    owner.tensor.queue.push_back(std::move(operation));
    Flight flight{.kind = Flight::Kind::kTensor};
    flight.target = flight.credited = &owner;
    flight.issuer = &fiber;
    flight.site = fiber.site;
    cluster.flights.push_back(std::move(flight));
    let_land(fiber);
}

static void add_barrier(Fiber& fiber, TensorOperation& operation, uint32_t address) {
    const Place place = locate(fiber, address);
    Mbarrier& barrier = require_barrier(fiber, place);
    if (fiber.cluster->detector) {
        check_init_is_seen(fiber, *place.cta, barrier);
        if (place.cta != fiber.cta) {
            note_remote(
                place.cta->races.remote,
                fiber.cluster->tensor_races->last_of(fiber.number, fiber.site)
            );
        }
    }
    operation.barriers.push_back({place.cta->rank, place.offset});
}

void issue_tensor_commit(Fiber& fiber, uint32_t group, uint32_t barrier, uint32_t cta_mask) {
    constexpr const char* kName = "tcgen05.commit";
    TensorOperation operation = operation_of(fiber, TensorOperation::Kind::kCommit, kName, group);
    const auto ctas = static_cast<uint32_t>(fiber.cluster->ctas.size());
    if (cta_mask >> ctas) fail(fiber, {FaultKind::kMulticastMask, hexadecimal(cta_mask), ctas});
    if (cta_mask == 0) add_barrier(fiber, operation, barrier);
    for (uint32_t rank = 0; rank < ctas; ++rank) {
        if (!(cta_mask >> rank & 1)) continue;
        add_barrier(fiber, operation, (barrier & kOffsetMask) | rank << kRankShift);
    }
    if (TensorRaces* races = fiber.cluster->tensor_races.get()) {
        operation.published = std::make_shared<const View>(races->commit(fiber.number));
    }
    if (SyncOrder* order = fiber.cluster->launch.order) operation.synced = order->issue(fiber);
    enqueue(fiber, std::move(operation));
}

static void note_issue(Fiber& fiber, TensorOperation& operation, TensorKind kind, Operation name) {
    TensorRaces* const races = fiber.cluster->tensor_races.get();
    if (races) operation.tensor = races->issue(fiber.number, fiber.site, kind, name);
}

void issue_tensor_mma(Fiber& fiber, const Tcgen05Mma& mma) {
    TensorOperation operation =
        operation_of(fiber, TensorOperation::Kind::kMma, "tcgen05.mma", mma.group);
    check_multiplication(fiber, mma);
    operation.mma = mma;
    operation.sequence = new_sequence(*fiber.cluster);
    record(fiber, {.shared = mma.d, .kind = EventKind::kMmaIssued, .sequence = operation.sequence});
    note_issue(fiber, operation, TensorKind::kMma, Operation::kTcgen05Mma);
    operation.tensor.accumulators = accumulators_of(mma);
    enqueue(fiber, std::move(operation));
}

void issue_tensor_copy(Fiber& fiber, const Tcgen05Copy& copy) {
    TensorOperation operation =
        operation_of(fiber, TensorOperation::Kind::kCopy, "tcgen05.cp", copy.group);
    check_tensor_copy(fiber, copy);
    operation.copy = copy;
    const bool is_row = copy.shape == Tcgen05CopyShape::k4x256b;
    const TensorKind kind = is_row ? TensorKind::kCopyOfRow : TensorKind::kCopy;
    note_issue(fiber, operation, kind, Operation::kTcgen05Copy);
    enqueue(fiber, std::move(operation));
}

void issue_tensor_shift(Fiber& fiber, uint32_t group, uint32_t address) {
    TensorOperation operation =
        operation_of(fiber, TensorOperation::Kind::kShift, "tcgen05.shift", group);
    check_tensor_shift(fiber, address);
    operation.address = address;
    note_issue(fiber, operation, TensorKind::kShift, Operation::kTcgen05Shift);
    enqueue(fiber, std::move(operation));
}

static Reason arrive_on(Cluster& cluster, const TensorOperation& operation, TensorBarrier target) {
    Cta& cta = cluster.ctas[target.rank];
    Reason reason;
    Mbarrier* const barrier = find_barrier(cta, target.offset, reason);
    if (!barrier) return reason;
    if (barrier->pending == 0) return too_many_arrivals(*barrier, 1);
    if (operation.published) barrier->races.gathered.join(*operation.published);
    if (SyncOrder* order = cluster.launch.order) {
        order->arrive(key_of(cluster, cta, barrier->offset), *operation.synced);
    }
    barrier->pending -= 1;
    note_arrival(*operation.issuer, *barrier, operation.site);
    complete_phase(cluster, cta, *barrier);
    return {};
}

static Reason execute_commit(Cluster& cluster, const TensorOperation& operation) {
    for (const TensorBarrier target : operation.barriers) {
        if (const Reason reason = arrive_on(cluster, operation, target)) return reason;
    }
    return {};
}

void execute_tensor_operation(Cluster& cluster, Cta& cta) {
    const TensorOperation operation = std::move(cta.tensor.queue.front());
    cta.tensor.queue.pop_front();
    Reason reason;
    switch (operation.kind) {
        case TensorOperation::Kind::kCommit:
            reason = execute_commit(cluster, operation);
            break;
        case TensorOperation::Kind::kMma:
            reason = execute_multiplication(cluster, cta, operation);
            record(cluster, cta, {.kind = EventKind::kMmaExecuted, .sequence = operation.sequence});
            break;
        case TensorOperation::Kind::kCopy:
            reason = execute_tensor_copy(cluster, cta, operation);
            break;
        case TensorOperation::Kind::kShift:
            reason = execute_tensor_shift(cluster, cta, operation);
            break;
    }
    if (reason) report_fault(*operation.issuer, reason, operation.site);
}

}  // namespace tmaasync_emulate
