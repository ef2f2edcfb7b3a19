"""ops.scaled_matmul of MXFP8, MXFP4 and NVFP4 on emulated chips, with races searched.

The expected results are float64 sums of values that the tests decode themselves.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from block_scaled import (
    E4M3,
    E5M2,
    E8M0,
    FACTORS,
    FP4,
    SEEDS,
    Side,
    check,
    tile_configs_by_kind,
)
from stubs import check_binding, layouts_of

from tmaasync import ArgumentError, ArrayTypeError, BackendError, emulate, ops
from tmaasync._hardware import chip_limits
from tmaasync.ops._block_scaled_matmul import BlockScaledMatmul, Kind
from tmaasync.ops._gemm.block_scales import FORMATS
from tmaasync.ops._gemm.tensor_memory import BlockScaledConfig
from tmaasync.ops._gemm.warp_scaled import WarpScaledConfig
from tmaasync.ops._operation import tile_configs

SIZES = (1, 16, 63, 128, 129, 300)


@pytest.fixture(autouse=True, params=["sm_100a", "sm_120a"])
def chip(request: pytest.FixtureRequest) -> Iterator[None]:
    with emulate.chip(request.param), emulate.scheduled("random", seed=1, races=True):
        yield


ON_100 = pytest.mark.parametrize("chip", ["sm_100a"], indirect=True)
ON_120 = pytest.mark.parametrize("chip", ["sm_120a"], indirect=True)


def multiplied(a: Side, b: Side, layout: str = "rows", **options: Any) -> Any:
    options |= FP4 if a.rows.dtype == np.uint8 else {}
    scales = a.scales(layout), b.scales(layout, transposed=True)
    return ops.scaled_matmul(a.rows, b.rows.T, *scales, scale_layout=layout, **options)


# --- results ------------------------------------------------------------------------------------


@pytest.mark.sampled(2)
@pytest.mark.parametrize(("kind", "seed"), SEEDS)
def test_random_shapes_types_and_layouts(kind: str, seed: int) -> None:
    rng = np.random.default_rng(seed)
    m, n = (int(rng.choice(SIZES)) for _ in range(2))
    k = 32 * int(rng.integers(1, 40))
    types = (E4M3, E5M2)[seed % 2], (E4M3, E5M2)[seed // 2]
    a, b = (
        Side.drawn(kind, rows, k, rng, dtype) for rows, dtype in zip((m, n), types, strict=True)
    )
    output = ("float32", "bfloat16")[seed % 2]

    c = multiplied(a, b, ("rows", "swizzled")[seed % 2], dtype=output)

    check(c, a, b)


@ON_100
@pytest.mark.sampled(3)
@pytest.mark.parametrize(("kind", "ctas", "block_n"), tile_configs_by_kind(first=0))
def test_every_tile_config_on_tensor_memory(kind: str, ctas: int, block_n: int) -> None:
    config = BlockScaledConfig(1, block_n, ctas, rows=128, factors=FACTORS[kind])
    check_config(kind, config, (150 * ctas, block_n + 24, 1504))


@ON_120
@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    ("kind", "consumers", "block_n"),
    [("MXFP8", 1, 64), ("MXFP4", 1, 128), ("NVFP4", 2, 64), ("MXFP8", 2, 128)],
)
def test_every_tile_config_of_warps(kind: str, consumers: int, block_n: int) -> None:
    config = WarpScaledConfig(consumers, block_n, factors=FACTORS[kind])
    check_config(kind, config.within(chip_limits((12, 0)).shared_bytes), (140, 136, 480))


def check_config(
    kind: str, config: BlockScaledConfig | WarpScaledConfig, shape: tuple[int, int, int]
) -> None:
    m, n, k = shape
    rng = np.random.default_rng(config.block_n + config.block_m)
    a, b = (Side.drawn(kind, rows, k, rng, E4M3) for rows in (m, n))
    out = np.full((m, n + 8), np.nan, np.float32)[:, :n]

    with tile_configs(lambda _: config):
        multiplied(a, b, "swizzled", out=out)

    check(out, a, b)


@pytest.mark.parametrize("layout", ["rows", "swizzled"])
def test_scales_of_whole_matrices(layout: str) -> None:
    rng = np.random.default_rng(3)
    a, b = (Side.drawn("NVFP4", rows, 96, rng, None) for rows in (40, 72))
    scales = a.scales(layout), b.scales(layout, transposed=True)

    for whole in ((0.5, 3.0), (np.array([0.25], np.float32), 6.0), (np.float32(1.5), None)):
        pairs = [one if of is None else (one, of) for one, of in zip(scales, whole, strict=True)]
        c = ops.scaled_matmul(a.rows, b.rows.T, *pairs, dtype="float32", scale_layout=layout, **FP4)
        check(c, a, b, 1.5)


def test_other_layouts_are_read_and_written_through_copies() -> None:
    rng = np.random.default_rng(4)
    a, b = (Side.drawn("MXFP8", rows, 64, rng, E4M3) for rows in (130, 50))
    far = np.repeat(a.rows.view(np.uint8), 2, axis=1)[:, ::2].view(np.uint8)
    factors = np.repeat(a.factors, 3, axis=1)[:, ::3]
    of_b = np.concatenate([b.rows.view(np.uint8).T] * 2, axis=1)[:, :50]
    out = np.full((50, 136), np.nan, np.float32).T[:130]

    ops.scaled_matmul(
        far, of_b, factors, b.factors.T, a_dtype=E4M3, b_dtype="e4m3", scale_dtype=E8M0, out=out
    )

    check(out, a, b)


@pytest.mark.slow
@ON_100
def test_an_operation_repeats_with_other_data_and_on_another_chip() -> None:
    for seed, chip in enumerate(("sm_100a", "sm_100a", "sm_103a", "sm_120a")):
        rng = np.random.default_rng(seed)
        a, b = (Side.drawn("MXFP4", rows, 256, rng, None) for rows in (128, 128))
        with emulate.chip(chip):
            check(multiplied(a, b, "swizzled", dtype="float32"), a, b)


@pytest.mark.parametrize("shape", [(0, 8, 32), (8, 0, 32), (8, 16, 0)])
def test_empty_sides(shape: tuple[int, int, int]) -> None:
    m, n, k = shape
    a, b = np.ones((m, k), E4M3), np.ones((n, k), E4M3)
    c = ops.scaled_matmul(a, b.T, np.ones((m, k // 32), E8M0), np.ones((k // 32, n), E8M0))

    assert c.shape == (m, n)
    assert not c.astype(np.float32).any()


def test_nan_factors_stay_in_their_rows() -> None:
    rng = np.random.default_rng(7)
    a, b = (Side.drawn("MXFP8", rows, 64, rng, E4M3) for rows in (130, 40))
    a.factors[5, 1] = 0xFF

    c = multiplied(a, b, dtype="float32")

    assert np.isnan(c[5]).all()
    assert not np.isnan(np.delete(c, 5, 0)).any()


def test_a_repeated_call_binds_its_addresses_in_the_order_of_the_kernel() -> None:
    codes = [(shape, np.uint8) for shape in ((64, 256), (256, 128), (1024,), (1024,))]
    kind = Kind(("float8_e4m3fn",) * 2, FORMATS[0], True, True, ("scale_b",))
    operation = BlockScaledMatmul(*layouts_of(*codes, ((64, 128), np.float32)), kind=kind)
    two = int(np.float32(2).view(np.uint32))

    # a, b, their factors, scale_b, out
    check_binding(operation, 6, lambda at: (*at[:4], at[5], 0, at[4], two), 2.0)


# --- refusals -----------------------------------------------------------------------------------

FP8, SCALES = np.ones((32, 64), E4M3), np.ones((32, 2), E8M0)
BYTES = np.ones((32, 32), np.uint8)
REFUSED: dict[str, tuple[tuple[Any, ...], dict[str, Any], type[Exception], str]] = {
    "float8 with UE4M3": (
        (FP8, FP8.T, SCALES.view(E4M3), SCALES.T), {}, ArrayTypeError,
        r"hold .*, float8_e4m3fn, float8_e8m0fnu; .*MXFP8.*NVFP4.*scale_dtype",
    ),
    "float4 in bytes of their own": (
        (np.ones((32, 64), ml_dtypes.float4_e2m1fn), BYTES.T, SCALES, SCALES.T),
        {"b_dtype": "e2m1"}, ArrayTypeError,
        r"a\.dtype is float4_e2m1fn; it holds one element in a byte.*Pack pairs.*a_dtype=",
    ),
    "fp4 with float32": (
        (BYTES, BYTES.T, np.ones((32, 2), "f4"), np.ones((2, 32), "f4")), FP4, ArrayTypeError,
        r"float32, float32; .*MXFP4",
    ),
    "a pair of float32": (
        (FP8, FP8.T, (np.ones((32, 1), "f4"), 2.0), np.ones((1, 1), "f4")), {}, ArrayTypeError,
        r"float32, float32; .*float32 scales for 128, which are rows without a scale of the whole",
    ),
    "a wrong shape": (
        (FP8, FP8.T, SCALES, SCALES), {}, ArgumentError,
        r"scale_b\.shape is \(32, 2\); .* 32 elements of K \(MXFP8\)\. Pass shape \(2, 32\)",
    ),
    "a depth without whole blocks": (
        (FP8[:, :40], FP8[:, :40].T, SCALES, SCALES.T), {}, ArgumentError,
        r"K is 40; MXFP8 has a scale factor for each 32 .*Pad a and b",
    ),
    "depths that differ": (
        (FP8, FP8[:, :32].T, SCALES, SCALES.T), {}, ArgumentError, r"b\.shape .*64 rows.*b\.T",
    ),
    "atoms that are not whole": (
        (FP8, FP8.T, SCALES, SCALES.T), {"scale_layout": "swizzled"}, ArgumentError,
        r"scale_a\.shape is \(32, 2\); .*whole atoms of 128 rows by 4: 512 bytes\. Pad",
    ),
    "an unknown layout": (
        (FP8, FP8.T, SCALES, SCALES.T), {"scale_layout": "tiled"}, ArgumentError,
        r"scale_layout is 'tiled'; .*Pass 'rows' or 'swizzled'",
    ),
    "three scales": (
        (FP8, FP8.T, (SCALES, 1, 1), SCALES.T), {}, ArgumentError,
        r"scale_a is 3 arrays; .*\(factors",
    ),
    "a whole scale of another type": (
        (FP8, FP8.T, (SCALES, np.ones(1)), SCALES.T), {}, ArrayTypeError, r"scale_a holds float64",
    ),
    "an output of integers": (
        (FP8, FP8.T, SCALES, SCALES.T), {"dtype": "int32"}, ArrayTypeError, r"dtype is int32",
    ),
}  # fmt: skip


@ON_120
@pytest.mark.parametrize("name", REFUSED)
def test_a_wrong_call_is_refused_with_the_rule_and_a_remedy(name: str) -> None:
    arrays, options, kind, said = REFUSED[name]

    with pytest.raises(kind, match=said):
        ops.scaled_matmul(*arrays, **options)


def test_an_output_over_an_operand_is_refused() -> None:
    a = np.ones((32, 64), E4M3)
    out = a.view(np.uint8)[:, :64].view(np.float16)[:, :32]

    with pytest.raises(ArgumentError, match="out overlaps a"):
        ops.scaled_matmul(a, FP8.T, SCALES, SCALES.T, out=out)


@ON_120
def test_hopper_is_refused_with_the_chips_that_have_it() -> None:
    with (
        emulate.chip("sm_90a"),
        pytest.raises(
            BackendError, match=r"ops\.scaled_matmul of MXFP8 needs block-scaled MMAs.*B200"
        ),
    ):
        ops.scaled_matmul(FP8, FP8.T, SCALES, SCALES.T)
