"""Float32 scales on emulated chips with tensor memory, races searched; also of groups."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np
import pytest
from stubs import check_binding, layouts_of

from tmaasync import ArgumentError, ArrayTypeError, BackendError, emulate, ops
from tmaasync.ops._gemm.tensor_memory import PromotedConfig
from tmaasync.ops._operation import tile_configs
from tmaasync.ops._promoted_grouped_matmul import PromotedGroupedMatmul

E4M3, E5M2 = ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e5m2
ROUNDING = {"bfloat16": 2.0**-8, "float16": 2.0**-10, "float32": 2.0**-20}
SIZES = (1, 16, 63, 128, 129, 300)


@pytest.fixture(autouse=True, params=["sm_100a"])
def chip(request: pytest.FixtureRequest) -> Iterator[None]:
    with emulate.chip(request.param), emulate.scheduled("random", seed=1, races=True):
        yield


def check(c: Any, a: Any, b: Any, scale_a: Any, scale_b: Any) -> None:
    """Compare with float64 sums, to rounding and what the tensor cores cut off each term."""
    k, n = b.shape
    wide = scale_b if scale_b.shape[1] == n else np.repeat(scale_b, 128, 1)[:, :n]
    left = a.astype(np.float64) * np.repeat(scale_a.astype(np.float64), 128, 1)[:, :k]
    right = b.astype(np.float64) * np.repeat(wide.astype(np.float64), 128, 0)[:k]
    exact, sizes = left @ right, np.abs(left) @ np.abs(right)
    bound = ROUNDING[c.dtype.name] * np.abs(exact) + 2.0**-19 * sizes
    assert (np.abs(c.astype(np.float64) - exact) <= bound).all()


def stored(scales: Any, form: int) -> Any:
    """Return the same scales in rows, in columns, or with gaps."""
    if form == 1:
        return np.ascontiguousarray(scales.swapaxes(-1, -2)).swapaxes(-1, -2)
    return np.repeat(scales, 2, axis=-1)[..., ::2] if form == 2 else scales


@pytest.mark.sampled(2)
@pytest.mark.parametrize("seed", range(8))
def test_random_shapes_types_and_layouts(seed: int) -> None:
    rng = np.random.default_rng(seed)
    m, n = (int(rng.choice(SIZES)) for _ in range(2))
    k = int(rng.integers(1, 1500))
    blocks, columns = -(-k // 128), (n, -(-n // 128))[seed % 2]
    a = rng.standard_normal((m, k)).astype((E4M3, E5M2)[int(rng.integers(2))])
    b = rng.standard_normal((n, k)).astype((E4M3, E5M2)[int(rng.integers(2))]).T
    scale_a, scale_b = (
        (10 ** rng.uniform(-3, 3, shape)).astype(np.float32)
        for shape in ((m, blocks), (blocks, columns))
    )
    forms = [int(rng.integers(3)) for _ in range(2)]
    dtype = (np.float32, ml_dtypes.bfloat16)[seed % 2]
    out = np.full((m, -(-n // 8) * 8), np.nan, dtype)[:, :n]

    ops.scaled_matmul(a, b, stored(scale_a, forms[0]), stored(scale_b, forms[1]), out=out)

    check(out, a, b, scale_a, scale_b)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("ctas", [1, 2])
def test_one_cta_and_a_pair(ctas: int) -> None:
    rng, m = np.random.default_rng(ctas), 140 * ctas
    a, b = (rng.integers(-4, 5, (rows, 1300)).astype(E4M3) for rows in (m, 280))
    scale_a, scale_b = (2.0 ** rng.integers(-3, 4, shape) for shape in ((m, 11), (11, 3)))
    config = PromotedConfig(1, 128, ctas, rows=128)

    with tile_configs(lambda _: config):
        c = ops.scaled_matmul(
            a, b.T, scale_a.astype(np.float32), scale_b.astype(np.float32), dtype="float32"
        )

    left = a.astype(np.float64) * np.repeat(scale_a, 128, 1)[:, :1300]
    right = b.T.astype(np.float64) * np.repeat(np.repeat(scale_b, 128, 1)[:, :280], 128, 0)[:1300]
    assert np.array_equal(c, left @ right)


def test_a_nan_scale_stays_in_its_row() -> None:
    a, b = np.ones((130, 256), E4M3), np.ones((40, 256), E4M3)
    scale_a = np.ones((130, 2), np.float32)
    scale_a[7, 1] = np.nan

    c = ops.scaled_matmul(a, b.T, scale_a, np.ones((2, 1), np.float32), dtype="float32")

    assert np.isnan(c[7]).all()
    assert (np.delete(c, 7, 0) == 256).all()


# --- groups ---------------------------------------------------------------------------------------

SPARE = 3  # rows after the last group


class Groups(NamedTuple):
    """The operands of a call of ops.scaled_grouped_matmul, but b as [G, N, K]."""

    a: Any
    b: Any
    scale_a: Any
    scale_b: Any
    ends: Any

    @classmethod
    def drawn(cls, sizes: list[int], n: int, k: int, *, columns: int, seed: int = 0) -> Groups:
        rng, blocks = np.random.default_rng(seed), -(-k // 128)
        rows, groups = sum(sizes) + SPARE, len(sizes)
        a = rng.standard_normal((rows, k)).astype((E4M3, E5M2)[seed % 2])
        b = rng.standard_normal((groups, n, k)).astype((E4M3, E5M2)[seed // 2 % 2])
        of_a, of_b = (
            (10 ** rng.uniform(-3, 3, shape)).astype(np.float32)
            for shape in ((rows, blocks), (groups, blocks, columns))
        )
        return cls(a, b, of_a, of_b, np.cumsum(sizes).astype((np.int32, np.int64)[seed % 2]))

    def multiplied(self, forms: tuple[int, int] = (0, 0), **options: Any) -> Any:
        scales = stored(self.scale_a, forms[0]), stored(self.scale_b, forms[1])
        return ops.scaled_grouped_matmul(
            self.a, self.b.swapaxes(1, 2), *scales, self.ends, **options
        )

    def check(self, c: Any) -> None:
        starts = [0, *self.ends[:-1]]
        for group, rows in enumerate(map(slice, starts, self.ends)):
            b, scale_b = self.b[group].T, self.scale_b[group]
            check(c[rows], self.a[rows], b, self.scale_a[rows], scale_b)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("seed", range(8))
def test_random_groups_types_and_layouts(seed: int) -> None:
    rng = np.random.default_rng(50 + seed)
    sizes = rng.choice([0, 0, 1, 31, 127, 128, 129, 300], int(rng.integers(1, 6))).tolist()
    n, k = int(rng.integers(2, 300)), int(rng.integers(1, 1500))
    groups = Groups.drawn(sizes, n, k, columns=(n, -(-n // 128))[seed % 2], seed=seed)
    dtype = (np.float32, ml_dtypes.bfloat16)[seed % 2]
    out = np.full((len(groups.a), -(-n // 8) * 8), np.nan, dtype)[:, :n]

    groups.multiplied((seed % 3, seed // 3), out=out)

    groups.check(out)
    assert np.isnan(out[groups.ends[-1] :].astype(np.float32)).all()


@pytest.mark.parametrize("ctas", [1, 2])
@pytest.mark.parametrize("scales", ["rows", "columns"])
def test_groups_of_one_cta_and_a_pair(ctas: int, scales: str) -> None:
    n = 280
    columns = n if scales == "columns" else 3
    groups = Groups.drawn([7, 0, 140 * ctas, 130], n, 1300, columns=columns)
    config = PromotedConfig(1, 128, ctas, rows=128, column_scales=scales == "columns")

    with tile_configs(lambda _: config):
        c = groups.multiplied((0, 1 if scales == "rows" else 0), dtype="float32")

    groups.check(c)


def test_scales_that_are_padded_along_k() -> None:
    groups = Groups.drawn([40, 90], 200, 300, columns=2)
    padded = np.pad(groups.scale_b, ((0, 0), (0, 1), (0, 0)), constant_values=np.nan)

    c = groups._replace(scale_b=padded).multiplied((0, 1), dtype="float32")

    groups.check(c)


def test_nan_stays_in_its_group() -> None:
    groups = Groups.drawn([101, 61, 200], 40, 256, columns=1)
    groups.scale_a[101:162] = np.nan
    groups.scale_b[1] = np.inf

    c = groups.multiplied(dtype="float32")

    assert np.isnan(c[101:162]).all()
    assert np.isfinite(np.delete(c[:362], np.s_[101:162], 0)).all()


@pytest.mark.parametrize("k", [0, 128])
@pytest.mark.parametrize("sizes", [[], [0, 0], [40, 0, 20]])
def test_no_groups_rows_or_depth(sizes: list[int], k: int) -> None:
    groups = Groups.drawn(sizes, 16, k, columns=1)
    out = np.full((len(groups.a), 16), 7, np.float32)

    groups.multiplied(out=out)

    groups.check(out)
    assert (out[-SPARE:] == 7).all()


def test_a_repeated_call_of_groups_binds_its_addresses_in_the_order_of_the_kernel() -> None:
    shapes = ((64, 256), (2, 256, 128), (64, 2), (2, 2, 128), (64, 128))
    layouts = layouts_of(*zip(shapes, (E4M3, E4M3, *[np.float32] * 3), strict=True))
    operation = PromotedGroupedMatmul(*layouts, column_scales=True)

    # a, b, scales, offsets, out
    check_binding(operation, 6, lambda at: (*at[:4], at[5], at[4]))


LEGAL: dict[str, Any] = {
    "a": np.ones((40, 256), E4M3),
    "b": np.ones((2, 256, 16), E4M3),
    "scale_a": np.ones((40, 2), np.float32),
    "scale_b": np.ones((2, 2, 1), np.float32),
    "offsets": [16, 40],
}
REFUSED: dict[str, tuple[dict[str, Any], type[Exception], str]] = {
    "one matrix": ({"b": LEGAL["b"][0]}, ArgumentError, r"b\.shape .*3 dimensions"),
    "scales of one matrix": (
        {"scale_b": LEGAL["scale_b"][0]},
        ArgumentError,
        r"scale_b\.shape .*3 dimensions",
    ),
    "scales of another number of matrices": (
        {"scale_b": LEGAL["scale_b"][:1]},
        ArgumentError,
        r"scale_b\.shape .*Pass shape \(2, 2, 16\) or \(2, 2, 1\)",
    ),
    "scales of another depth": (
        {"scale_a": np.ones((40, 8), "f4")},
        ArgumentError,
        r"Pass shape \(40, 2\)",
    ),
    "scales of double precision": (
        {"scale_b": np.ones((2, 2, 1))},
        ArrayTypeError,
        r"scale_b holds float64; scales are float32",
    ),
    "depths that differ": (
        {"b": LEGAL["b"][:, :128]},
        ArgumentError,
        r"b must have 256 rows.*b\.swapaxes\(1, 2\)",
    ),
    "operands of 16 bits": (
        {"a": np.ones((40, 256), np.float16)},
        ArrayTypeError,
        r"a holds float16",
    ),
    "a group beyond a": ({"offsets": [16, 41]}, ArgumentError, r"offsets\[-1\] .*40 rows"),
    "offsets of another number of groups": (
        {"offsets": [40]},
        ArgumentError,
        r"offsets has shape .*2 matrices",
    ),
    "an output of integers": ({"dtype": "int32"}, ArrayTypeError, r"dtype is int32"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_wrong_call_of_groups_is_refused_with_the_rule_and_a_remedy(name: str) -> None:
    changed, kind, said = REFUSED[name]

    with pytest.raises(kind, match=said):
        ops.scaled_grouped_matmul(**(LEGAL | changed))


@pytest.mark.parametrize("chip", ["sm_90a", "sm_120a"], indirect=True)
def test_other_chips_are_referred_to_a_call_for_each_group() -> None:
    said = (
        r"of float32 scales needs tcgen05.*Run it on a B200.* or call ops\.scaled_matmul for each"
    )
    with pytest.raises(BackendError, match=said):
        ops.scaled_grouped_matmul(**LEGAL)
