"""Stand-ins for what needs a GPU."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from tmaasync import _arrays
from tmaasync.ops._layouts import Layout


class LaunchStub:
    """A prepared launch that launches nothing."""

    def launch_at(self, addresses: Sequence[int], stream: int) -> None:
        """See `tmaasync.kernel.Launch`."""

    def bind(self, addresses: Sequence[int], stream: int) -> Callable[[], None]:
        """See `tmaasync.kernel.Launch`."""
        del addresses, stream
        return lambda: None


def layouts_of(*of: tuple[tuple[int, ...], Any]) -> list[Layout]:
    """Return the layouts of arrays of these shapes and types."""
    return [Layout.of(_arrays.view(np.zeros(shape, dtype))) for shape, dtype in of]


def check_binding(
    operation: Any, count: int, wanted: Callable[[list[int]], Sequence[int]], *numbers: float
) -> None:
    """Check that a launch takes addresses in the kernel's order, and no output over an operand.

    Args:
        operation: One that was never launched.
        count: The number of addresses, the output's last.
        wanted: Returns the kernel's first parameters.
        numbers: Further arguments of the launch.
    """
    apart = [(1 + index) << 20 for index in range(count)]
    assert operation.bind(apart, *numbers) is None  # nothing was launched
    launch = operation.prepared(LaunchStub)

    assert operation.bind(apart, *numbers) == (launch, tuple(wanted(apart)))
    for operand in range(count - 1):
        over = [apart[-1] if index == operand else at for index, at in enumerate(apart)]
        assert operation.bind(over, *numbers) is None
