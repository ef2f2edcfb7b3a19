"""Kernels by the names that CUDA C++ gives them: of templates, of namespaces, without C linkage."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tmaasync import ArgumentError, CompileError, Kernel, LaunchError
from tmaasync._source.entries import expression_of, function_name, template_of

KERNELS = """
namespace layers {
constexpr int kWarp = 2;
template <typename T, int N = 4, bool kMore = (2 > 1)>
__global__ void __launch_bounds__(N * kWarp) scale(T* x, T by) {
    x[threadIdx.x] = x[threadIdx.x] * by + T(N + kMore);
}
}  // namespace layers
template <int N>
static __global__ void reversed(int* x) {
    __shared__ int kept[N];
    kept[threadIdx.x] = x[threadIdx.x];
    __syncthreads();
    x[threadIdx.x] = kept[N - 1 - threadIdx.x];
}
extern "C" __device__ const int counted_shared_bytes = 64;
__device__ int one() { return 1; }
void __global__ counted(int* x) {
    extern __shared__ int words[];
    words[threadIdx.x] = one();
    x[threadIdx.x] = words[threadIdx.x] + 15;
}
extern "C" {
__global__ void plain(int* x) { *x = 2; }
}
"""


def test_instances_namespaces_and_static_functions_run() -> None:
    halves, x = np.full(8, 3, np.float32), np.arange(16, dtype=np.int32)

    Kernel(KERNELS, "layers::scale<float, 8>")(1, 8, (halves, 2.0))
    Kernel(KERNELS, "reversed<16>")(1, 16, (x,))

    assert (halves == 15).all()
    assert x.tolist() == list(range(15, -1, -1))
    Kernel(KERNELS, "counted")(1, 16, (x,))
    assert (x == 16).all()
    Kernel(KERNELS, "plain")(1, 1, (x,))
    assert x[0] == 2


def test_bounds_may_depend_on_a_templates_arguments() -> None:
    kernel = Kernel(KERNELS, "layers::scale<float>")

    with pytest.raises(LaunchError, match=r"layers::scale<float> is declared with .*\(8\)"):
        kernel(1, 16, (np.zeros(16, np.float32), 1.0))


def test_nvrtc_compiles_what_was_named() -> None:
    program = Kernel(KERNELS, "layers::scale<double, 16>").compile()

    entry = program.entries["layers::scale<double, 16>"]
    assert entry.symbol.startswith("_ZN6layers5scaleIdLi16E")
    assert [parameter.size_bytes for parameter in entry.parameters] == [8, 8]
    counted = Kernel(KERNELS, "counted").compile().entries["counted"]
    assert (counted.symbol, counted.shared_bytes) == ("_Z7countedPi", 64)
    assert Kernel(KERNELS, "plain").compile().entries["plain"].symbol == "plain"


LIBRARY = """#pragma once
#define LIBRARY_GLOBAL static __global__
namespace library {
template <int kThreads>
LIBRARY_GLOBAL void __launch_bounds__(kThreads) fill(int* x) { x[threadIdx.x] = kThreads; }
}  // namespace library
"""


def test_a_kernel_of_a_header_may_be_declared_by_a_macro(tmp_path: Path) -> None:
    (tmp_path / "library.cuh").write_text(LIBRARY)
    kernel = Kernel('#include "library.cuh"\n', "library::fill<24>", include_dirs=[tmp_path])
    x = np.zeros(24, np.int32)

    kernel(1, 24, (x,))

    assert (x == 24).all()
    with pytest.raises(LaunchError, match=r"library::fill<24> is declared with .*\(24\)"):
        kernel(1, 32, (x,))
    assert "library::fill<24>" in kernel.compile().entries


BOUNDS = """
#define BOUNDS(THREADS) __launch_bounds__((THREADS))
#define HINT(X)
constexpr __host__ __device__ int same(int x) { return x; }
"""


@pytest.mark.parametrize(
    "head",
    [
        "void __launch_bounds__((((16))))",
        "__launch_bounds__((same((((8)) * (2)))), ((1))) void",
        "void __launch_bounds__(((16))) __cluster_dims__(((1)), ((1)), ((1)))",
        "void BOUNDS(((same((16)))))",
        "BOUNDS(16) HINT((x)) void",
    ],
)
def test_brackets_and_macros_hide_no_name(head: str) -> None:
    text = f'{BOUNDS}extern "C" __global__ {head}\nfill(int* x) {{ x[threadIdx.x] = 3; }}\n'
    x = np.zeros(16, np.int32)

    Kernel(text, "fill")(1, 16, (x,))

    assert (x == 3).all()
    assert "fill" in Kernel(text, "fill").compile().entries


@pytest.mark.parametrize(
    ("name", "error", "says"),
    [
        ("reversed", ArgumentError, r"template <int N>. Name an instance: 'reversed<...>'"),
        ("none<3>", ArgumentError, "It has: scale, reversed, counted, plain"),
        ("scale<float>", CompileError, "pass its namespaces too, and a value for each"),
        ("reversed<float>", CompileError, "no single __global__ function of this name"),
    ],
)
def test_a_name_that_fits_no_kernel(name: str, error: type[Exception], says: str) -> None:
    with pytest.raises(error, match=says):
        Kernel(KERNELS, name)(1, 1, (np.zeros(1, np.int32),))
    with pytest.raises(error):
        Kernel(KERNELS, name).compile()


def test_names_in_the_text() -> None:
    assert expression_of(KERNELS, "plain") == ""
    assert expression_of(KERNELS, "counted") == "counted"
    assert expression_of('#include "kernels.cuh"\n', "counted") == ""
    assert function_name("a::b::c<d::e>") == "c"
    assert template_of(KERNELS, "scale") == "typename T, int N = 4, bool kMore = (2 > 1)"
    assert template_of(KERNELS, "counted") is None
