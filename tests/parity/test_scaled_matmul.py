"""Block-scaled matmul: exact where the sums are, close elsewhere, on either back end."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from parity.backends import Emulate
from parity.tensor_core_sums import accumulated
from parity.tile_configs import fitted

from tmaasync import ArgumentError, ArrayTypeError, _arrays, ops
from tmaasync.ops._gemm.config import ScaledTileConfig
from tmaasync.ops._gemm.tiles import scaled_gemm_kernel, scaled_gemm_tiles

BYTES: Any = {"a_dtype": "float8_e4m3fn", "b_dtype": "float8_e4m3fn"}  # CuPy has no float8
E4M3, E5M2 = ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e5m2
ROUNDING = {"bfloat16": 2**-8, "float16": 2**-11, "float32": 2**-20}
# Tensor cores drop low bits of fp8 partial products: at most this share of the magnitudes.
LOST_IN_A_BLOCK = 2e-3
ARITHMETIC = 1e-6  # of the rest, in fp32


@dataclass(frozen=True)
class Problem:
    """[M, K] and [N, K], with scales [M, K / 128] and [K / 128, N / 128] or [K / 128, N]."""

    a: Any
    b: Any
    scale_a: Any
    scale_b: Any

    @property
    def column_scales(self) -> Any:
        """Return the scales of b in float64, for every column: [K / 128, N]."""
        n, scales = len(self.b), self.scale_b.astype(np.float64)
        return scales if scales.shape[1] == n else np.repeat(scales, 128, 1)[:, :n]

    @property
    def spread(self) -> tuple[Any, Any]:
        """The operands times their scales in float64, [M, K] and [K, N]."""
        k = self.a.shape[1]
        a_scales = np.repeat(self.scale_a.astype(np.float64), 128, 1)[:, :k]
        b_scales = np.repeat(self.column_scales, 128, 0)[:k]
        return self.a.astype(np.float64) * a_scales, self.b.astype(np.float64).T * b_scales

    def wanted(self) -> Any:
        a, b = self.spread
        return a @ b

    def cut(self) -> Any:
        """Return the expected result: blocks of K accumulated as tensor cores do, zeros after K."""
        k = self.a.shape[1]
        a, b = (np.pad(side, ((0, 0), (0, -k % 128))) for side in (self.a, self.b))
        total = np.zeros((len(a), len(b)))
        for block, b_scales in enumerate(self.column_scales):
            ks = slice(128 * block, 128 * (block + 1))
            scales = self.scale_a[:, block, None].astype(np.float64) * b_scales
            total += scales * accumulated(a[:, ks], b[:, ks])
        return total

    def sizes(self) -> Any:
        """Of what is summed."""
        a, b = self.spread
        return np.abs(a) @ np.abs(b)


def exact_problem(m: int, n: int, k: int, columns: int, seed: int = 0) -> Problem:
    """Small integers and scales that are powers of two: every order of summing is exact."""
    drawn = np.random.default_rng(seed)
    blocks, wide = -(-k // 128), -(-n // columns)
    return Problem(
        drawn.integers(-4, 5, (m, k)).astype(E4M3),
        drawn.integers(-4, 5, (n, k)).astype(E4M3),
        2.0 ** drawn.integers(-3, 4, (m, blocks)).astype(np.float32),
        2.0 ** drawn.integers(-3, 4, (blocks, wide)).astype(np.float32),
    )


def random_problem(m: int, n: int, k: int, columns: int, seed: int = 0) -> Problem:
    """Normally distributed, with scales over six orders of magnitude."""
    drawn = np.random.default_rng(seed)
    blocks, wide = -(-k // 128), -(-n // columns)
    return Problem(
        drawn.standard_normal((m, k)).astype(E4M3),
        drawn.standard_normal((n, k)).astype(E4M3),
        (10 ** drawn.uniform(-3, 3, (m, blocks))).astype(np.float32),
        (10 ** drawn.uniform(-3, 3, (blocks, wide))).astype(np.float32),
    )


def stored(backend: Any, matrix: Any, *, pitch: int = 0, transposed: bool = False) -> Any:
    """The matrix with its rows (columns, if transposed) apart, and NaN between them and around."""
    lines = matrix.T if transposed else matrix
    rows, columns = lines.shape
    poison = 0x7F if lines.dtype.itemsize == 1 else np.nan
    plain = lines.view(np.uint8) if lines.dtype.itemsize == 1 else lines
    whole = np.full((rows + 2, max(pitch, columns)), poison, plain.dtype)
    whole[1:-1, :columns] = plain
    part = backend.array(whole)[1:-1, :columns]
    return part.T if transposed else part


def padded(size: int, unit: int) -> int:
    return -(-size // unit) * unit


def reached(backend: Any, problem: Problem, *, b_scales_transposed: bool) -> list[Any]:
    """Views of the operands as the kernel reads them."""
    (m, k), n = problem.a.shape, problem.b.shape[0]
    scales = problem.scale_b.T if b_scales_transposed else problem.scale_b
    arrays = [
        stored(backend, problem.a, pitch=padded(k, 16) + 16),
        stored(backend, problem.b, pitch=padded(k, 16) + 32),
        stored(backend, np.ascontiguousarray(problem.scale_a.T), pitch=padded(m, 4) + 4),
        stored(backend, np.ascontiguousarray(scales), pitch=padded(scales.shape[1], 4) + 4),
        backend.array(np.full((m, padded(n, 4) + 4), np.nan, np.float32)),
    ]
    kinds = (E4M3, E4M3, None, None, None)
    return [_arrays.view(array, dtype=kind) for array, kind in zip(arrays, kinds, strict=True)]


def multiply(
    backend: Any, problem: Problem, config: ScaledTileConfig, b_scales_transposed: bool
) -> tuple[Any, Any]:
    """Return the result of a given tile config, and the memory after its rows."""
    config = fitted(config)
    (m, k), n = problem.a.shape, problem.b.shape[0]
    *operands, whole = reached(backend, problem, b_scales_transposed=b_scales_transposed)
    columns = padded(n, 4)
    c = whole._replace(shape=(m, columns))
    tiles = scaled_gemm_tiles(tuple(operands), c, config, b_scales_transposed=b_scales_transposed)
    kernel = scaled_gemm_kernel([tile.cuda_type for tile in tiles], b_scales_transposed, config)
    cluster = config.cluster if config.cluster > 1 else None
    grid = config.cluster * min(2, config.clusters(m, n))
    kernel(grid, config.threads, (*tiles, m, n, k), cluster=cluster)
    got = backend.host(whole.owner)
    return got[:, :n], got[:, columns:]


@pytest.mark.sampled(1)
@pytest.mark.on_the_cpu(1, 3, 5, 6)
@pytest.mark.parametrize(
    ("config", "transposed"),
    [
        (ScaledTileConfig(2, 256), False),
        (ScaledTileConfig(2, 256, 2), True),
        (ScaledTileConfig(2, 128, 2), False),
        (ScaledTileConfig(2, 64), True),
        (ScaledTileConfig(1, 32), False),
        (ScaledTileConfig(3, 128), False),
        (ScaledTileConfig(2, 256, 2, column_scales=True), False),
    ],
    ids=str,
)
def test_every_tile_config_is_exact_and_keeps_to_its_output(
    backend: Any, config: ScaledTileConfig, transposed: bool
) -> None:
    m, n = config.cluster_rows + 27, config.block_n + 37
    problem = exact_problem(m, n, 5 * 128 + 24, 1 if config.column_scales else 128)

    got, after = multiply(backend, problem, config, transposed)

    assert np.array_equal(got, problem.wanted())
    assert np.isnan(after).all()


@pytest.mark.sampled(1)
@pytest.mark.on_the_cpu(1, 2)
@pytest.mark.parametrize(
    ("shape", "columns", "output"),
    [
        ((1, 1, 1), 128, "float32"),
        ((65, 129, 127), 128, "bfloat16"),
        ((33, 300, 385), 1, "float16"),
        ((130, 257, 520), 128, "float32"),
    ],
)
def test_matmuls_of_any_shape_with_scales_of_any_size(
    backend: Any, chip: str, shape: tuple[int, int, int], columns: int, output: str
) -> None:
    problem = random_problem(*shape, columns)

    got = ops.scaled_matmul(
        backend.array(problem.a.view(np.uint8)),
        backend.array(problem.b.view(np.uint8)).T,
        backend.array(problem.scale_a),
        backend.array(problem.scale_b),
        dtype="float32",
        **BYTES,
    )
    rounded = ops.scaled_matmul(
        backend.array(problem.a.view(np.uint8)),
        backend.array(problem.b.view(np.uint8)).T,
        backend.array(problem.scale_a / 2**10),
        backend.array(problem.scale_b / 2**10),
        dtype=output,
        **BYTES,
    )

    # Hopper's tensor cores cut FP8 to 13 bits.
    is_hopper = isinstance(backend, Emulate) and chip == "sm_90a"
    wanted = problem.cut() if is_hopper else problem.wanted()
    lost = (ARITHMETIC if is_hopper else LOST_IN_A_BLOCK) * problem.sizes()
    assert (np.abs(backend.host(got) - wanted) <= lost + 2**-20 * np.abs(wanted)).all()
    small, floor = wanted / 2**20, 2**-24
    error = np.abs(backend.host(rounded).astype(np.float64) - small)
    assert (error <= lost / 2**20 + ROUNDING[output] * np.abs(small) + floor).all()


def test_scales_in_torchs_layouts_are_read_as_they_lie(backend: Any) -> None:
    """Of a with M contiguous; of b with K contiguous, padded to whole 16 bytes."""
    problem = exact_problem(132, 200, 640, 128)
    whole = np.full((2, 8), np.nan, np.float32)
    whole[:, :5] = problem.scale_b.T
    scale_b = backend.array(whole).T
    scale_a = backend.array(np.ascontiguousarray(problem.scale_a.T)).T
    operands = (
        backend.array(problem.a.view(np.uint8)),
        backend.array(problem.b.view(np.uint8)).T,
        scale_a,
    )

    for scales in (scale_b, scale_b[:5]):
        got = ops.scaled_matmul(*operands, scales, dtype="float32", **BYTES)

        assert np.array_equal(backend.host(got), problem.wanted())


def test_operands_that_tma_cannot_read_are_copied(backend: Any) -> None:
    problem = exact_problem(70, 90, 200, 128)
    out = backend.array(np.full((70, 101), np.nan, np.float32))

    ops.scaled_matmul(
        stored(backend, problem.a, pitch=211),
        stored(backend, problem.b.T, transposed=False),
        stored(backend, problem.scale_a, pitch=7),
        stored(backend, problem.scale_b, pitch=5),
        out=out[:, :90],
        **BYTES,
    )

    assert np.array_equal(backend.host(out)[:, :90], problem.wanted())
    assert np.isnan(backend.host(out)[:, 90:]).all()


def test_either_fp8_type_goes_with_either(backend: Any) -> None:
    left, right = E4M3, E5M2
    problem = exact_problem(60, 40, 130, 128)
    a, b = (
        backend.array(matrix.astype(kind).view(np.uint8))
        for matrix, kind in ((problem.a, left), (problem.b, right))
    )
    scales = backend.array(problem.scale_a), backend.array(problem.scale_b)

    got = ops.scaled_matmul(a, b.T, *scales, dtype="float32", a_dtype=left, b_dtype=right)

    assert np.array_equal(backend.host(got), problem.wanted())


def test_a_scale_of_nan_spoils_what_it_serves_and_no_more(backend: Any) -> None:
    problem = exact_problem(70, 300, 300, 128)
    problem.scale_a[5, 1] = problem.scale_b[2, 1] = np.nan

    got = ops.scaled_matmul(
        backend.array(problem.a.view(np.uint8)),
        backend.array(problem.b.view(np.uint8)).T,
        backend.array(problem.scale_a),
        backend.array(problem.scale_b),
        dtype="float32",
        **BYTES,
    )

    spoilt = np.zeros((70, 300), bool)
    spoilt[5], spoilt[:, 128:256] = True, True
    assert np.array_equal(np.isnan(backend.host(got)), spoilt)


def test_nothing_to_sum_is_zero(backend: Any) -> None:
    none = np.zeros((3, 0), np.uint8), np.zeros((0, 20), np.uint8)
    scales = np.zeros((3, 0), np.float32), np.zeros((0, 1), np.float32)

    got = ops.scaled_matmul(*(backend.array(array) for array in (*none, *scales)), **BYTES)

    assert got.shape == (3, 20)
    assert (backend.host(got).astype(np.float32) == 0).all()


# --- bad input ----------------------------------------------------------------------------------


def given(**changes: Any) -> dict[str, Any]:
    problem = exact_problem(8, 300, 256, 128)
    arguments = {
        "a": problem.a,
        "b": problem.b.T,
        "scale_a": problem.scale_a,
        "scale_b": problem.scale_b,
    }
    return {**arguments, **changes}


F32 = np.float32


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"a": np.zeros((8, 256, 1), E4M3)}, ArgumentError, "a.shape is .*2 dimensions"),
        ({"b": np.zeros((300, 256), E4M3)}, ArgumentError, r"b.shape is \(300, 256\).*pass b.T"),
        ({"a": np.zeros((8, 256), np.float16)}, ArrayTypeError, "a holds float16.*float8_e4m3fn"),
        ({"b": np.zeros((256, 300), np.uint8)}, ArrayTypeError, "b holds uint8.*pass b_dtype"),
        ({"scale_a": np.zeros((8, 2))}, ArrayTypeError, "scale_a holds float64.*float32"),
        ({"scale_a": np.zeros((2, 8), F32)}, ArgumentError, r"scale_a.shape.*Pass shape \(8, 2\)"),
        (
            {"scale_a": np.zeros((1, 1), F32), "scale_b": np.zeros((1, 1), F32)},
            ArgumentError,
            r"(?s)scale_a.shape.*scale_b.shape",
        ),
        (
            {"scale_b": np.zeros((3, 2), F32)},
            ArgumentError,
            r"scale_b.shape is \(3, 2\).*Pass shape \(2, 300\) or \(2, 3\)",
        ),
        ({"dtype": "int8"}, ArrayTypeError, "dtype is int8.*bfloat16"),
        ({"out": np.zeros((8, 300), np.float64)}, ArrayTypeError, "out holds float64"),
        ({"out": np.zeros((8, 299), F32)}, ArgumentError, "out has shape"),
        (
            {"out": np.zeros((8, 300), F32), "dtype": "float16"},
            ArrayTypeError,
            "out holds float32; it must hold float16",
        ),
    ],
)
def test_operands_that_do_not_fit_are_refused(
    changes: dict[str, Any], error: type[Exception], message: str
) -> None:
    arguments = given(**changes)

    with pytest.raises(error, match=message):
        ops.scaled_matmul(**arguments)


def test_an_output_over_an_operand_is_refused() -> None:
    memory = np.zeros((8, 256), F32)
    arguments = given(a=memory.view(E4M3)[:, :256], out=memory[:, :])
    arguments["b"], arguments["scale_b"] = np.zeros((256, 256), E4M3), np.zeros((2, 2), F32)

    with pytest.raises(ArgumentError, match="out overlaps a "):
        ops.scaled_matmul(**arguments)


def test_a_read_only_output_is_refused() -> None:
    out = np.zeros((8, 300), F32)
    out.flags.writeable = False

    with pytest.raises(ArgumentError, match="out is read only"):
        ops.scaled_matmul(**given(out=out))
