"""Shared variables in every form that CUDA C++ has for them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tmaasync import CompileError, EmulatedFault, Kernel, emulate

STATIC = """
#include <cuda_bf16.h>
#include <cuda_fp16.h>
struct Point {
    int x;
    __device__ Point() {}
    __device__ Point(int x) : x(x) {}
};
struct Shape {
    int side;
    __device__ Shape(int side) : side(side) {}
    __device__ virtual int area() const { return side * side; }
};
struct Half : Shape {
    using Shape::Shape;
    __device__ int area() const override { return side * side / 2; }
};
__shared__ half of_the_file[32];
__device__ int reversed(int i) {
    static __shared__ int kept[32];
    kept[i] = i;
    __syncthreads();
    return kept[31 - i];
}
__global__ void fill(int* x, bool skips) {
    __shared__ half2 pairs[32];
    __shared__ __nv_bfloat16 numbers[32];
    __shared__ Point points[2][32];
    __shared__ __align__(8) unsigned char bytes[sizeof(Half)];
    __shared__ Shape* shape;
    const int i = threadIdx.x;
    if (i == 0) shape = new (bytes) Half(2);
    pairs[i] = __float2half2_rn(i);
    numbers[i] = __int2bfloat16_rn(i);
    if (!skips || i != 3) points[1][i] = Point(i);
    of_the_file[i] = i;
    __syncthreads();
    x[i] = __half2int_rn(__low2half(pairs[31 - i])) + __bfloat162int_rn(numbers[i]) +
           points[1][31 - i].x + __half2int_rn(of_the_file[i]) + reversed(i) + shape->area();
}
"""


def test_no_constructor_runs_for_a_shared_variable() -> None:
    x = np.zeros(32, np.int32)
    with emulate.scheduled(races=True):
        Kernel(STATIC, "fill")(1, 32, (x, False))
    assert x.tolist() == [3 * (31 - i) + 2 * i + 2 for i in range(32)]


def test_an_element_without_a_value_is_still_a_fault() -> None:
    with emulate.scheduled(races=True), pytest.raises(EmulatedFault, match=r"points\[1\]\[3\]"):
        Kernel(STATIC, "fill")(1, 32, (np.zeros(32, np.int32), True))


DYNAMIC = """
#include "own.cuh"
namespace layers {
namespace inner {
template <typename T>
struct Shared {
    __device__ static T* get() { extern __shared__ T odd[]; return odd; }
};
__global__ void a(int* x) {
    Shared<int>::get()[threadIdx.x] = 1, x[threadIdx.x] = own()[threadIdx.x];
}
}  // namespace inner
}  // namespace layers
namespace {
__global__ void b(int* x) {
    extern int __shared__ hidden[];
    hidden[threadIdx.x] = 2, x[threadIdx.x] = own()[threadIdx.x];
}
}  // namespace
namespace a::b {
__device__ int* raw() { extern __shared__ __align__(16) int bytes[]; return bytes; }
}  // namespace a::b
extern __shared__ float top[];
__global__ void c(int* x) { top[threadIdx.x] = 3, x[threadIdx.x] = top[threadIdx.x]; }
__global__ void d(int* x) { x[threadIdx.x] = a::b::raw() == own() ? __isShared(own()) : 0; }
"""


def test_arrays_of_dynamic_memory_in_namespaces_and_headers(tmp_path: Path) -> None:
    header = tmp_path / "own.cuh"
    header.write_text(
        "inline __device__ int* own() { extern __shared__ int words[]; return words; }"
    )
    for name, value in {"layers::inner::a": 1, "b": 2, "c": 3, "d": 1}.items():
        x = np.zeros(32, np.int32)
        Kernel(DYNAMIC, name, include_dirs=[tmp_path])(1, 32, (x,), shared_mem=128)
        assert (x == value).all()


def test_a_shared_variable_that_nothing_writes_is_a_fault() -> None:
    """C++ compilers take a variable that no code writes for a constant."""
    text = """
__global__ void k(int* x) {
    __shared__ int found;
    __syncthreads();
    if (found == 0) x[threadIdx.x] = 1;
}
"""
    with pytest.raises(EmulatedFault, match=r"kernel\.cu:5: a read of .* \(found\), which nothing"):
        Kernel(text, "k")(1, 32, (np.zeros(32, np.int32),))


INITIALIZED = (
    "__global__ void k(int* x) { __shared__ int s[32]{}; x[0] = s[0]; }",
    "__global__ void k(int* x) { __shared__ int other, s = 0; x[0] = s + other; }",
    "static __shared__ int s[2][1] = {{1}, {2}}; __global__ void k(int* x) { x[0] = s[0][0]; }",
)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("code", INITIALIZED)
def test_a_shared_variable_has_no_initialiser(code: str) -> None:
    """As in nvcc: "initializer not allowed for __shared__ variable"."""
    text = f"/* __shared__ int a = 3;\n */ // __shared__ int b = 3;\n{code}"
    with pytest.raises(CompileError, match=r"kernel\.cu:3 initialises the __shared__ variable s:"):
        Kernel(text, "k")(1, 32, (np.zeros(32, np.int32),))


RUN_WHEN_LOADED = (
    "__device__ int half(int x) { return 5 / x; } __device__ int v = half(0);",
    "struct Odd { int x; __device__ Odd() : x(threadIdx.x) {} }; __device__ Odd v;",
    "__device__ int once(int x) { static int v = 5 / x; return v; }",
)


@pytest.mark.parametrize("code", RUN_WHEN_LOADED)
def test_no_initialiser_is_code(code: str) -> None:
    """As in nvcc: "dynamic initialization is not supported"."""
    use = "once(*x)" if "once" in code else "*(int*)&v"
    text = f"{code} __global__ void k(int* x) {{ *x = {use}; }}"
    with pytest.raises(CompileError, match="dynamic initialization is not supported"):
        Kernel(text, "k")(1, 1, (np.zeros(1, np.int32),))


def test_a_header_of_the_host_may_have_variables_of_its_own() -> None:
    out = np.zeros(1, np.int32)
    Kernel("#include <iostream>\n__global__ void k(int* x) { *x = 3; }", "k")(1, 1, (out,))
    assert out[0] == 3


def test_a_constexpr_constructor_initialises() -> None:
    text = """
    struct Three { int x; constexpr Three() : x(3) {} };
    __device__ Three v;
    __global__ void k(int* x) { *x = v.x; }
    """
    out = np.zeros(1, np.int32)
    Kernel(text, "k")(1, 1, (out,))
    assert out[0] == 3


def test_the_type_of_a_shared_variable_may_have_braces() -> None:
    text = """
__global__ void k(int* x) {
    __shared__ struct { int a; } plain;
    __shared__ struct Named { int a; } named[2];
    __shared__ union alignas(8) { int a; float b; } either;
    if (threadIdx.x == 0) plain.a = 1, named[1].a = 2, either.a = 3;
    __syncthreads();
    x[threadIdx.x] = plain.a + named[1].a + either.a;
}
"""
    x = np.zeros(32, np.int32)
    Kernel(text, "k")(1, 32, (x,))
    assert (x == 6).all()
