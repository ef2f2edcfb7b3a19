"""Sound PTX modules under many schedules: no report, and the right numbers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from emulate.test_ptx_modules import FOLDER, exchanged, features, text_of
from emulate.test_ptx_modules import LAUNCHES as OF_TRITON
from emulate.test_ptx_of_compilers import LAUNCHES as OF_OTHERS

from tmaasync import Kernel, emulate
from tmaasync.emulate.launch.schedule import Policy


def check(out: npt.NDArray[Any], wanted: npt.NDArray[Any]) -> None:
    assert np.abs(out - wanted).max() <= 1e-3 * np.abs(wanted).max()


def launched(name: str, launch: Callable[[Kernel], Any]) -> Callable[[], None]:
    """Return a launch of a module that checks its numbers."""

    return lambda: check(*launch(Kernel(FOLDER / f"{name}.ptx")))


LOADS = 24  # more than a thread's latest loads have slots at first


def run_replicated_loads() -> None:
    """Add 1 to scalars three times, as Triton does: all threads load, and the first one stores."""
    loads = "".join(
        f"ld.global.b32 %r{10 + i}, [%rd1+{64 * i}]; add.s32 %r{10 + i}, %r{10 + i}, 1;\n"
        for i in range(LOADS)
    )
    stores = "".join(f"@%p1 st.global.b32 [%rd1+{64 * i}], %r{10 + i};\n" for i in range(LOADS))
    module = f""".version 8.0
.target sm_90a
.address_size 64
.visible .entry many(.param .u64 data)
{{
.reg .pred %p<3>; .reg .b32 %r<{10 + LOADS}>; .reg .b64 %rd<2>;
ld.param.u64 %rd1, [data];
mov.u32 %r1, %tid.x;
setp.eq.u32 %p1, %r1, 0;
mov.b32 %r2, 0;
$L1:
{loads}{stores}add.s32 %r2, %r2, 1;
setp.ne.s32 %p2, %r2, 3;
@%p2 bra $L1;
ret;
}}
"""
    scalars = np.zeros((LOADS, 16), np.int32)
    Kernel(module, "many")(1, 128, (scalars,))
    assert (scalars[:, 0] == 3).all()


MODULES: dict[str, Callable[[], None]] = {
    **{name: launched(name, launch) for name, launch in (OF_TRITON | OF_OTHERS).items()},
    "features": lambda: check(*features()),
    "accumulators in two orders": lambda: exchanged(text_of("by_hand")),
    "replicated loads": run_replicated_loads,
}


def run_seeds(name: str, seeds: range) -> None:
    for seed in seeds:
        policy: Policy = "random" if seed % 2 else "adversarial"
        with emulate.scheduled(policy, seed=seed, races=True):
            MODULES[name]()


@pytest.mark.sampled(3)
@pytest.mark.parametrize("name", MODULES)
def test_two_schedules_report_nothing(name: str) -> None:
    run_seeds(name, range(2))
