"""Unchanged Triton programs on the CPU, with races searched: needs Triton, and no GPU."""

from __future__ import annotations

import importlib
import io
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from tmaasync import EmulatedDeadlock, EmulatedFault, EmulatedRace, EmulatedTimeout, emulate
from tmaasync.triton import TensorDescriptor, on_cpu

triton = pytest.importorskip("triton", reason="Triton is not installed")
programs: Any = importlib.import_module("emulate.triton_programs")
pytestmark = pytest.mark.filterwarnings("ignore:TRITON_DEFAULT_FP_FUSION:UserWarning")

RNG = np.random.default_rng(5)
LINES = Path(programs.__file__).read_text().split("\n")
Array = npt.NDArray[Any]
Pair = tuple[Any, Array]


@pytest.fixture(autouse=True)
def searched() -> Iterator[None]:
    with on_cpu(), emulate.scheduled(races=True):
        yield


def numbers(*shape: int) -> Array:
    return RNG.standard_normal(shape, np.float32)


def add() -> Pair:
    x, y, out = numbers(1000), numbers(1000), np.full(1000, np.nan, np.float32)
    programs.add[lambda meta: (triton.cdiv(meta["size"], meta["BLOCK"]),)](x, y, out, 1000)
    return out, x.astype(np.float64) + y


def softmax() -> Pair:
    x = numbers(7, 300)
    out, e = np.full_like(x, np.nan), np.exp(x.astype(np.float64))
    programs.softmax[(4,)](x, out, 300, 7, 300, BLOCK=512, num_stages=2)
    return out, e / e.sum(1, keepdims=True)


def matrices(m: int, n: int, k: int) -> tuple[Array, Array, Array]:
    a, b = numbers(m, k).astype(np.float16), numbers(k, n).astype(np.float16)
    return a, b, a.astype(np.float64) @ b.astype(np.float64)


def matmul() -> Pair:
    a, b, wanted = matrices(60, 100, 80)
    a, b = np.pad(a, ((0, 4), (0, 0))), np.pad(b, ((0, 0), (0, 28)))
    out = np.full((64, 128), np.nan, np.float32)
    programs.matmul[(1, 2)](a, b, out, 60, 128, 80, BM=64, BN=64, BK=32)
    return out[:60, :100], wanted


def matmul_of_descriptors() -> Pair:
    a, b, wanted = matrices(128, 128, 128)
    out = np.full((128, 128), np.nan, np.float16)
    boxes = ((a, (64, 64)), (b, (64, 128)), (out, (64, 128)))
    described = [TensorDescriptor(*one) for one in boxes]
    programs.matmul_of_descriptors[(2, 1)](*described, 128, BM=64, BN=128, BK=64)
    return out, wanted


def matmul_of_tritons_descriptors() -> Pair:
    torch = pytest.importorskip("torch")
    described = importlib.import_module("triton.tools.tensor_descriptor")
    described = described.TensorDescriptor.from_tensor
    a, b, wanted = matrices(128, 128, 128)
    out = torch.zeros(128, 128, dtype=torch.float16)
    maps = (
        described(torch.from_numpy(a), [64, 64]),
        described(torch.from_numpy(b), [64, 128]),
        described(out, [64, 128]),
    )
    programs.matmul_of_descriptors[(2, 1)](*maps, 128, BM=64, BN=128, BK=64)
    return out, wanted


def scale() -> Pair:
    x, out = numbers(1000), np.full(1000, np.nan, np.float32)
    programs.scale[lambda meta: (triton.cdiv(1000, meta["BLOCK"]),)](x, out, 2.5, 1000)
    assert programs.scale.best_config.kwargs["BLOCK"] == 128
    assert not programs.scale.cache
    return out, 2.5 * x.astype(np.float64)


def histogram() -> Pair:
    x, out = RNG.integers(0, 50, 1000).astype(np.int32), np.zeros(50, np.int32)
    programs.histogram[(4,)](x, out, 1000, BLOCK=256)
    return out, np.bincount(x, minlength=50).astype(np.float64)


def lock() -> Pair:
    word, out = np.zeros(1, np.int32), np.zeros(1, np.int32)
    programs.locked[(4,)](word, out, BLOCK=256)
    return out, np.array([4.0])


@pytest.mark.parametrize(
    "program",
    [
        add,
        softmax,
        matmul,
        matmul_of_descriptors,
        matmul_of_tritons_descriptors,
        scale,
        histogram,
        lock,
    ],
)
def test_a_program_equals_numpy(program: Callable[[], Pair]) -> None:
    out, wanted = program()
    assert np.abs(np.asarray(out, np.float64) - wanted).max() <= 1e-3 * np.abs(wanted).max()


def test_a_compiled_kernel_has_the_registers_of_its_machine_code() -> None:
    x = numbers(7, 300)
    compiled = programs.softmax.warmup(x, x, 300, 7, 300, BLOCK=512, num_stages=2, grid=(1,))
    compiled._init_handles()
    assert (compiled.n_regs, compiled.n_spills) == (register_count(compiled.asm["cubin"]), 0)
    assert compiled.n_max_threads == 128


def register_count(cubin: bytes) -> int:
    """Return the count of EIATTR_REGCOUNT, the attribute 0x2f of section .nv.info."""
    elffile = pytest.importorskip("elftools.elf.elffile")
    data = elffile.ELFFile(io.BytesIO(cubin)).get_section_by_name(".nv.info").data()
    at = data.index(bytes((4, 0x2F, 8, 0)))
    return int.from_bytes(data[at + 8 : at + 12], "little")


DEFECTS: dict[str, tuple[Any, str]] = {
    "without_mask": (EmulatedFault, "tl.store(out + at, tl.load(x + at))"),
    "histogram_without_atomics": (EmulatedRace, "tl.store(at, tl.load(at) + 1)"),
    "overlapping_programs": (EmulatedRace, "tl.load(x + at) + tl.program_id(0)"),
    "one_too_many": (EmulatedFault, "mask=at <= SIZE"),
    # A race where the other array happens to lie next to the one that is left.
    "wrong_stride": ((EmulatedFault, EmulatedRace), "tl.load(row + "),
    "shifted_in_place": (EmulatedRace, "tl.load(at + 1"),
    "one_sum_of_all": (EmulatedRace, "tl.store(out, tl.sum("),
    "unlocked_too_early": (EmulatedRace, "tl.store(out, count + 1)"),
    "never_unlocked": ((EmulatedDeadlock, EmulatedTimeout), "== 1:  # for ever"),
    "lock_without_acquire": (EmulatedRace, "tl.store(out, tl.load(out) + 1)  # unordered"),
}


@pytest.mark.parametrize("name", DEFECTS)
def test_a_defect_is_reported_at_its_line(name: str) -> None:
    error, code = DEFECTS[name]
    (line,) = (number for number, text in enumerate(LINES, 1) if code in text)
    x = np.zeros(1000, np.int32)
    with pytest.raises(error) as raised:
        getattr(programs, name)[(4,)](x, x.copy(), BLOCK=256)
    assert f"triton_programs.py:{line}" in str(raised.value)
