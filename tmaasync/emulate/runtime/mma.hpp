// wgmma: 128 threads multiply together, no earlier than one of them waits for the result.
#pragma once

#include <algorithm>
#include <cstring>
#include <string>
#include "accesses.hpp"

namespace tmaasync_emulate {

constexpr uint32_t kGroupThreads = 128;

// --- operands ------------------------------------------------------------------------------------

inline float from_bfloat16(uint16_t bits) {
    const uint32_t word = uint32_t{bits} << 16;
    float value;
    std::memcpy(&value, &word, sizeof(value));
    return value;
}

inline float from_half(uint16_t bits) {
    _Float16 value;
    std::memcpy(&value, &bits, sizeof(value));
    return static_cast<float>(value);
}

inline float from_16_bits(uint16_t bits, bool is_half) {
    return is_half ? from_half(bits) : from_bfloat16(bits);
}

// An operand in shared memory. PTX ISA: "matrix descriptor".
struct Matrix {
    uint32_t start;
    uint32_t leading;
    uint32_t stride;
    uint32_t swizzle;  // 0 none, 1 32 bytes, 2 64 bytes, 3 128 bytes
    bool transposed;   // M or N contiguous, not K

    Matrix(uint64_t descriptor, bool is_transposed)
        : start((descriptor & 0x3fff) << 4),
          leading((descriptor >> 16 & 0x3fff) << 4),
          stride((descriptor >> 32 & 0x3fff) << 4),
          swizzle((4 - static_cast<uint32_t>(descriptor >> 62)) % 4),
          transposed(is_transposed) {}

    // Where element k of a row (of A, or column of B) lies.
    uint32_t offset(uint32_t row, uint32_t k) const {
        const uint32_t address = start + (transposed ? across(row, k) : along(row, k));
        const uint32_t mask = (1u << swizzle) - 1;
        return address ^ ((address >> 7 & mask) << 4);
    }

    // The 16 bytes that eight neighbours along the contiguous side take, for all of the rows.
    template <class Act>
    void for_each_unit(uint32_t begin, uint32_t end, Act act) const {
        if (transposed) {
            for (uint32_t k = 0; k < kMmaDepth; ++k) {
                for (uint32_t row = begin; row < end; row += 8) act(offset(row, k));
            }
            return;
        }
        for (uint32_t row = begin; row < end; ++row) {
            for (uint32_t k = 0; k < kMmaDepth; k += 8) act(offset(row, k));
        }
    }

private:
    // K contiguous: groups of 8 rows.
    uint32_t along(uint32_t row, uint32_t k) const {
        const uint32_t group = row / 8 * stride;
        if (swizzle) return group + row % 8 * (16u << swizzle) + k * 2;
        return group + k / 8 * leading + row % 8 * 16 + k % 8 * 2;
    }

    // M or N contiguous: groups of 8 k.
    uint32_t across(uint32_t row, uint32_t k) const {
        if (!swizzle) return row / 8 * stride + k / 8 * leading + k % 8 * 16 + row % 8 * 2;
        const uint32_t span = 16u << swizzle, elements = span / 2;
        return row / elements * leading + k / 8 * stride + k % 8 * span + row % elements * 2;
    }
};

// --- the product ---------------------------------------------------------------------------------

__attribute__((always_inline)) inline void multiply_body(MmaBuffers& at, uint32_t columns) {
    for (uint32_t row = 0; row < kMmaRows; ++row) {
        const float* a = at.a + row * kMmaDepth;
        float* sums = at.sums + row * columns;
        for (uint32_t column = 0; column < columns; ++column) {
            float sum = sums[column];
            for (uint32_t k = 0; k < kMmaDepth; ++k) sum += a[k] * at.b[k * columns + column];
            sums[column] = sum;
        }
    }
}

#if defined(__x86_64__)
__attribute__((target("avx2"), optimize("O3"))) inline void multiply_avx2(
    MmaBuffers& at, uint32_t columns
) {
    multiply_body(at, columns);
}
#endif

inline void multiply(MmaBuffers& at, uint32_t columns) {
#if defined(__x86_64__)
    if (__builtin_cpu_supports("avx2")) return multiply_avx2(at, columns);
#endif
    multiply_body(at, columns);
}

// --- fragments -----------------------------------------------------------------------------------

// PTX ISA: accumulator i of a thread is at this row and column of m64nN.
struct FragmentPlace {
    uint32_t row;
    uint32_t column;

