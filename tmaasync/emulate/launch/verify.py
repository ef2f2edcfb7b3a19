"""``verify``: all interleavings of the launches of a call."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

from tmaasync._kinds import check_integers, is_number, shown
from tmaasync.emulate.launch.last_verdict import keep_verdict
from tmaasync.emulate.launch.repeated import exploring
from tmaasync.emulate.launch.verdict import Verdict
from tmaasync.emulate.launch.verified import Verification
from tmaasync.emulate.launch.world import current_world
from tmaasync.errors import ArgumentError, TMAError


def verify(
    call: Callable[..., object],
    *args: object,
    max_runs: int = 1000,
    max_seconds: float = 60.0,
    **options: Any,
) -> Verdict:
    """Call a kernel or an operation on the CPU, and explore all interleavings of its launches.

    The verdict is about these arguments: other sizes and values may take other paths. Arrays are
    left as the usual order of the first run leaves them, and as a failing run does if one fails.

    Args:
        call: A `Kernel`, a function of `tmaasync.ops`, or any function that launches kernels.
        args: Its arguments, as in ``verify(kernel, grid, block, args)``; arrays in host memory.
        max_runs: Maximum number of runs for each launch. A kernel that synchronises by mbarriers,
            named barriers and clusters alone, and correctly, takes one.
        max_seconds: Maximum seconds for each launch; no run starts later.
        options: Keyword arguments of the call.

    Raises:
        ArgumentError: A limit is not positive, or ``call`` cannot be called.
        TMAError: The call is refused, for example for its arguments. What a launch does wrong is
            in the verdict.

    >>> import numpy as np, tmaasync as tma
    >>> source = '__global__ void twice(float* x) { x[threadIdx.x] *= 2; }'
    >>> verdict = verify(tma.Kernel(source, "twice"), 1, 32, (np.ones(32, np.float32),))
    >>> verdict.status
    'clean'
    """
    if not callable(call):
        rule, remedy = (
            "it must be a kernel or a function",
            "Pass emulate.verify(kernel, grid, block, args)",
        )
        raise ArgumentError.broken("call", shown(call), rule, remedy)
    world = current_world()
    if world is not None:
        world.synchronize()
    with verifying(max_runs=max_runs, max_seconds=max_seconds) as verification:
        try:
            call(*args, **options)
            if world is not None:
                world.synchronize()
        except TMAError as error:
            if all(error is not one.error for one in verification.verdicts):
                raise
    verdict = Verdict(tuple(verification.verdicts))
    keep_verdict(lambda: verdict)
    return verdict


@contextlib.contextmanager
def verifying(*, max_runs: int, max_seconds: float) -> Iterator[Verification]:
    """Verify every launch inside the ``with``."""
    check_integers(max_runs=max_runs)
    for name, value in (("max_runs", max_runs), ("max_seconds", max_seconds)):
        if not is_number(value) or not value > 0:
            raise ArgumentError.broken(
                name, shown(value), "it must be above 0", "Pass a positive one"
            )
    verification = Verification(max_runs, max_seconds)
    with exploring(verification):
        yield verification
