"""Kernels without a GPU: sources, types, constants, architectures, and what is refused."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NoReturn

import numpy as np
import pytest
from fake_driver import Driver, real

from tmaasync import (
    ArgumentError,
    ArrayTypeError,
    BackendError,
    CompileError,
    Kernel,
    LaunchError,
    _driver,
    create_tma_tile,
    ops,
)
from tmaasync._driver import DeviceLimits, bindings

VALUE = 'extern "C" __device__ const int value = VALUE;\nextern "C" __global__ void k() {}\n'


def zeros(*shape: int) -> Any:
    return np.zeros(shape, np.float32)


def test_a_path_a_shipped_name_and_a_text_are_sources(tmp_path: Path) -> None:
    path = tmp_path / "mine.cu"
    path.write_text('extern "C" __global__ void mine() {}\n')

    assert Kernel(path).compile().entries.keys() == {"mine"}
    assert Kernel(str(path)).name == "mine"
    assert Kernel("gemm.cu").name == "gemm"
    assert Kernel(path.read_text(), "mine").compile().entries.keys() == {"mine"}


def test_a_text_of_one_line_is_a_source() -> None:
    line = 'extern "C" __global__ void one(float* p) { p[threadIdx.x] = 1; }'
    out = np.zeros(32, np.float32)

    Kernel(line, "one")(1, 32, (out,))

    assert (out == 1).all()


@pytest.mark.parametrize(
    "text", ["void f() {}", "void f() {}" * 100, "#define X", "using namespace tmaasync; int x;"]
)
def test_a_line_of_code_without_an_entry_is_refused_with_the_remedy(text: str) -> None:
    with pytest.raises(ArgumentError, match=r'^source is .* no __global__ .* Write extern "C" __g'):
        Kernel(text)


def test_a_path_that_no_file_can_have_is_refused() -> None:
    with pytest.raises(ArgumentError, match=r"^kernel is '.*(line break|no file has this name)"):
        Kernel("a\0.cu")


def test_a_file_finds_the_headers_in_its_folder(tmp_path: Path) -> None:
    (tmp_path / "mine.cuh").write_text("constexpr int kMine = 1;\n")
    path = tmp_path / "mine.cu"
    path.write_text(
        '#include "mine.cuh"\nextern "C" __global__ void mine(int* p) { *p = kMine; }\n'
    )

    assert "mine" in Kernel(path).compile().entries


@pytest.mark.parametrize(
    ("value", "text"),
    [(True, "bool"), (7, "int"), (-(2**31), "int"), (2**40, "long long"), (0.5, "float")],
)
def test_a_constant_has_the_type_of_its_value(value: Any, text: str) -> None:
    source = (
        "template <typename T, typename U> constexpr bool kSame = false;\n"
        "template <typename T> constexpr bool kSame<T, T> = true;\n"
        f'static_assert(kSame<decltype(VALUE), const {text}>, "");\n'
        'extern "C" __global__ void k() {}\n'
    )

    assert "k" in Kernel(source, "k", constants={"VALUE": value}).compile().entries


@pytest.mark.parametrize(
    "value",
    [
        *(float("nan"), float("inf"), 1e39, 2**70, "4", None, 1j),
        *(np.float16(np.inf), Fraction(10**400)),
    ],
)
def test_a_constant_that_c_cannot_write_is_refused(value: Any) -> None:
    with pytest.raises(ArgumentError, match="must be a bool, a number that float32 holds, or"):
        Kernel(VALUE, "k", constants={"VALUE": value})


@pytest.mark.parametrize("value", ["x", 1.5, -1, True, object()])
def test_what_is_no_stream_is_refused_in_host_memory_too(value: Any) -> None:
    kernel, out = Kernel('extern "C" __global__ void one(float* p) { p[0] = 1; }', "one"), zeros(1)
    with pytest.raises(ArrayTypeError, match=r"stream is .*; it must be a CuPy or torch stream"):
        kernel(1, 1, (out,), stream=value)
    with pytest.raises(ArrayTypeError, match=r"stream is .*; it must be a CuPy or torch stream"):
        ops.copy(zeros(64), stream=value)
    kernel(1, 1, (out,), stream=7)
    assert out[0] == 1


@pytest.mark.parametrize("argument", ["types", "constants"])
@pytest.mark.parametrize("name", ["my-name", 3])
def test_a_name_that_is_no_identifier_is_refused(argument: str, name: object) -> None:
    options: Any = {argument: {name: 1 if argument == "constants" else np.float16}}

    with pytest.raises(ArgumentError, match=rf"{name!r}; it must be a C\+\+ identifier"):
        Kernel(VALUE, "k", **options)


def test_a_type_is_a_tile_an_element_type_or_text() -> None:
    source = (
        "#include <tmaasync/types.cuh>\n"
        "static_assert(sizeof(A) == 128 && sizeof(B) == 2 && sizeof(C) == 8 && sizeof(D) == 4);\n"
        'extern "C" __global__ void k() {}\n'
    )
    tile = create_tma_tile(zeros(64, 64), (8, 32))
    types = {"A": tile, "B": "bfloat16", "C": np.float64, "D": "int"}

    assert "k" in Kernel(source, "k", types=types).compile().entries


def test_a_missing_type_is_named_with_how_to_supply_it() -> None:
    with pytest.raises(CompileError, match=r"Not defined: .*Tile.*types="):
        Kernel("copy.cu", constants={"STAGES": 2, "LOADS_AHEAD": 1}).compile()


def test_a_name_that_does_not_exist_lists_those_that_do() -> None:
    with pytest.raises(ArgumentError, match=r"name is 'nope'; .* It has: k"):
        Kernel(VALUE, "nope", constants={"VALUE": 1}).compile()


def test_a_file_that_does_not_exist_lists_the_shipped_kernels() -> None:
    with pytest.raises(ArgumentError, match=r"copy\.cu, gemm\.cu"):
        Kernel("missing.cu")


def test_every_kernel_is_compiled_for_sm_90a() -> None:
    wgmma = '#include <tmaasync/wgmma.cuh>\nextern "C" __global__ void k() {}\n'

    assert Kernel(wgmma, "k").compile().arch == "sm_90a"
    assert Kernel(VALUE, "k", constants={"VALUE": 1}).compile().arch == "sm_90a"
    assert Kernel(VALUE, "k", constants={"VALUE": 1}, arch="sm_100").compile().arch == "sm_100"


def test_a_gpu_older_than_sm_90_is_refused_by_name(use_driver: Callable[[object], None]) -> None:
    old = DeviceLimits(
        name="NVIDIA A100",
        compute_capability=(8, 0),
        sms=108,
        shared_bytes=166912,
        threads_per_block=1024,
    )
    use_driver(Driver(limits=old))

    with pytest.raises(BackendError, match=r"NVIDIA A100 \(sm_80\).*sm_90 and later"):
        _driver.require_device(0)


def test_host_arrays_run_on_the_cpu() -> None:
    source = 'extern "C" __global__ void k(float* p) { p[threadIdx.x] = threadIdx.x; }\n'
    array = zeros(4)

    Kernel(source + "\n", "k")(1, 4, (array,))

    assert array.tolist() == [0, 1, 2, 3]


def test_without_a_driver_the_error_says_what_to_do() -> None:
    def absent(_: int) -> NoReturn:
        raise RuntimeError("libcuda.so.1 was not found")

    with pytest.raises(BackendError, match=r"no CUDA driver.*libcuda.so.1 was not found"):
        bindings.start(lambda: SimpleNamespace(cuInit=absent))


def test_without_bindings_there_is_no_driver_either() -> None:
    def absent() -> NoReturn:
        raise ImportError("No module named 'cuda'")

    with pytest.raises(BackendError, match=r"no CUDA driver.*No module named 'cuda'"):
        bindings.start(absent)


def test_a_driver_without_a_gpu_says_that_none_is_visible() -> None:
    none = real.CUresult.CUDA_ERROR_NO_DEVICE

    with pytest.raises(BackendError, match=r"CUDA_ERROR_NO_DEVICE.*no NVIDIA GPU is visible"):
        bindings.start(lambda: SimpleNamespace(cuInit=lambda _: (none,)))


@pytest.mark.parametrize(
    ("grid", "said"),
    [
        ((1, 70000), r"grid is \(1, 70000, 1\), 70000 blocks along y; CUDA allows 65535. Count"),
        ((1, 1, 65536), "65536 blocks along z"),
        (2**31, "blocks along x; CUDA allows 2147483647. Let a block do several"),
        ((2.0, 2), r"grid is \(2\.0, 2\); it must be .* 2\.0 is a float: pass an int\.$"),
        ((1, 1, 1, 1), r"grid is \(1, 1, 1, 1\); .* It has 4 items: pass one to three\.$"),
        (np.array([1, 1]), r"grid is a ndarray; .* Pass an int or a tuple of ints\.$"),
        ((1, -1), r"grid is \(1, -1\); .* Pass 1 or more\.$"),
    ],
)
def test_a_grid_that_no_device_takes_is_refused(grid: Any, said: str) -> None:
    with pytest.raises(LaunchError, match=said):
        Kernel('extern "C" __global__ void k(float* p) {}', "k").prepare(grid, 1, (zeros(4),))


def test_a_pickled_kernel_runs_as_before() -> None:
    text = """
    template <typename T> __global__ void scale(T* x) { x[threadIdx.x] *= FACTOR; }
    """
    kernel = Kernel(text, "scale<double>", constants={"FACTOR": 3}, debug=True, trace=False)
    numbers = np.arange(32, dtype=np.float64)
    kernel(1, 32, (numbers,))
    for made in (pickle.loads(pickle.dumps(kernel)), copy.copy(kernel), copy.deepcopy(kernel)):
        assert repr(made) == repr(kernel)
        made(1, 32, (numbers,))
    np.testing.assert_array_equal(numbers, np.arange(32) * 81.0)
