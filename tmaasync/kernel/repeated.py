"""Fast path for repeated direct launches: check only the arguments that may have changed."""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from operator import itemgetter
from typing import Any, NamedTuple

import numpy as np

from tmaasync._arrays import (
    AddressReader,
    ArrayView,
    address_reader,
    current_stream_of,
    guard,
    stream_of,
)
from tmaasync._driver import PreparedLaunch
from tmaasync._source.compile import Parameter
from tmaasync.kernel.arguments import View

RepeatedCall = Callable[[Sequence[Any], object], bool]
"""Launches with these arguments, on a stream or the current one (None).

Returns False, and does nothing, if the arguments have to be checked anew: it is for arguments of
the same classes as an earlier call's, that pass the same checks and pack to the same bytes after
the first eight. It holds no array.
"""


_MAX_REQUESTS = 1024
# One grid sees few argument kinds: tiles of different layouts, or different devices.
_MAX_CALLS = 4


RepeatedCalls = dict[tuple[Any, ...], tuple[RepeatedCall, ...]]
"""The fast paths of a kernel, the latest first, by the grid, block and options of a launch."""


def remember(
    calls: RepeatedCalls, key: tuple[Any, ...], make: Callable[[], RepeatedCall | None]
) -> None:
    """Add what ``make`` returns, unless the key has a list, or there is no fast path."""
    try:
        hash(key)
    except TypeError:
        return
    call = make()
    if call is None:
        return
    if len(calls) >= _MAX_REQUESTS:
        calls.clear()
    calls[key] = (call, *calls.get(key, ())[: _MAX_CALLS - 1])


def repeated_call(  # noqa: C901 - a call is one function, for speed
    launch: PreparedLaunch,
    parameters: Sequence[Parameter],
    args: Sequence[object],
    seen: Sequence[View],
    device: int,
) -> RepeatedCall | None:
    """Return the fast path for calls like this one; None if they need the full check.

    Args:
        launch: The prepared launch of the call. Afterwards it keeps no array alive.
        parameters: The kernel's parameters.
        args: The arguments of the call.
        seen: The result of `views` for the arguments.
        device: The device of the arrays.
    """
    arguments = _arguments(parameters, args, seen)
    if arguments is None:
        return None
    launch.release()
    launch.take_values(arguments.formats)
    tensors = [index for index, view in enumerate(seen) if _is_tensor(view)]
    read_tensors = _tensor_reader(tensors, args) if tensors else None
    current_stream = current_stream_of([view.framework for view in seen if view is not None])
    _, numbers, readers = arguments
    others = [one for one in readers if one[0] not in tensors]
    count, launch_at = len(args), launch.launch_at

    def call(args: Sequence[Any], stream: object) -> bool:
        if (args.__class__ is not tuple and args.__class__ is not list) or len(args) != count:
            return False
        words = [*args]
        for index, kind in numbers:
            if words[index].__class__ is not kind:
                return False
        try:
            for index, read in others if read_tensors and read_tensors(words) else readers:
                word = words[index] = read(words[index])
                if word is None:
                    return False
        except (RuntimeError, ValueError):
            return False  # the full check reports it
        handle = current_stream(device) if stream is None else stream_of((), device, stream)
        try:
            launch_at(words, handle)
        except (struct.error, OverflowError):  # a number that does not fit, before the launch
            return False
        return True

    return call


class _Arguments(NamedTuple):
    """The struct format of each argument, the classes of numbers, the readers of all others."""

    formats: list[str]
    numbers: list[tuple[int, type]]
    readers: list[tuple[int, AddressReader]]


def _arguments(
    parameters: Sequence[Parameter], args: Sequence[object], seen: Sequence[View]
) -> _Arguments | None:
    """Return None for arguments without a reader."""
    arguments = _Arguments([], [], [])
    for index, (parameter, arg, view) in enumerate(zip(parameters, args, seen, strict=True)):
        number = None if view is not None or parameter.is_struct else _format(parameter, arg)
        arguments.formats.append(number or "Q")
        if number:
            arguments.numbers.append((index, type(arg)))
        elif reader := _reader(arg, view):
            arguments.readers.append((index, reader))
        else:
            return None
    return arguments


def _is_tensor(view: View) -> bool:
    return isinstance(view, ArrayView) and view.framework == "torch"


def _tensor_reader(
    indices: Sequence[int], args: Sequence[object]
) -> Callable[[list[Any]], bool] | None:
    """Return a function that replaces all tensors by their addresses, if they are like these.

    torch's guard compares them in one call of C. None if torch lacks it or it refuses these.
    """
    guarded = guard([args[index] for index in indices])
    if guarded is None:
        return None
    check, address_of, forward = guarded
    pick = itemgetter(indices[0], *indices)  # with the first twice, it always returns a tuple

    def read(words: list[Any]) -> bool:
        if forward._current_level >= 0 or not check(*pick(words)[1:]):
            return False
        for index in indices:
            word = words[index] = address_of(words[index])
            if not word:  # no memory: the tensor's own reader refuses the 0
                return False
        return True

    return read


def _reader(arg: object, view: View) -> AddressReader | None:
    if isinstance(view, ArrayView):
        return address_reader(view) if view.owner is arg else None
    return view._address_reader() if view is not None else _bytes_reader(arg)


_FLOATS = {2: "e", 4: "f", 8: "d"}
_SIGNED = {1: "b", 2: "h", 4: "i", 8: "q"}
_UNSIGNED = {1: "B", 2: "H", 4: "I", 8: "Q"}
_DECLARED = {"i": _SIGNED, "n": _UNSIGNED}


def _format(parameter: Parameter, arg: Any) -> str | None:
    """Return the struct format that packs numbers of this type and sign as the full check does.

    It may reject a number that the full check accepts: a number of the other sign gets its own
    fast path. Return None for other values.
    """
    kind, is_scalar = parameter.kind, isinstance(arg, np.generic)
    if kind == "t":
        return "?" if isinstance(arg, bool) else None
    if is_scalar and (arg.dtype.kind not in "iuf" or kind not in "fsuin"):
        return None
    if not is_scalar and not isinstance(arg, int | float):
        return None
    of_sign = _SIGNED if arg < 0 else _UNSIGNED
    formats = of_sign if is_scalar else _DECLARED.get(kind, of_sign)
    return (_FLOATS if kind == "f" else formats).get(parameter.size_bytes)


def _bytes_reader(arg: Any) -> Callable[[Any], int | None] | None:
    """Return a reader that accepts only the same bytes, of the same class."""
    if not isinstance(arg, bytes | np.generic):
        return None
    data = arg if isinstance(arg, bytes) else arg.tobytes()
    kind: type[Any] = type(arg)
    word = int.from_bytes(data[:8], "little")

    def read(value: Any) -> int | None:
        return word if value.__class__ is kind and bytes(value) == data else None

    return read
