"""Whole tiles of wgmma: several atoms, A from registers, sums stored, and sums multiplied again."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from parity import wgmma_matmuls as matmuls
from parity.wgmma_matmuls import Array

from tmaasync import Kernel, Swizzle
from tmaasync.tile import create_tensor_tile
from tmaasync.wgmma import MmaForm, WgmmaPlan, mma_form

SOURCE = Path(__file__).with_name("wgmma_tiles.cu")
LOADS, GROUPS = 2, 2
REGISTERS = {"float32": "float", "float16": "tmaasync::u32", "int32": "int"}


@dataclass(frozen=True)
class Layout:
    """The types, which sides are contiguous, and how the operands are swizzled."""

    form: MmaForm
    out: str
    columns: int
    swizzles: tuple[Swizzle, Swizzle]
    a_is_k_major: bool = True
    b_is_k_major: bool = True
    a_in_registers: bool = False

    def __str__(self) -> str:
        place = "registers" if self.a_in_registers else "shared"
        return f"{self.out} from {self.form}, {self.columns} columns, A in {place}"


def form(*types: str) -> MmaForm:
    return mma_form(*types)


ON_BOTH = [
    Layout(form("bfloat16"), "bfloat16", 24, (Swizzle.B128, Swizzle.B64)),
    Layout(
        form("float16", "float16", "float16"),
        "float16",
        32,
        (Swizzle.B64, Swizzle.B32),
        a_is_k_major=False,
        b_is_k_major=False,
        a_in_registers=True,
    ),
    Layout(form("int8", "uint8"), "int32", 24, (Swizzle.NONE, Swizzle.B64), a_in_registers=True),
]
ON_CHIP = [
    Layout(form("float16"), "float16", 40, (Swizzle.B128, Swizzle.B128), a_is_k_major=False),
    Layout(form("bfloat16"), "float32", 64, (Swizzle.B32, Swizzle.B128), b_is_k_major=False),
    Layout(form("bfloat16"), "bfloat16", 8, (Swizzle.NONE, Swizzle.NONE), a_in_registers=True),
    Layout(form("tfloat32"), "float32", 56, (Swizzle.B64, Swizzle.NONE)),
    Layout(form("tfloat32"), "float32", 16, (Swizzle.B128, Swizzle.B128), a_in_registers=True),
    Layout(form("float8_e5m2", "float8_e4m3fn"), "bfloat16", 72, (Swizzle.B128, Swizzle.B32)),
    Layout(
        form("float8_e4m3fn", "float8_e5m2", "float16"),
        "float16",
        48,
        (Swizzle.B64, Swizzle.B64),
        a_in_registers=True,
    ),
    Layout(form("uint8"), "int32", 16, (Swizzle.B128, Swizzle.NONE)),
]


def stored_tile(
    backend: Any, operand: Array, depth: int, is_k_major: bool, swizzle: Swizzle, dtype: str
) -> Any:
    """A tile as deep as one load, of an operand [M or N, K]."""
    stored = np.ascontiguousarray(operand if is_k_major else operand.T)
    array = backend.array(stored.view(matmuls.CARRIERS[stored.itemsize]))
    sides = (operand.shape[0], depth) if is_k_major else (depth, operand.shape[0])
    return create_tensor_tile(array, sides, swizzle=swizzle, dtype=dtype)


def make_tiles(backend: Any, layout: Layout, a: Array, b: Array, c: Any, depth: int) -> Any:
    """By the names that the kernel has for their types."""
    (a_swizzle, b_swizzle), form = layout.swizzles, layout.form
    swizzle = Swizzle.B32 if matmuls.numpy_type(layout.out).itemsize == 2 else Swizzle.B64
    return {
        "ATile": stored_tile(backend, a, depth, layout.a_is_k_major, a_swizzle, form.a),
        "BTile": stored_tile(backend, b, depth, layout.b_is_k_major, b_swizzle, form.b),
        "CTile": create_tensor_tile(
            c, (len(a) // GROUPS, len(b)), swizzle=swizzle, dtype=layout.out
        ),
    }


def make_kernel(layout: Layout, tiles: Any) -> Kernel:
    return Kernel(
        SOURCE,
        "tiles",
        types={**tiles, "Register": REGISTERS[layout.form.accumulator]},
        constants={
            "COLUMNS": layout.columns,
            "A_IS_K_MAJOR": layout.a_is_k_major,
            "B_IS_K_MAJOR": layout.b_is_k_major,
            "A_IN_REGISTERS": layout.a_in_registers,
        },
    )


def drawn(layout: Layout) -> tuple[Array, Array, int]:
    """A, B, and the depth of one load."""
    rng = np.random.default_rng(7)
    depth = 128 // layout.form.itemsize
    a = matmuls.drawn_operand(rng, layout.form.a, (128 * GROUPS, LOADS * depth))
    b = matmuls.drawn_operand(rng, layout.form.b, (2 * layout.columns, LOADS * depth))
    return a, b, depth


def carried(shape: tuple[int, int], layout: Layout) -> Array:
    kind = matmuls.numpy_type(layout.out)
    return np.zeros(shape, kind).view(matmuls.CARRIERS[kind.itemsize])


@pytest.mark.sampled(1)
@pytest.mark.parametrize("layout", ON_BOTH, ids=str)
@pytest.mark.chips("sm_90a", "sm_100a")
def test_a_tile_of_several_atoms_is_exact(backend: Any, layout: Layout) -> None:
    check_tile(backend, layout)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("backend", [pytest.param("cuda", marks=[pytest.mark.gpu])], indirect=True)
@pytest.mark.parametrize("layout", ON_CHIP, ids=str)
def test_more_tiles_of_several_atoms_are_exact(backend: Any, layout: Layout) -> None:
    check_tile(backend, layout)


def check_tile(backend: Any, layout: Layout) -> None:
    a, b, depth = drawn(layout)
    c = backend.array(carried((len(a), len(b)), layout))
    tiles = make_tiles(backend, layout, a, b, c, depth)

    make_kernel(layout, tiles)(1, 128 * GROUPS, tuple(tiles.values()))

    kind = matmuls.numpy_type(layout.out)
    wanted = a.astype(np.float64) @ b.astype(np.float64).T
    assert np.array_equal(np.asarray(backend.host(c)).view(kind), wanted.astype(kind))


@pytest.mark.sampled(2)
@pytest.mark.parametrize("backend", ["emulate"], indirect=True)
@pytest.mark.parametrize("layout", ON_BOTH, ids=str)
def test_tiles_compile_clean_for_the_chip(backend: Any, layout: Layout) -> None:
    a, b, depth = drawn(layout)
    tiles = make_tiles(backend, layout, a, b, carried((len(a), len(b)), layout), depth)

    program = make_kernel(layout, tiles).compile()

    plan = WgmmaPlan(
        m=len(a),
        n=len(b),
        k=depth,
        form=layout.form,
        warpgroups_m=GROUPS,
        a_in_registers=layout.a_in_registers,
    )
    entry = program.entries["tiles"]
    assert program.warnings == ()
    assert (entry.spill_bytes, entry.stack_bytes) == (0, 0)
    assert entry.registers > plan.accumulator_registers + plan.a_registers


CHAIN = """
#include <tmaasync/tmaasync.cuh>
#include <tmaasync/wgmma.cuh>
using namespace tmaasync;

