"""mma.sync and mma.sp with a kind (sm_120a), and m8n8k4, against the oracle and by ptxas."""

from __future__ import annotations

import shutil
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt
import pytest
from emulate.tcgen05 import tcgen05_oracle as oracle
from emulate.tcgen05.tcgen05_library import CODE_BITS, TYPE_CODES, Instruction, Scales
from emulate.tcgen05.test_tcgen05_arithmetic import indices_of

from tmaasync import CompileError, EmulatedFault, Kernel

SMALL = tuple(TYPE_CODES["f8f6f4"])
PAIRS = list(zip(SMALL, SMALL[1:] + SMALL[:1], strict=True))
M, N, WARP = 16, 8, 32
DENSE = [
    *(Instruction(kind="f8f6f4", a=a, b=b) for a, b in PAIRS),
    Instruction(kind="f8f6f4", a="e4m3", b="e2m1", d="f16"),
    *(Instruction(kind="mxf8f6f4", a=a, b=b, facts={"scale_vector": 1}) for a, b in PAIRS[:2]),
    Instruction(kind="mxf4", a="e2m1", b="e2m1", facts={"scale_vector": 2}),
    *(
        Instruction(
            kind="mxf4nvf4", a="e2m1", b="e2m1", scales=scales, facts={"scale_vector": vector}
        )
        for vector, scales in ((2, Scales.UE8M0), (4, Scales.UE8M0), (4, Scales.UE4M3))
    ),
]
SPARSE = [replace(form, facts={**form.facts, "is_sparse": 1}) for form in DENSE]
FORMS = [*DENSE, *SPARSE]


def name_of(form: Instruction) -> str:
    sparse = "sparse-" if form.is_sparse else ""
    kind = f"{sparse}{form.kind}-{form.a}-{form.b}-{form.d}"
    return f"{kind}-{form.facts.get('scale_vector')}{form.scales}"


def ids_of(form: Instruction) -> tuple[int, int, int, int]:
    byte = {1: (3, 2), 2: (2, 0), 4: (0, 0)}[form.facts["scale_vector"]]
    return byte[0], 1, byte[1], 3


def spelling(form: Instruction, *, is_late: bool) -> str:
    kind = f"kind::{form.kind}"
    types = f"{form.d}.{form.a}.{form.b}.{form.d}"
    if form.is_scaled:
        kind += f".block_scale.scale_vec::{form.facts['scale_vector']}X"
        types += f".{form.scales.name.lower()}"
    shape = f"m16n8k{form.k}"
    if form.is_sparse and not is_late:
        kind = kind.replace(f"::{form.kind}", f"::{form.kind}.sp::ordered_metadata")
    elif form.is_sparse:
        return f"mma.sp::ordered_metadata.sync.aligned.{shape}.row.col.{kind}.{types}"
    middle = f"{shape}.row.col.{kind}" if is_late else f"{kind}.{shape}.row.col"
    return f"mma.sync.aligned.{middle}.{types}"


def source_of(form: Instruction, *, is_late: bool = False) -> str:
    count = 2 if form.d == "f16" else 4
    sums = ", ".join(f"%{i}" for i in range(count))
    a = ", ".join(f"%{count + i}" for i in range(4))
    b = ", ".join(f"%{count + 4 + i}" for i in range(4 if form.is_sparse else 2))
    metadata = f", %{count + 10}, 0x0" if form.is_sparse else ""
    scales = ""
    if form.is_scaled:
        ids = ids_of(form)
        scales = (
            f", {{%{count + 8}}}, {{{ids[0]}, {ids[1]}}}, {{%{count + 9}}}, {{{ids[2]}, {ids[3]}}}"
        )
    operands = f"{{{sums}}}, {{{a}}}, {{{b}}}, {{{sums}}}{metadata}{scales}"
    inputs = ", ".join(f'"r"(words[{32 * i}])' for i in (*range(8), 9, 8, 10))
    held = ", ".join(f'"+r"(d[{i}])' if form.d == "f16" else f'"+f"(d[{i}])' for i in range(count))
    kind = "unsigned" if form.d == "f16" else "float"
    return f"""
extern "C" __global__ void multiply({kind}* sums, const unsigned* all) {{
    const unsigned* words = all + threadIdx.x;
    {kind} d[{count}];
    for (int i = 0; i < {count}; ++i) d[i] = sums[threadIdx.x * {count} + i];
    asm volatile(
        "{spelling(form, is_late=is_late)} {operands};"
        : {held}
        : {inputs}
    );
    for (int i = 0; i < {count}; ++i) sums[threadIdx.x * {count} + i] = d[i];
}}
"""


