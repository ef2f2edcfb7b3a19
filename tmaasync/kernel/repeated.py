"""Direct calls like an earlier one: of the arguments, only what may have changed is looked at."""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from tmaasync._arrays import ArrayView, address_reader
from tmaasync._compile import Parameter
from tmaasync._driver import PreparedLaunch
from tmaasync._streams import current_stream_of, stream_of
from tmaasync.kernel.arguments import View

__all__ = ["RepeatedCall", "repeated_call"]

_Reader = Callable[[Any], int | None]
"""Returns the first word of a packed argument; None for one unlike the earlier call's."""


class RepeatedCall:
    """The launch of an earlier call, for calls with arguments like its own.

    Like it are arguments of the same classes that pass the same checks and pack to the same bytes
    after the first eight. It holds no array. A call costs a quarter of one with all checks
    (benchmarks/bench_host.py).
    """

    __slots__ = ("_current_stream", "_device", "_kinds", "_launch", "_readers")

    def __init__(
        self,
        launch: PreparedLaunch,
        kinds: list[type],
        readers: Sequence[tuple[int, _Reader]],
        current_stream: Callable[[int], int],
        device: int,
    ) -> None:
        self._launch = launch
        self._kinds = kinds
        self._readers = readers
        self._current_stream = current_stream
        self._device = device

    def launch(self, args: Sequence[Any], stream: object) -> bool:
        """Launch; return False, and do nothing, if the arguments have to be checked anew."""
        if args.__class__ is not tuple and args.__class__ is not list:
            return False
        if [*map(type, args)] != self._kinds:
            return False
        words = [*args]
        try:
            for index, read in self._readers:
                word = words[index] = read(words[index])
                if word is None:
                    return False
        except (RuntimeError, ValueError):
            return False  # the full check reports it
        device = self._device
        handle = self._current_stream(device) if stream is None else stream_of((), device, stream)
        try:
            self._launch.launch_at(words, handle)
        except (struct.error, OverflowError):  # a number that does not fit, before the launch
            return False
        return True


def repeated_call(
    launch: PreparedLaunch,
    parameters: Sequence[Parameter],
    args: Sequence[object],
    seen: Sequence[View],
    device: int,
) -> RepeatedCall | None:
    """Return the launch for calls like this one; None if all of them need the full check.

    Args:
        launch: What the call prepared. It keeps no array alive from now on.
        parameters: The kernel's parameters.
        args: The arguments of the call.
        seen: What `views` made of them.
        device: Where the arrays lie.
    """
    formats, readers = [], []
    for index, (parameter, arg, view) in enumerate(zip(parameters, args, seen, strict=True)):
        number = None if view is not None or parameter.is_struct else _format(parameter, arg)
        formats.append(number or "Q")
        if number is None:
            reader = _reader(arg, view)
            if reader is None:
                return None
            readers.append((index, reader))
    frameworks = [view.framework for view in seen if view is not None]
    launch.release()
    launch.take_values(formats)
    kinds = [*map(type, args)]
    return RepeatedCall(launch, kinds, readers, current_stream_of(frameworks), device)


_FLOATS = {2: "e", 4: "f", 8: "d"}
_SIGNED = {1: "b", 2: "h", 4: "i", 8: "q"}
_UNSIGNED = {1: "B", 2: "H", 4: "I", 8: "Q"}


def _format(parameter: Parameter, arg: Any) -> str | None:
    """Return the struct format that packs numbers of this type and sign as the full check does.

    A number that it refuses may still be one that the full check accepts: one of another sign makes
    a call of its own. None for other values.
    """
    is_number = isinstance(arg, int | float) or (
        isinstance(arg, np.generic) and arg.dtype.kind in "iuf" and parameter.kind in "fsu"
    )
    if not is_number:
        return None
    formats = _FLOATS if parameter.kind == "f" else _SIGNED if arg < 0 else _UNSIGNED
    return formats.get(parameter.size_bytes)


def _reader(arg: object, view: View) -> _Reader | None:
    if isinstance(view, ArrayView):
        return address_reader(view) if view.owner is arg else None
    if view is not None:
        return view._address_reader()
    return _bytes_reader(arg) if isinstance(arg, bytes | np.generic) else None


def _bytes_reader(arg: Any) -> _Reader:
    """Return a reader of the same bytes."""
    data = bytes(arg)
    word = int.from_bytes(data[:8], "little")

    def read(value: Any) -> int | None:
        return word if bytes(value) == data else None

    return read
