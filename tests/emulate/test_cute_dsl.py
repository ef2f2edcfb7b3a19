"""CuTe DSL on the CPU: right numbers, and defects at their lines. Needs CuTe DSL, and no GPU."""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from tmaasync import (
    ArgumentError,
    EmulatedDeadlock,
    EmulatedFault,
    EmulatedRace,
    TMAError,
    cute_dsl,
    emulate,
)

cutlass = pytest.importorskip("cutlass", reason="CuTe DSL is not installed")
cute: Any = cutlass.cute

SOURCE = Path(__file__).with_name("ptx_modules") / "cute_kernels.py"
RNG = np.random.default_rng(11)

Array = npt.NDArray[Any]


def numbers(*shape: int) -> Array:
    return RNG.standard_normal(shape, np.float32)


def nothing(*shape: int) -> Array:
    return np.full(shape, np.nan, np.float32)


def add(kernels: Any) -> tuple[Array, Array]:
    a, b, c = numbers(1000), numbers(1000), nothing(1000)
    cute_dsl.run(kernels.add, a, b, c, size=1000)
    return c, a.astype(np.float64) + b


def row_sums(kernels: Any) -> tuple[Array, Array]:
    x, out = numbers(5, 1000), nothing(5)
    cute_dsl.run(kernels.row_sums, x, out)
    return out, x.astype(np.float64).sum(1)


def pipeline_gemm(kernels: Any) -> tuple[Array, Array]:
    a, b = numbers(128, 320).astype(np.float16), numbers(64, 320).astype(np.float16)
    c = nothing(128, 64)
    cute_dsl.run(kernels.pipeline_gemm, a, b, c)
    return c, a.astype(np.float64) @ b.astype(np.float64).T


def multicast(kernels: Any) -> tuple[Array, Array]:
    x, out = numbers(64, 32), nothing(128, 32)
    cute_dsl.run(kernels.multicast, x, out)
    once = x.astype(np.float64).reshape(2, 1, 32, 32)
    return out, (once * np.array([1, 2]).reshape(1, 2, 1, 1)).reshape(128, 32)


def staged(kernels: Any) -> tuple[Array, Array]:
    x, out = numbers(512), nothing(512)
    cute_dsl.run(kernels.staged, x, out)
    return out, x[::-1].astype(np.float64)


LAUNCHES: dict[str, Callable[[Any], tuple[Array, Array]]] = {
    one.__name__: one for one in (add, row_sums, pipeline_gemm, multicast, staged)
}


