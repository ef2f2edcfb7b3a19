"""tilelang functions on the CPU: right numbers, and a race at its line. Needs tilelang, no GPU."""

from __future__ import annotations

import importlib
import re
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from command_line import run

from tmaasync import ArgumentError, EmulatedRace, emulate
from tmaasync import tilelang as on_emulator

pytest.importorskip("tilelang", reason="tilelang is not installed")
torch: Any = pytest.importorskip("torch", reason="torch is not installed")
functions: Any = importlib.import_module("emulate.ptx_modules.tilelang_kernels")

RNG = np.random.default_rng(4)

Array = npt.NDArray[Any]
Pair = tuple[Array, Array]


def numbers(*shape: int) -> Array:
    return RNG.standard_normal(shape, np.float32)


def nothing(*shape: int) -> Array:
    return np.full(shape, np.nan, np.float32)


def gemm() -> Pair:
    a, b = numbers(128, 96).astype(np.float16), numbers(96, 192).astype(np.float16)
    c = nothing(128, 192)
    on_emulator.run(functions.gemm(128, 192, 96), a, b, c)
    return c, a.astype(np.float64) @ b.astype(np.float64)


def add() -> Pair:
    a, b, c = numbers(512), numbers(512), nothing(512)
    on_emulator.run(functions.add(512), a, b, c)
    return c, a.astype(np.float64) + b


def add_of_any_size() -> Pair:
    a, b, c = numbers(1000), numbers(1000), nothing(1000)
    on_emulator.run(functions.add_of_any_size(), a, b, c)
    return c, a.astype(np.float64) + b


def softmax() -> Pair:
    x, out = numbers(5, 256), nothing(5, 256)
    on_emulator.run(functions.softmax(5, 256), x, out)
    e = np.exp(x.astype(np.float64))
    return out, e / e.sum(1, keepdims=True)


@pytest.mark.parametrize("launch", [gemm, add, add_of_any_size, softmax])
def test_a_function_equals_numpy(launch: Any) -> None:
    with emulate.scheduled(races=True):
        out, wanted = launch()
    np.testing.assert_allclose(out, wanted, rtol=1e-4, atol=1e-4)


def test_a_race_is_reported_at_its_line_of_the_source() -> None:
    function = functions.overwrite(512)
    with emulate.scheduled(races=True), pytest.raises(EmulatedRace, match="a race on c") as raised:
        on_emulator.run(function, numbers(512), nothing(512))
    lines = on_emulator.source(function).split("\n")
    found = re.findall(r"kernel\.cu:(\d+)", str(raised.value))
    assert found
    assert all("c[" in lines[int(one) - 1] or "c +" in lines[int(one) - 1] for one in found)


def test_unchanged_code_runs_inside_the_with() -> None:
    a, b = numbers(128, 96).astype(np.float16), numbers(96, 192).astype(np.float16)
    x = torch.from_numpy(numbers(1000))
    with on_emulator.on_cpu(), emulate.scheduled(races=True):
        gemm = functions.compiled_gemm(128, 192, 96)
        c = gemm(torch.from_numpy(a).cuda(), torch.from_numpy(b))
        total = functions.eager_add(x, x)
    np.testing.assert_allclose(c, a.astype(np.float64) @ b.astype(np.float64), rtol=1e-4, atol=1e-4)
    assert (total == 2 * x).all()
    assert "wgmma" in gemm.get_kernel_source()
    with pytest.raises(AttributeError, match="get_profiler: inside on_cpu"):
        gemm.get_profiler()
    with pytest.raises(ArgumentError, match="takes 2"):
        gemm(x)


def test_the_command_checks_a_script(tmp_path: Path) -> None:
    path = tmp_path / "launches.py"
    path.write_text(
        "import torch, tilelang\n"
        "from emulate.ptx_modules.tilelang_kernels import compiled_overwrite\n"
        "compiled_overwrite(512)(torch.ones(512, device='cuda'), torch.zeros(512, device='cuda'))\n"
    )
    ran = run("check", str(path))
    assert ran.exit_code == 1
    assert "overwrite_kernel: 1 launch, error: a race on c[0]" in ran.stdout


def test_what_is_no_function_is_refused() -> None:
    with pytest.raises(ArgumentError, match=r"it is no T\.prim_func"):
        on_emulator.run(numbers)
    with pytest.raises(ArgumentError, match="takes 3"):
        on_emulator.run(functions.add(512), numbers(512))
