"""GEMMs made of the public main loop and epilogue, against NumPy in float64."""

from __future__ import annotations

import functools
import itertools
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from parity.backends import Cuda, Emulate

from tmaasync import Kernel, Swizzle, create_ragged_tensor_map, create_tma_tile, emulate

pytestmark = pytest.mark.chips("sm_90a", "sm_100a")

SOURCE = Path(__file__).with_name("structured_gemm.cu")

PLAIN, REDUCE, FUSED, FUNCTOR, ROW_SUMS, ADDEND, TWO_OUTPUTS = range(7)
BF16, E4M3 = ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn
_SWIZZLES = {128: Swizzle.B128, 64: Swizzle.B64, 32: Swizzle.B32}
FACTOR = 0.5
SEEDED: tuple[Any, ...] = ("random", "adversarial")


@dataclass(frozen=True)
class Gemm:
    """C = A B^T, and how the kernel computes it."""

    shape: tuple[int, int, int] = (200, 104, 136)
    dtype: Any = np.float16
    out: Any = np.float32
    a_is_k_major: bool = True
    b_is_k_major: bool = True
    c_is_n_major: bool = True
    consumers: int = 2
    rows: int = 64
    columns: int = 96
    line_bytes: int = 128
    stages: int = 3
    ping_pong: bool = False
    epilogue: int = PLAIN
    lengths: tuple[int, ...] = ()

    @property
    def block_m(self) -> int:
        return self.rows if self.ping_pong else self.consumers * self.rows

    @property
    def depth(self) -> int:
        return 128 // int(np.dtype(self.dtype).itemsize)

    @property
    def chunk(self) -> tuple[int, int]:
        itemsize = np.dtype(self.out).itemsize
        if self.c_is_n_major:
            return 64, self.line_bytes // itemsize
        return self.columns, 64


def operands(gemm: Gemm) -> tuple[Any, Any]:
    """Small integers: every accumulator is exact."""
    m, n, k = gemm.shape
    rng = np.random.default_rng(m + n)
    a, b = (rng.integers(-4, 5, (rows, k)).astype(gemm.dtype) for rows in (m, n))
    return a, b


def operand_tile(backend: Any, host: Any, rows: int, depth: int, is_k_major: bool) -> Any:
    stored = host if is_k_major else np.ascontiguousarray(host.T)
    dtype = None
    if host.dtype == E4M3:  # CuPy has no float8
        stored, dtype = stored.view(np.uint8), "float8_e4m3fn"
    sides = (rows, depth) if is_k_major else (depth, rows)
    box = None if is_k_major else (depth, 64)
    array = backend.array(stored)
    return create_tma_tile(array, sides, dtype=dtype, swizzle=Swizzle.B128, box_shape=box)


