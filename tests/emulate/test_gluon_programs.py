"""A Gluon GEMM with TMA, mbarriers and wgmma, and its defects: needs Triton and torch, no GPU."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tmaasync import EmulatedDeadlock, EmulatedFault, EmulatedRace, emulate
from tmaasync.triton import on_cpu

pytest.importorskip("triton", reason="Triton is not installed")
torch: Any = pytest.importorskip("torch", reason="torch is not installed")
programs: Any = importlib.import_module("emulate.gluon_programs")
hopper: Any = importlib.import_module("triton.experimental.gluon.nvidia.hopper")
pytestmark = pytest.mark.filterwarnings("ignore:TRITON_DEFAULT_FP_FUSION:UserWarning")

LINES = Path(programs.__file__).read_text().split("\n")
RNG = np.random.default_rng(3)
M, N, K = 128, 64, 192


def gemm(defect: str = "") -> tuple[Any, Any]:
    layout = programs.gl.NVMMASharedLayout.get_default_for
    a = torch.from_numpy(RNG.standard_normal((M, K), np.float32)).half()
    b = torch.from_numpy(RNG.standard_normal((K, N), np.float32)).half()
    c = torch.full((M, N), float("nan")).half()
    described = [
        hopper.TensorDescriptor.from_tensor(one, list(box), layout(list(box), programs.gl.float16))
        for one, box in ((a, (64, 64)), (b, (64, N)), (c, (64, N)))
    ]
    with on_cpu(), emulate.scheduled(races=True):
        programs.gemm[(M // 64,)](*described, K, BM=64, BN=N, BK=64, DEFECT=defect)
    return c.double().numpy(), a.double().numpy() @ b.double().numpy()


def test_the_gemm_equals_numpy() -> None:
    out, wanted = gemm()
    assert np.abs(out - wanted).max() <= 1e-3 * np.abs(wanted).max()


WAIT = "mbarrier.wait(full.index(slot), phase)"
MULTIPLY = "pending = warpgroup_mma("
DEFECTS = {
    "no wait": (EmulatedFault, MULTIPLY),
    "the other phase": (EmulatedFault, MULTIPLY),
    "too many bytes": (EmulatedDeadlock, WAIT),
    "too few bytes": (EmulatedDeadlock, WAIT),
    "no bytes": (EmulatedDeadlock, WAIT),
    "two arrivals": (EmulatedDeadlock, WAIT),
    "no init": (EmulatedFault, "mbarrier.expect(full.index(slot), bytes_of_both)"),
    "the other slot": (EmulatedRace, "load(a, b, left, right, full, step + 1, m"),
    "a wgmma in flight": (EmulatedRace, MULTIPLY),
    "one tile of all": (EmulatedRace, "tma.async_store(c, [0, 0], tile)"),
    "no wait for the store": (EmulatedFault, "    store(c, m, total, DEFECT)"),
}


@pytest.mark.parametrize("name", DEFECTS)
def test_a_defect_is_reported_at_its_line(name: str) -> None:
    error, code = DEFECTS[name]
    (line,) = (number for number, text in enumerate(LINES, 1) if code in text)
    with pytest.raises(error) as raised:
        gemm(name)
    assert f"gluon_programs.py:{line}" in str(raised.value)
