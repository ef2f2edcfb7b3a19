"""Kernels and operations on torch tensors where CuPy is not installed: the driver loads modules.

The driver and torch are stand-ins; NVRTC compiles what they load.
"""

from __future__ import annotations

import ctypes
import gc
import struct
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fake_arrays import CudaInterface, Cupy, CupyArray, Tensor, Torch
from fake_driver import Driver

from tmaasync import BackendError, DriverError, Kernel, LaunchError, _driver, ops, trace
from tmaasync.kernel import backend_of
from tmaasync.kernel.hangs import HANG_STATE
from tmaasync.kernel.watch import STATE_NAME
from tmaasync.ops._call_cache import forget
from tmaasync.ops._operation import _kernel
from tmaasync.trace.chip import BUFFER_DTYPE

FILL = 'extern "C" __global__ void fill(float* out, int count) { out[count] = 1; }\n'
WAITS = """
#include <tmaasync/tmaasync.cuh>
extern "C" __global__ void waits(int* out) {
    __shared__ tmaasync::SharedMemBarrier full;
    full.init(1);
    full.wait(0);
}
"""


@pytest.fixture
def torch(monkeypatch: pytest.MonkeyPatch) -> Iterator[Torch]:
    torch = Torch()
    monkeypatch.setitem(sys.modules, "torch", torch)
    monkeypatch.setitem(sys.modules, "cupy", None)
    _kernel.cache_clear()  # shipped kernels that another test loaded
    forget()
    yield torch
    _kernel.cache_clear()
    forget()


@pytest.fixture
def use(use_driver: Callable[[object], None], torch: Torch) -> Iterator[Callable[[Driver], Driver]]:
    def use(driver: Driver) -> Driver:
        use_driver(driver)
        return driver

    yield use
    gc.collect()  # memory is given back to the driver that it came from


def tensor(*shape: int, dtype: Any = np.float32, device: int = 0) -> Tensor:
    return Tensor(np.zeros(shape, dtype), device=f"cuda:{device}")


def test_the_driver_loads_the_kernel_once_and_launches_it(use: Any, torch: Torch) -> None:
    driver = use(Driver(argument_sizes=(8, 4)))
    kernel = Kernel(FILL, "fill")
    for stream in (5, 6, None):
        out = tensor(4)
        if stream is not None:
            torch.stream = stream
        kernel(1, 32, (out, 3), stream=None if stream else 9)
        arguments = [struct.pack("<Q", out.data_ptr()), struct.pack("<i", 3)]
        assert driver.launched[-1] == (stream or 9, 0, arguments)
    Kernel(FILL, "fill")(1, 32, (tensor(4), 3))

    assert driver.modules == [0]
    assert {int(function) for function in driver.functions} == {100 + len("fill")}


def test_a_kernel_without_arrays_needs_no_library(use: Any, monkeypatch: Any) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    driver = use(Driver())
    driver.contexts = []
    monkeypatch.setattr(
        "tmaasync._emulated.backend.is_scheduled", lambda: False
    )  # as all tests are
    Kernel('extern "C" __global__ void nothing() {}\n', "nothing")(1, 32, ())

    # The context that the module is in outlives the call, though nobody else has one.
    assert set(driver.retained) == {0}
    assert driver.modules == [0]


def test_each_device_has_a_module_of_its_own(use: Any) -> None:
    driver = use(Driver(2, argument_sizes=(8, 4)))
    kernel = Kernel(FILL, "fill")
    for device in (1, 0, 1):
        kernel(1, 32, (tensor(4, device=device), 3))

    assert driver.modules == [1, 0]
    assert [(device, int(function)) for (_, device, _), function in zip(
        driver.launched, driver.functions, strict=True
    )] == [(1, 104), (0, 204), (1, 104)]  # fmt: skip
    assert set(driver.retained) == {0, 1}
    assert driver.contexts == [0]


