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
from tmaasync.kernel.arguments import View, bytes_of_number

__all__ = ["RepeatedCall", "repeated_call"]

_Reader = Callable[[Any], int | None]
"""Returns the first eight bytes of a packed argument; None for one unlike the earlier call's."""


class RepeatedCall:
    """The launch of an earlier call, for calls with arguments like its own.

    Like it are arguments that pass the same checks and pack to the same bytes after the first
    eight. It holds no array. A call takes 9 us with three arrays, and 29 with all checks
    (benchmarks/bench_host.py on an H200, 2026-11-23).
    """

    __slots__ = ("_current_stream", "_device", "_launch", "_readers")

    def __init__(
        self,
        launch: PreparedLaunch,
        readers: Sequence[_Reader],
        current_stream: Callable[[int], int],
        device: int,
    ) -> None:
        self._launch = launch
        self._readers = readers
        self._current_stream = current_stream
        self._device = device

    def launch(self, args: Sequence[Any], stream: object) -> bool:
        """Launch; return False, and do nothing, if the arguments have to be checked anew."""
        if args.__class__ is not tuple and args.__class__ is not list:
            return False
        try:
            words = [read(arg) for read, arg in zip(self._readers, args, strict=True)]
        except (RuntimeError, ValueError, OverflowError):
            return False  # the full check reports it
        if None in words:
            return False
        device = self._device
        handle = self._current_stream(device) if stream is None else stream_of((), device, stream)
        self._launch.launch_at(words, handle)  # type: ignore[arg-type]
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
    readers = []
    for parameter, arg, view in zip(parameters, args, seen, strict=True):
        reader = _reader(parameter, arg, view)
        if reader is None:
            return None
        readers.append(reader)
    frameworks = [view.framework for view in seen if view is not None]
    launch.release()
    return RepeatedCall(launch, readers, current_stream_of(frameworks), device)


def _reader(parameter: Parameter, arg: object, view: View) -> _Reader | None:
    if isinstance(view, ArrayView):
        return address_reader(view) if view.owner is arg else None
    if view is not None:
        return view._address_reader()
    if parameter.is_struct:
        return _struct_reader(arg) if isinstance(arg, bytes | np.generic) else None
    if type(arg) is int and parameter.kind != "f":
        return _int_reader(8 * parameter.size_bytes)
    if type(arg) is float and parameter.size_bytes in _FLOATS:
        return _float_reader(*_FLOATS[parameter.size_bytes])
    return _number_reader(parameter, type(arg))


def _struct_reader(arg: Any) -> _Reader:
    kind, data = type(arg), bytes(arg)
    word = int.from_bytes(data[:8], "little")

    def read(value: Any) -> int | None:
        return word if value.__class__ is kind and bytes(value) == data else None

    return read


def _int_reader(bits: int) -> _Reader:
    least, end, mask = -(1 << (bits - 1)), 1 << bits, (1 << bits) - 1

    def read(value: Any) -> int | None:
        return value & mask if value.__class__ is int and least <= value < end else None

    return read


_FLOATS = {
    4: (struct.Struct("<f").pack, struct.Struct("<I").unpack),
    8: (struct.Struct("<d").pack, struct.Struct("<Q").unpack),
}


def _float_reader(
    pack: Callable[[float], bytes], unpack: Callable[[bytes], tuple[int, ...]]
) -> _Reader:
    def read(value: Any) -> int | None:
        return unpack(pack(value))[0] if value.__class__ is float else None

    return read


def _number_reader(parameter: Parameter, kind: type) -> _Reader:
    def read(value: Any) -> int | None:
        if value.__class__ is not kind:
            return None
        data = bytes_of_number(parameter, value)
        if data is None or len(data) != parameter.size_bytes:
            return None
        return int.from_bytes(data, "little")

    return read