    FragmentPlace(uint32_t thread, uint32_t i)
        : row(thread / 32 * 16 + thread % 32 / 4 + i / 2 % 2 * 8),
          column(i / 4 * 8 + thread % 4 * 2 + i % 2) {}
};

template <typename Act>
void for_each_sum(Fiber* threads, const Mma& first, Act act) {
    for (uint32_t thread = 0; thread < kGroupThreads; ++thread) {
        float* held = threads[thread].mmas.front().sums;
        for (uint32_t i = 0; i < first.columns / 2; ++i) {
            const FragmentPlace place(thread, i);
            act(held[i], place.row * first.columns + place.column);
        }
    }
}

inline bool same_sums(const Mma& a, const Mma& b) {
    return a.sums == b.sums && a.columns == b.columns;
}

// What all 128 threads must agree on.
inline bool agrees(const Mma& a, const Mma& b) {
    return a.columns == b.columns && a.b == b.b && a.accumulates == b.accumulates &&
           a.a_in_registers == b.a_in_registers && (a.a_in_registers || a.a == b.a);
}

inline void load_b(const Mma& mma, const uint8_t* window, MmaBuffers& at) {
    const Matrix b(mma.b, mma.b_transposed);
    for (uint32_t k = 0; k < kMmaDepth; ++k) {
        for (uint32_t column = 0; column < mma.columns; ++column) {
            uint16_t bits;
            std::memcpy(&bits, window + b.offset(column, k), sizeof(bits));
            at.b[k * mma.columns + column] = from_16_bits(bits, mma.is_half);
        }
    }
}

inline void load_a(Fiber* threads, const Mma& mma, const uint8_t* window, MmaBuffers& at) {
    if (!mma.a_in_registers) {
        const Matrix a(mma.a, mma.a_transposed);
        for (uint32_t row = 0; row < kMmaRows; ++row) {
            for (uint32_t k = 0; k < kMmaDepth; ++k) {
                uint16_t bits;
                std::memcpy(&bits, window + a.offset(row, k), sizeof(bits));
                at.a[row * kMmaDepth + k] = from_16_bits(bits, mma.is_half);
            }
        }
        return;
    }
    for (uint32_t thread = 0; thread < kGroupThreads; ++thread) {
        const auto& registers = threads[thread].mmas.front().a_registers;
        for (uint32_t i = 0; i < 8; ++i) {
            const FragmentPlace place(thread, i);
            const auto bits = static_cast<uint16_t>(registers[i / 2] >> 16 * (i % 2));
            at.a[place.row * kMmaDepth + place.column] = from_16_bits(bits, mma.is_half);
        }
    }
}

// Each warp reads its 16 rows of A and all of B.
inline void track_operands(Fiber* threads, const IssuedMma& first) {
    Detector* detector = threads[0].cluster->detector();
    if (!detector) return;
    for (uint32_t warp = 0; warp < kGroupThreads / 32; ++warp) {
        const Fiber& fiber = threads[warp * 32];
        const IssuedMma& mma = fiber.mmas.front();
        const Actor actor = mma.issued.as(fiber.warpgroup->agent, first.epoch, Operation::kWgmma);
        const auto touch = [&](const Matrix& matrix, uint32_t begin, uint32_t end) {
            matrix.for_each_unit(begin, end, [&](uint32_t offset) {
                detector->shared(actor, fiber.cta->rank, offset, 16, false);
            });
        };
        if (!mma.a_in_registers) touch(Matrix(mma.a, mma.a_transposed), warp * 16, warp * 16 + 16);
        touch(Matrix(mma.b, mma.b_transposed), 0, mma.columns);
    }
    threads[0].cluster->stop_if_race(current_fiber());
}

inline void check_agreement(Fiber& last, Fiber* threads) {
    for (uint32_t thread = 0; thread < kGroupThreads; ++thread) {
        if (agrees(threads[thread].mmas.front(), threads[0].mmas.front())) continue;
        last.cluster->fail(
            last, "threads " + std::to_string(threads[0].index) + " and " +
                      std::to_string(threads[thread].index) +
                      " of a warpgroup give wgmma.mma_async different operands; all 128 give the "
                      "same descriptors, shape and scale"
        );
    }
}

// Executes up to `target`, in order.
inline void execute_mmas(Fiber& last, Warpgroup& group, uint64_t target) {
    Fiber* threads = &last - last.index % kGroupThreads;
    MmaBuffers& at = last.cluster->mma_buffers();
    const uint8_t* window = last.cta->window;
    for (; group.done < target; ++group.done) {
        check_agreement(last, threads);
        const IssuedMma first = threads[0].mmas.front();
        if (group.sequences.size()) {
            const uint32_t sequence = group.sequences[group.done];
            last.cluster->record(
                *last.cta, {.kind = EventKind::kMmaExecuted, .sequence = sequence}
            );
        }
        track_operands(threads, first);
        // Products that go on with the sums of the one before find them in the buffer.
        if (!first.accumulates) {
            std::memset(at.sums, 0, sizeof(float) * kMmaRows * first.columns);
        } else if (group.held != first.sums) {
            for_each_sum(threads, first, [&](float& sum, uint32_t i) { at.sums[i] = sum; });
        }
        load_a(threads, first, window, at);
        load_b(first, window, at);
        multiply(at, first.columns);
        const auto& mmas = threads[0].mmas;
        const bool goes_on = group.done + 1 < target && same_sums(mmas[1], first);
        group.held = goes_on ? first.sums : nullptr;
        if (!goes_on) {
            for_each_sum(threads, first, [&](float& sum, uint32_t i) { sum = at.sums[i]; });
        }
        for (uint32_t thread = 0; thread < kGroupThreads; ++thread) {
            threads[thread].mmas.pop_front();
        }
    }
}

// --- what a thread does --------------------------------------------------------------------------

// Once for the warpgroup, by the first of its threads to come.
inline void record_mma(Fiber& fiber) {
    auto& sequences = fiber.warpgroup->sequences;
    if (!fiber.cluster->recorder() || fiber.mmas_issued < sequences.size()) return;
    sequences.push_back(fiber.cluster->new_sequence());
    fiber.cluster->record(fiber, {.kind = EventKind::kMmaIssued, .sequence = sequences.back()});
}

inline void issue_mma(Fiber& fiber, const Mma& mma) {
    IssuedMma issued{mma, fiber.mma_commits + 1, {}};
    if (Detector* detector = fiber.cluster->detector()) {
        if (fiber.warpgroup->agent == kNoAgent) fiber.warpgroup->agent = detector->new_agent();
        check_mma_fence(fiber, mma);
        if (fiber.lane == 0) issued.issued = detector->issue(fiber.number, fiber.site);
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
    ++fiber.mma_commits;
    fiber.mma_groups.push_back(fiber.mmas_issued);
}

inline void record_mma_wait(Fiber& fiber, EventKind kind, uint64_t target) {
    const uint32_t newest = fiber.warpgroup->sequences[target - 1];
    fiber.cluster->record(fiber, {.kind = kind, .sequence = newest});
}

inline void wait_for_mmas(Fiber& fiber, std::size_t pending) {
    finish_mmas(fiber, pending);
    if (fiber.mma_groups.size() <= pending) return;
    const uint64_t target = fiber.mma_groups[fiber.mma_groups.size() - 1 - pending];
    fiber.mma_groups.erase(
        fiber.mma_groups.begin(), fiber.mma_groups.end() - static_cast<std::ptrdiff_t>(pending)
    );
    Warpgroup& group = *fiber.warpgroup;
    if (target <= group.done) return;
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
    if (is_noted) record_mma_wait(fiber, EventKind::kWaitEnd, target);
}

// At the end of a thread: what was issued is only complete once it was waited for.
inline void check_mmas_are_done(Fiber& fiber) {
    if (fiber.mmas.empty()) return;
    const bool all_committed =
        fiber.mma_groups.size() && fiber.mma_groups.back() == fiber.mmas_issued;
    fiber.cluster->fail(
        fiber, "the thread ends with " + std::to_string(fiber.mmas.size()) +
                   " wgmma instructions that it has not " +
                   (all_committed ? "waited for. Call wgmma_wait_group<0>() first"
                                  : "committed. Call wgmma_commit_group() behind them, and "
                                    "wgmma_wait_group<0>() before the sums are read")
    );
}

}  // namespace tmaasync_emulate
