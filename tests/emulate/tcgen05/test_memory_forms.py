"""Every kind of tcgen05.mma on small integers, which all types hold exactly, and copies of a pair.

The host's layouts say where operands and results lie (`tmaasync.tcgen05`).
"""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np
import numpy.typing as npt
import pytest
from planted import DEADLOCK, FAULT, RACE, Defect, Edit, defects, without
from planted_choices import choices

from tmaasync import Kernel, emulate
from tmaasync.tcgen05 import (
    InstructionDescriptor,
    accumulator_layout,
    mma_form,
    scale_factor_layout,
    sparse_metadata_layout,
)

SOURCE = (Path(__file__).parent / "memory_forms.cu").read_text(encoding="utf-8")
LANES, COLUMNS = 128, 512
A_AT, SCALES_AT, METADATA_AT = 256, (384, 416), 448  # columns of tensor memory
B_BYTE = 8192  # of the shared image
E4M3, FP4 = ml_dtypes.float8_e4m3fn, ml_dtypes.float4_e2m1fn
Words = npt.NDArray[np.uint32]


class Case(NamedTuple):
    """An instruction, and the shape of D."""

    kind: str
    dtype: Any
    m: int
    n: int
    ctas: int = 1
    is_sparse: bool = False
    in_tensor_memory: bool = False
    shifts: bool = False
    scale: str = ""
    is_ws: bool = False
    result: Any = np.float32
    scales_d: bool = False  # D is divided by 8 before the addition
    leaves_lanes: bool = False  # OFF has a bit for each lane that keeps its D

    @property
    def form(self) -> Any:
        return mma_form(
            self.dtype,
            accumulator=np.dtype(self.result).name,
            scale_type=self.scale,
            cta_group=self.ctas,
            is_sparse=self.is_sparse,
            is_ws=self.is_ws,
        )

    @property
    def text(self) -> str:
        """The instruction in PTX, with the operands of the kernel's macro."""
        a = "[%5]" if self.in_tensor_memory else "%1"
        name = f"mma{'.ws' * self.is_ws}{'.sp' * self.is_sparse}"
        start = f"tcgen05.{name}.cta_group::{self.ctas}.kind::{self.kind}"
        block = f".block_scale.block{self.form.scale_block}" if self.scale else ""
        metadata = "[%8], " if self.is_sparse else ""
        scales = "[%6], [%7], " if self.scale else ""
        shift = ".ashift" * self.shifts
        off = f"{{{', '.join(map(str, OFF))}}}, " if self.leaves_lanes else ""
        divided = ", 3" if self.scales_d else ""
        return f"{start}{block}{shift} [%0], {a}, %2, {metadata}%3, {off}{scales}p{divided};"

    @property
    def call(self) -> str:
        """The function of the header for it."""
        a, of_a = ("tensor + 256", "u32") if self.in_tensor_memory else ("a", "u64")
        if self.is_sparse:
            a = f"Tcgen05Sparse<{of_a}>{{{a}, tensor + 448}}"
        kind = f"Tcgen05Kind::k{self.kind.upper()}"
        if self.is_ws:
            return f"tcgen05_mma_ws<{kind}>(tensor, {a}, b, instruction, accumulates);"
        if self.leaves_lanes:
            off = f"const u32 off[] = {{{', '.join(map(str, OFF))}}};"
            call = f"tcgen05_mma<{kind}>(tensor, {a}, b, instruction, accumulates, off);"
            return f"{{ {off} {call} }}"
        template = f"{kind}, {self.ctas}"
        if self.scale:
            scales = "tensor + 384, tensor + 416"
            start = f"tcgen05_mma_block_scale<{template}>"
            return f"{start}(tensor, {a}, b, instruction, {scales}, accumulates);"
        if self.shifts:
            template += ", 0, Tcgen05Collector::kDiscard, true"
        template += ", 3" * self.scales_d
        return f"tcgen05_mma<{template}>(tensor, {a}, b, instruction, accumulates);"


OFF = (0, 0xFFFF, 0, 1)


