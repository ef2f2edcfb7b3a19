#include "wgmma/execution.hpp"

#include "memory/accesses.hpp"
#include "memory/registers.hpp"
#include "schedule/events.hpp"
#include "schedule/faults.hpp"
#include "wgmma/operands.hpp"

namespace tmaasync_emulate {

static bool same_accumulators(const Mma& a, const Mma& b) {
    return a.accumulators == b.accumulators && a.columns == b.columns && a.sum == b.sum;
}

// True if two threads give the operands that all 128 must agree on.
static bool agrees(const Mma& a, const Mma& b) {
    return a.columns == b.columns && a.sum == b.sum && a.a_element == b.a_element &&
           a.b_element == b.b_element && a.b == b.b && a.accumulates == b.accumulates &&
           a.is_negated == b.is_negated && a.b_transposed == b.b_transposed &&
           a.a_in_registers == b.a_in_registers &&
           (a.a_in_registers || (a.a == b.a && a.a_transposed == b.a_transposed));
}

// Reports the reads of a wgmma. Each warp reads its 16 rows of A and all of B; all warps read a
// unit of B before the next unit.
static void track_operands(Fiber* threads, const IssuedMma& first) {
    Detector* detector = threads[0].cluster->detector.get();
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
        const IssuedMma& mma = fiber.mmas.queue.front();
        warps[warp].actor =
            mma.issued.as(fiber.warpgroup->races.agent, first.epoch, Operation::kWgmma);
        if (mma.a_in_registers) continue;
        matrix_a(mma).for_each_unit(
            warp * 16, warp * 16 + 16,
            [&](uint32_t, uint32_t, uint32_t offset) { touch(warps[warp], offset); }
        );
    }
    matrix_b(first).for_each_unit(0, first.columns, [&](uint32_t, uint32_t, uint32_t offset) {
        for (Reader& warp : warps) touch(warp, offset);
    });
    stop_if_race(current_fiber());
}

static void check_agreement(Fiber& last, Fiber* threads) {
    for (uint32_t thread = 0; thread < kGroupThreads; ++thread) {
        if (agrees(threads[thread].mmas.queue.front(), threads[0].mmas.queue.front())) continue;
        fail(last, {FaultKind::kMmaOperandsDiffer, threads[0].index, threads[thread].index});
    }
}

static void check_operand(
    const Fiber& issuer, const IssuedMma& mma, const Matrix& matrix, uint32_t rows, const char* name
) {
    const Reason reason = reason_of_operand(issuer, *issuer.cta, matrix, rows, {"wgmma", name});
    if (!reason || is_pardoned(issuer, reason.kind(), mma.site)) return;
    report_fault(issuer, reason, mma.site);
}

static void check_operands(Fiber& last, const Fiber* threads) {
    const IssuedMma& mma = threads[0].mmas.queue.front();
    if (!mma.a_in_registers) check_operand(threads[0], mma, matrix_a(mma), kMmaRows, "A");
    check_operand(threads[0], mma, matrix_b(mma), mma.columns, "B");
    if (last.cluster->has_failed()) fail(last, {});
}

// Called before a wgmma adds to its accumulators. A register without a value in all threads is a
// fault.
static void check_accumulators(Fiber& last, Fiber* threads) {
    const IssuedMma& mma = threads[0].mmas.queue.front();
    const uint32_t none = mma.sum == MmaSum::kFloat ? kNoFloat : kNoInteger;
    const auto register_of = [&](uint32_t thread, uint32_t index) {
        uint32_t word;
        const auto* held = static_cast<uint32_t*>(threads[thread].mmas.queue.front().accumulators);
        std::memcpy(&word, held + index, sizeof(word));
        return word;
    };
    for (uint32_t index = 0; index < bytes_of_accumulators(mma) / 4; ++index) {
        uint32_t thread = 0;
        while (thread < kGroupThreads && register_of(thread, index) == none) ++thread;
        if (thread < kGroupThreads) continue;
        if (is_pardoned(threads[0], FaultKind::kUnsetAccumulators, mma.site)) return;
        report_fault(
            threads[0], {FaultKind::kUnsetAccumulators, index, bytes_of_accumulators(mma) / 4},
            mma.site
        );
        fail(last, {});
    }
}

void execute_mmas(Fiber& last, Warpgroup& group, uint64_t target) {
    Fiber* threads = &last - last.index % kGroupThreads;
    MmaBuffers& at = *last.cluster->mma_buffers;
    const uint8_t* window = last.cta->window;
    for (; group.done < target; ++group.done) {
        check_agreement(last, threads);
        const IssuedMma& first = threads[0].mmas.queue.front();
        GroupMma mmas;
        for (uint32_t i = 0; i < kGroupThreads; ++i) mmas[i] = &threads[i].mmas.queue.front();
        if (group.sequences.size()) {
            const uint32_t sequence = group.sequences[group.done];
            record(
                *last.cluster, *last.cta, {.kind = EventKind::kMmaExecuted, .sequence = sequence}
            );
        }
        check_operands(last, threads);
        track_operands(threads, first);
        // A wgmma with the accumulators of the one before finds them in the buffer.
        if (first.accumulates && group.held != first.accumulators) {
            check_accumulators(last, threads);
            gather_accumulators(mmas, at);
        }
        execute_mma(mmas, window, at);
        const bool goes_on =
            group.done + 1 < target && same_accumulators(threads[0].mmas.queue[1], first);
        group.held = goes_on ? first.accumulators : nullptr;
        if (!goes_on) scatter_accumulators(mmas, at);
        for (uint32_t thread = 0; thread < kGroupThreads; ++thread) {
            auto& mmas_of_thread = threads[thread].mmas.queue;
            if (const Epoch issued_at = mmas_of_thread.front().issued_at) {
                group.races.issued.raise(threads[thread].number, issued_at);
            }
            mmas_of_thread.pop_front();
        }
    }
}

}  // namespace tmaasync_emulate