def test_cupy_loads_the_kernel_where_there_can_be_arrays_of_it(
    use: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    driver, cupy = use(Driver(argument_sizes=(8, 4))), Cupy()
    monkeypatch.setitem(sys.modules, "cupy", cupy)
    kernel = Kernel(FILL, "fill")
    kernel(1, 32, (CupyArray(np.zeros(4, np.float32)), 3))

    assert cupy.modules == [str(kernel.compile().path)]
    assert driver.modules == []


def test_large_shared_memory_and_large_clusters_are_opted_in_to(use: Any) -> None:
    driver = use(Driver(argument_sizes=(8, 4)))
    first, second = (Kernel(FILL, "fill") for _ in range(2))
    for kernel, shared_mem in ((first, 100 << 10), (second, 64 << 10), (first, 100 << 10)):
        kernel(16, 32, (tensor(4), 3), shared_mem=shared_mem, cluster=16)
        # The two are one function of the driver, so the second must not lower the limit.
        assert driver.dynamic_shared_bytes == {104: 100 << 10}
    assert ("cuFuncSetAttribute", "CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED", 1) in (
        driver.done
    )


def test_a_cubin_that_the_driver_refuses_is_named_with_the_remedy(use: Any, tmp_path: Path) -> None:
    use(Driver())
    path = tmp_path / "other.cubin"
    path.write_bytes(b"not a cubin")
    with pytest.raises(
        DriverError, match=rf"does not load {path}: CUDA_ERROR_INVALID_IMAGE.* `tmaasync doctor`"
    ):
        _driver.load_module(path, 0)


def test_the_driver_loads_the_text_of_a_ptx_module(use: Any, tmp_path: Path) -> None:
    driver, path = use(Driver()), tmp_path / "module.ptx"
    path.write_text(".version 8.0\n")
    _driver.load_own_module(path, 0)
    assert driver.texts == [".version 8.0\n"]


def test_a_module_newer_than_the_driver_is_refused_with_the_remedy(
    use: Any, tmp_path: Path
) -> None:
    use(Driver())
    path = tmp_path / "newer.ptx"
    path.write_text(".version 99.0\n")
    with pytest.raises(
        DriverError, match=r"PTX module: its \.version is newer than the driver\. U"
    ):
        _driver.load_own_module(path, 0)


def test_a_debug_build_reports_into_memory_whose_address_is_in_its_variable(use: Any) -> None:
    driver = use(Driver(argument_sizes=(8,)))
    driver.variables[STATE_NAME] = HANG_STATE.itemsize
    Kernel(WAITS, "waits", debug=True, budget_seconds=2)(1, 32, (tensor(4, dtype=np.int32),))

    state = driver.variable(0, STATE_NAME, HANG_STATE)
    records = next(address for address in driver.pinned if address == int(state["records"]))
    assert records
    assert int(state["budget_ns"]) == 2_000_000_000
    assert driver.done[-1] == ("cuStreamSynchronize", 5)


def test_a_kernel_without_waits_is_not_watched(use: Any) -> None:
    driver = use(Driver(argument_sizes=(8, 4)))
    Kernel(FILL, "fill", debug=True)(1, 32, (tensor(4), 3))

    assert driver.pinned == []
    assert len(driver.launched) == 1


def test_a_traced_launch_finds_its_variable(use: Any) -> None:
    driver = use(Driver(argument_sizes=(8,)))
    driver.variables["tmaasync_trace"] = BUFFER_DTYPE.itemsize
    with trace.record() as collected:
        Kernel(WAITS, "waits")(2, 32, (tensor(4, dtype=np.int32),))

    assert int(driver.variable(1, "tmaasync_trace", BUFFER_DTYPE)["blocks"]) == 2
    assert [launch.kernel_name for launch in collected.launches] == ["waits"]


def test_a_kernel_without_the_headers_cannot_be_traced(use: Any) -> None:
    use(Driver(argument_sizes=(8, 4)))
    with trace.record(), pytest.raises(LaunchError, match=r"fill cannot be traced: .* trace=False"):
        Kernel(FILL, "fill")(1, 32, (tensor(4), 3))


def test_a_flag_that_the_host_reads_is_pinned_memory(use: Any) -> None:
    driver = use(Driver())
    flag = backend_of(0).host_flag()

    assert flag.dtype == np.int32
    assert flag.tolist() == [0]
    assert driver.pinned == [flag.ctypes.data]
    ctypes.c_int32.from_address(flag.ctypes.data).value = 7
    assert int(flag[0]) == 7
    del flag
    assert driver.done[-1][0] == "cuMemFreeHost"


def attended(f16: Any, cu_seqlens: Any) -> Any:
    q, k, v = (f16(48, 2, 64) for _ in range(3))
    return ops.varlen_attention(q, k, v, cu_seqlens, max_seqlen_q=48, max_seqlen_k=48)


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    "call",
    [
        lambda f16: ops.copy(Tensor(np.zeros((64, 64), np.float16)[:, :32], device="cuda:0")),
        lambda f16: ops.matmul(f16(256, 256), f16(256, 256)),
        lambda f16: ops.attention(*(f16(2, 256, 4, 64) for _ in range(3))),
        lambda f16: attended(f16, [0, 20, 48]),
        lambda f16: attended(f16, tensor(3, dtype=np.int64)),
        lambda f16: ops.grouped_matmul(f16(48, 64), f16(2, 64, 64), [20, 48]),
        lambda f16: ops.ragged_store(f16(3, 8, 64), [3, 0, 6]),
    ],
    ids=["copy", "matmul", "attention", "varlen", "varlen on device", "grouped", "ragged"],
)
def test_operations_take_all_memory_from_torch(use: Any, torch: Torch, call: Any) -> None:
    driver = use(Driver())
    result = call(lambda *shape: tensor(*shape, dtype=np.float16))

    assert isinstance(result, Tensor)
    assert driver.modules
    assert {stream for stream, *_ in driver.launched} == {5}


def test_lengths_on_the_device_become_cumulative_lengths_of_torch(use: Any) -> None:
    driver = use(Driver(argument_sizes=(512, 128, 8, 4, 4, 12)))
    lengths = Tensor(np.array([3, 0, 6], np.int64), device="cuda:0")
    kept: list[list[int]] = []

    def launch(config: Any, function: Any, pointers: int, extra: int) -> Any:
        place = struct.unpack("6Q", ctypes.string_at(pointers, 48))[2]
        (address,) = struct.unpack("<Q", ctypes.string_at(place, 8))
        kept.append([*struct.unpack("4i", ctypes.string_at(address, 16))])
        return Driver.cuLaunchKernelEx(driver, config, function, pointers, extra)

    driver.cuLaunchKernelEx = launch
    ops.ragged_store(tensor(3, 8, 64, dtype=np.float16), lengths, tensor(9, 64, dtype=np.float16))

    assert kept == [[0, 3, 3, 9]]


def test_outputs_for_arrays_of_other_libraries_need_cupy_or_torch(use: Any) -> None:
    use(Driver())
    array = np.zeros((64, 64), np.float16)
    other = CudaInterface(
        {"shape": (64, 64), "typestr": "<f2", "data": (array.ctypes.data, False), "version": 3}
    )
    with pytest.raises(BackendError, match=r"install 'cupy-cuda13x>=13\.6', or pass torch tensors"):
        ops.copy(other)
    out = tensor(64, 64, dtype=np.float16)
    assert ops.copy(other, out) is out
