"""PTX that CuTe DSL and other compilers wrote, on the CPU: needs none of them."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from tmaasync import EmulatedRace, Kernel, create_tma_tile, emulate

pytestmark = pytest.mark.slow

FOLDER = Path(__file__).with_name("ptx_modules")
RNG = np.random.default_rng(3)

Array = npt.NDArray[Any]


def text_of(name: str) -> str:
    return (FOLDER / f"{name}.ptx").read_text()


@pytest.mark.skipif(shutil.which("ptxas") is None, reason="needs ptxas")
@pytest.mark.parametrize("name", sorted(path.stem for path in FOLDER.glob("*.ptx")))
def test_ptxas_takes_a_recorded_module(name: str, tmp_path: Path) -> None:
    text = re.sub(r", function_name .*", "", text_of(name))  # names of a section left out
    path = tmp_path / f"{name}.ptx"
    path.write_text(re.sub(r"^\.version .*", ".version 8.8", text, flags=re.MULTILINE))
    (arch,) = re.findall(r"^\.target (\w+)", text, re.MULTILINE)
    command = ["ptxas", f"-arch={arch}", str(path), "-o", str(tmp_path / "k.cubin")]

    ran = subprocess.run(command, capture_output=True, text=True, check=False, timeout=100)

    assert ran.returncode == 0, ran.stderr


def line_of(source: str, code: str, after: str) -> str:
    """Return where reports say that the first line with this code is."""
    lines = (FOLDER / source).read_text().split("\n")
    begin = next(at for at, line in enumerate(lines) if after in line)
    return f"{source}:{next(at + 1 for at in range(begin, len(lines)) if code in lines[at])}"


def operands() -> tuple[Array, Array, Array, Array]:
    a, b = (RNG.standard_normal((rows, 320)).astype(np.float16) for rows in (128, 64))
    out = np.full((128, 64), np.nan, np.float32)
    return a, b, out, a.astype(np.float64) @ b.astype(np.float64).T


def cute_pipeline(kernel: Kernel) -> tuple[Array, Array]:
    a, b, c, wanted = operands()
    maps = (create_tma_tile(one, (64, 64), swizzle="128B") for one in (a, b))
    kernel((2, 1), 160, (bytes(1), *maps, create_tma_tile(c, (64, 64))), shared_mem=50176)
    return c, wanted


def numba_row_sums(kernel: Kernel) -> tuple[Array, Array]:
    x, out = RNG.standard_normal((3, 1000), np.float32), np.full(3, np.nan, np.float32)
    of_x, of_out = (
        (0, 0, one.size, one.itemsize, one, *one.shape, *one.strides) for one in (x, out)
    )
    kernel(3, 128, (*of_x, *of_out))
    return out, x.sum(1, dtype=np.float64)


def mojo_scale(kernel: Kernel) -> tuple[Array, Array]:
    x = RNG.standard_normal((20, 40), np.float32)
    out = np.full_like(x, np.nan)
    tiles = (create_tma_tile(one, (8, 16)) for one in (x, out))
    kernel((3, 3), 128, (*tiles, np.float32(2.5)))
    return out, 2.5 * x.astype(np.float64)


LAUNCHES: dict[str, Callable[[Kernel], tuple[Array, Array]]] = {
    one.__name__: one for one in (cute_pipeline, numba_row_sums, mojo_scale)
}


@pytest.mark.parametrize("races", [False, True])
@pytest.mark.parametrize("name", LAUNCHES)
def test_a_kernel_equals_numpy(name: str, races: bool) -> None:
    with emulate.scheduled(races=races):
        out, wanted = LAUNCHES[name](Kernel(FOLDER / f"{name}.ptx"))
    np.testing.assert_allclose(out, wanted, rtol=1e-4, atol=1e-3)


# A module, an edit, and the lines of the source that the race must name.
PLANTED = {
    "a dropped proxy fence": (
        cute_pipeline,
        (r"fence\.proxy\.async\.shared::cta;", ""),
        ("own_c[i] = sums[i]", "cute.copy(store_c"),
    ),
    "a dropped wait for wgmma": (
        cute_pipeline,
        (r"wgmma\.wait_group\.sync\.aligned\s+0;", ""),
        ("cute.gemm(",),
    ),
    "a dropped proxy fence in Mojo": (
        mojo_scale,
        (r"fence\.proxy\.async\.shared::cta;", ""),
        ("* factor", "result.async_store("),
    ),
}


@pytest.mark.parametrize("name", PLANTED)
def test_a_planted_defect_is_reported_at_its_line(name: str) -> None:
    run, (old, new), wanted = PLANTED[name]
    text, count = re.subn(old, new, text_of(run.__name__))
    assert count
    with emulate.scheduled(races=True), pytest.raises(EmulatedRace) as raised:
        run(Kernel(text))
    of_mojo = run is mojo_scale
    source, start = (
        ("mojo_kernels.mojo", "def scale") if of_mojo else ("cute_kernels.py", "def pipeline")
    )
    for code in wanted:
        assert line_of(source, code, start) in str(raised.value)