class Output:
    """An output inside a wider array of poison, which a store must not touch."""

    def __init__(self, backend: Any, gemm: Gemm, value: Any = None) -> None:
        m, n, _ = gemm.shape
        self.poison = -12345 if gemm.out == np.int32 else np.nan
        self.sides = (m, n) if gemm.c_is_n_major else (n, m)
        self.backend, self.gemm = backend, gemm
        unit = 16 // np.dtype(gemm.out).itemsize
        # TMA stores whole units of 16 bytes.
        self.stored = -(-self.sides[1] // unit) * unit
        host = np.full((self.sides[0], self.stored + unit), self.poison, np.float64)
        if value is not None:
            host[:, : self.sides[1]] = value if gemm.c_is_n_major else value.T
        self.whole = backend.array(host.astype(gemm.out))

    def tile(self) -> Any:
        view = self.whole[:, : self.sides[1]]
        swizzle = _SWIZZLES[self.gemm.line_bytes]
        if self.gemm.lengths:
            return create_ragged_tensor_map(view, self.gemm.chunk, swizzle=swizzle)
        line = self.gemm.line_bytes // np.dtype(self.gemm.out).itemsize
        box = (self.gemm.chunk[0], line)
        return create_tma_tile(view, self.gemm.chunk, swizzle=swizzle, box_shape=box)

    def values(self) -> Any:
        host = self.backend.host(self.whole)
        padding = host[:, self.stored :].astype(np.float64)
        assert np.array_equal(padding, np.full(padding.shape, self.poison), equal_nan=True)
        found = host[:, : self.sides[1]].astype(np.float64)
        return found if self.gemm.c_is_n_major else found.T


@functools.cache
def kernel(a: str, b: str, c: str, gemm: Gemm) -> Kernel:
    constants = {
        "A_MAJOR": int(not gemm.a_is_k_major),
        "B_MAJOR": int(not gemm.b_is_k_major),
        "C_MAJOR": int(not gemm.c_is_n_major),
        "CONSUMERS": gemm.consumers,
        "ROWS": gemm.rows,
        "BLOCK_N": gemm.columns,
        "STAGES": gemm.stages,
        "PING_PONG": int(gemm.ping_pong),
        "EPILOGUE": gemm.epilogue,
    }
    types = {"ATile": a, "BTile": b, "CTile": c}
    return Kernel(SOURCE, "structured_gemm", types=types, constants=constants)


@dataclass(frozen=True)
class Results:
    """What a launch left, and the exact result of A B^T."""

    c: Any
    other: Any
    row_sums: Any
    exact: Any
    given: Any
    column_bias: Any
    row_bias: Any


def launch(backend: Any, gemm: Gemm) -> Results:
    m, n, k = gemm.shape
    rng = np.random.default_rng(k)
    a, b = operands(gemm)
    a_tile = operand_tile(backend, a, gemm.block_m, gemm.depth, gemm.a_is_k_major)
    b_tile = operand_tile(backend, b, gemm.columns, gemm.depth, gemm.b_is_k_major)
    given = rng.integers(-9, 10, (m, n)).astype(np.float64)
    c = Output(backend, gemm, given if gemm.epilogue == REDUCE else None)
    other = Output(backend, gemm, given if gemm.epilogue == ADDEND else None)
    column_bias = rng.integers(-9, 10, n).astype(np.float32)
    row_bias = rng.integers(-9, 10, m).astype(np.float32)
    row_sums = backend.array(np.zeros(m, np.float32))
    ends = backend.array(np.cumsum(gemm.lengths or (m,)).astype(np.int32))
    c_tile = c.tile()
    built = kernel(
        a_tile.cuda_type,
        b_tile.cuda_type,
        c_tile.cuda_type,
        replace(gemm, shape=(0, 0, 0), lengths=()),
    )
    biases = backend.array(column_bias), backend.array(row_bias)
    arguments = (a_tile, b_tile, c_tile, other.tile(), *biases, row_sums, np.float32(FACTOR))
    blocks = 30 if isinstance(backend, Cuda) else 2
    threads = 128 * (1 + gemm.consumers)
    built(blocks, threads, (*arguments, m, n, k, ends, max(1, len(gemm.lengths))))
    exact = a.astype(np.float64) @ b.astype(np.float64).T
    return Results(
        c.values(), other.values(), backend.host(row_sums), exact, given, column_bias, row_bias
    )


def rounded(exact: Any, dtype: Any) -> Any:
    return exact.astype(dtype).astype(np.float64)


FORMS = {
    "cooperative": Gemm(),
    "one consumer": Gemm(consumers=1, columns=64),
    "128 rows": Gemm(rows=128, columns=128),
    "ping-pong": Gemm(ping_pong=True),
    "ping-pong, 128 rows": Gemm(ping_pong=True, rows=128, columns=64),
    "A is M-major": Gemm(a_is_k_major=False, columns=64),
    "B is N-major": Gemm(b_is_k_major=False, columns=64),
    "A and B transposed, 128 rows": Gemm(
        a_is_k_major=False, b_is_k_major=False, rows=128, columns=128
    ),
    "C is M-major": Gemm(c_is_n_major=False),
    "bf16": Gemm(dtype=BF16, out=BF16, columns=128),
    "fp16, narrow lines": Gemm(out=np.float16, columns=32, line_bytes=64),
    "fp16, narrowest lines": Gemm(out=np.float16, columns=16, line_bytes=32),
    "16-bit M-major": Gemm(out=np.float16, c_is_n_major=False, columns=24),
    "fp8": Gemm(dtype=E4M3, out=BF16, columns=128, shape=(200, 104, 272)),
    "int8": Gemm(dtype=np.int8, out=np.int32, shape=(200, 104, 272)),
    "uint8, M-major": Gemm(
        dtype=np.int8, out=np.int32, c_is_n_major=False, columns=32, shape=(77, 52, 144)
    ),
    "two stages": Gemm(stages=2),
}
SHAPES = ((1, 8, 16), (321, 136, 208))


# On the CPU each option once, here or in the tests below.
@pytest.mark.sampled(2)
@pytest.mark.on_the_cpu(1, 4, 7, 11, 12, 13, 15)
@pytest.mark.parametrize("form", FORMS)
def test_a_gemm_of_the_layer(backend: Any, form: str) -> None:
    gemm = FORMS[form]
    for m, n, k in (gemm.shape, *SHAPES):
        wide = gemm.a_is_k_major and gemm.c_is_n_major
        found = launch(backend, replace(gemm, shape=(m if wide else -(-m // 8) * 8, n, k)))

        assert np.array_equal(found.c, rounded(found.exact, gemm.out)), (m, n, k)


def test_columns_that_end_anywhere(backend: Any) -> None:
    for n in (1, 3, 97, 130):
        found = launch(backend, Gemm(shape=(70, n, 72)))

        assert np.array_equal(found.c, found.exact)


@pytest.mark.sampled(1)
@pytest.mark.on_the_cpu(1, 2)
@pytest.mark.parametrize("ping_pong", [False, True], ids=["cooperative", "ping-pong"])
@pytest.mark.parametrize("rows", [64, 128])
def test_ragged_outputs_stop_at_the_end_of_their_sequence(
    backend: Any, ping_pong: bool, rows: int
) -> None:
    lengths = (1, 70, 0, 257, 33)
    gemm = Gemm((sum(lengths), 72, 72), ping_pong=ping_pong, rows=rows, columns=64, lengths=lengths)

    found = launch(backend, gemm)

    assert np.array_equal(found.c, found.exact)


@pytest.mark.sampled(1)
@pytest.mark.on_the_cpu(2)
@pytest.mark.parametrize("out", [np.float32, np.float16, BF16], ids=["fp32", "fp16", "bf16"])
def test_reduce_adds_to_the_output(backend: Any, out: Any) -> None:
    found = launch(backend, Gemm(epilogue=REDUCE, out=out, columns=128, shape=(200, 104, 24)))

    wanted = rounded(rounded(found.exact, out) + found.given, out)
    assert np.array_equal(found.c, wanted)


@pytest.mark.sampled(1)
@pytest.mark.on_the_cpu(1, 2)
@pytest.mark.parametrize("rows", [64, 128])
@pytest.mark.parametrize("c_is_n_major", [True, False], ids=["N-major", "M-major"])
def test_scale_biases_and_activation_in_this_order(
    backend: Any, rows: int, c_is_n_major: bool
) -> None:
    gemm = Gemm(
        epilogue=FUSED, rows=rows, c_is_n_major=c_is_n_major, columns=64, shape=(196, 101, 72)
    )

    found = launch(backend, gemm)

    biased = FACTOR * found.exact + found.column_bias + found.row_bias[:, None]
    assert np.array_equal(found.c, np.maximum(biased, 0))


@pytest.mark.sampled(1)
@pytest.mark.on_the_cpu(1, 2)
@pytest.mark.parametrize("out", [np.float32, np.int32], ids=["fp32", "int32"])
@pytest.mark.parametrize("rows", [64, 128])
def test_a_function_of_the_user_sees_value_row_and_column(
    backend: Any, out: Any, rows: int
) -> None:
    dtype = np.int8 if out == np.int32 else np.float16
    gemm = Gemm(epilogue=FUNCTOR, dtype=dtype, out=out, rows=rows, shape=(199, 101, 144))

    found = launch(backend, gemm)

    m, n, _ = gemm.shape
    assert np.array_equal(found.c, found.exact + np.arange(m)[:, None] - 2 * np.arange(n))


@pytest.mark.on_the_cpu(1)
@pytest.mark.parametrize("rows", [64, 128])
def test_sums_of_squares_of_rows(backend: Any, rows: int) -> None:
    found = launch(backend, Gemm(epilogue=ROW_SUMS, rows=rows, shape=(199, 203, 72)))

    biased = found.exact + found.row_bias[:, None]
    assert np.array_equal(found.c, biased)
    assert np.allclose(found.row_sums, (biased**2).sum(axis=1), rtol=1e-6)


@pytest.mark.sampled(1)
@pytest.mark.on_the_cpu(0, 7)
@pytest.mark.parametrize("out", [np.float32, np.float16])
@pytest.mark.parametrize("c_is_n_major", [True, False])
@pytest.mark.parametrize("rows", [64, 128])
def test_an_addend_through_the_ring(backend: Any, out: Any, c_is_n_major: bool, rows: int) -> None:
    gemm = Gemm(
        epilogue=ADDEND,
        out=out,
        c_is_n_major=c_is_n_major,
        rows=rows,
        columns=64 if c_is_n_major else 32,
        shape=(200, 104, 72),
    )

    found = launch(backend, gemm)

    assert np.array_equal(found.c, rounded(found.exact + FACTOR * found.given, out))


def test_chunks_that_go_to_two_outputs(backend: Any) -> None:
    found = launch(backend, Gemm(epilogue=TWO_OUTPUTS, shape=(150, 200, 72)))

    chunk = np.arange(200) % 96 // 32 % 2
    assert np.array_equal(found.c[:, chunk == 0], found.exact[:, chunk == 0])
    assert np.array_equal(found.other[:, chunk == 1], found.exact[:, chunk == 1])
    assert np.isnan(found.c[:, chunk == 1]).all()
    assert np.isnan(found.other[:, chunk == 0]).all()


@pytest.mark.sampled(1)
@pytest.mark.parametrize("ping_pong", [False, True], ids=["cooperative", "ping-pong"])
def test_a_gemm_of_the_layer_is_right_in_any_order(ping_pong: bool) -> None:
    rng = np.random.default_rng(0)
    for policy, seed in itertools.product(SEEDED, range(2)):
        m, n, k = (8 * int(rng.integers(1, limit)) for limit in (50, 20, 40))
        with emulate.scheduled(policy, seed=seed, races=True):
            found = launch(Emulate(), Gemm((m, n, k), ping_pong=ping_pong))

        assert np.array_equal(found.c, found.exact)


# --- a user's own MMAs ----------------------------------------------------------------------------

STAGES_SOURCE = Path(__file__).with_name("structured_stages.cu")
TWO_OPERANDS_B, A_IN_REGISTERS = range(2)


@functools.cache
def stages_kernel(a: str, b: str, c: str, form: int, stages: int) -> Kernel:
    types = {"ATile": a, "BTile": b, "CTile": c}
    constants = {"FORM": form, "STAGES": stages}
    return Kernel(STAGES_SOURCE, "structured_stages", types=types, constants=constants)


def through_stages(
    backend: Any, form: int, shape: tuple[int, int, int], stages: int
) -> tuple[Any, Any]:
    """The output, and A, B and B' that the form computes it from, in float64."""
    m, n, k = shape
    rng = np.random.default_rng(m)
    hosts = [rng.integers(-2, 3, (rows, k)).astype(np.float16) for rows in (m, n, n)]
    tiles = [
        create_tma_tile(backend.array(host), sides, swizzle=Swizzle.B128)
        for host, sides in zip(hosts, ((128, 64), (64, 64), (64, 64)), strict=True)
    ]
    c = Output(backend, Gemm(shape, columns=64))
    c_tile = c.tile()
    types = (tiles[0].cuda_type, tiles[1].cuda_type, c_tile.cuda_type)
    blocks = 30 if isinstance(backend, Cuda) else 2
    stages_kernel(*types, form, stages)(blocks, 384, (*tiles, c_tile, m, n, k))
    return c.values(), [host.astype(np.float64) for host in hosts]


@pytest.mark.sampled(1)
@pytest.mark.on_the_cpu(0, 2)
@pytest.mark.parametrize("stages", [2, 4])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_two_operands_b_share_a_stage(
    backend: Any, shape: tuple[int, int, int], stages: int
) -> None:
    found, (a, gate, up) = through_stages(backend, TWO_OPERANDS_B, shape, stages)

    gated = a @ gate.T
    wanted = gated / (1 + np.exp(-gated)) * (a @ up.T)
    assert np.allclose(found, wanted, rtol=1e-5, atol=1e-4)


@pytest.mark.sampled(1)
@pytest.mark.on_the_cpu(0, 2)
@pytest.mark.parametrize("stages", [2, 3])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_a_in_registers(backend: Any, shape: tuple[int, int, int], stages: int) -> None:
    found, (a, b, _) = through_stages(backend, A_IN_REGISTERS, shape, stages)

    assert np.array_equal(found, 2 * a @ b.T)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("form", [TWO_OPERANDS_B, A_IN_REGISTERS], ids=["two B", "registers"])
def test_own_mmas_race_with_nothing_in_any_order(form: int) -> None:
    for policy, seed in itertools.product(SEEDED, range(2)):
        with emulate.scheduled(policy, seed=seed, races=True):
            found, (a, gate, up) = through_stages(Emulate(), form, (321, 72, 200), 2)

        gated = a @ gate.T
        swiglu = gated / (1 + np.exp(-gated)) * (a @ up.T)
        wanted = swiglu if form == TWO_OPERANDS_B else 2 * gated
        assert np.allclose(found, wanted, rtol=1e-5, atol=1e-4)