CASES = {
    "f16": Case("f16", np.float16, 128, 96),
    "bf16, M 64": Case("f16", ml_dtypes.bfloat16, 64, 64),
    "f16 to f16": Case("f16", np.float16, 128, 256, result=np.float16),
    "tf32": Case("tf32", np.float32, 128, 8),
    "e4m3": Case("f8f6f4", E4M3, 128, 128),
    "i8": Case("i8", np.int8, 64, 48, result=np.int32),
    "ws": Case("f16", np.float16, 128, 64, is_ws=True),
    "ws, M 64": Case("f16", np.float16, 64, 128, is_ws=True),
    "ws, M 32": Case("f16", np.float16, 32, 128, is_ws=True),
    "A in tensor memory": Case("f16", np.float16, 128, 64, in_tensor_memory=True),
    "ws, A in tensor memory": Case("f16", np.float16, 128, 64, in_tensor_memory=True, is_ws=True),
    "mxf8f6f4": Case("mxf8f6f4", E4M3, 128, 128, scale="ue8m0"),
    "mxf4": Case("mxf4", FP4, 128, 128, scale="ue8m0"),
    "mxf4nvf4": Case("mxf4nvf4", FP4, 128, 128, scale="ue4m3"),
    "lanes without output": Case("f16", np.float16, 128, 64, leaves_lanes=True),
    "scale-input-d": Case("f16", np.float16, 128, 64, scales_d=True),
    "sparse f16": Case("f16", np.float16, 128, 64, is_sparse=True),
    "sparse f16, M 64": Case("f16", np.float16, 64, 64, is_sparse=True),
    "sparse tf32": Case("tf32", np.float32, 128, 64, is_sparse=True),
    "sparse e4m3": Case("f8f6f4", E4M3, 128, 64, is_sparse=True),
    "sparse i8": Case("i8", np.int8, 128, 64, is_sparse=True, result=np.int32),
    "sparse, A in tensor memory": Case(
        "f16", np.float16, 128, 64, is_sparse=True, in_tensor_memory=True
    ),
    "ashift": Case("f16", np.float16, 128, 64, in_tensor_memory=True, shifts=True),
    "pair, M 256": Case("tf32", np.float32, 256, 64, 2),
    "pair, M 128": Case("f16", np.float16, 128, 64, 2),
    "pair, i8": Case("i8", np.int8, 128, 128, 2, result=np.int32),
    "pair, e4m3": Case("f8f6f4", E4M3, 256, 128, 2),
    "pair, A in tensor memory": Case("f16", np.float16, 256, 64, 2, in_tensor_memory=True),
    "pair, A in tensor memory, M 128": Case("f16", np.float16, 128, 64, 2, in_tensor_memory=True),
    "pair, ashift": Case("f16", np.float16, 256, 64, 2, in_tensor_memory=True, shifts=True),
    "pair, sparse": Case("f16", np.float16, 256, 64, 2, is_sparse=True),
    "pair, sparse, M 128": Case("f16", np.float16, 128, 64, 2, is_sparse=True),
    "pair, mxf8f6f4": Case("mxf8f6f4", E4M3, 256, 64, 2, scale="ue8m0"),
    "pair, mxf4nvf4": Case("mxf4nvf4", FP4, 256, 64, 2, scale="ue4m3"),
}
COPY = len(CASES)
HEADER = 100  # the number of a case by the header
DEFECTS = defects(
    "memory_form",
    ("a pair copies what is not visible", without("fence_async_view_proxy();"), RACE,
     r"(?s)race on image.*not made visible to tcgen05\.cp"),
    ("no wait for the copies of a pair", without("shared.done.wait(0);"), RACE,
     r"(?s)tensor memory.*tcgen05\.cp.*may not have completed.*tcgen05\.commit"),
    ("no fence after the wait for a pair", without("tcgen05_fence_after_thread_sync();", nth=2),
     RACE, r"(?s)tensor memory.*tcgen05\.cp.*after_thread_sync.*tcgen05-fence"),
    ("the commit of a copy reaches one CTA",
     Edit("tcgen05_commit_multicast<kCtas>(shared.done.address(), 3);",
          "tcgen05_commit<kCtas>(shared.done.address());"), DEADLOCK,
     r"block \(1, 0, 0\), threads 0-127 .*on done"),
    ("a pair copies before its peer has stored",
     Edit("tcgen05_fence_before_thread_sync(); cluster_sync();",
          "tcgen05_fence_before_thread_sync(); __syncthreads();"), RACE,
     r"(?s)race on (image|lane).*tcgen05\.cp"),
)  # fmt: skip
OF_MMA = defects(
    "memory_form",
    (
        "operands are not made visible",
        without("fence_async_view_proxy();"),
        RACE,
        r"(?s)race on image.*not made visible to tcgen05\.mma.*fence_async_view_proxy",
    ),
    (
        "A begins at a lane of its own",
        Edit("of_a = tensor + 256", "of_a = tensor + (1 << 16) + 256"),
        FAULT,
        r"A begins at lane 1 of tensor memory; it begins at lane 0",
    ),
)
TEXTS = choices(SOURCE, (*DEFECTS, *OF_MMA))


@functools.cache
def built(ctas: int, text: str) -> Kernel:
    texts = [(number, case.text) for number, case in enumerate(CASES.values()) if case.ctas == ctas]
    texts.append((COPY, f"tcgen05.cp.cta_group::{ctas}.128x128b [%5], %1;"))
    forms = "".join(f'FORM({number}, "{one}")\n' for number, one in texts)
    forms += "".join(
        f"if (what == {HEADER + number}) {case.call}\n"
        for number, case in enumerate(CASES.values())
        if case.ctas == ctas
    )
    assert "FORMS\n" in text
    text = text.replace("FORMS\n", forms)
    return Kernel(text, "memory_form", constants={"kCtas": ctas}, arch="sm_100a")


