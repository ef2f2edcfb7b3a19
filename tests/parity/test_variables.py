"""Variables in constant and global memory, which Python fills and reads."""

from __future__ import annotations

import contextlib
import functools
from typing import Any

import numpy as np
import pytest

from tmaasync import ArgumentError, EmulatedRace, Kernel, emulate, trace
from tmaasync.kernel.variables import Variable

SOURCE = """
#include <tmaasync/tmaasync.cuh>
__constant__ float taps[4] = {1, 0, 0, 0};
static __constant__ int shift;
__device__ int counter = 3;
namespace layers {
__constant__ double scale = 2;
template <typename T, int N> __device__ T table[N];
}

template <typename T> __global__ void filter(const float* x, T* out, int n) {
    const int i = threadIdx.x;
    float sum = 0;
    for (int k = 0; k < 4; ++k) sum += i + k < n ? taps[k] * x[i + k] : 0;
    out[i] = T(sum * layers::scale) + shift;
    layers::table<T, 32>[i] = out[i];
    atomicAdd(&counter, 1);
}

extern "C" __global__ void count_wrongly(int* out) {
    counter += threadIdx.x;
    if (threadIdx.x == 0) out[0] = counter;
}
"""
FILTER = "filter<float>"


@pytest.fixture
def on_backend(backend: Any) -> Any:
    is_host = backend.module is np
    with emulate.scheduled("round_robin") if is_host else contextlib.nullcontext():
        yield backend


def variable(kernel: Kernel, name: str, backend: Any) -> Variable:
    # The suite's emulate.scheduled makes the CPU the default.
    return kernel.variable(name, device="cpu" if backend.module is np else 0)


@functools.cache
def count_wrongly() -> Kernel:
    return Kernel(SOURCE, "count_wrongly")


def test_a_kernel_reads_what_was_written(on_backend: Any) -> None:
    kernel = Kernel(SOURCE, FILTER)
    x = np.random.default_rng(0).integers(-8, 8, 32).astype(np.float32)
    taps = np.array([1, -2, 3, 0.5], np.float32)
    variable(kernel, "taps", on_backend).write(taps)
    variable(kernel, "shift", on_backend).write(np.int32(7))
    variable(kernel, "layers::scale", on_backend).write(np.float64(0.5))
    counter = variable(kernel, "counter", on_backend)
    counter.write(np.int32(100))

    out = on_backend.array(np.full(32, np.nan, np.float32))
    kernel(1, 32, (on_backend.array(x), out, 32))

    wanted = np.convolve(x, taps[::-1])[3:] * 0.5 + 7
    np.testing.assert_array_equal(on_backend.host(out), wanted)
    np.testing.assert_array_equal(variable(kernel, "taps", on_backend).read(np.float32), taps)
    table = variable(kernel, "layers::table<float,32>", on_backend)
    np.testing.assert_array_equal(table.read(np.float32), wanted)
    assert counter.read(np.int32).tolist() == [132]
    assert counter.size_bytes == 4


def test_a_variable_begins_with_the_value_of_the_source(on_backend: Any) -> None:
    # The kernel has its own text, since kernels of one source may share a module on a GPU.
    kernel = Kernel(SOURCE.replace("counter = 3", "counter = 5"), FILTER)
    assert variable(kernel, "counter", on_backend).read(np.int32) == 5
    assert variable(kernel, "taps", on_backend).read(np.float32).tolist() == [1, 0, 0, 0]


def test_a_traced_launch_reads_what_was_written(on_backend: Any) -> None:
    kernel = Kernel(SOURCE, FILTER)
    variable(kernel, "taps", on_backend).write(np.array([2, 0, 0, 0], np.float32))
    variable(kernel, "shift", on_backend).write(np.int32(0))
    variable(kernel, "layers::scale", on_backend).write(np.float64(1))
    x, out = (on_backend.array(np.ones(32, np.float32)) for _ in range(2))
    with trace.record():
        kernel(1, 32, (x, out, 32))
    assert (on_backend.host(out) == 2).all()
    variable(kernel, "shift", on_backend).write(np.int32(1))
    with trace.record():
        kernel(1, 32, (x, out, 32))
    assert (on_backend.host(out) == 3).all()


def test_a_name_that_there_is_not_lists_those_there_are(on_backend: Any) -> None:
    kernel = Kernel(SOURCE, FILTER)
    with pytest.raises(ArgumentError, match=r"no __constant__ or __device__ variable") as raised:
        variable(kernel, "weights", on_backend)
    for name in ("taps", "shift", "counter", "layers::scale", "layers::table<float, 32>"):
        assert name in str(raised.value)
    assert "tmaasync" not in str(raised.value)


def test_the_sizes_have_to_agree(on_backend: Any) -> None:
    taps = variable(Kernel(SOURCE, FILTER), "taps", on_backend)
    with pytest.raises(ArgumentError, match=r"values has 32 bytes \(float64.*taps has 16 bytes"):
        taps.write(np.ones(4))
    with pytest.raises(ArgumentError, match="16 bytes, no multiple of it"):
        taps.read(np.dtype((np.void, 5)))


def test_values_of_another_type_are_refused_and_bytes_are_not() -> None:
    kernel = Kernel(
        '__constant__ float taps[4]; extern "C" __global__ void k(float* x) '
        "{ x[threadIdx.x] = taps[threadIdx.x]; }",
        "k",
    )
    variable, out = kernel.variable("taps", device="cpu"), np.zeros(4, np.float32)
    for values in (np.ones(4, np.int32), np.ones(2), np.ones(4, ">f4")):
        with pytest.raises(
            ArgumentError, match=r"values holds .*; taps is declared with .* float32"
        ):
            variable.write(values)
    variable.write(np.arange(4, dtype=np.float32).view(np.uint8))
    kernel(1, 4, (out,))
    assert (out == [0, 1, 2, 3]).all()
    with pytest.raises(ArgumentError, match="dtype is 'foo'; it must be a NumPy dtype"):
        variable.read("foo")


def test_races_on_a_variable_are_found() -> None:
    out = np.zeros(1, np.int32)
    with (
        emulate.scheduled(races=True),
        pytest.raises(EmulatedRace, match=r"a race on byte 0 of counter"),
    ):
        count_wrongly()(1, 32, (out,))
    out = np.zeros(1, np.int32)
    kernel = count_wrongly()
    kernel.variable("counter", device="cpu").write(np.int32(40))
    kernel(1, 1, (out,))
    assert out[0] == 40


def test_a_const_variable_cannot_be_written_on_the_cpu() -> None:
    source = """
    __constant__ const int fixed[3] = {1, 2, 3};
    extern "C" __global__ void pick(int* out, int i) { out[0] = fixed[i]; }
    """
    with pytest.raises(ArgumentError, match="fixed is const"):
        Kernel(source, "pick").variable("fixed", device="cpu").write(np.zeros(3, np.int32))


def test_a_name_is_a_string() -> None:
    with pytest.raises(ArgumentError, match="name is 3"):
        Kernel(SOURCE, FILTER).variable(3)  # type: ignore[arg-type]