def codes_of(words: npt.NDArray[np.uint32], form: Instruction, kind: str) -> list[int]:
    """Return the codes of a row: containers of 8 bits, or packed."""
    if form.kind in ("mxf4", "mxf4nvf4"):
        return list((words[:, None] >> np.arange(0, 32, 4) & 15).ravel().tolist())
    bytes_ = words[:, None] >> np.arange(0, 32, 8) & 255
    codes = bytes_ >> 2 & 15 if kind == "e2m1" else bytes_ & ((1 << CODE_BITS[kind]) - 1)
    return list(codes.ravel().tolist())


def metadata_of(indices: npt.NDArray[Any], form: Instruction) -> npt.NDArray[np.uint32]:
    """Return the word of each lane: lane 4 q + j has half j / 2 of row q + 8 (j % 2)."""
    pairs = form.kind in ("mxf4", "mxf4nvf4")
    group = 8 if pairs else 4
    chosen = indices[:, ::2] // 2 if pairs else indices  # [16 rows, two of each group]
    two_bits = chosen.astype(np.uint64).reshape(M, form.k // group, 2) % 4
    selectors = two_bits[..., 0] | two_bits[..., 1] << np.uint64(2)
    halves = selectors.reshape(M, 2, 8) << np.arange(0, 32, 4, dtype=np.uint64)
    words = halves.sum(-1).astype(np.uint32)  # [16 rows, half of K]
    lane = np.arange(WARP)
    found: npt.NDArray[np.uint32] = words[lane // 4 + 8 * (lane % 2), lane // 2 % 2]
    return found


def words_of(rng: np.random.Generator, form: Instruction) -> npt.NDArray[np.uint32]:
    """Return a0 to a3, b0 to b3, the scales of B and of A, and the metadata, of each lane."""
    words = rng.integers(0, 1 << 32, (11, WARP), dtype=np.uint32)
    if form.is_scaled:
        low, high = (40, 70) if form.scales == Scales.UE4M3 else (120, 134)
        scales = rng.integers(low, high, (2, WARP, 4), dtype=np.uint8).view("<u4")[..., 0]
        words[8:10] = scales
    return words


def wanted_element(
    form: Instruction,
    words: npt.NDArray[np.uint32],
    at: tuple[int, int],
    before: int,
    indices: npt.NDArray[Any] | None,
) -> int:
    (row, column), quad = at, at[0] % 8 * 4
    half = row // 8
    of_row = np.array([words[p * 2 + half, quad + t] for p in (0, 1) for t in range(4)])
    parts = range(4 if form.is_sparse else 2)
    of_column = np.array([words[4 + p, column * 4 + t] for p in parts for t in range(4)])
    scales_a: list[int] = []
    scales_b: list[int] = []
    if vector := form.facts.get("scale_vector", 0):
        byte_a, thread_a, byte_b, thread_b = ids_of(form)
        word_a, word_b = words[9, quad + 2 * thread_a + half], words[8, column * 4 + thread_b]
        scales_a = [int(word_a) >> 8 * (byte_a + j) & 255 for j in range(vector)]
        scales_b = [int(word_b) >> 8 * (byte_b + j) & 255 for j in range(vector)]
    return oracle.element(
        form,
        codes_of(of_row, form, form.a),
        codes_of(of_column, form, form.b),
        before,
        a_scales=scales_a,
        b_scales=scales_b,
        indices=None if indices is None else indices[row].tolist(),
        is_of_warp=True,
    )


@pytest.mark.sampled(3)
@pytest.mark.parametrize("form", FORMS, ids=name_of)
def test_kinds(form: Instruction) -> None:
    rng = np.random.default_rng(12)
    words = words_of(rng, form)
    indices = indices_of(rng, form, M)
    if indices is not None:
        words[10] = metadata_of(indices, form)
    old = rng.standard_normal((WARP, 4)).astype(np.float32) * 50
    old[0] = (0.0, -0.0, 1e30, -1e-30)
    held = old.copy() if form.d == "f32" else old.clip(-100, 100).astype(np.float16).view(np.uint32)
    sums = held.copy()

    Kernel(source_of(form), "multiply", arch="sm_120a")(1, WARP, (sums, words))

    before = held.view(np.uint16 if form.d == "f16" else np.uint32)
    after = sums.view(before.dtype)
    for lane, i in np.ndindex(WARP, 4):
        at = (lane // 4 + i // 2 * 8, lane % 4 * 2 + i % 2)
        wanted = wanted_element(form, words, at, int(before[lane, i]), indices)
        assert f"{after[lane, i]:#x}" == f"{wanted:#x}", (lane, i)


def test_metadata_that_selects_an_element_twice_is_a_fault() -> None:
    form = SPARSE[0]
    words = words_of(np.random.default_rng(3), form)
    words[10] = 0x44444444
    words[10, 9] = 0x44454444
    with pytest.raises(EmulatedFault, match=r"lane 9 has the sparse metadata of row 10, .* 0x5 is"):
        Kernel(source_of(form), "multiply", arch="sm_120a")(
            1, WARP, (np.zeros((WARP, 4), np.float32), words)
        )


HALVES_OF_BYTES = """
extern "C" __global__ void multiply(unsigned* sums, const unsigned* words) {
    const unsigned* w = words + threadIdx.x;
    unsigned* d = sums + 2 * threadIdx.x;
    asm volatile(
        "mma.sync.aligned.m16n8k32.row.col.f16.e4m3.e5m2.f16 {%0, %1}, {%2, %3, %4, %5}, {%6, %7}, "
        "{%0, %1};"
        : "+r"(d[0]), "+r"(d[1])
        : "r"(w[0]), "r"(w[32]), "r"(w[64]), "r"(w[96]), "r"(w[128]), "r"(w[160]));
}
"""


@pytest.mark.parametrize("arch", ["sm_90a", "sm_120a"])
def test_bytes_without_a_kind_to_halves(arch: str) -> None:
    """Small integers, which halves hold exactly."""
    rng = np.random.default_rng(15)
    a, b = rng.integers(-4, 5, (M, 32)), rng.integers(-4, 5, (N, 32))
    codes = [
        values.astype(np.float32).astype(kind).view(np.uint8)
        for values, kind in ((a, ml_dtypes.float8_e4m3fn), (b, ml_dtypes.float8_e5m2))
    ]
    words = np.zeros((6, WARP, 4), np.uint8)
    for i, lane in np.ndindex(4, WARP):
        first = i // 2 * 16 + lane % 4 * 4
        words[i, lane] = codes[0][lane // 4 + i % 2 * 8, first : first + 4]
    for i, lane in np.ndindex(2, WARP):
        words[4 + i, lane] = codes[1][lane // 4, 16 * i + lane % 4 * 4 :][:4]
    sums = np.ones((WARP, 4), np.float16)

    Kernel(HALVES_OF_BYTES, "multiply", arch=arch)(
        1, WARP, (sums.view(np.uint32), words.view(np.uint32))
    )

    wanted = a @ b.T + 1
    for lane, i in np.ndindex(WARP, 4):
        assert sums[lane, i] == wanted[lane // 4 + i // 2 * 8, lane % 4 * 2 + i % 2], (lane, i)


# --- m8n8k4 ---------------------------------------------------------------------------------------

QUADS = """
extern "C" __global__ void multiply(TYPE* sums, const unsigned* words) {
    TYPE d[COUNT];
    for (int i = 0; i < COUNT; ++i) d[i] = sums[threadIdx.x * COUNT + i];
    const unsigned* mine = words + threadIdx.x * 4;
    asm volatile(
        "mma.sync.aligned.m8n8k4.SIDES.TOTAL.f16.f16.TOTAL {SUMS}, {A}, {B}, {SUMS};"
        : OUTPUTS : "r"(mine[0]), "r"(mine[1]), "r"(mine[2]), "r"(mine[3]));
    for (int i = 0; i < COUNT; ++i) sums[threadIdx.x * COUNT + i] = d[i];
}
"""


def quads_source(sides: str, total: str) -> str:
    count, kind, letter = (8, "float", "f") if total == "f32" else (4, "unsigned", "r")
    source = QUADS
    for name, text in (
        ("TYPE", kind),
        ("COUNT", str(count)),
        ("SIDES", sides),
        ("TOTAL", total),
        ("SUMS", ", ".join(f"%{i}" for i in range(count))),
        ("{A}", f"{{%{count}, %{count + 1}}}"),
        ("{B}", f"{{%{count + 2}, %{count + 3}}}"),
        ("OUTPUTS", ", ".join(f'"+{letter}"(d[{i}])' for i in range(count))),
    ):
        source = source.replace(name, text)
    return source


@pytest.mark.parametrize(
    ("sides", "total"),
    [("row.col", "f32"), ("row.row", "f16"), ("col.col", "f16"), ("col.row", "f32")],
)
def test_quad_pairs(sides: str, total: str) -> None:
    """Four times 8 x 4 by 4 x 8; small integers, which every order sums to the same."""
    rng = np.random.default_rng(8)
    a, b = rng.integers(-8, 9, (2, 4, 8, 4)).astype(np.float16)  # [quad pair, M or N, K]
    c = rng.integers(-8, 9, (4, 8, 8)).astype(np.float32)
    held = np.zeros((WARP, 8), np.float16)
    sums = np.zeros((WARP, 8), np.float32 if total == "f32" else np.float16)
    places = []
    for lane, i in np.ndindex(WARP, 8):
        quad, high = lane % 16 // 4, lane // 16 * 4
        if total == "f32":
            row, column = (lane & 1) + (i & 2) + high, (i & 4) + (lane & 2) + (i & 1)
        else:
            row, column = lane % 4 + high, i
        places.append((quad, row, column))
        sums[lane, i] = c[quad, row, column]
        side, j = (0, i) if i < 4 else (1, i - 4)
        follows_k = sides.split(".")[side] == ("col", "row")[side]
        along, k = (j + high, lane % 4) if follows_k else (lane % 4 + high, j)
        held[lane, i] = (a, b)[side][quad, along, k]

    Kernel(quads_source(sides, total), "multiply")(
        1, WARP, (sums.view(np.uint32) if total == "f16" else sums, held.view(np.uint32))
    )

    wanted = c + np.einsum("qmk,qnk->qmn", a.astype(np.float32), b.astype(np.float32))
    assert sums.astype(np.float32).ravel().tolist() == [wanted[place] for place in places]


def test_ptxas_accepts_what_the_emulator_runs(tmp_path: Path) -> None:
    nvcc = shutil.which("nvcc")
    if nvcc is None:
        pytest.skip("there is no nvcc on the path")
    # ptxas 13.0 lacks ue8m0 with 4X.
    forms = [one for one in FORMS if (one.facts.get("scale_vector"), one.scales) != (4, 1)]
    sources = [source_of(one, is_late=i % 2 == 1) for i, one in enumerate(forms)]
    text = "\n".join(
        one.replace("void multiply(", f"void multiply{i}(") for i, one in enumerate(sources)
    )
    for name, arch, source in (
        ("kinds", "120a", text),
        ("quads", "90a", quads_source("row.col", "f32")),
    ):
        path = tmp_path / f"{name}.cu"
        path.write_text(source)
        built = subprocess.run(
            [nvcc, f"-gencode=arch=compute_{arch},code=sm_{arch}", "-cubin", "-o",
             str(tmp_path / name), str(path)],
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert built.returncode == 0, built.stderr


@pytest.mark.parametrize("form", [DENSE[0], SPARSE[0]], ids=name_of)
def test_other_chips_lack_the_kinds(form: Instruction) -> None:
    sums, words = np.zeros((WARP, 4), np.float32), np.zeros((11, WARP), np.uint32)
    with pytest.raises(CompileError, match=r"is of sm_120a, .* Use tcgen05 or mma\.sync"):
        Kernel(source_of(form), "multiply", arch="sm_100a")(1, WARP, (sums, words))