def kernel(ctas: int, defect: Defect | None = None) -> Kernel:
    found = built(ctas, TEXTS.text_with(defect))
    TEXTS.choose(found, defect)
    return found


def stored(values: npt.NDArray[Any]) -> npt.NDArray[np.uint8]:
    """Return the bytes of rows; two elements of four bits are one byte."""
    raw = np.ascontiguousarray(values).view(np.uint8).reshape(len(values), -1)
    return raw if values.dtype != FP4 else np.asarray(raw[:, ::2] | raw[:, 1::2] << 4, np.uint8)


def placed(image: npt.NDArray[np.uint8], at: int, rows: npt.NDArray[np.uint8]) -> int:
    """Put core matrices of 8 rows of 16 bytes into the image; return the matrix descriptor."""
    units = rows.reshape(len(rows), -1, 16).transpose(1, 0, 2).ravel()
    image[at : at + len(units)] = units
    return at >> 4 | len(rows) << 16 | 8 << 32 | 1 << 46


def shared_image(
    case: Case, a: npt.NDArray[Any], b: npt.NDArray[Any]
) -> tuple[npt.NDArray[np.uint32], int, int]:
    """Return the shared memory of each CTA, with its rows of A and of B, and the descriptors."""
    image = np.zeros((case.ctas, 32768), np.uint8)
    of_a = of_b = 0
    parts = zip(image, np.split(a, case.ctas), np.split(b, case.ctas), strict=True)
    for one, rows_a, rows_b in parts:
        of_b = placed(one, B_BYTE, stored(rows_b))
        if not case.in_tensor_memory:
            of_a = placed(one, 0, stored(rows_a))
    return image.view(np.uint32), of_a, of_b


