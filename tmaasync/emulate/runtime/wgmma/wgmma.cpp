#include "wgmma/wgmma.hpp"

#include "memory/registers.hpp"
#include "schedule/events.hpp"
#include "schedule/faults.hpp"
#include "verify/sync_order.hpp"
#include "wgmma/execution.hpp"

namespace tmaasync_emulate {

// Records one event for the warpgroup, by the first of its threads to come.
static void record_mma(Fiber& fiber) {
    auto& sequences = fiber.warpgroup->sequences;
    if (!fiber.cluster->recorder || fiber.mmas.issued < sequences.size()) return;
    sequences.push_back(new_sequence(*fiber.cluster));
    record(fiber, {.kind = EventKind::kMmaIssued, .sequence = sequences.back()});
}

static void note_mma_call(Fiber& fiber, MmaInstruction instruction) {
    MmaCall& call = fiber.mmas.calls[static_cast<std::size_t>(instruction)];
    ++call.count;
    call.site = fiber.site;
}

void fence_mmas(Fiber& fiber) {
    note_mma_call(fiber, MmaInstruction::kFence);
    fiber.mmas.has_fence = true;
    fence_registers(fiber);
}

static void check_mma_issue(Fiber& fiber) {
    const uint32_t threads = fiber.cluster->launch.threads();
    const uint32_t first = fiber.index / kGroupThreads * kGroupThreads;
    if (threads - first < kGroupThreads) {
        fail(fiber, {FaultKind::kMmaOfPartialWarpgroup, threads - first});
    }
    if (!fiber.mmas.has_fence && !fiber.cluster->detector) {
        fail(fiber, FaultKind::kMmaWithoutFence);
    }
}

void issue_mma(Fiber& fiber, const Mma& mma) {
    note_mma_call(fiber, MmaInstruction::kMma);
    check_mma_issue(fiber);
    IssuedMma issued{mma, fiber.site, fiber.mmas.commits + 1, {}};
    if (Detector* detector = fiber.cluster->detector.get()) {
        if (fiber.warpgroup->races.agent == kNoAgent)
            fiber.warpgroup->races.agent = detector->new_agent();
        check_mma_fence(fiber, mma);
        if (fiber.lane == 0) issued.issued = detector->issue(fiber.number, fiber.site);
        if (mma.a_in_registers) issued.issued_at = detector->mark(fiber.number);
    }
    record_mma(fiber);
    fiber.mmas.queue.push_back(std::move(issued));
    ++fiber.mmas.issued;
}

static void finish_mmas(Fiber& fiber, std::size_t pending) {
    Detector* detector = fiber.cluster->detector.get();
    const Agent agent = fiber.warpgroup->races.agent;
    if (!detector || agent == kNoAgent || fiber.mmas.commits <= pending) return;
    detector->finish(fiber.number, agent, fiber.mmas.commits - static_cast<Epoch>(pending));
}

void commit_mmas(Fiber& fiber) {
    note_mma_call(fiber, MmaInstruction::kCommit);
    ++fiber.mmas.commits;
    fiber.mmas.groups.push_back(fiber.mmas.issued);
    if (SyncOrder* order = fiber.cluster->launch.order) order->commit_mmas(fiber);
}

static void record_mma_wait(Fiber& fiber, EventKind kind, uint64_t target) {
    const uint32_t newest = fiber.warpgroup->sequences[target - 1];
    record(fiber, {.kind = kind, .sequence = newest});
}

// A wgmma that takes A from the registers of four warps happens after the accesses that filled
// them. So a thread of one warp may release memory that all four loaded from, as CUTLASS's
// pipelines do.
static void learn_what_filled_registers(Fiber& fiber) {
    if (Detector* detector = fiber.cluster->detector.get()) {
        detector->learn(fiber.number, fiber.warpgroup->races.issued);
    }
}

// All four warps have issued the groups that are complete.
static void learn_of_issues(const Fiber& fiber, std::size_t pending) {
    SyncOrder* const order = fiber.cluster->launch.order;
    if (order && fiber.mmas.commits > pending) {
        order->wait_for_mmas(fiber, fiber.mmas.commits - pending);
    }
}

void wait_for_mmas(Fiber& fiber, std::size_t pending) {
    note_mma_call(fiber, MmaInstruction::kWait);
    finish_mmas(fiber, pending);
    if (fiber.mmas.groups.size() <= pending) return;
    const uint64_t target = fiber.mmas.groups[fiber.mmas.groups.size() - 1 - pending];
    fiber.mmas.groups.erase(
        fiber.mmas.groups.begin(), fiber.mmas.groups.end() - static_cast<std::ptrdiff_t>(pending)
    );
    Warpgroup& group = *fiber.warpgroup;
    if (target <= group.done) {
        learn_of_issues(fiber, pending);
        return learn_what_filled_registers(fiber);
    }
    if (group.waiters.size() && group.target != target) {
        fail(fiber, FaultKind::kWarpsWaitForOtherGroups);
    }
    group.target = target;
    const bool is_noted = stands_for_warp(fiber);
    if (is_noted) record_mma_wait(fiber, EventKind::kWaitBegin, target);
    if (group.waiters.size() + 1 < kGroupThreads) {
        group.waiters.push_back(&fiber);
        block(fiber, {Wait::Kind::kWarpgroup, "wgmma.wait_group"});
    } else {
        execute_mmas(fiber, group, target);
        note_progress(*fiber.cluster);
        wake_all(group.waiters);
    }
    learn_of_issues(fiber, pending);
    learn_what_filled_registers(fiber);
    if (is_noted) record_mma_wait(fiber, EventKind::kWaitEnd, target);
}

void check_mmas_are_done(Fiber& fiber) {
    if (fiber.mmas.queue.empty()) return;
    if (is_pardoned(fiber, FaultKind::kUnawaitedMmas, fiber.mmas.queue.back().site)) return;
    const bool all_committed =
        fiber.mmas.groups.size() && fiber.mmas.groups.back() == fiber.mmas.issued;
    report_fault(
        fiber,
        {all_committed ? FaultKind::kUnawaitedMmas : FaultKind::kUncommittedMmas,
         fiber.mmas.queue.size()},
        fiber.mmas.queue.back().site
    );
    fail(fiber, {});
}

}  // namespace tmaasync_emulate
