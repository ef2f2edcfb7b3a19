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
    token = _CURRENT.set(chip_named("arch", arch))
    try:
        yield
    finally:
        _CURRENT.reset(token)


def chip_named(argument: str, arch: str) -> Chip:
    """Return the chip of an architecture; ``argument`` is what named it.

    Raises:
        ArgumentError: The emulator lacks this architecture.
    """
    found = CHIPS.get(arch)
    if found is None:
        raise ArgumentError.broken(
            argument,
            f"{arch!r}",
            f"the CPU back end emulates {', '.join(CHIPS)}",
            f"Name one of these, or none for sm_90a, or pass arrays on a GPU that runs {arch}",
        )
    return found


def current_chip() -> Chip:
    """Return the chip of `chip`, here and now."""
    return _CURRENT.get()