def compressed(
    rng: np.random.Generator, case: Case
) -> tuple[npt.NDArray[Any], npt.NDArray[Any], npt.NDArray[np.uint8]]:
    """Return a sparse A, its elements that are stored, and their selectors [row, group]."""
    group, kept = (2, 1) if case.kind == "tf32" else (4, 2)
    selectors = np.array([4, 14] if kept == 1 else [0x4, 0x8, 0xC, 0x9, 0xD, 0xE], np.uint8)
    chosen = rng.choice(selectors, (case.m, case.form.k // group))
    values = rng.integers(-3, 4, (*chosen.shape, kept)).astype(np.float64)
    dense = np.zeros((*chosen.shape, group))
    places = [chosen >> 3] if kept == 1 else [chosen & 3, chosen >> 2 & 3]
    for index, place in enumerate(places):
        np.put_along_axis(dense, place[..., None].astype(np.int64), values[..., index, None], 2)
    return dense.reshape(case.m, -1), values.reshape(case.m, -1), chosen


def words_of(values: npt.NDArray[Any], case: Case) -> Words:
    """Return the words of D."""
    result = (values + 0.0).astype(case.result)  # no -0
    return result.view(f"u{result.itemsize}").astype(np.uint32)


def with_result(case: Case, memory: Words, exact: npt.NDArray[Any]) -> Words:
    """Return tensor memory after the instruction."""
    after = memory.copy()
    _, *places = accumulator_layout(case.form, case.m, case.n)
    after[tuple(places)] = words_of(exact, case)
    if case.leaves_lanes:
        kept = [lane for lane in range(LANES) if OFF[lane // 32] >> lane % 32 & 1]
        after[:, kept] = memory[:, kept]
    return after


def put_in_tensor_memory(case: Case, memory: Words, a: npt.NDArray[Any]) -> None:
    """Put the words of A's rows into the lanes of D's rows."""
    _, cta, lane, _ = accumulator_layout(case.form, case.m, case.n)
    words = stored(a).view(np.uint32)
    for n in range(case.n):
        for row in range(case.m):
            memory[cta[row, n], lane[row, n], A_AT : A_AT + words.shape[1]] = words[row]


def put_metadata(case: Case, memory: Words, chosen: npt.NDArray[np.uint8]) -> None:
    """Put the selectors where the rows of D lie: a lane's place counts within 128 lanes."""
    _, cta, lanes, _ = accumulator_layout(case.form, case.m, case.n)
    at, bit = sparse_metadata_layout(case.form)
    for row in range(case.m):
        lane = lanes[row, 0]
        for index, selector in enumerate(chosen[row]):
            word, shift = divmod(int(bit[lane, index]), 32)
            memory[cta[row, 0], at[lane, index], METADATA_AT + word] |= int(selector) << shift


def scaled(case: Case, memory: Words, rng: np.random.Generator) -> list[npt.NDArray[Any]]:
    """Put powers of two as scale factors into all lanes; return them, [row, K]."""
    form, powers = case.form, []
    for at, rows in zip(SCALES_AT, (case.m, case.n), strict=True):
        power = rng.integers(-2, 3, (rows, form.scale_vector))
        kind = E4M3 if form.scale_type == "ue4m3" else ml_dtypes.float8_e8m0fnu
        codes = (2.0**power).astype(np.float32).astype(kind).view(np.uint8)
        is_split = rows == case.m  # each CTA has the rows of its A, and all columns of B
        for cta in range(case.ctas):
            own = codes[cta * 128 : cta * 128 + 128] if is_split else codes
            lane, column, byte = scale_factor_layout(len(own), form.scale_vector)
            for group in range(4):
                np.bitwise_or.at(
                    memory[cta], (lane + 32 * group, at + column),
                    own.astype(np.uint32) << (8 * byte).astype(np.uint32),
                )  # fmt: skip
        powers.append(np.repeat(2.0**power, form.scale_block, axis=1))
    return powers


def multiply(name: str, fill: int, first: int, defect: Defect | None = None) -> None:
    case, form = CASES[name], CASES[name].form
    rng = np.random.default_rng(case.m + fill)
    memory = np.zeros((case.ctas, LANES, COLUMNS), np.uint32)
    kept = left = rng.integers(-3, 4, (case.m, form.k)).astype(np.float64)
    right = rng.integers(-3, 4, (case.n, form.k)).astype(np.float64)
    if case.is_sparse:
        left, kept, chosen = compressed(rng, case)
        put_metadata(case, memory, chosen)
    a, b = (values.astype(case.dtype) for values in (kept, right))
    if case.scale:
        factors = scaled(case, memory, rng)
        left, right = left * factors[0], right * factors[1]
    image, of_a, of_b = shared_image(case, a, b)
    if case.in_tensor_memory:
        put_in_tensor_memory(case, memory, a)
    if case.shifts:  # each row of a CTA is the one after it, and the last one stays
        rows = left.reshape(case.ctas, -1, form.k)
        left = np.concatenate((rows[:, 1:], rows[:, -1:]), axis=1).reshape(case.m, -1)
    memory[:, :, : case.n] = words_of(np.full(1, fill), case)
    exact = left @ right.T + fill / (8 if case.scales_d else 1)
    out = np.zeros_like(memory)
    bits = InstructionDescriptor(form=form, m=case.m, n=case.n).encode()
    arguments = (image, memory, of_a, of_b, bits, int(fill != 0), out)
    what = first + list(CASES).index(name), *arguments
    kernel(case.ctas, defect)(case.ctas, 128, what, cluster=case.ctas)
    np.testing.assert_array_equal(out, with_result(case, memory, exact))


@pytest.mark.sampled(34)
@pytest.mark.parametrize(("fill", "first"), [(0, 0), (5, 0), (5, HEADER)])
@pytest.mark.parametrize("name", CASES)
def test_a_form_multiplies_exactly(name: str, fill: int, first: int) -> None:
    multiply(name, fill, first)


@pytest.mark.parametrize("defect", OF_MMA, ids=lambda one: one.name)
def test_a_defect_of_an_mma_is_reported(defect: Defect) -> None:
    with (
        emulate.scheduled("random", seed=1, races=True),
        pytest.raises(defect.reported, match=defect.says),
    ):
        multiply("A in tensor memory", 0, 0, defect)


def copy_in_pair(defect: Defect | None) -> None:
    rows = np.random.default_rng(1).integers(0, 256, (2, LANES, 16), np.uint8)
    image = np.zeros((2, 32768), np.uint8)
    matrices = [placed(one, 0, of_cta) for one, of_cta in zip(image, rows, strict=True)]
    expected = np.zeros((2, LANES, COLUMNS), np.uint32)
    expected[:, :, A_AT : A_AT + 4] = rows.view(np.uint32)
    out = np.zeros_like(expected)
    arguments = (image.view(np.uint32), np.zeros_like(out), matrices[0], 0, 0, 0, out)
    kernel(2, defect)(2, 128, (COPY, *arguments), cluster=2)
    np.testing.assert_array_equal(out, expected)


def test_a_pair_copies_in_both_ctas() -> None:
    copy_in_pair(None)


@pytest.mark.parametrize("defect", DEFECTS, ids=lambda one: one.name)
def test_a_defect_of_a_pair_is_reported_in_every_order(defect: Defect) -> None:
    for seed in range(3):
        with (
            emulate.scheduled("random", seed=seed, races=True),
            pytest.raises(defect.reported, match=defect.says),
        ):
            copy_in_pair(defect)
