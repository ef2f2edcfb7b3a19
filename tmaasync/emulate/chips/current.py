"""The chip that kernels on NumPy arrays run on, if they name no architecture."""

from __future__ import annotations

import contextlib
import contextvars
from collections.abc import Iterator

from tmaasync.emulate.chips import CHIPS, SM_90A, Chip
from tmaasync.errors import ArgumentError

_CURRENT: contextvars.ContextVar[Chip] = contextvars.ContextVar("tmaasync chip", default=SM_90A)


@contextlib.contextmanager
def chip(arch: str) -> Iterator[None]:
    """Emulate another chip for operations and kernels inside the ``with``.

    It applies to launches on host arrays of kernels that name no ``arch``. Without it the emulated
    chip is an H200, ``sm_90a``.

    Args:
        arch: ``"sm_90a"``, ``"sm_100a"``, ``"sm_103a"`` or ``"sm_120a"``.

    Raises:
        ArgumentError: The emulator lacks this architecture.
    """
    found = CHIPS.get(arch)
    if found is None:
        rule = f"the CPU back end emulates {', '.join(CHIPS)}"
        raise ArgumentError.broken("arch", f"{arch!r}", rule, "Name one of these")
    token = _CURRENT.set(found)
    try:
        yield
    finally:
        _CURRENT.reset(token)


def current_chip() -> Chip:
    """Return the chip of `chip`, here and now."""
    return _CURRENT.get()
