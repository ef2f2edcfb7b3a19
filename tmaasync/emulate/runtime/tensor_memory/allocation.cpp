#include "tensor_memory/allocation.hpp"

#include "memory/accesses.hpp"
#include "memory/addresses.hpp"
#include "shared_memory/sm_columns.hpp"
#include "state/names.hpp"
#include "tensor_memory/pairs.hpp"
#include "tensor_memory/warp_operands.hpp"

namespace tmaasync_emulate {

static constexpr const char* kAlloc = "tcgen05.alloc";
static constexpr const char* kDealloc = "tcgen05.dealloc";

static bool is_size(uint32_t columns) {
    return columns >= kTensorGranule && columns <= kTensorColumns && (columns & (columns - 1)) == 0;
}

static uint32_t rounded_up(uint32_t columns) {
    uint32_t size = kTensorGranule;
    while (size < columns && size < kTensorColumns) size *= 2;
    return size;
}

static void check_alloc(Fiber& fiber, uint32_t shared, uint32_t columns) {
    TensorUnit& unit = fiber.cta->tensor;
    if (!is_size(columns)) {
        fail(fiber, {FaultKind::kTensorSize, kAlloc, columns, rounded_up(columns)});
    }
    if (unit.relinquished_at) {
        fail(fiber, {FaultKind::kAllocAfterRelinquish, line_of(fiber, unit.relinquished_at)});
    }
    if (shared % 4) fail(fiber, {FaultKind::kTensorAllocPlace, shared_at(shared)});
    check_inside_shared(fiber, shared, 4, FaultKind::kTensorAllocTarget);
}

static void take(Cta& cta, const Fiber& fiber, uint32_t start, uint32_t columns) {
    TensorUnit& unit = cta.tensor;
    if (!unit.memory) unit.memory = std::make_unique<TensorMemory>();
    unit.memory->forget(start, columns);
    unit.columns.add({start, columns, warp_of(fiber), fiber.site});
    const Rules& rules = fiber.cluster->launch.rules;
    if (unit.last_columns && columns > unit.last_columns) {
        rules.note(Rule::kTensorMemoryGrowth, fiber.site);
    }
    unit.last_columns = columns;
}

// A store of the lane that comes last.
static void write_address(uint32_t shared, uint32_t start) {
    Fiber& fiber = current_fiber();
    if (fiber.cluster->detector) {
        check_no_barrier(fiber, fiber.cta->rank, shared, 4);
        touch_shared(fiber, Operation::kWrite, fiber.cta->rank, shared, 4, true);
    }
    std::memcpy(fiber.cta->window + shared, &start, sizeof(start));
}

// Both CTAs of a pair name the same offset, warp and number of columns.
static bool requests_agree(const Fiber& fiber, const PairRequest& mine, const PairRequest& other) {
    const struct {
        FaultKind what;
        uint32_t mine, other;
    } facts[] = {
        {FaultKind::kTensorSharedOffset, mine.offset, other.offset},
        {FaultKind::kTensorWarp, mine.warp, other.warp},
        {FaultKind::kTensorColumnCount, mine.columns, other.columns},
    };
    for (const auto& fact : facts) {
        if (fact.mine == fact.other) continue;
        report_fault(fiber, {FaultKind::kTensorPairDiffers, fact.what, fact.mine, fact.other});
        return false;
    }
    return true;
}

static uint32_t sm_of(const Cluster& cluster, const Cta& cta) {
    return cluster.first_sm + cta.rank;
}

static uint64_t number_of(const Cluster& cluster, uint32_t rank) {
    return cluster.index * cluster.ctas.size() + rank;
}

// The lowest block of columns that is free for these CTAs, one or the two of a pair.
static uint32_t find_columns(
    const Cluster& cluster, uint32_t columns, const Cta& cta, const Cta& peer
) {
    SmColumns* const shared = cluster.launch.sm_columns;
    if (!shared) return cta.tensor.columns.find(columns, peer.tensor.columns);
    std::vector<std::pair<uint32_t, uint64_t>> ctas;
    for (const Cta* one : {&cta, &peer}) {
        ctas.emplace_back(sm_of(cluster, *one), number_of(cluster, one->rank));
    }
    if (&cta == &peer) ctas.pop_back();
    return shared->take(columns, ctas);
}

// Lanes that have not begun to wait see by the number that they must not.
static void wake_waiters(TensorUnit& unit) {
    ++unit.changes;
    wake_all(unit.waiters);
}

// Grants the requests of both CTAs of a pair at once, at the same columns.
static void grant_pair(const Fiber& fiber, Cta& cta, Cta& peer) {
    PairRequest &mine = cta.tensor.request, &other = peer.tensor.request;
    if (!other.is_open || other.is_granted || !requests_agree(fiber, mine, other)) return;
    const uint32_t start = find_columns(*fiber.cluster, mine.columns, cta, peer);
    if (start == kTensorColumns) return;
    for (PairRequest* request : {&mine, &other}) {
        request->is_granted = true;
        request->start = start;
    }
    wake_waiters(peer.tensor);
}

static uint32_t allocate_in_pair(const WarpOperands& operands) {
    Fiber& fiber = *operands.fiber;
    Cta& cta = *fiber.cta;
    PairRequest& request = cta.tensor.request;
    const uint32_t warp = warp_of(fiber);
    if (request.is_open && request.warp != warp) {
        report_fault(fiber, {FaultKind::kTensorTwoWarps, request.warp, warp});
        return kTensorColumns;
    }
    if (!request.is_open) {
        request = {true, false, operands.columns, operands.address, warp, 0};
    }
    if (!request.is_granted) grant_pair(fiber, cta, peer_of(*fiber.cluster, cta));
    if (!request.is_granted) return kTensorColumns;
    request.is_open = false;
    return request.start;
}

// The last lane that comes allocates for the warp, if columns are free.
static void allocate_for_warp(Meeting& meeting) {
    if (!lanes_agree<WarpOperands>(meeting, kAlloc)) return;
    auto& first = operands_of<WarpOperands>(meeting, 0);
    Fiber& fiber = *first.fiber;
    const Cta& cta = *fiber.cta;
    const SmColumns* const shared = fiber.cluster->launch.sm_columns;
    const uint64_t sm_changes = shared ? shared->changes() : 0;
    for (uint32_t lane = 0; lane < 32; ++lane) {
        auto& operands = operands_of<WarpOperands>(meeting, lane);
        operands.changes = cta.tensor.changes;
        operands.sm_changes = sm_changes;
    }
    const uint32_t start = first.group == 2 ? allocate_in_pair(first)
                                            : find_columns(*fiber.cluster, first.columns, cta, cta);
    if (start == kTensorColumns) return;
    take(*fiber.cta, fiber, start, first.columns);
    write_address(first.address, start);
    note_progress(*fiber.cluster);
    for (uint32_t lane = 0; lane < 32; ++lane) {
        operands_of<WarpOperands>(meeting, lane).is_done = true;
    }
}

// Waits until columns may have become free since the lanes met.
static void wait_for_columns(Fiber& fiber, const WarpOperands& mine) {
    TensorUnit& unit = fiber.cta->tensor;
    const Wait wait{Wait::Kind::kTensorMemory, kAlloc};
    if (const SmColumns* const shared = fiber.cluster->launch.sm_columns) {
        while (mine.changes == unit.changes && mine.sm_changes == shared->changes()) {
            spin(fiber, wait);
        }
    } else if (mine.changes == unit.changes) {
        unit.waiters.push_back(&fiber);
        block(fiber, wait);
    }
}

void allocate_columns(Fiber& fiber, uint32_t group, uint32_t shared, uint32_t columns) {
    check_whole_warp(fiber, kAlloc);
    check_running_group(fiber, kAlloc, group);
    const uint32_t offset = shared & kOffsetMask;
    check_alloc(fiber, offset, columns);
    WarpOperands mine{kAlloc, group, offset, columns, &fiber};
    while (true) {
        meet_whole_warp(kAlloc, &allocate_for_warp, &mine);
        if (mine.is_done) return;
        wait_for_columns(fiber, mine);
    }
}

static Reason list_of_allocations(const Cta& cta) {
    const auto& all = cta.tensor.columns.all();
    if (all.empty()) return FaultKind::kNone;
    const TensorAllocation& last = all.back();
    return {FaultKind::kTensorHeld, last.columns, last.start, last.warp};
}

static Reason reason_of_dealloc(const WarpOperands& operands) {
    const Fiber& fiber = *operands.fiber;
    const uint32_t start = tensor_column(operands.address);
    const TensorAllocation* const one = fiber.cta->tensor.columns.of(start);
    if (!one || one->start != start) {
        return {
            FaultKind::kDeallocOfNone, hexadecimal(operands.address),
            list_of_allocations(*fiber.cta)
        };
    }
    if (one->columns == operands.columns) return {};
    return {FaultKind::kDeallocOfPart, operands.columns, start, one->columns};
}

static void free_for_warp(Meeting& meeting) {
    if (!lanes_agree<WarpOperands>(meeting, kDealloc)) return;
    const auto& first = operands_of<WarpOperands>(meeting, 0);
    Fiber& fiber = *first.fiber;
    if (const Reason reason = reason_of_dealloc(first)) return report_fault(fiber, reason);
    const uint32_t start = tensor_column(first.address);
    Cta& cta = *fiber.cta;
    if (TensorRaces* races = fiber.cluster->tensor_races.get()) {
        races->free(
            fiber.number, fiber.site,
            {cta.rank, tensor_groups(0, kTensorLanes), start, first.columns}
        );
    }
    cta.tensor.columns.remove(start);
    if (SmColumns* const shared = fiber.cluster->launch.sm_columns) {
        shared->free(sm_of(*fiber.cluster, cta), number_of(*fiber.cluster, cta.rank), start);
    }
    note_progress(*fiber.cluster);
    wake_waiters(cta.tensor);
    if (first.group == 2) wake_waiters(peer_of(*fiber.cluster, cta).tensor);
}

void free_columns(Fiber& fiber, uint32_t group, uint32_t address, uint32_t columns) {
    check_group(fiber, kDealloc, group);
    WarpOperands mine{kDealloc, group, address, columns, &fiber};
    meet_whole_warp(kDealloc, &free_for_warp, &mine);
}

static void relinquish_for_warp(Meeting& meeting) {
    const Fiber& fiber = *operands_of<WarpOperands>(meeting, 0).fiber;
    const Cta& cta = *fiber.cta;
    fiber.cta->tensor.relinquished_at = fiber.site;
    if (SmColumns* const shared = fiber.cluster->launch.sm_columns) {
        shared->relinquish(sm_of(*fiber.cluster, cta), number_of(*fiber.cluster, cta.rank));
    }
}

void relinquish_permit(Fiber& fiber, uint32_t group) {
    constexpr const char* kName = "tcgen05.relinquish_alloc_permit";
    check_group(fiber, kName, group);
    WarpOperands mine{kName, group, 0, 0, &fiber};
    meet_whole_warp(kName, &relinquish_for_warp, &mine);
}

static std::optional<HeldColumns> held_by_another(const Fiber& fiber) {
    const Cluster& cluster = *fiber.cluster;
    SmColumns* const shared = cluster.launch.sm_columns;
    if (!shared || fiber.wait.kind != Wait::Kind::kTensorMemory) return std::nullopt;
    const Cta& cta = *fiber.cta;
    return shared->held_by_another(sm_of(cluster, cta), number_of(cluster, cta.rank));
}

bool waits_for_columns_of_another(const Cluster& cluster) {
    return std::any_of(cluster.fibers.begin(), cluster.fibers.end(), [](const Fiber& fiber) {
        return !fiber.is_done && held_by_another(fiber).has_value();
    });
}

static Reason reason_of_neighbour(const Fiber& fiber, const HeldColumns& held) {
    const Cluster& cluster = *fiber.cluster;
    const uint64_t ctas = cluster.ctas.size();
    const uint64_t index = held.cta / ctas - cluster.launch.first_cluster;
    const uint3 block = cluster.launch.block_of(index, static_cast<uint32_t>(held.cta % ctas));
    return {
        held.has_permit ? FaultKind::kTensorPermitHeld : FaultKind::kTensorHeldByAnother,
        warp_of(fiber),
        block.x,
        block.y,
        block.z,
        held.columns,
        held.start
    };
}

Reason reason_of_waiting(const Fiber& fiber) {
    const Cta& cta = *fiber.cta;
    const PairRequest& request = cta.tensor.request;
    const Cta* const peer = cta.tensor.group == 2 ? &fiber.cluster->ctas[cta.rank ^ 1] : nullptr;
    if (peer && !peer->tensor.request.is_open) {
        return {FaultKind::kTensorPairMissing, peer->rank, request.warp};
    }
    if (const auto held = held_by_another(fiber)) return reason_of_neighbour(fiber, *held);
    return {
        FaultKind::kTensorNeverFree, warp_of(fiber), cta.tensor.columns.free_columns(),
        list_of_allocations(cta)
    };
}

void check_columns_are_free(Fiber& fiber) {
    const auto& all = fiber.cta->tensor.columns.all();
    if (all.empty()) return;
    const TensorAllocation& first = all.front();
    const Fiber& owner = *(&fiber - fiber.index + first.warp * 32);
    report_fault(owner, {FaultKind::kTensorLeak, first.columns, first.start}, first.site);
    fail(fiber, {});
}

}  // namespace tmaasync_emulate
