"""The rules of wgmma, against the PTX ISA written out by hand."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tmaasync._elements import element
from tmaasync.errors import ArgumentError
from tmaasync.wgmma import (
    MMA_FORMS,
    MmaForm,
    WgmmaPlan,
    a_fragment,
    accumulator_fragment,
    instruction_n,
    mma_form,
)

# --- forms ----------------------------------------------------------------------------------------


def test_every_form_of_the_instruction_is_there_once() -> None:
    floats = {f"f32.{type_}.{type_}" for type_ in ("f16", "bf16", "tf32")} | {"f16.f16.f16"}
    bytes_ = itertools.product(("f32", "f16"), ("e4m3", "e5m2"), ("e4m3", "e5m2"))
    integers = itertools.product(("s32",), ("s8", "u8"), ("s8", "u8"))
    wanted = floats | {".".join(types) for types in (*bytes_, *integers)}

    assert len(MMA_FORMS) == len(wanted)
    assert {form.ptx_types for form in MMA_FORMS} == wanted


@pytest.mark.parametrize("form", MMA_FORMS, ids=str)
def test_the_shape_of_a_form_follows_from_its_types(form: MmaForm) -> None:
    columns = {8 * i for i in range(1, 33)}
    if form.accumulator == "int32":
        columns -= {n for n in columns if n > 32 and n % 16}

    assert form.k * form.itemsize == 32
    assert set(form.columns) == columns
    assert form.has_scales == (form.accumulator != "int32")
    assert form.has_transposes == (form.a in ("float16", "bfloat16"))
    assert form.registers(8) == (2 if form.accumulator == "float16" else 4)
    assert mma_form(form.a, form.b, form.accumulator) == form


def test_float32_is_multiplied_as_tf32() -> None:
    assert mma_form(np.float32) == mma_form("tf32") == MmaForm("tfloat32", "tfloat32", "float32")


@pytest.mark.parametrize(
    ("types", "said"),
    [
        (("float64",), r"a is float64; wgmma multiplies float16, .*\. Convert"),
        (("bfloat16", "int16"), r"b is int16; wgmma multiplies"),
        (("float16", "bfloat16"), r"a is float16 and b is bfloat16; wgmma mixes .* Convert one"),
        (("float8_e4m3fn", "int8"), r"a is float8_e4m3fn and b is int8; wgmma mixes"),
        (("bfloat16", None, "float16"), r"accumulator is float16; .* in float32\. Use"),
        (("int8", "uint8", "float32"), r"accumulator is float32; .* in int32\. Use"),
    ],
)
def test_a_form_that_does_not_exist_is_refused(types: tuple[Any, ...], said: str) -> None:
    with pytest.raises(ArgumentError, match=said):
        mma_form(*types)


@pytest.mark.parametrize(
    ("form", "n", "said"),
    [
        (MMA_FORMS[0], 12, "n is 12; .* steps of 8. Use 8 or 16"),
        (MMA_FORMS[0], 264, "Use 248 or 256"),
        (mma_form("int8"), 40, "steps of 8 up to 32 and of 16 .* Use 32 or 48"),
    ],
)
def test_an_n_that_no_instruction_has_is_refused(form: MmaForm, n: int, said: str) -> None:
    with pytest.raises(ArgumentError, match=said):
        form.check_columns(n)


@given(
    columns=st.integers(1, 128).map(lambda eights: 8 * eights),
    form=st.sampled_from(MMA_FORMS),
    panel=st.sampled_from((8, 16, 32, 64)),
)
def test_the_widest_instruction_covers_the_columns(columns: int, form: MmaForm, panel: int) -> None:
    chosen = instruction_n(columns, form, panel=panel)

    starts = {start % panel for start in range(0, columns, chosen)}
    wider = [n for n in form.columns if n > chosen and columns % n == 0]
    assert chosen in form.columns
    assert columns % chosen == 0
    assert all(start == 0 or start + chosen <= panel for start in starts)
    assert not any(n % panel == 0 for n in wider)


@pytest.mark.parametrize("columns", [0, 12, -8])
def test_columns_that_no_instruction_covers_are_refused(columns: int) -> None:
    with pytest.raises(ArgumentError, match=f"columns is {columns}; .* Round up to"):
        instruction_n(columns)


# --- fragments ------------------------------------------------------------------------------------


@pytest.mark.parametrize("columns", range(8, 257, 8))
def test_every_sum_is_held_once(columns: int) -> None:
    rows, places = accumulator_fragment(columns)

    held = rows * columns + places
    assert held.shape == (128, columns // 2)
    assert np.array_equal(np.sort(held, axis=None), np.arange(64 * columns))


def test_sums_lie_as_the_figure_of_the_instruction_shows() -> None:
    rows, columns = accumulator_fragment(24)

    for warp, lane in itertools.product(range(4), range(32)):
        group, pair = divmod(lane, 4)
        figure = [
            (16 * warp + group + down, 8 * block + 2 * pair + right)
            for block in range(3)
            for down in (0, 8)
            for right in (0, 1)
        ]
        thread = 32 * warp + lane
        assert list(zip(rows[thread].tolist(), columns[thread].tolist(), strict=True)) == figure


@pytest.mark.parametrize("dtype", ["bfloat16", "int8", "float8_e5m2", "tfloat32"])
def test_every_element_of_a_is_held_once_in_whole_registers(dtype: str) -> None:
    rows, k = a_fragment(dtype)
    itemsize = element(dtype).itemsize
    deep = 32 // itemsize

    assert rows.shape == (128, 16 // itemsize)
    assert np.array_equal(np.sort(rows * deep + k, axis=None), np.arange(64 * deep))
    for warp, lane, register in itertools.product(range(4), range(32), range(4)):
        held = slice(register * 4 // itemsize, (register + 1) * 4 // itemsize)
        thread = 32 * warp + lane
        assert set(rows[thread, held]) == {16 * warp + lane // 4 + (8 if register & 1 else 0)}
        start = lane % 4 * 4 + (16 if register & 2 else 0)
        assert (k[thread, held] * itemsize).tolist() == list(range(start, start + 4, itemsize))


def test_a_fragment_of_another_type_is_refused() -> None:
    with pytest.raises(ArgumentError, match="dtype is int16; wgmma multiplies"):
        a_fragment("int16")
    with pytest.raises(ArgumentError, match=r"columns is 12; .* multiple of 8"):
        accumulator_fragment(12)


# --- plans ----------------------------------------------------------------------------------------


@given(
    form=st.sampled_from(MMA_FORMS),
    groups=st.tuples(st.integers(1, 3), st.integers(1, 2)),
    atoms=st.tuples(st.integers(1, 2), st.integers(1, 16), st.integers(1, 8)),
    in_registers=st.booleans(),
)
def test_the_instructions_of_a_plan_cover_its_tile(
    form: MmaForm, groups: tuple[int, int], atoms: tuple[int, int, int], in_registers: bool
) -> None:
    m, n, k = 64 * groups[0] * atoms[0], 8 * groups[1] * atoms[1], form.k * atoms[2]

    plan = WgmmaPlan(
        m=m,
        n=n,
        k=k,
        form=form,
        warpgroups_m=groups[0],
        warpgroups_n=groups[1],
        a_in_registers=in_registers,
    )

    warpgroups = groups[0] * groups[1]
    multiplied = 64 * plan.instruction_n * form.k * plan.atoms_m * plan.atoms_n * plan.k_steps
    assert multiplied * warpgroups == m * n * k
    assert plan.threads == 128 * warpgroups
    bits = 16 if form.accumulator == "float16" else 32
    assert plan.accumulator_registers * 32 * plan.threads == m * n * bits
    a_bytes = m * k * form.itemsize
    if in_registers:
        assert plan.a_registers * 4 * 128 * groups[0] == a_bytes
    assert plan.shared_bytes == n * k * form.itemsize + (0 if in_registers else a_bytes)
    assert plan.instruction.endswith(f"m64n{plan.instruction_n}k{form.k}.{form.ptx_types}")
    assert plan.b_descriptor_params().panel_bytes == n * plan.b_swizzle.span_bytes


@given(
    groups=st.tuples(st.integers(1, 3), st.integers(1, 3)),
    atoms=st.tuples(st.integers(1, 2), st.integers(1, 20), st.integers(1, 4)),
)
def test_operands_with_m_and_n_contiguous_can_be_described(
    groups: tuple[int, int], atoms: tuple[int, int, int]
) -> None:
    plan = WgmmaPlan(
        m=64 * groups[0] * atoms[0],
        n=8 * groups[1] * atoms[1],
        k=16 * atoms[2],
        form=mma_form("float16"),
        warpgroups_m=groups[0],
        warpgroups_n=groups[1],
        a_is_k_major=False,
        b_is_k_major=False,
    )

    assert plan.a_descriptor_params().panel_bytes == plan.k * plan.a_swizzle.span_bytes
    assert plan.b_descriptor_params().panel_bytes == plan.k * plan.b_swizzle.span_bytes


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"m": 96}, "m is 96; it must be a multiple of 64, .* Use 128"),
        ({"m": 64, "warpgroups_m": 2}, "multiple of 128, 64 rows for each warpgroup"),
        ({"n": 20}, "n is 20; .* Use 24"),
        ({"k": 40}, "k is 40; it must be a multiple of 16, 32 bytes of bfloat16. Use 48"),
        ({"m": 256, "n": 256}, "m x n is 256 x 256; .* take 512 registers .* more warpgroups"),
        ({"form": mma_form("int8"), "k": 64, "b_is_k_major": False}, "only 16-bit operands"),
    ],
)
def test_a_tile_that_cannot_be_multiplied_is_refused(changes: dict[str, Any], said: str) -> None:
    numbers: dict[str, Any] = {"m": 128, "n": 128, "k": 64, "form": mma_form("bfloat16")}

    with pytest.raises(ArgumentError, match=said):
        WgmmaPlan(**(numbers | changes))