using OperandQ = WgmmaOperand<QTile, Major::kK>;
using OperandK = WgmmaOperand<KTile, Major::kK>;
using Element = QTile::Element;
// V of 8-bit elements is given transposed.
using OperandV = WgmmaOperand<VTile, sizeof(Element) == 1 ? Major::kK : Major::kMN>;
constexpr int kKeys = OperandK::kExtent;
constexpr int kHead = OperandV::kExtent;

struct SharedMemory {
    QTile::Shared q;
    KTile::Shared k;
    VTile::Shared v;
    SharedMemBarrier full;
};
extern "C" __device__ const int chain_shared_bytes = sizeof(SharedMemory);

extern "C" __global__ void __launch_bounds__(128) chain(
    const __grid_constant__ QTile q,
    const __grid_constant__ KTile k,
    const __grid_constant__ VTile v,
    float* out
) {
    auto& shared = dynamic_shared<SharedMemory>();
    if (threadIdx.x == 0) {
        shared.full.init(1);
        fence_barrier_init();
        shared.full.expect_bytes(QTile::kBytes + KTile::kBytes + VTile::kBytes);
        q.async_copy(shared.q, shared.full, {0, 0});
        k.async_copy(shared.k, shared.full, {0, 0});
        v.async_copy(shared.v, shared.full, {0, 0});
    }
    __syncthreads();
    shared.full.wait(0);
    float scores[1][1][kKeys / 2];
    wgmma<OperandQ, OperandK>(scores, shared.q, shared.k, false);
    u32 held[1][kKeys * sizeof(Element) / 32][4];
    accumulators_to_a<Element>(held[0], scores[0][0]);
    float sums[1][1][kHead / 2];
    wgmma_rs<OperandV>(sums, held, shared.v, false);
    for (int i = 0; i < kHead / 2; ++i) {
        const int row = accumulator_row(threadIdx.x, i);
        out[row * kHead + accumulator_column(threadIdx.x, i)] = sums[0][0][i];
    }
}
"""


@pytest.mark.sampled(1)
@pytest.mark.parametrize(("dtype", "keys"), [("bfloat16", 48), ("float8_e4m3fn", 64)])
def test_accumulators_are_multiplied_again_from_registers(
    backend: Any, dtype: str, keys: int
) -> None:
    rng = np.random.default_rng(8)
    shapes = ((64, 32), (keys, 32), (keys, 96))
    q, k, v = (matmuls.drawn_operand(rng, dtype, shape) for shape in shapes)
    is_byte = q.dtype.itemsize == 1
    given, bits = (q, k, v), np.uint8 if is_byte else np.uint16
    if is_byte:
        q, k = (np.sign(one.astype(np.float32)).astype(one.dtype) for one in (q, k))
        order = [column_of_k(place) for place in range(keys)]
        given = (q, k, np.ascontiguousarray(v[order].T))
    swizzles = (
        (Swizzle.B32, Swizzle.B32, Swizzle.B64)
        if is_byte
        else (Swizzle.B64, Swizzle.B32, Swizzle.B64)
    )
    tiles = {
        name: create_tensor_tile(
            backend.array(operand.view(bits)), operand.shape, swizzle=mode, dtype=dtype
        )
        for name, operand, mode in zip(("QTile", "KTile", "VTile"), given, swizzles, strict=True)
    }
    out = backend.array(np.full((64, 96), np.nan, np.float32))

    Kernel(CHAIN, "chain", types=tiles)(1, 128, (*tiles.values(), out))

    scores = q.astype(np.float64) @ k.astype(np.float64).T
    # So that the type holds them.
    if is_byte:
        scores = scores.astype(q.dtype).astype(np.float64)
    else:
        assert np.abs(scores).max() <= 256
    assert np.array_equal(backend.host(out), scores @ v.astype(np.float64))


def column_of_k(k: int) -> int:
    """The order of the kernel's function: of every sixteen, pairs of either eight alternate."""
    eight, pair, one = k % 4 // 2, k % 16 // 4, k % 2
    return k // 16 * 16 + eight * 8 + pair * 2 + one
