"""Fast path for repeated direct launches: check only the arguments that may have changed."""

from __future__ import annotations

import functools
import struct
from collections.abc import Callable, Sequence
from types import CodeType
from typing import Any

import numpy as np

from tmaasync._arrays import AddressCode, ArrayView, address_code, guard
from tmaasync._compile import Parameter
from tmaasync._driver import PreparedLaunch
from tmaasync._streams import current_stream_of, stream_of
from tmaasync.kernel.arguments import View

__all__ = ["RepeatedCall", "repeated_call"]

RepeatedCall = Callable[[Sequence[Any], object], bool]
"""Launches with these arguments, on a stream or the current one (None).

Returns False, and does nothing, if the arguments have to be checked anew: it is for arguments of
the same classes as an earlier call's, that pass the same checks and pack to the same bytes after
the first eight. It holds no array.
"""


def repeated_call(
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
    formats: list[str] = []
    codes: list[AddressCode] = []
    for parameter, arg, view in zip(parameters, args, seen, strict=True):
        number = None if view is not None or parameter.is_struct else _format(parameter, arg)
        formats.append(number or "Q")
        code = _NUMBER if number is not None else _address_code(arg, view)
        if code is None:
            return None
        codes.append(code)
    frameworks = [view.framework for view in seen if view is not None]
    launch.release()
    launch.take_values(formats)
    names: dict[str, Any] = {
        f"a{index}_{name}": value
        for index, (code, arg) in enumerate(zip(codes, args, strict=True))
        for name, value in (*code.names.items(), ("class", type(arg)))
    }
    names |= {
        "launch_at": launch.launch_at,
        "current_stream": current_stream_of(frameworks),
        "stream_of": stream_of,
        "device": device,
        "unfit": (struct.error, OverflowError),
    }
    tensors = [arg for code, arg in zip(codes, args, strict=True) if code.likeness]
    guarded = guard(tensors) if tensors else None
    if guarded is not None:
        names["guard"] = guarded.check
    texts = tuple([code[:3] for code in codes])
    exec(_compiled(texts, has_guard=guarded is not None), names)  # noqa: S102 - our own text
    call: RepeatedCall = names["call"]
    return call


@functools.lru_cache(maxsize=1024)
def _compiled(codes: tuple[tuple[str, str, str], ...], *, has_guard: bool) -> CodeType:
    """Generate one function for arguments of these kinds.

    For three arrays, a separate function per array took 0.4 us more, of 2.4 us (without a GPU and
    the driver's part, 2026-11-23: decisions/host.md); three tensors without torch's guard 0.6 us.
    """
    arguments = [f"a{index}" for index in range(len(codes))]
    conditions = [f"{argument}.__class__ is {argument}_class" for argument in arguments]
    named = [
        [text.format(argument) for text in code]
        for argument, code in zip(arguments, codes, strict=True)
    ]
    likeness = " and ".join(like for like, *_ in named if like)
    if has_guard:
        tensors = [argument for argument, (like, *_) in zip(arguments, named, strict=True) if like]
        likeness = f"(guard({', '.join(tensors)}) or {likeness})"
    conditions += [likeness, *(condition for _, condition, _ in named)]
    text = _CALL.format(
        arguments=", ".join(arguments),
        conditions=" and ".join(filter(None, conditions)) or "True",
        words="".join(f"{address}, " for *_, address in named),
    )
    return compile(text, "<a call like an earlier one>", "exec")


_CALL = """
def call(args, stream):
    if args.__class__ is not tuple and args.__class__ is not list:
        return False
    try:
        [{arguments}] = args
        if not ({conditions}):
            return False
        words = ({words})
    except (RuntimeError, ValueError):
        return False  # the full check reports it
    handle = current_stream(device) if stream is None else stream_of((), device, stream)
    try:
        launch_at(words, handle)
    except unfit:  # a number that does not fit, before the launch
        return False
    return True
"""

_NUMBER = AddressCode("", "", "{0}", {})


def _address_code(arg: object, view: View) -> AddressCode | None:
    if isinstance(view, ArrayView):
        return address_code(view) if view.owner is arg else None
    read = view._address_reader() if view is not None else _bytes_reader(arg)
    return None if read is None else AddressCode("", _READ, "{0}_word", {"read": read})


_READ = "({0}_word := {0}_read({0})) is not None"


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
    """Return a reader that accepts only the same bytes."""
    if not isinstance(arg, bytes | np.generic):
        return None
    data = arg if isinstance(arg, bytes) else arg.tobytes()
    word = int.from_bytes(data[:8], "little")

    def read(value: Any) -> int | None:
        return word if bytes(value) == data else None

    return read
