// wgmma: 128 threads execute it together, no earlier than one of them waits for the result.
#pragma once

#include <algorithm>
#include <array>
#include <cstring>

#include "accesses.hpp"
#include "mma_operands.hpp"
#include "unwritten.hpp"

namespace tmaasync_emulate {

// --- execution -----------------------------------------------------------------------------------

inline bool same_accumulators(const Mma& a, const Mma& b) {
    return a.accumulators == b.accumulators && a.columns == b.columns && a.sum == b.sum;
}

// True if two threads give the operands that all 128 must agree on.
inline bool agrees(const Mma& a, const Mma& b) {
    return a.columns == b.columns && a.sum == b.sum && a.a_element == b.a_element &&
           a.b_element == b.b_element && a.b == b.b && a.accumulates == b.accumulates &&
           a.is_negated == b.is_negated && a.b_transposed == b.b_transposed &&
           a.a_in_registers == b.a_in_registers &&
           (a.a_in_registers || (a.a == b.a && a.a_transposed == b.a_transposed));
}

// Reports the reads of a wgmma. Each warp reads its 16 rows of A and all of B; all warps read a
// unit of B before the next unit.
inline void track_operands(Fiber* threads, const IssuedMma& first) {
    Detector* detector = threads[0].cluster->detector();
    if (!detector) return;
    const uint32_t rank = threads[0].cta->rank;
    struct Reader {
        Actor actor;
        LastCell last;
    };
    const auto touch = [&](Reader& reader, uint32_t offset) {
        detector->shared(reader.actor, rank, offset, kMmaUnitBytes, false, reader.last);
    };
    std::array<Reader, kGroupThreads / 32> warps;
    for (uint32_t warp = 0; warp < warps.size(); ++warp) {
        const Fiber& fiber = threads[warp * 32];
        const IssuedMma& mma = fiber.mmas.front();
        warps[warp].actor = mma.issued.as(fiber.warpgroup->agent, first.epoch, Operation::kWgmma);
        if (mma.a_in_registers) continue;
        matrix_a(mma).for_each_unit(
            warp * 16, warp * 16 + 16,
            [&](uint32_t, uint32_t, uint32_t offset) { touch(warps[warp], offset); }
        );
    }
    matrix_b(first).for_each_unit(0, first.columns, [&](uint32_t, uint32_t, uint32_t offset) {
        for (Reader& warp : warps) touch(warp, offset);
    });
    threads[0].cluster->stop_if_race(current_fiber());
}

inline void check_agreement(Fiber& last, Fiber* threads) {
    for (uint32_t thread = 0; thread < kGroupThreads; ++thread) {
        if (agrees(threads[thread].mmas.front(), threads[0].mmas.front())) continue;
        last.cluster->fail(
            last, "threads " + decimal(threads[0].index) + " and " +
                      decimal(threads[thread].index) +
                      " of a warpgroup give wgmma.mma_async different operands; all 128 give the "
                      "same descriptors, shape, types and scale"
        );
    }
}

inline void check_operands(Fiber& last, const Fiber* threads) {
    const IssuedMma& mma = threads[0].mmas.front();
    if (!mma.a_in_registers) check_operand(threads[0], mma, matrix_a(mma), kMmaRows, "A");
    check_operand(threads[0], mma, matrix_b(mma), mma.columns, "B");
    if (last.cluster->has_failed()) last.cluster->fail(last, "");
}

// The compiler's contents of variables without a value; toolchain.py asks for them.
#if defined(__clang__)
constexpr uint32_t kNoFloat = 0xffffffff, kNoInteger = 0xaaaaaaaa;
#else
constexpr uint32_t kNoFloat = 0xfefefefe, kNoInteger = 0xfefefefe;
#endif

// Called before a wgmma adds to its accumulators. A register without a value in all threads is a
// fault.
inline void check_accumulators(Fiber& last, Fiber* threads) {
    const IssuedMma& mma = threads[0].mmas.front();
    const uint32_t none = mma.sum == MmaSum::kFloat ? kNoFloat : kNoInteger;
    const auto register_of = [&](uint32_t thread, uint32_t index) {
        uint32_t word;
        const auto* held = static_cast<uint32_t*>(threads[thread].mmas.front().accumulators);
        std::memcpy(&word, held + index, sizeof(word));
        return word;
    };
    for (uint32_t index = 0; index < bytes_of_accumulators(mma) / 4; ++index) {
        uint32_t thread = 0;
        while (thread < kGroupThreads && register_of(thread, index) == none) ++thread;
        if (thread < kGroupThreads) continue;
        last.cluster->report_fault(
            threads[0],
            "wgmma adds to accumulators that nothing has written, register " + decimal(index) +
                " of " + decimal(bytes_of_accumulators(mma) / 4) +
                ". Pass accumulate = false to the first wgmma of a tile, or set them to zero",
            mma.site
        );
        last.cluster->fail(last, "");
    }
}

// Executes the wgmmas up to `target`, in order.
inline void execute_mmas(Fiber& last, Warpgroup& group, uint64_t target) {
    Fiber* threads = &last - last.index % kGroupThreads;
    MmaBuffers& at = last.cluster->mma_buffers();
    const uint8_t* window = last.cta->window;
    for (; group.done < target; ++group.done) {
        check_agreement(last, threads);
        const IssuedMma& first = threads[0].mmas.front();
        GroupMma mmas;
        for (uint32_t i = 0; i < kGroupThreads; ++i) mmas[i] = &threads[i].mmas.front();
        if (group.sequences.size()) {
            const uint32_t sequence = group.sequences[group.done];
            last.cluster->record(
                *last.cta, {.kind = EventKind::kMmaExecuted, .sequence = sequence}
            );
        }
        check_operands(last, threads);
        track_operands(threads, first);
        // A wgmma with the accumulators of the one before finds them in the buffer.
        if (!first.accumulates) {
            std::memset(at.accumulators, 0, sizeof(*at.accumulators) * kMmaRows * first.columns);
        } else if (group.held != first.accumulators) {
            check_accumulators(last, threads);
            gather_accumulators(mmas, at);
        }
        execute_mma(mmas, window, at);
        const bool goes_on =
            group.done + 1 < target && same_accumulators(threads[0].mmas[1], first);
        group.held = goes_on ? first.accumulators : nullptr;
        if (!goes_on) scatter_accumulators(mmas, at);
        for (uint32_t thread = 0; thread < kGroupThreads; ++thread) {
            auto& mmas_of_thread = threads[thread].mmas;
            if (const Epoch issued_at = mmas_of_thread.front().issued_at) {
                group.issued.raise(threads[thread].number, issued_at);
            }
            mmas_of_thread.pop_front();
        }
    }
}

// --- instructions of a thread --------------------------------------------------------------------

// Records one event for the warpgroup, by the first of its threads to come.
inline void record_mma(Fiber& fiber) {
    auto& sequences = fiber.warpgroup->sequences;
    if (!fiber.cluster->recorder() || fiber.mmas_issued < sequences.size()) return;
    sequences.push_back(fiber.cluster->new_sequence());
    fiber.cluster->record(fiber, {.kind = EventKind::kMmaIssued, .sequence = sequences.back()});
}

inline void note_mma_call(Fiber& fiber, MmaInstruction instruction) {
    MmaCall& call = fiber.mma_calls[static_cast<std::size_t>(instruction)];
    ++call.count;
    call.site = fiber.site;
}

inline void fence_mmas(Fiber& fiber) {
    note_mma_call(fiber, MmaInstruction::kFence);
    fiber.has_mma_fence = true;
    fence_registers(fiber);
}

inline void check_mma_issue(Fiber& fiber) {
    const uint32_t threads = fiber.cluster->launch().threads();
    const uint32_t first = fiber.index / kGroupThreads * kGroupThreads;
    if (threads - first < kGroupThreads) {
        fiber.cluster->fail(
            fiber, "wgmma by a warpgroup of " + decimal(threads - first) +
                       " threads; it takes 128. Launch a multiple of 128 threads"
        );
    }
    if (!fiber.has_mma_fence && !fiber.cluster->detector()) {
        fiber.cluster->fail(
            fiber,
            "wgmma before any wgmma.fence: it may use registers that the thread is still writing. "
            "Call wgmma_fence() before the first wgmma, and after each change of the accumulators "
            "or of A's registers"
        );
    }
}

inline void issue_mma(Fiber& fiber, const Mma& mma) {
    note_mma_call(fiber, MmaInstruction::kMma);
    check_mma_issue(fiber);
    IssuedMma issued{mma, fiber.site, fiber.mma_commits + 1, {}};
    if (Detector* detector = fiber.cluster->detector()) {
        if (fiber.warpgroup->agent == kNoAgent) fiber.warpgroup->agent = detector->new_agent();
        check_mma_fence(fiber, mma);
        if (fiber.lane == 0) issued.issued = detector->issue(fiber.number, fiber.site);
        if (mma.a_in_registers) issued.issued_at = detector->mark(fiber.number);
    }
    record_mma(fiber);
    fiber.mmas.push_back(std::move(issued));
    ++fiber.mmas_issued;
}

inline void finish_mmas(Fiber& fiber, std::size_t pending) {
    Detector* detector = fiber.cluster->detector();
    const Agent agent = fiber.warpgroup->agent;
    if (!detector || agent == kNoAgent || fiber.mma_commits <= pending) return;
    detector->finish(fiber.number, agent, fiber.mma_commits - static_cast<Epoch>(pending));
}

inline void commit_mmas(Fiber& fiber) {
    note_mma_call(fiber, MmaInstruction::kCommit);
    ++fiber.mma_commits;
    fiber.mma_groups.push_back(fiber.mmas_issued);
}

inline void record_mma_wait(Fiber& fiber, EventKind kind, uint64_t target) {
    const uint32_t newest = fiber.warpgroup->sequences[target - 1];
    fiber.cluster->record(fiber, {.kind = kind, .sequence = newest});
}

// A wgmma that takes A from the registers of four warps happens after the accesses that filled
// them. So a thread of one warp may release memory that all four loaded from, as CUTLASS's
// pipelines do.
inline void learn_what_filled_registers(Fiber& fiber) {
    if (Detector* detector = fiber.cluster->detector()) {
        detector->learn(fiber.number, fiber.warpgroup->issued);
    }
}

inline void wait_for_mmas(Fiber& fiber, std::size_t pending) {
    note_mma_call(fiber, MmaInstruction::kWait);
    finish_mmas(fiber, pending);
    if (fiber.mma_groups.size() <= pending) return;
    const uint64_t target = fiber.mma_groups[fiber.mma_groups.size() - 1 - pending];
    fiber.mma_groups.erase(
        fiber.mma_groups.begin(), fiber.mma_groups.end() - static_cast<std::ptrdiff_t>(pending)
    );
    Warpgroup& group = *fiber.warpgroup;
    if (target <= group.done) return learn_what_filled_registers(fiber);
    if (group.waiters.size() && group.target != target) {
        fiber.cluster->fail(fiber, "the warps of a warpgroup wait for different wgmma groups");
    }
    group.target = target;
    const bool is_noted = fiber.cluster->stands_for_warp(fiber);
    if (is_noted) record_mma_wait(fiber, EventKind::kWaitBegin, target);
    if (group.waiters.size() + 1 < kGroupThreads) {
        group.waiters.push_back(&fiber);
        fiber.cluster->block(fiber, {Wait::Kind::kWarpgroup, "wgmma.wait_group"});
    } else {
        execute_mmas(fiber, group, target);
        fiber.cluster->note_progress();
        fiber.cluster->wake_all(group.waiters);
    }
    learn_what_filled_registers(fiber);
    if (is_noted) record_mma_wait(fiber, EventKind::kWaitEnd, target);
}

// Called at the end of a thread: a wgmma is complete only after a wait for it.
inline void check_mmas_are_done(Fiber& fiber) {
    if (fiber.mmas.empty()) return;
    const bool all_committed =
        fiber.mma_groups.size() && fiber.mma_groups.back() == fiber.mmas_issued;
    fiber.cluster->report_fault(
        fiber,
        "the thread ends with " + decimal(fiber.mmas.size()) +
            " wgmma instructions that it has not " +
            (all_committed ? "waited for. Call wgmma_wait_group<0>() first"
                           : "committed. Call wgmma_commit_group() after them, and "
                             "wgmma_wait_group<0>() before the accumulators are read"),
        fiber.mmas.back().site
    );
    fiber.cluster->fail(fiber, "");
}

// --- whole warpgroups ----------------------------------------------------------------------------

inline const char* name_of(std::size_t instruction) {
    static constexpr const char* kNames[] = {
        "wgmma_fence()",
        "a wgmma",
        "wgmma_commit_group()",
        "wgmma_wait_group()",
    };
    return kNames[instruction];
}

// Reports an instruction of wgmma in a block whose last warps make up no whole warpgroup.
inline bool reports_partial_warpgroup(Cluster& cluster, const Fiber& first, uint32_t threads) {
    for (std::size_t i = 0; i < first.mma_calls.size(); ++i) {
        if (!first.mma_calls[i].count) continue;
        cluster.report_fault(
            first,
            Words(name_of(i)) + " is executed by warp " + decimal(first.index / 32) +
                " of a block of " + decimal(threads) +
                " threads, which ends within its warpgroup. A warpgroup is four warps: launch a "
                "multiple of 128 threads",
            first.mma_calls[i].site
        );
        return true;
    }
    return false;
}

// Reports an instruction of wgmma that some warps of a warpgroup executed more often than others.
inline bool reports_lone_mma(Cluster& cluster, const Cta& cta) {
    const uint32_t threads = cluster.launch().threads();
    const Fiber* fibers = &cluster.fibers()[std::size_t{cta.rank} * threads];
    const uint32_t whole = threads / kGroupThreads * kGroupThreads;
    if (whole != threads && reports_partial_warpgroup(cluster, fibers[whole], threads)) return true;
    for (uint32_t thread = 0; thread < threads; ++thread) {
        const Fiber& one = fibers[thread / kGroupThreads * kGroupThreads];
        const Fiber& other = fibers[thread];
        for (std::size_t i = 0; i < one.mma_calls.size(); ++i) {
            if (one.mma_calls[i].count == other.mma_calls[i].count) continue;
            const bool is_other = one.mma_calls[i].count < other.mma_calls[i].count;
            const Fiber& more = is_other ? other : one;
            const Fiber& less = is_other ? one : other;
            cluster.report_fault(
                more,
                Words(name_of(i)) + " is executed " + decimal(more.mma_calls[i].count) +
                    " times by thread " + decimal(more.index) + " of warp " +
                    decimal(more.index / 32) + " and " + decimal(less.mma_calls[i].count) +
                    " times by thread " + decimal(less.index) + " of warp " +
                    decimal(less.index / 32) +
                    ", which belong to one warpgroup. All 128 threads execute the instructions of "
                    "wgmma together",
                more.mma_calls[i].site
            );
            return true;
        }
    }
    return false;
}

inline void check_mma_calls(Fiber& fiber) {
    if (reports_lone_mma(*fiber.cluster, *fiber.cta)) fiber.cluster->fail(fiber, "");
}

}  // namespace tmaasync_emulate
