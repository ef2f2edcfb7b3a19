"""Numba-CUDA kernels on the CPU: right numbers, and defects at their lines. Needs numba-cuda."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from tmaasync import ArgumentError, EmulatedFault, EmulatedRace, emulate
from tmaasync import numba as on_emulator

pytest.importorskip("numba.cuda", reason="numba-cuda is not installed")

SOURCE = Path(__file__).with_name("ptx_modules") / "numba_kernels.py"
RNG = np.random.default_rng(2)

Array = npt.NDArray[Any]
Pair = tuple[Array, Array]


def numbers(*shape: int) -> Array:
    return RNG.standard_normal(shape, np.float32)


def nothing(*shape: int) -> Array:
    return np.full(shape, np.nan, np.float32)


def add(kernels: Any) -> Pair:
    a, b, out = numbers(2000)[::2], numbers(1000), nothing(1000)
    kernels.add[8, 128](a, b, out, np.float32(2))
    return out, a.astype(np.float64) + 2.0 * b


def row_sums(kernels: Any) -> Pair:
    x, out = numbers(3, 1000), nothing(3)
    kernels.row_sums[3, 128](x, out)
    return out, x.sum(1, dtype=np.float64)


def histogram(kernels: Any) -> Pair:
    x, out = RNG.integers(0, 20, 1000), np.zeros(20, np.int32)
    kernels.histogram[8, 128](x, out)
    return out, np.bincount(x, minlength=20)


def matmul(kernels: Any) -> Pair:
    a, b, c = numbers(32, 48), numbers(48, 64), nothing(32, 64)
    kernels.matmul[(2, 4), (16, 16)](a, b, c)
    return c, a.astype(np.float64) @ b.astype(np.float64)


def curve(kernels: Any) -> Pair:
    x, out = RNG.standard_normal(100), np.zeros(100, np.complex128)
    kernels.curve[1, 128](x, out, (2.0, 0.25), True, 1 + 2j)
    return out, -(np.exp(-(x**2) / 2.0) + 0.25) * (1 + 2j)


def warp_sums(kernels: Any) -> Pair:
    x, out = numbers(128), nothing(4)
    kernels.warp_sums[1, 128](x, out)
    return out, x.reshape(4, 32).sum(1, dtype=np.float64)


def reverse(kernels: Any) -> Pair:
    x, out = np.arange(256, dtype=np.int32), np.full(256, -1, np.int32)
    kernels.reverse[1, 64, 0, 1024](x, out)
    return out, x[::-1]


LAUNCHES: dict[str, Callable[[Any], Pair]] = {
    one.__name__: one for one in (add, row_sums, histogram, matmul, curve, warp_sums, reverse)
}


def module_of(path: Path) -> Any:
    spec = importlib.util.spec_from_file_location("numba_kernels", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def kernels() -> Any:
    return module_of(SOURCE)


@pytest.mark.parametrize("name", LAUNCHES)
def test_a_kernel_equals_numpy(kernels: Any, name: str) -> None:
    with on_emulator.on_cpu(), emulate.scheduled(races=True):
        out, wanted = LAUNCHES[name](kernels)
    np.testing.assert_allclose(out, wanted, rtol=1e-4, atol=1e-4)


PLANTED: dict[str, tuple[str, tuple[str, str], type[Exception], str, str]] = {
    "no barrier in a loop": (
        "row_sums",
        ("        cuda.syncthreads()\n        step", "        step"),
        EmulatedRace,
        "parts[thread] += parts[thread + step]",
        "no barrier orders the two",
    ),
    "a wrong bound": (
        "add",
        ("if at < out.size", "if at <= out.size"),
        EmulatedFault,
        "out[at] = a[at] + factor * b[at]",
        "b[1000]",
    ),
    "too little shared memory": (
        "reverse",
        ("memory[4 * thread + i] =", "memory[8 * thread + i] ="),
        EmulatedFault,
        "memory[8 * thread + i] =",
        "shared",
    ),
}


@pytest.mark.parametrize("name", PLANTED)
def test_a_planted_defect_is_reported_at_its_line(name: str, tmp_path: Path) -> None:
    kernel, (old, new), error, at, says = PLANTED[name]
    text = SOURCE.read_text()
    begin = text.index(f"def {kernel}(")
    assert old in text[begin:]
    edited = text[:begin] + text[begin:].replace(old, new, 1)
    path = tmp_path / "numba_kernels.py"
    path.write_text(edited)
    with on_emulator.on_cpu(), emulate.scheduled(races=True), pytest.raises(error) as raised:
        LAUNCHES[kernel](module_of(path))
    line = edited.split("\n").index(next(one for one in edited.split("\n") if at in one)) + 1
    assert f"numba_kernels.py:{line}" in str(raised.value)
    assert says in str(raised.value)


def test_a_function_without_jit_is_refused() -> None:
    with pytest.raises(ArgumentError, match=r"it has no @cuda\.jit"):
        on_emulator.run(numbers, 1, 32)


def test_check_runs_a_script_on_the_cpu(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        "import numpy as np\nfrom numba import cuda\n\n@cuda.jit\ndef count(out):\n"
        "    out[0] += 1\n\ncount[1, 64](np.zeros(1, np.int32))\n"
    )
    command = [sys.executable, "-m", "tmaasync", "check", str(script)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 1, done.stderr
    assert "count: 1 launch, error: a race on out[0]" in done.stdout
    assert "at script.py:6" in done.stdout
