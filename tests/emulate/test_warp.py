"""Warp kernels on the CPU: right numbers, and a race and a fault. Needs Warp, and no GPU."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from command_line import run

from tmaasync import ArgumentError, EmulatedFault, EmulatedRace, emulate
from tmaasync import warp as on_emulator

wp: Any = pytest.importorskip("warp", reason="Warp is not installed")
kernels: Any = importlib.import_module("emulate.ptx_modules.warp_kernels")

RNG = np.random.default_rng(6)

Array = npt.NDArray[Any]
Pair = tuple[Array, Array]


def numbers(*shape: int) -> Array:
    return RNG.standard_normal(shape, np.float32)


def nothing(*shape: int) -> Array:
    return np.full(shape, np.nan, np.float32)


def add() -> Pair:
    a, b, c = numbers(1000), numbers(1000), nothing(1000)
    on_emulator.launch(kernels.add, 1000, [a, b], [c, 3.0])
    return c, a + 3.0 * b.astype(np.float64)


def transpose() -> Pair:
    x, out = numbers(30, 50), nothing(50, 30)
    on_emulator.launch(kernels.transpose, (30, 50), [x], [out], block_dim=128)
    return out, x.T


def lengths() -> Pair:
    x, out = numbers(100, 3), nothing(100)
    on_emulator.launch(kernels.lengths, 100, [x], [out])
    return out, np.sqrt((x.astype(np.float64) ** 2).sum(1))


def histogram() -> Pair:
    x, out = RNG.integers(0, 20, 1000, np.int32), np.zeros(20, np.int32)
    on_emulator.launch(kernels.histogram, 1000, [x], [out])
    return out, np.bincount(x, minlength=20)


@pytest.mark.parametrize("launch", [add, transpose, lengths, histogram])
def test_a_kernel_equals_numpy(launch: Any) -> None:
    with emulate.scheduled(races=True):
        out, wanted = launch()
    np.testing.assert_allclose(out, wanted, rtol=1e-4, atol=1e-5)


def test_a_race_names_the_array() -> None:
    x, out = RNG.integers(0, 20, 1000, np.int32), np.zeros(20, np.int32)
    with emulate.scheduled(races=True), pytest.raises(EmulatedRace, match=r"a race on out\["):
        on_emulator.launch(kernels.count, 1000, [x], [out])


def test_an_access_outside_names_the_array() -> None:
    a, b, c = numbers(1000), numbers(1000), nothing(1000)
    with emulate.scheduled(), pytest.raises(EmulatedFault, match=r"\[1000\], right after the end"):
        on_emulator.launch(kernels.add, 1001, [a, b], [c, 3.0])


def test_unchanged_code_runs_inside_the_with() -> None:
    a, b = numbers(1000), numbers(1000)
    with on_emulator.on_cpu(), emulate.scheduled(races=True):
        c = wp.zeros(1000, dtype=float, device="cuda")
        wp.launch(kernels.add, dim=1000, inputs=[wp.array(a, device="cuda:0"), b, c, 3.0])
        tiles, total = wp.array(a[:960], dtype=float), wp.zeros(3, dtype=float)
        wp.launch_tiled(kernels.sums, dim=[3], inputs=[tiles], outputs=[total], block_dim=64)
    np.testing.assert_allclose(c.numpy(), a + 3.0 * b.astype(np.float64), rtol=1e-4, atol=1e-5)
    wanted = a[:960].reshape(3, 320).sum(1, dtype=np.float64)
    np.testing.assert_allclose(total.numpy(), wanted, rtol=1e-4, atol=1e-4)


def test_a_launch_back_through_a_tape_is_refused() -> None:
    x = wp.array(numbers(100), dtype=float, requires_grad=True)
    out = wp.zeros(100, dtype=float, requires_grad=True)
    with on_emulator.on_cpu(), wp.Tape() as tape:
        wp.launch(kernels.twice, dim=100, inputs=[x], outputs=[out])
        with pytest.raises(ArgumentError, match="adjoint is True in a launch of twice"):
            tape.backward(grads={out: wp.ones(100, dtype=float)})


def test_the_command_checks_a_script(tmp_path: Path) -> None:
    path = tmp_path / "launches.py"
    path.write_text(
        "import numpy as np\nimport warp as wp\n"
        "from emulate.ptx_modules.warp_kernels import count\n"
        "x = wp.array(np.arange(999, dtype=np.int32) % 20, device='cuda')\n"
        "wp.launch(count, dim=999, inputs=[x, wp.zeros(20, dtype=int)], device='cuda')\n"
    )
    ran = run("check", str(path))
    assert ran.exit_code == 1
    assert "count: 1 launch, error: a race on out[" in ran.stdout


def test_what_is_no_kernel_is_refused() -> None:
    with pytest.raises(ArgumentError, match=r"it has no @wp\.kernel"):
        on_emulator.launch(numbers, 3)
    with pytest.raises(ArgumentError, match="add takes 4"):
        on_emulator.launch(kernels.add, 3, [numbers(3)])
