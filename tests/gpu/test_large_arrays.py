"""Arrays of more than 2^31 elements and 2^32 bytes: no index of 32 bits wraps around on the way.

Large arrays repeat one random block, so that their last rows are compared with NumPy's result and
their middle with their end.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from tmaasync import ops

cupy = pytest.importorskip("cupy")

LARGE = (1 << 31) + (1 << 27)  # elements
NEEDED_BYTES = 60 << 30


@pytest.fixture(autouse=True)
def free_memory() -> Iterator[None]:
    pool = cupy.get_default_memory_pool()
    pool.free_all_blocks()
    if cupy.cuda.Device().mem_info[0] < NEEDED_BYTES:
        pytest.skip("the GPU has not 60 GiB to spare")
    yield
    pool.free_all_blocks()


def halves(*shape: int) -> Any:
    return cupy.random.standard_normal(shape, dtype=cupy.float32).astype(cupy.float16)


def repeated(*shape: int) -> Any:
    """Return more than LARGE elements, blocks of this shape one after the other."""
    return cupy.concatenate([halves(*shape)] * -(-LARGE // int(np.prod(shape))))


def on_host(array: Any) -> Any:
    return cupy.asnumpy(array).astype(np.float64)


def agree(got: Any, wanted: Any, relative_error: float = 4e-3) -> bool:
    difference = np.linalg.norm(on_host(got) - on_host(wanted))
    return bool(difference <= relative_error * np.linalg.norm(on_host(wanted)))


def test_a_matmul_its_copy_and_its_sum() -> None:
    a, b = halves(70_000, 64), halves(64, 32_768)
    assert LARGE < 70_000 * 32_768
    out = ops.matmul(a, b)
    rows = np.array([0, 32_767, 32_768, 65_535, 65_536, 69_999])
    wanted = cupy.asarray(on_host(a[rows]) @ on_host(b))
    assert agree(out[rows], wanted)

    part: Any = ops.copy(out[:, :32_760])
    assert bool((part == out[:, :32_760]).all())
    del part
    ops.reduce_add(out, out.copy())
    assert agree(out[rows], 2 * wanted)


def test_float8_matmul_with_scales() -> None:
    a, b = (
        np.random.default_rng(0).standard_normal(shape).astype(ml_dtypes.float8_e4m3fn)
        for shape in ((280_000, 128), (8192, 128))
    )
    scale_a, scale_b = cupy.full((280_000, 1), 0.5, cupy.float32), cupy.ones((1, 64), cupy.float32)
    out = ops.scaled_matmul(
        cupy.asarray(a.view(np.uint8)),
        cupy.asarray(b.view(np.uint8)).T,
        scale_a,
        scale_b,
        dtype="float16",
        a_dtype="e4m3",
        b_dtype="e4m3",
    )
    assert agree(out[-3:], cupy.asarray(0.5 * a[-3:].astype(np.float64) @ b.astype(np.float64).T))


def test_grouped_matmuls() -> None:
    a, b = repeated(1 << 15, 128), halves(3, 128, 16)
    rows = len(a)
    out = ops.grouped_matmul(a, b, [1 << 24, rows - 5, rows])
    assert agree(out[-5:], cupy.asarray(on_host(a[-5:]) @ on_host(b[2])))
    assert agree(out[-9:-5], cupy.asarray(on_host(a[-9:-5]) @ on_host(b[1])))

    sums = ops.k_grouped_matmul(a.T, out, [5, rows - 3, rows])
    assert agree(sums[2], cupy.asarray(on_host(a[-3:]).T @ on_host(out[-3:])))


def test_conv2d() -> None:
    images, filters = repeated(1, 1024, 1024, 64), halves(64, 1, 1, 64)
    out = ops.conv2d(images, filters)
    wanted = on_host(images[-1, -1, -24:]) @ on_host(filters[:, 0, 0]).T
    assert agree(out[-1, -1, -24:], cupy.asarray(wanted))
    assert bool((out[-1] == out[0]).all())


def test_attention_and_its_backward() -> None:
    q, k, v, dout = (repeated(4096, 8, 128)[None] for _ in range(4))
    window: Any = {"window": (64, 0)}
    out, lse = ops.attention(q, k, v, return_lse=True, **window)
    gradients = ops.attention_backward(dout, q, k, v, out, lse, **window)

    few_q, few_k, few_v, few_dout = (array[:, :16_384] for array in (q, k, v, dout))
    few_out, few_lse = ops.attention(few_q, few_k, few_v, return_lse=True, **window)
    few_gradients = ops.attention_backward(
        few_dout, few_q, few_k, few_v, few_out, few_lse, **window
    )
    inner, late = slice(8192, 12_288), slice(-8192, -4096)  # whose windows hold the same rows
    for large, small in zip((out, *gradients), (few_out, *few_gradients), strict=True):
        assert agree(large[0, late], small[0, inner])
    assert agree(lse[0, :, late], few_lse[0, :, inner])


def test_ragged_rows() -> None:
    padded = cupy.zeros((2, 2_400_000, 512), cupy.float16)
    padded[1, 0], padded[1, 2_199_999] = 4, 5
    packed = ops.ragged_store(padded, [2_400_000, 2_200_000])
    assert packed.shape == (4_600_000, 512)
    assert packed.size > LARGE
    assert [float(packed[row, 0]) for row in (2_399_999, 2_400_000, 4_599_999)] == [0, 4, 5]
    again = ops.ragged_load(packed, [2_400_000, 2_200_000])
    assert bool((again == padded).all())


def test_a_stack_is_added_up() -> None:
    stack = repeated(1, 1 << 20).reshape(2, -1)
    target = cupy.zeros(stack.shape[1], cupy.float16)
    ops.reduce_add(target, stack)
    assert agree(target[-1000:], stack[:, -1000:].astype(cupy.float32).sum(0))
