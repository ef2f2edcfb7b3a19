#include "tensor_memory/transfers.hpp"

#include "state/cluster.hpp"
#include "tensor_memory/places.hpp"
#include "tensor_memory/warp_operands.hpp"

namespace tmaasync_emulate {

// One lane's part of a tcgen05.ld or tcgen05.st.
struct Transfer {
    uint32_t address;
    uint32_t columns;  // of all registers; the same in all lanes
    Tcgen05Transfer form;
    const char* instruction;
    Fiber* fiber;
    uint32_t* registers;
};

struct TensorPlace {
    uint32_t lane;
    uint32_t column;
};

// The word of a register in one lane, before packing, after the address of the instruction
// (CUTLASS, cute/atom/copy_traits_sm100.hpp).
static TensorPlace place_of(const Tcgen05Transfer& form, uint32_t thread, uint32_t index) {
    const uint32_t registers = tcgen05_registers(form.shape);
    const uint32_t within = index % registers;
    const uint32_t before = index / registers * tcgen05_columns(form.shape);
    switch (form.shape) {
        case Tcgen05Shape::k32x32b:
            return {thread, before};
        case Tcgen05Shape::k16x64b:
            return {thread / 4 + 8 * (thread & 1), before + (thread >> 1 & 1)};
        case Tcgen05Shape::k16x128b:
            return {thread / 4 + 8 * within, before + thread % 4};
        case Tcgen05Shape::k16x256b:
            return {thread / 4 + 8 * (within / 2), before + 2 * (thread % 4) + within % 2};
        case Tcgen05Shape::k16x32bx2:
            return {thread % 16, before};
    }
    __builtin_unreachable();
}

static uint32_t columns_of(const Tcgen05Transfer& form) {
    return form.repeats * tcgen05_columns(form.shape) * (form.is_packed ? 2 : 1);
}

// Calls act(register, half, lane, column) for every word; `half` is 0 without packing.
template <class Act>
void for_each_word(Meeting& meeting, uint32_t first_lane, Act act) {
    const auto& first = operands_of<Transfer>(meeting, 0);
    const Tcgen05Transfer& form = first.form;
    const uint32_t start = tensor_column(first.address), halves = form.is_packed ? 2 : 1;
    const bool is_split = form.shape == Tcgen05Shape::k16x32bx2;
    for (uint32_t thread = 0; thread < 32; ++thread) {
        uint32_t* const registers = operands_of<Transfer>(meeting, thread).registers;
        const uint32_t column = start + (is_split && thread >= 16 ? form.split : 0);
        for (uint32_t i = 0; i < form.repeats * tcgen05_registers(form.shape); ++i) {
            const TensorPlace place = place_of(form, thread, i);
            for (uint32_t half = 0; half < halves; ++half) {
                act(registers[i], half, first_lane + place.lane,
                    column + place.column * halves + half);
            }
        }
    }
}

// The first lane. Tensor memory's lanes belong to warps by their number modulo 4, and the chip
// takes them from the warp: public kernels name lane 0, or lanes from 128 on in the second CTA of a
// pair. The PTX ISA asks for the warp's own.
static Reason find_lanes(const Transfer& transfer, uint32_t& lane) {
    const Fiber& fiber = *transfer.fiber;
    const uint32_t own = warp_of(fiber) % 4 * 32, named = tensor_lane(transfer.address);
    const uint32_t within = named % 32;
    const bool is_half = transfer.form.shape != Tcgen05Shape::k32x32b;
    lane = own + within;
    if (within != 0 && !(is_half && within == 16)) {
        return {
            FaultKind::kTensorLaneAlignment, transfer.instruction, named,
            is_half ? FaultKind::kTensorHalfLanes : FaultKind::kTensorWholeLanes
        };
    }
    if (named - within == own) return {};
    const bool is_other_warps = named % kTensorLanes / 32 * 32 != own && named >= 32;
    if (is_other_warps && !is_pardoned(fiber, FaultKind::kTensorLaneOwner, fiber.site)) {
        return {
            FaultKind::kTensorLaneOwner, transfer.instruction, warp_of(fiber), named, own, own + 31,
            warp_of(fiber) % 4
        };
    }
    if (!is_other_warps) {
        fiber.cluster->launch.rules.note(Rule::kTensorMemoryLanes, fiber.site);
    }
    return {};
}

static std::array<TensorRange, 2> ranges_of(const Transfer& transfer, uint32_t lane) {
    const bool is_half = transfer.form.shape != Tcgen05Shape::k32x32b;
    const bool is_split = transfer.form.shape == Tcgen05Shape::k16x32bx2;
    TensorRange range{
        lane, is_half ? 16u : 32u, tensor_column(transfer.address), columns_of(transfer.form)
    };
    TensorRange second = range;
    if (is_split) second.column += transfer.form.split;
    return {range, second};
}

// Checks the operands, and finds the first lane. False if there is a fault, which is reported.
static bool check_transfer(Meeting& meeting, uint32_t& lane) {
    const auto& first = operands_of<Transfer>(meeting, 0);
    if (!lanes_agree<Transfer>(meeting, first.instruction)) return false;
    Reason reason = find_lanes(first, lane);
    if (!reason) {
        for (const TensorRange& range : ranges_of(first, lane)) {
            if (!reason) reason = reason_of_range(*first.fiber->cta, first.instruction, range);
        }
    }
    if (reason) report_fault(*first.fiber, reason);
    return !reason;
}

static void search(const Transfer& first, uint32_t lane, bool stores) {
    TensorRaces* const races = first.fiber->cluster->tensor_races.get();
    if (!races) return;
    const TensorKind kind = stores ? TensorKind::kStore : TensorKind::kLoad;
    const Operation operation = stores ? Operation::kTcgen05Store : Operation::kTcgen05Load;
    const IssuedTensor tensor =
        races->issue(first_of_warp(*first.fiber), first.fiber->site, kind, operation);
    const auto ranges = ranges_of(first, lane);
    const bool is_split = first.form.shape == Tcgen05Shape::k16x32bx2;
    for (std::size_t i = 0; i < (is_split ? 2 : 1); ++i) {
        const TensorRange& range = ranges[i];
        const uint32_t groups = tensor_groups(range.lane, range.lanes);
        races->touch(tensor, {first.fiber->cta->rank, groups, range.column, range.columns}, stores);
    }
}

static void load_for_warp(Meeting& meeting) {
    const auto& first = operands_of<Transfer>(meeting, 0);
    uint32_t lane = 0;
    if (!check_transfer(meeting, lane)) return;
    search(first, lane, false);
    const TensorMemory& memory = *first.fiber->cta->tensor.memory;
    UnwrittenWords unwritten(memory);
    for_each_word(meeting, lane, [&](uint32_t& held, uint32_t half, uint32_t at, uint32_t column) {
        const uint32_t word = memory.read(at, column);
        unwritten.add(at, column);
        if (!first.form.is_packed) {
            held = word;
        } else {
            held = half ? (held & 0xffff) | word << 16 : word & 0xffff;
        }
    });
    const Reason reason = unwritten.reason(first.instruction, "words", false);
    if (reason && !is_pardoned(*first.fiber, reason.kind(), first.fiber->site)) {
        report_fault(*first.fiber, reason);
    }
}

static void store_for_warp(Meeting& meeting) {
    const auto& first = operands_of<Transfer>(meeting, 0);
    uint32_t lane = 0;
    if (!check_transfer(meeting, lane)) return;
    search(first, lane, true);
    TensorMemory& memory = *first.fiber->cta->tensor.memory;
    for_each_word(meeting, lane, [&](uint32_t held, uint32_t half, uint32_t at, uint32_t column) {
        const uint32_t word = first.form.is_packed ? held >> 16 * half & 0xffff : held;
        memory.write(at, column, word);
    });
}

void load_registers(
    Fiber& fiber, const Tcgen05Transfer& transfer, uint32_t address, uint32_t* registers
) {
    maybe_yield(fiber);
    constexpr const char* kName = "tcgen05.ld";
    Transfer mine{address, columns_of(transfer), transfer, kName, &fiber, registers};
    meet_whole_warp(kName, &load_for_warp, &mine);
}

void store_registers(
    Fiber& fiber, const Tcgen05Transfer& transfer, uint32_t address, const uint32_t* registers
) {
    maybe_yield(fiber);
    constexpr const char* kName = "tcgen05.st";
    Transfer mine{
        address, columns_of(transfer), transfer, kName, &fiber, const_cast<uint32_t*>(registers)
    };
    meet_whole_warp(kName, &store_for_warp, &mine);
}

struct TransferWait {
    Fiber* fiber;
    bool stores;
};

static void wait_for_warp(Meeting& meeting) {
    for (uint32_t lane = 0; lane < 32; ++lane) {
        const auto& wait = operands_of<TransferWait>(meeting, lane);
        const Fiber& fiber = *wait.fiber;
        TensorRaces* const races = fiber.cluster->tensor_races.get();
        if (!races) return;
        const TensorKind kind = wait.stores ? TensorKind::kStore : TensorKind::kLoad;
        races->wait(fiber.number, first_of_warp(fiber), kind);
    }
}

void wait_for_transfers(Fiber& fiber, bool stores) {
    TransferWait mine{&fiber, stores};
    meet_whole_warp(stores ? "tcgen05.wait::st" : "tcgen05.wait::ld", &wait_for_warp, &mine);
}

}  // namespace tmaasync_emulate
