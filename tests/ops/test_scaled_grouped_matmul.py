"""ops.scaled_grouped_matmul on emulated chips, with races searched, against float64 sums."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import pytest
from block_scaled import (
    BLOCKS,
    E4M3,
    E5M2,
    E8M0,
    FACTORS,
    FP4,
    SEEDS,
    Side,
    atoms,
    check,
    tile_configs_by_kind,
)
from stubs import check_binding, layouts_of

from tmaasync import ArgumentError, ArrayTypeError, BackendError, emulate, ops
from tmaasync.ops._block_scaled_matmul import Kind
from tmaasync.ops._gemm.block_scales import FORMATS
from tmaasync.ops._gemm.tensor_memory import BlockScaledConfig
from tmaasync.ops._gemm.warp_scaled import WarpScaledConfig
from tmaasync.ops._operation import tile_configs
from tmaasync.ops._scaled_grouped_matmul import ScaledGroupedMatmul

SPARE = 3  # rows after the last group
ON_100 = pytest.mark.parametrize("chip", ["sm_100a"], indirect=True)


@pytest.fixture(autouse=True, params=["sm_100a", "sm_120a"])
def chip(request: pytest.FixtureRequest) -> Iterator[None]:
    with emulate.chip(request.param), emulate.scheduled("random", seed=1, races=True):
        yield


class Groups(NamedTuple):
    """The operands of one call: rows of all groups, and a matrix for each."""

    rows: Side
    matrices: list[Side]
    ends: Any

    @classmethod
    def drawn(cls, kind: str, sizes: Sequence[int], n: int, k: int, seed: int, **types: Any) -> Any:
        rng = np.random.default_rng(seed)
        rows = Side.drawn(kind, sum(sizes) + SPARE, k, rng, types.get("a", E4M3))
        matrices = [Side.drawn(kind, n, k, rng, types.get("b", E4M3)) for _ in sizes]
        return cls(rows, matrices, np.cumsum(sizes).astype(np.int32))

    @property
    def parts(self) -> list[slice]:
        return [slice(*ends) for ends in zip([0, *self.ends[:-1]], self.ends, strict=True)]

    def scales(self, layout: str) -> tuple[Any, Any]:
        of_matrices = [one.scales(layout) for one in self.matrices]
        if layout == "swizzled":
            each = [atoms(self.rows.factors[part]) for part in self.parts]
            return np.concatenate(each).view(self.rows.factor_type), np.concatenate(of_matrices)
        return self.rows.scales(layout), np.stack(of_matrices).swapaxes(1, 2)

    def multiplied(self, layout: str = "rows", whole: Any = (None, None), **options: Any) -> Any:
        options |= FP4 if self.rows.rows.dtype == np.uint8 else {}
        pairs = [
            one if of is None else (one, of)
            for one, of in zip(self.scales(layout), whole, strict=True)
        ]
        b = np.stack([one.rows for one in self.matrices]).swapaxes(1, 2)
        of_a, of_b = pairs
        return ops.scaled_grouped_matmul(
            self.rows.rows, b, of_a, of_b, self.ends, scale_layout=layout, **options
        )

    def check(self, c: Any, factors: Sequence[float] | None = None) -> None:
        for group, (part, matrix) in enumerate(zip(self.parts, self.matrices, strict=True)):
            rows = self.rows._replace(values=self.rows.values[part])
            check(c[part], rows, matrix, 1.0 if factors is None else factors[group])


def poisoned(groups: Groups, n: int, dtype: str = "float32") -> Any:
    return np.full((len(groups.rows.rows), n), np.nan, dtype)


# --- results ------------------------------------------------------------------------------------


@pytest.mark.sampled(2)
@pytest.mark.parametrize(("kind", "seed"), SEEDS)
def test_random_groups_types_and_layouts(kind: str, seed: int) -> None:
    rng = np.random.default_rng(100 + seed)
    sizes = rng.choice([0, 0, 1, 31, 127, 128, 129, 300], int(rng.integers(1, 6))).tolist()
    n, k = 8 * int(rng.integers(1, 40)), 32 * int(rng.integers(1, 30))
    a, b = (E4M3, E5M2)[seed % 2], (E4M3, E5M2)[seed // 2]
    groups = Groups.drawn(kind, sizes, n, k, seed, a=a, b=b)
    out = poisoned(groups, n)

    groups.multiplied(("rows", "swizzled")[seed % 2], out=out)

    groups.check(out)
    assert np.isnan(out[groups.ends[-1] :]).all()


@ON_100
@pytest.mark.sampled(2)
@pytest.mark.parametrize(("kind", "ctas", "block_n"), tile_configs_by_kind(first=1))
def test_every_tile_config_on_tensor_memory(kind: str, ctas: int, block_n: int) -> None:
    config = BlockScaledConfig(1, block_n, ctas, rows=128, factors=FACTORS[kind])
    n = block_n + 24
    groups = Groups.drawn(kind, [140, 0, 130 * ctas, 20], n, 480, block_n + ctas)
    out = poisoned(groups, n)

    with tile_configs(lambda _: config):
        groups.multiplied("swizzled", out=out)

    groups.check(out)


@pytest.mark.parametrize("chip", ["sm_120a"], indirect=True)
@pytest.mark.sampled(2)
@pytest.mark.parametrize("kind", BLOCKS)
@pytest.mark.parametrize("block_n", [64, 128])
def test_every_tile_config_of_warps(kind: str, block_n: int) -> None:
    config = WarpScaledConfig(2, block_n, factors=FACTORS[kind]).within(99 * 1024)
    n = block_n + 24
    groups = Groups.drawn(kind, [140, 0, 129, 20], n, 480, block_n)
    out = poisoned(groups, n)

    with tile_configs(lambda _: config):
        groups.multiplied("swizzled", out=out)

    groups.check(out)


def test_both_layouts_give_the_same_bits() -> None:
    groups = Groups.drawn("NVFP4", [5, 200, 0, 130], 72, 96, 1)

    found = [groups.multiplied(layout)[: groups.ends[-1]] for layout in ("rows", "swizzled")]

    assert found[0].tobytes() == found[1].tobytes()


@pytest.mark.parametrize("layout", ["rows", "swizzled"])
def test_scales_of_the_groups(layout: str) -> None:
    groups = Groups.drawn("NVFP4", [40, 0, 150], 72, 96, 3)
    of_a, of_b = np.array([[0.5, 7, 3], [2, 9, 0.25]], np.float32)

    for whole, factors in (
        ((of_a, of_b), of_a * of_b),
        ((3.0, of_b), 3 * of_b),
        ((of_a, None), of_a),
        ((2, np.float32(0.5)), np.ones(3)),
        ((None, 1.5), np.full(3, 1.5)),
    ):
        groups.check(groups.multiplied(layout, whole, dtype="float32"), factors)


def test_nan_stays_in_its_group() -> None:
    groups = Groups.drawn("MXFP8", [100, 60, 200], 64, 64, 4)
    groups.rows.factors[100:160] = 0xFF
    groups.matrices[1].factors[:] = 0xFF

    c = groups.multiplied(dtype="float32")

    assert np.isnan(c[100:160]).all()
    assert np.isfinite(np.delete(c[:360], np.s_[100:160], 0)).all()


def test_other_layouts_are_read_and_written_through_copies() -> None:
    groups = Groups.drawn("MXFP8", [30, 140], 50, 64, 5)
    far = np.repeat(groups.rows.rows.view(np.uint8), 2, axis=1)[:, ::2]
    of_rows = np.repeat(groups.rows.factors, 3, axis=1)[:, ::3]
    b = np.ascontiguousarray(np.stack([one.rows for one in groups.matrices]).swapaxes(1, 2))
    of_b = np.stack([one.factors for one in groups.matrices]).swapaxes(1, 2)
    out = np.full((50, 180), np.nan, np.float32).T[: len(far)]

    ops.scaled_grouped_matmul(
        far, b, of_rows, of_b, groups.ends.astype(np.int64), a_dtype=E4M3, scale_dtype=E8M0, out=out
    )

    groups.check(out)
    assert np.isnan(out[170:]).all()


@pytest.mark.parametrize("k", [0, 64])
@pytest.mark.parametrize("sizes", [(), (0, 0), (40, 0, 20)])
def test_no_groups_rows_or_depth(sizes: tuple[int, ...], k: int) -> None:
    rows, groups = sum(sizes) + SPARE, len(sizes)
    a, b = np.ones((rows, k), E4M3), np.ones((groups, 16, k), E4M3)
    scale_a, scale_b = np.ones((rows, k // 32), E8M0), np.ones((groups, k // 32, 16), E8M0)
    out = np.full((rows, 16), 7, np.float32)

    ops.scaled_grouped_matmul(
        a, b.swapaxes(1, 2), scale_a, scale_b, np.cumsum(sizes, dtype=np.int32), out=out
    )

    assert (out[:-SPARE] == k).all()
    assert (out[-SPARE:] == 7).all()


@ON_100
def test_a_repeated_call_binds_its_addresses_in_the_order_of_the_kernel() -> None:
    codes = [(shape, np.uint8) for shape in ((64, 256), (2, 256, 128), (2048,), (2048,))]
    kind = Kind(("float8_e4m3fn",) * 2, FORMATS[0], True, True, ("scale_b",))
    operation = ScaledGroupedMatmul(*layouts_of(*codes, ((64, 128), np.float32)), kind=kind)
    two = int(np.float32(2).view(np.uint32))

    # a, b, factors, scale_b, offsets, out
    check_binding(operation, 7, lambda at: (*at[:4], at[6], 0, at[4], two, at[5]), 2.0)


# --- refusals -----------------------------------------------------------------------------------

FP8, SCALES = np.ones((40, 64), E4M3), np.ones((40, 2), E8M0)
WEIGHTS, OF_WEIGHTS = np.ones((2, 64, 16), E4M3), np.ones((2, 2, 16), E8M0)
ENDS = [16, 40]
LEGAL: dict[str, Any] = {
    "a": FP8,
    "b": WEIGHTS,
    "scale_a": SCALES,
    "scale_b": OF_WEIGHTS,
    "offsets": ENDS,
}
SWIZZLED: dict[str, Any] = {
    "scale_a": np.ones(1024, E8M0),
    "scale_b": np.ones(1024, E8M0),
    "scale_layout": "swizzled",
}
REFUSED: dict[str, tuple[dict[str, Any], type[Exception], str]] = {
    "one matrix": ({"b": WEIGHTS[0]}, ArgumentError, r"b\.shape .*3 dimensions"),
    "factors of two types": (
        {"scale_a": np.ones((40, 1), "f4")},
        ArrayTypeError,
        r"float32, float8_e8m0fnu; block-scaled formats are MXFP8: .*for 16 elements; and float8",
    ),
    "depths that differ": (
        {"b": WEIGHTS[:, :32]},
        ArgumentError,
        r"b must have 64 rows.*b\.swapaxes\(1, 2\)",
    ),
    "a wrong shape of factors": (
        {"scale_b": OF_WEIGHTS[:1]},
        ArgumentError,
        r"scale_b\.shape .*Pass shape \(2, 2, 16\)",
    ),
    "offsets of another number of groups": (
        {"offsets": [40]},
        ArgumentError,
        r"offsets has shape .*2 matrices",
    ),
    "a group beyond a": ({"offsets": [16, 41]}, ArgumentError, r"offsets\[-1\] .*40 rows"),
    "atoms of another number of matrices": (
        SWIZZLED | {"scale_b": np.ones(512, E8M0)},
        ArgumentError,
        r"scale_b\.shape .*1024 bytes",
    ),
    "atoms that are not whole": (
        SWIZZLED | {"scale_a": np.ones(1000, E8M0)},
        ArgumentError,
        r"multiples of 512 bytes",
    ),
    "atoms of all groups together": (
        SWIZZLED | {"scale_a": np.ones(512, E8M0)},
        ArgumentError,
        r"scale_a\.shape is \(512,\); .*1024 bytes.*Swizzle each group by itself",
    ),
    "a whole scale of too many groups": (
        {"scale_a": (SCALES, np.ones(3, "f4"))},
        ArgumentError,
        r"scale_a has shape \(3,\).*each of 2 groups.*a number for all",
    ),
    "whole scales of another type": (
        {"scale_b": (OF_WEIGHTS, np.ones(2))},
        ArrayTypeError,
        r"scale_b holds float64",
    ),
    "an unknown layout": ({"scale_layout": "tiled"}, ArgumentError, r"scale_layout is 'tiled'"),
    "an output of integers": ({"dtype": "int32"}, ArrayTypeError, r"dtype is int32"),
}


@ON_100
@pytest.mark.parametrize("name", REFUSED)
def test_a_wrong_call_is_refused_with_the_rule_and_a_remedy(name: str) -> None:
    changed, kind, said = REFUSED[name]

    with pytest.raises(kind, match=said):
        ops.scaled_grouped_matmul(**(LEGAL | changed))


@pytest.mark.parametrize("chip", ["sm_90a"], indirect=True)
def test_chips_without_scale_factors_are_refused_with_those_that_have_them() -> None:
    said = r"ops\.scaled_grouped_matmul of MXFP8 needs block-scaled MMAs.*on a B200, B300 or RTX"
    with pytest.raises(BackendError, match=said):
        ops.scaled_grouped_matmul(**LEGAL)
