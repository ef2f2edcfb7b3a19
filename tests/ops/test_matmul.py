"""ops.matmul without a GPU: what is refused, and how operands are fetched."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from stubs import check_binding

from tmaasync import ArgumentError, ArrayTypeError, _arrays, ops
from tmaasync.ops._gemm.config import TileConfig
from tmaasync.ops._gemm.epilogue import NO_EPILOGUE, layouts_of
from tmaasync.ops._gemm.tiles import gemm_tiles
from tmaasync.ops._layouts import Layout
from tmaasync.ops._matmul import Matmul
from tmaasync.ops._operation import tile_configs

A, B = np.ones((6, 16), np.float16), np.ones((16, 24), np.float16)
SINGLE = np.ones((6, 16), np.float32)
BYTES = np.ones((6, 16), np.int8)


def refused(error: type[Exception], said: str, **changes: Any) -> None:
    options = {"a": A, "b": B, **changes}
    with pytest.raises(error, match=said):
        ops.matmul(options.pop("a"), options.pop("b"), **options)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"alpha": np.nan}, r"alpha is nan; it must be a finite number that float32 holds"),
        ({"alpha": np.float16(np.inf)}, r"alpha is .*inf.*; it must be a finite number"),
        ({"alpha": True}, "alpha is True; it must be a finite number"),
        ({"alpha": 10**400}, "alpha is a int; it must be a finite number"),
        ({"beta": np.complex64(1)}, "beta is .*1.*; it must be a finite number"),
        ({"scale_a": False}, "scale_a is False; it must be a finite number"),
        ({"scale_b": np.complex64(1)}, "scale_b is .*; it must be a finite number"),
        ({"alpha": 1e39}, r"alpha is 1e\+39; it must be a finite number"),
        ({"c": np.ones((6, 24), np.float16), "beta": np.inf}, r"beta is inf; it must be a finite"),
        ({"beta": np.nan}, r"beta is nan; it must be"),
        ({"beta": 2}, r"beta is 2\.0, and there is no c; .* Pass c too, or leave beta out"),
        ({"scale_a": -np.inf}, r"scale_a is -inf; it must be a finite"),
        ({"scale_a": 1e30, "scale_b": 1e30}, r"alpha times the scales is .*; it must be"),
        ({"alpha": np.ones(2)}, r"alpha is a ndarray; it must be a finite number"),
        ({"scale_b": np.ones(2, np.float32)}, r"scale_b has shape \(2,\); one number scales all"),
        ({"activation": "tanh"}, r"activation is 'tanh'; the kernel has relu, gelu, gelu_tanh, si"),
        ({"c": np.ones((6, 23), np.float16)}, r"c\.shape is \(6, 23\) .* output has shape \(6, 2"),
        (
            {"bias": np.ones(6, np.float16)},
            r"bias\.shape is \(6,\) .*\. Pass an array \(24,\) there",
        ),
        ({"bias": np.ones((1, 24), np.float16)}, r"bias\.shape is \(1, 24\)"),
        ({"precision": "tf64"}, r"precision is 'tf64'; it can be \"tf32\", of float32 operands"),
        ({"precision": "tf32"}, r"precision is 'tf32' and a holds float16; .* Leave it out"),
        (
            {"a": BYTES, "b": BYTES.T, "alpha": 2},
            r"a\.dtype is int8; .* no epilogue\. Leave out alpha",
        ),
        (
            {"a": A.astype(ml_dtypes.bfloat16)},
            r"b holds float16 and a bfloat16; the tensor cores multiply two of one type",
        ),
        ({"a": BYTES, "b": BYTES.view(ml_dtypes.float8_e4m3fn).T}, r"b holds float8_e4m3fn and a"),
    ],
)
def test_values_and_shapes_that_do_not_fit_are_refused(changes: dict[str, Any], said: str) -> None:
    refused(ArgumentError, said, **changes)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"a": SINGLE, "b": SINGLE.T}, r"a holds float32; .* Ask for it with precision=\"tf32\""),
        ({"b": B.astype(np.float64)}, r"b holds float64; the kernel multiplies bfloat16, float16"),
        (
            {"c": np.ones((6, 24), np.float32)},
            r"c\.dtype is float32; it must be float16 as the out",
        ),
        ({"bias": np.ones(24)}, r"bias\.dtype is float64; it must be float16 or float32"),
        ({"scale_a": np.ones(1)}, r"scale_a holds float64; it must hold float32"),
        ({"a": BYTES, "b": BYTES.T, "dtype": "float32"}, r"a matmul of int8 can be int32"),
        ({"dtype": "int32"}, r"dtype is int32; a matmul of float16 can be float16, bfloat16, fl"),
        ({"a_dtype": "int7"}, r"a_dtype is 'int7'; it names no element type"),
    ],
)
def test_types_that_the_kernel_lacks_are_refused(changes: dict[str, Any], said: str) -> None:
    refused(ArrayTypeError, said, **changes)


def test_a_reading_of_another_width_is_refused() -> None:
    refused(ArgumentError, "reinterprets bits, so its 1 bytes must equal the 2", a_dtype="int8")


WHOLE = np.ones((40, 64), np.float16)


@pytest.mark.parametrize(
    ("name", "given", "out"),
    [
        ("a", {"a": WHOLE[:6, :16]}, WHOLE[2:8, 8:32]),
        ("b", {"b": WHOLE[:16, :24]}, WHOLE[15:21, 16:40]),
        ("c", {"c": WHOLE[:6, :24]}, WHOLE[1:7, :24]),
        ("c", {"c": WHOLE[:6, :24]}, WHOLE[:6, 8:32]),
        ("bias", {"bias": WHOLE[3, 20:44]}, WHOLE[:6, :24]),
    ],
)
def test_an_output_over_what_is_read_is_refused(name: str, given: dict[str, Any], out: Any) -> None:
    refused(ArgumentError, f"out overlaps {name} ", out=out, **given)


ROWS, STACK = np.zeros((12, 16), np.float16), np.zeros((3, 16, 24), np.float16)


def refused_batch(error: type[Exception], said: str, a: Any, b: Any, **options: Any) -> None:
    with pytest.raises(error, match=said):
        ops.matmul(a, b, **options)


@pytest.mark.parametrize(
    ("a", "b", "said"),
    [
        (
            ROWS[0],
            STACK,
            r"a has shape \(16,\); it must have 2 dimensions, or 3 as a batch\. Pass a vector as",
        ),
        (ROWS, STACK[None], r"b has shape \(1, 3, 16, 24\); .* all others make up one batch"),
        (
            ROWS,
            STACK[:, :8],
            r"b has shape \(3, 8, 24\); .* must have 16 rows\. .* b\.swapaxes\(1, 2\)",
        ),
        (STACK[:2], STACK.swapaxes(1, 2), r"must be a batch of 2 matrices, or one matrix for all"),
    ],
)
def test_batches_that_do_not_fit_are_refused(a: Any, b: Any, said: str) -> None:
    refused_batch(ArgumentError, said, a, b)


def test_an_output_of_another_shape_is_refused() -> None:
    out = np.zeros((12, 24), np.float16)

    refused_batch(ArgumentError, r"out has shape \(12, 24\) .* \(3, 12, 24\)", ROWS, STACK, out=out)


OUT_AT = 0x10000


@pytest.mark.parametrize(
    ("names", "shifts", "is_apart"),
    [
        (("bias",), {"bias": 0}, False),
        (("c",), {"c": 0}, True),
        (("c",), {"c": 16}, False),
        (("c", "bias"), {"c": 0}, True),
        (("c", "bias"), {"c": 0, "bias": 0}, False),
        (("c", "scale_a"), {"scale_a": 6 * 48 - 4}, False),
        (("c", "scale_a"), {"scale_a": 6 * 48}, True),
        ((), {"a": 0}, False),
        ((), {"a": -6 * 32}, True),
        ((), {"b": 1 - 16 * 48}, False),
        ((), {"b": -16 * 48}, True),
    ],
)
def test_an_output_over_what_is_read_finds_no_launch(
    names: tuple[str, ...], shifts: dict[str, int], is_apart: bool
) -> None:
    arrays: dict[str, Any] = {
        "c": np.ones((6, 24), np.float16),
        "bias": np.ones(24, np.float32),
        "scale_a": np.ones(1, np.float32),
    }
    epilogue = NO_EPILOGUE._replace(**{name: arrays[name] for name in names})
    layouts = (Layout.of(_arrays.view(array)) for array in (A, B, arrays["c"]))
    operation = Matmul(*layouts, epilogue=layouts_of(epilogue.views()))
    apart = dict(zip(("a", "b", "out", *names), range(0x20000, 0x90000, 0x10000), strict=False))
    at = {**apart, "out": OUT_AT, **{name: OUT_AT + shift for name, shift in shifts.items()}}

    assert operation.overlaps([*at.values()]) != is_apart


@pytest.mark.parametrize(("rows", "order"), [(6, (1, 0, 2)), (512, (0, 1, 2))])
def test_few_rows_of_output_swap_ab(rows: int, order: tuple[int, ...]) -> None:
    a, out = np.ones((rows, 16), np.float16), np.ones((rows, 24), np.float16)
    operation = Matmul(*(Layout.of(_arrays.view(array)) for array in (a, B, out)))

    check_binding(operation, 3, lambda at: [at[place] for place in order])


def swaps_ab(*shapes: tuple[int, ...], **epilogue: Any) -> bool:
    a, b, out = (np.zeros(shape, np.float16) for shape in shapes)
    given = layouts_of(NO_EPILOGUE._replace(**epilogue).views())
    layouts = (Layout.of(_arrays.view(array)) for array in (a, b, out))
    return Matmul(*layouts, epilogue=given).problem.m_major


def of_shape(m: int, n: int, k: int) -> bool:
    return swaps_ab((m, k), (k, n), (m, n))


@pytest.mark.parametrize(
    ("m", "n", "k"),
    [(65, 4096, 72), (96, 4096, 72), (136, 4096, 14336), (160, 8192, 8192), (200, 4096, 14336)],
)
def test_rows_whose_multiply_adds_it_saves_swap_ab(m: int, n: int, k: int) -> None:
    assert of_shape(m, n, k)


@pytest.mark.parametrize(
    ("m", "n", "k"),
    [
        *((rows, 4096, 14336) for rows in (97, 128, 161, 192, 201, 250)),
        (136, 4096, 4096),
        (96, 4088, 14336),
    ],
)
def test_other_rows_do_not(m: int, n: int, k: int) -> None:
    assert not of_shape(m, n, k)


def test_what_was_not_raced_with_rows_outside_does_not_swap_ab() -> None:
    few, weights, out = (90, 72), (72, 4096), (90, 4096)
    a, b, c = (np.zeros(shape, np.float16) for shape in (few, weights, out))
    along_m = np.zeros((72, 96), np.float16)[:, :90].T

    assert not swaps_ab((2, *few), (2, *weights), (2, *out))
    assert not swaps_ab(few, weights, out, bias=np.zeros(4096, np.float16))
    layouts = [Layout.of(_arrays.view(array)) for array in (a, b, c, along_m)]
    assert Matmul(*layouts[:3]).problem.m_major
    assert not Matmul(layouts[3], *layouts[1:3]).problem.m_major


@pytest.mark.parametrize(
    ("m", "n", "k", "wanted"),
    [
        # A block of the output is 128 x 256: of so few rows the weights are read once.
        (128, 512, 64, ("B256", "B128")),
        (256, 256, 64, ("B128", "B256")),
        (256, 512, 64, ("B256", "B256")),
        (128, 256, 64, ("B128", "B128")),
        (128, 512, 40, ("NONE", "NONE")),  # rows off the lines of L2
    ],
)
def test_what_is_read_once_is_fetched_in_lines(
    m: int, n: int, k: int, wanted: tuple[str, str]
) -> None:
    a, b, c = (_arrays.view(np.zeros(shape, np.float16)) for shape in ((m, k), (n, k), (m, n)))

    tiles = gemm_tiles(a, b, c, TileConfig(2, 256), False, True)

    assert tuple(tile.spec.l2_promotion.name for tile in tiles[:2]) == wanted


def test_an_output_next_to_an_input_is_written() -> None:
    whole = np.ones((6, 64), np.float16)

    ops.matmul(whole[:, 40:56], B, out=whole[:, :24])

    assert (whole == np.where(np.arange(64) < 24, 16, 1)).all()


def test_groups_of_tiles_that_do_not_divide_the_rows_give_the_matmul() -> None:
    rng = np.random.default_rng(0)
    a, b = (rng.integers(-3, 4, shape).astype(np.float16) for shape in ((330, 8), (8, 72)))
    c = np.full((330, 72), np.nan, np.float32)
    left, right, out = map(_arrays.view, (a, b, c))
    operation = Matmul(*map(Layout.of, (left, right, out)))

    with tile_configs(lambda _: TileConfig(1, 64, 1, 4)):
        operation.run(left, right, out, None)

    assert np.array_equal(c, a.astype(np.float64) @ b.astype(np.float64))
