"""nvcuda::wmma: every shape and type, loads and stores of both layouts, and its misuses."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

from tmaasync import CompileError, EmulatedFault, Kernel, emulate

KERNEL = """
#include <mma.h>
using namespace nvcuda;
using LayoutA = wmma::LAYOUT_A;
using LayoutB = wmma::LAYOUT_B;
extern "C" __global__ void multiply(const HELD* a, const HELD* b, SUM* c, float scale) {
    wmma::fragment<wmma::matrix_a, M, N, K, TYPE, LayoutA> left;
    wmma::fragment<wmma::matrix_b, M, N, K, TYPE, LayoutB> right;
    wmma::fragment<wmma::accumulator, M, N, K, SUM> sums, more;
    wmma::load_matrix_sync(left, a, LDA);
    wmma::load_matrix_sync(right, b, LDB);
    wmma::load_matrix_sync(more, c, LDC, wmma::mem_row_major);
    wmma::fill_fragment(sums, 0);
    wmma::mma_sync(sums, left, right, sums);
    for (int i = 0; i < sums.num_elements; ++i) sums.x[i] = SUM(scale) * sums.x[i] + more.x[i];
    wmma::store_matrix_sync(c, sums, LDC, wmma::mem_row_major);
}
"""
TYPES: dict[str, tuple[str, type[Any], str, type[Any]]] = {
    "__half": ("__half", np.float16, "float", np.float32),
    "__nv_bfloat16": ("__nv_bfloat16", ml_dtypes.bfloat16, "float", np.float32),
    "signed char": ("signed char", np.int8, "int", np.int32),
    "unsigned char": ("unsigned char", np.uint8, "int", np.int32),
    "wmma::precision::tf32": ("float", np.float32, "float", np.float32),
    "double": ("double", np.float64, "double", np.float64),
}
SHAPES = ((16, 16, 16), (32, 8, 16), (8, 32, 16))
CASES = [
    *(("__half", shape, "row_major", "col_major") for shape in SHAPES),
    ("__nv_bfloat16", SHAPES[1], "col_major", "row_major"),
    ("signed char", SHAPES[2], "row_major", "row_major"),
    ("unsigned char", SHAPES[0], "col_major", "col_major"),
    ("wmma::precision::tf32", (16, 16, 8), "row_major", "col_major"),
    ("double", (8, 8, 4), "row_major", "row_major"),
]


@pytest.mark.sampled(2)
@pytest.mark.parametrize(("kind", "shape", "layout_a", "layout_b"), CASES)
def test_matmuls_of_small_numbers_are_exact(
    kind: str, shape: tuple[int, int, int], layout_a: str, layout_b: str
) -> None:
    (m, n, k), (held, dtype, total, total_dtype) = shape, TYPES[kind]
    rng = np.random.default_rng(m + n)
    low = 0 if kind == "unsigned char" else -4
    a, b, c = (rng.integers(low, 5, sides) for sides in ((m, k), (k, n), (m, n)))
    lda, ldb, ldc = ((side + 31) // 16 * 16 for side in (max(m, k), max(k, n), n))
    text = (
        f"constexpr int M = {m}, N = {n}, K = {k}, LDA = {lda}, LDB = {ldb}, LDC = {ldc};{KERNEL}"
    )
    for word, meant in {
        "LAYOUT_A": layout_a,
        "LAYOUT_B": layout_b,
        "HELD": held,
        "SUM": total,
        "TYPE": kind,
    }.items():
        text = text.replace(word, meant)
    arrays = [
        _padded(a if layout_a == "row_major" else a.T, lda).astype(dtype),
        _padded(b if layout_b == "row_major" else b.T, ldb).astype(dtype),
        _padded(c, ldc).astype(total_dtype),
    ]

    with emulate.scheduled(races=True):
        Kernel(text, "multiply")(1, 32, (*arrays, 2.0))

    assert (arrays[2][:, :n] == 2 * (a @ b) + c).all()
    assert (arrays[2][:, n:] == 99).all()


def _padded(matrix: np.ndarray[Any, Any], columns: int) -> np.ndarray[Any, Any]:
    whole = np.full((matrix.shape[0], columns), 99)
    whole[:, : matrix.shape[1]] = matrix
    return whole


MORE = """
#include <mma.h>
using namespace nvcuda::wmma;
__global__ void halves(const half* a, half* c) {
    fragment<matrix_a, 16, 16, 16, half, row_major> x;
    fragment<matrix_b, 16, 16, 16, half, col_major> y;
    fragment<accumulator, 16, 16, 16, half> sums;
    static_assert(x.num_elements == 16 && y.num_elements == 16 && sums.num_elements == 8, "");
    load_matrix_sync(x, a, 16);
    load_matrix_sync(y, a, 16);
    for (int i = 0; i < x.num_elements; ++i) x.x[i] *= half(2);
    fill_fragment(sums, 0.5f);
    mma_sync(sums, x, y, sums);
    store_matrix_sync(c, sums, 16, mem_col_major);
}
__global__ void saturated(const signed char* a, int* c) {
    fragment<matrix_a, 16, 16, 16, signed char, row_major> x;
    fragment<matrix_b, 16, 16, 16, signed char, col_major> y;
    fragment<accumulator, 16, 16, 16, int> sums;
    load_matrix_sync(x, a, 16);
    load_matrix_sync(y, a, 16);
    fill_fragment(sums, 0x7fffffff);
    mma_sync(sums, x, y, sums, true);
    store_matrix_sync(c, sums, 16, mem_row_major);
}
__global__ void alone(float* c) {
    fragment<accumulator, 16, 16, 16, float> sums;
    fill_fragment(sums, __float_to_tf32(1 + 0x1p-11f));
    if (threadIdx.x < 31) store_matrix_sync(c, sums, 16, mem_row_major);
    else store_matrix_sync(c, sums, 18, mem_row_major);
}
__global__ void of_another_shape(int* c) {
#ifdef SHAPE
    fragment<accumulator, 8, 8, 64, int> sums;
    fill_fragment(sums, 0);
#endif
}
"""


def test_halves_and_saturated_integers() -> None:
    a = np.random.default_rng(0).integers(-3, 4, (16, 16))
    halves, c = a.astype(np.float16), np.full((16, 16), np.nan, np.float16)
    Kernel(MORE, "halves")(1, 32, (halves, c))
    assert (c == (2 * (a @ a.T) + 0.5).T).all()

    ones, sums = np.ones((16, 16), np.int8), np.zeros((16, 16), np.int32)
    Kernel(MORE, "saturated")(1, 32, (ones, sums))
    assert (sums == 2**31 - 1).all()


def test_misuses_are_named() -> None:
    with pytest.raises(EmulatedFault, match=r"leading dimension .* is a multiple of 16 bytes"):
        Kernel(MORE, "alone")(1, 32, (np.zeros(300, np.float32),))
    with pytest.raises(CompileError, match=r"wmma has the shapes 16x16x16, 32x8x16 and 8x32x16"):
        Kernel(MORE, "of_another_shape", options=["-DSHAPE"])(1, 32, (np.zeros(64, np.int32),))


SUB_BYTE = """
#include <mma.h>
using namespace nvcuda::wmma;
template <typename T> struct Named;
template <> struct Named<int> { using Type = experimental::precision::s4; };
template <typename T, int k> struct Fragments {
    fragment<matrix_a, 8, 8, k, T, row_major> a;
    fragment<matrix_b, 8, 8, k, T, col_major> b;
    fragment<accumulator, 8, 8, k, int> sums;
};
inline __device__ void unused(Fragments<experimental::precision::b1, 128>& x) {
    bmma_sync(x.sums, x.a, x.b, x.sums, experimental::bmmaBitOpXOR);
}
extern "C" __global__ void count(int* c) {
    Fragments<Named<int>::Type, 32> four;
    Fragments<experimental::precision::u4, 32> also_four;
    Fragments<experimental::precision::b1, 128> one;
    static_assert(four.a.num_elements == 8 && one.b.num_elements == 32);
    fill_fragment(four.sums, 5);
    fill_fragment(four.a, -3);
    fill_fragment(also_four.b, 0x15);
    fill_fragment(one.a, 3);
    four.sums.x[0] += four.a.x[0] != (int)0xdddddddd || also_four.b.x[0] != 0x55555555;
    four.sums.x[0] += one.a.x[0] != 0xffffffff;
    USE
    store_matrix_sync(c, four.sums, 8, mem_row_major);
}
"""


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    "use",
    [
        "load_matrix_sync(four.a, c, 32);",
        "mma_sync(four.sums, four.a, four.b, four.sums);",
        "mma_sync(also_four.sums, also_four.a, also_four.b, also_four.sums);",
        "bmma_sync(one.sums, one.a, one.b, one.sums);",
    ],
)
def test_a_matmul_of_1_or_4_bits_is_refused_by_its_line(use: str) -> None:
    text = SUB_BYTE.replace("USE", use)
    line = text[: text.index(use)].count("\n") + 1

    with pytest.raises(
        CompileError, match=r"not have (wmma's )?matrix instructions of 1 and 4 bits"
    ) as caught:
        Kernel(text, "count")(1, 32, (np.zeros(64, np.int32),))

    assert f"kernel.cu:{line}" in str(caught.value).splitlines()[0]


def test_types_of_1_and_4_bits_may_be_named() -> None:
    c = np.zeros(64, np.int32)
    Kernel(SUB_BYTE.replace("USE", ""), "count")(1, 32, (c,))
    assert (c == 5).all()