def module_of(path: Path, name: str) -> Any:
    """Import a file; a name of its own, because CuTe DSL keeps functions by their modules."""
    spec = importlib.util.spec_from_file_location(f"cute_dsl_{name}", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def kernels() -> Any:
    return module_of(SOURCE, "kernels")


@pytest.mark.parametrize("races", [False, True])
@pytest.mark.parametrize("name", LAUNCHES)
def test_a_kernel_equals_numpy(kernels: Any, name: str, races: bool) -> None:
    with emulate.scheduled(races=races):
        out, wanted = LAUNCHES[name](kernels)
    np.testing.assert_allclose(out, wanted, rtol=1e-4, atol=1e-3)


@dataclass(frozen=True)
class Planted:
    """An edit of the kernels, and the report that must follow: its lines and words of it."""

    kernel: str
    edit: tuple[str, str]
    error: type[TMAError] | tuple[type[TMAError], ...]
    at: tuple[str, ...]
    says: str


PLANTED = {
    "no wait for TMA": Planted(
        "pipeline_gemm",
        ("            ring.consumer_wait(read)\n", ""),
        EmulatedFault,
        ("cute.gemm(",),
        "wgmma reads A at shared offset 1024, which nothing has written",
    ),
    "a stage that is never released": Planted(
        "pipeline_gemm",
        ("            ring.consumer_release(read)\n", ""),
        EmulatedDeadlock,
        ("ring.consumer_wait(", "ring.producer_acquire("),
        "4 arrivals and 0 bytes are missing",
    ),
    "no wait for cp.async": Planted(
        "staged",
        ("    cute.arch.cp_async_wait_group(0)\n", ""),
        EmulatedFault,
        ("out[at] = tile[511 - at]", "cute.copy(atom"),
        "A cp.async to these bytes is in flight",
    ),
    "a multicast to too few blocks": Planted(
        "multicast",
        ("cutlass.Int16(3)", "cutlass.Int16(1)"),
        EmulatedDeadlock,
        ("mbarrier_wait(",),
        "4096 bytes are missing",
    ),
    "no proxy fence before the store": Planted(
        "pipeline_gemm",
        ('        cute.arch.fence_proxy("async.shared", space="cta")\n', ""),
        EmulatedRace,
        ("own_c[i] = sums[i]", "cute.copy(store_c"),
        "not made visible to TMA",
    ),
    "no wait for wgmma": Planted(
        "pipeline_gemm",
        ("            warpgroup.wait_group(0)\n", ""),
        EmulatedRace,
        ("cute.gemm(",),
        "a race on",
    ),
    "no barrier before the store": Planted(
        "pipeline_gemm",
        ("        cute.arch.barrier(barrier_id=1, number_of_threads=128)\n", ""),
        EmulatedRace,
        ("own_c[i] = sums[i]", "cute.copy(store_c"),
        "a race on",
    ),
    "no barrier between the warps' parts": Planted(
        "row_sums",
        ("    cute.arch.sync_threads()\n    if thread == 0:\n", "    if thread == 0:\n"),
        (EmulatedRace, EmulatedFault),
        ("out[row] = parts[0]",),
        "block (0, 0, 0)",
    ),
    "one row of all": Planted(
        "row_sums",
        ("        out[row] = parts[0]", "        out[0] = parts[0]"),
        EmulatedRace,
        ("out[0] = parts[0]",),
        "a race on out[0]",
    ),
    "a bound that is one too far": Planted(
        "add",
        ("if at < size", "if at <= size"),
        EmulatedFault,
        ("c[at] = a[at] + b[at]",),
        "a[1000], right after the end of a",
    ),
}


@pytest.mark.parametrize("name", PLANTED)
def test_a_planted_defect_is_reported_at_its_line(name: str, tmp_path: Path) -> None:
    planted = PLANTED[name]
    path = tmp_path / "cute_kernels.py"
    path.write_text(edited(planted))
    with (
        emulate.scheduled(races=True, tolerate=()),
        pytest.raises(planted.error, match=re.escape(planted.says)) as raised,
    ):
        LAUNCHES[planted.kernel](module_of(path, name.replace(" ", "_")))
    text = path.read_text()
    begin = text[: text.index(head_of(planted))].count("\n") + 1
    numbered = list(enumerate(text.split("\n"), 1))
    for code in planted.at:
        line = next(at for at, one in numbered if at > begin and code in one)
        assert f"cute_kernels.py:{line}" in str(raised.value)


def head_of(planted: Planted) -> str:
    """Return the text at which the defect's kernel starts."""
    return f"def {planted.kernel.replace('pipeline_gemm', 'pipeline')}_kernel("


def edited(planted: Planted) -> str:
    text = SOURCE.read_text()
    begin = text.index(head_of(planted))
    assert planted.edit[0] in text[begin:]
    return text[:begin] + text[begin:].replace(*planted.edit, 1)


# --- calls ------------------------------------------------------------------------------------


def test_a_compiled_function_is_called_inside_on_cpu(kernels: Any) -> None:
    x, out = numbers(3, 200), nothing(3)
    with cute_dsl.on_cpu():
        rows, columns = cute.sym_int(), cute.sym_int()
        fake = cute.runtime.make_fake_compact_tensor
        shapes = (
            fake(cutlass.Float32, (rows, columns), stride_order=(1, 0)),
            fake(cutlass.Float32, (rows,)),
        )
        compiled = cute.compile(kernels.row_sums, *shapes)
        given = [cute.runtime.from_dlpack(one).mark_layout_dynamic() for one in (x, out)]
        compiled(*given)
        np.testing.assert_allclose(out, x.sum(1, dtype=np.float64), atol=1e-3)
        kernels.row_sums(*given)


def test_a_function_compiled_without_ptx_is_refused(kernels: Any) -> None:
    fake = cute.runtime.make_fake_compact_tensor(cutlass.Float32, (3, 200))
    sums = cute.runtime.make_fake_compact_tensor(cutlass.Float32, (3,))
    compiled = cute.compile(kernels.row_sums, fake, sums, options="--gpu-arch sm_90a")
    with pytest.raises(ArgumentError, match=r"has kept no PTX.*inside tmaasync\.cute_dsl\.on_cpu"):
        cute_dsl.run(compiled, numbers(3, 200), nothing(3))


def test_another_function_is_refused() -> None:
    with pytest.raises(ArgumentError, match=r"it has no @cute\.jit"):
        cute_dsl.run(numbers, 3)
