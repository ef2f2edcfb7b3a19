"""Break a rule of the device headers, and print what came of it.

Run in a process of its own, since a trap kills the context: ``python tests/gpu/broken_rule.py CASE
BUILD``, with a case of check_cases.py and ``debug`` or ``release``. What the kernel says comes
first, then "ok" or "trapped", and then what the next launch raises.
"""

from __future__ import annotations

import ctypes
import os
import sys
from pathlib import Path

import cupy

sys.path.insert(0, str(Path(__file__).parents[1] / "helpers"))
sys.path.insert(0, str(Path(__file__).parents[1]))

from parity.backends import Cuda
from parity.check_cases import break_rule

from tmaasync import DriverError, Kernel, TMAError

NOTHING = """
extern "C" __global__ void nothing(int* where) {}
"""


def main(case: str, build: str) -> None:
    where = cupy.zeros(1, cupy.int32)
    nothing = Kernel(NOTHING, "nothing")
    nothing(1, 1, (where,))
    try:
        break_rule(Cuda(), case, debug=build == "debug")
        cupy.cuda.Device().synchronize()
        outcome = "ok"
    except (DriverError, cupy.cuda.runtime.CUDARuntimeError):
        outcome = "trapped"
    ctypes.CDLL(None).fflush(None)  # the kernel's lines go through C
    sys.stdout.write(f"{outcome}\n")
    try:
        nothing(1, 1, (where,))
    except TMAError as error:
        sys.stdout.write(f"{type(error).__name__}: {error}\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
    sys.stdout.flush()
    os._exit(0)  # a context that trapped cannot be torn down
