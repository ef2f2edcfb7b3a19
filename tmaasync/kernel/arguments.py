"""From the caller's arguments to the bytes of a kernel's parameters."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np

from tmaasync import _arrays
from tmaasync._arrays import ArrayView, require_current
from tmaasync._kinds import shown
from tmaasync._source.compile import Parameter
from tmaasync._tile.argument import KernelArgument, MapArgument, UnboundTile
from tmaasync._tile.pointer import PackedArgument, Pointer
from tmaasync.errors import LaunchError
from tmaasync.kernel.cuda_core import is_descriptor, map_bytes
from tmaasync.tensormap import TENSOR_MAP_BYTES

Placed = ArrayView | KernelArgument
"""An argument with memory, on a device or on the host."""
View = Placed | None
"""The view of an argument; None for a number or bytes."""


def views(args: Sequence[object]) -> list[View]:
    """Return for each argument its tile, the view of its array, or None for a number or bytes."""
    if not isinstance(args, tuple | list):
        raise LaunchError.broken(
            "args",
            type(args).__name__,
            "it must be a tuple or list, one item per parameter",
            "Write (value,) for a single one",
        )
    return [_view(index, arg) for index, arg in enumerate(args)]


def placed(views: Iterable[View]) -> Iterator[Placed]:
    """Yield every argument with memory; an array of tiles yields every tile."""
    for view in views:
        if isinstance(view, KernelArgument):
            yield from view.members()
        elif view is not None:
            yield view


_PLAIN = (int, float, bytes, np.generic)
_NUMBERS = frozenset({int, float})


def _view(index: int, arg: object) -> View:
    if type(arg) in _NUMBERS:
        return None
    if isinstance(arg, KernelArgument):
        if not arg.is_current:
            arg.check_alive(f"args[{index}]")
        return arg
    if isinstance(arg, UnboundTile):
        raise LaunchError.broken(
            f"args[{index}]",
            f"{shown(arg)}, a template that no array fills",
            "a launch needs the tensor map of an array",
            "Pass template.bind(array)",
        )
    is_plain = isinstance(arg, _PLAIN) or is_descriptor(arg)
    if is_plain or (isinstance(arg, np.ndarray) and _is_struct(arg)):
        return None
    return _arrays.view(arg, argument=f"args[{index}]")


def _is_struct(array: np.ndarray[Any, Any]) -> bool:
    return array.size == 1 and array.dtype.names is not None


def require_all_current(seen: Sequence[View]) -> None:
    """Refuse arrays that were freed, resized or moved since a launch was prepared.

    Raises:
        StaleTileError: An array is no longer at its address.
    """
    for index, view in enumerate(seen):
        if isinstance(view, KernelArgument):
            view.check_alive(f"args[{index}]")
        elif view is not None:
            require_current(view, f"args[{index}]", "Prepare the launch again")


def pack(
    kernel: str,
    parameters: Sequence[Parameter],
    args: Sequence[object],
    seen: Sequence[View],
    device: int | None = None,
) -> list[bytes]:
    """Return the bytes of every parameter for a launch on a device; None for the emulator.

    ``seen`` is the result of `views` for the arguments.

    Raises:
        LaunchError: The number, kind or size of the arguments does not match the kernel.
    """
    if len(parameters) != len(args):
        raise LaunchError.broken(
            "args",
            f"{len(args)} item{'' if len(args) == 1 else 's'}",
            f"{kernel} takes {len(parameters)}: {', '.join(map(_describe, parameters)) or 'none'}",
            "Pass a value for each",
            verb="has",
        )
    packed = []
    for index, (parameter, arg, view) in enumerate(zip(parameters, args, seen, strict=True)):
        data = _bytes_of(parameter, arg, view, device)
        if data is None or len(data) != parameter.size_bytes:
            raise _misfit(index, parameter, arg, data)
        packed.append(data)
    return packed


def _describe(parameter: Parameter) -> str:
    if parameter.is_struct:
        return f"a struct of {parameter.size_bytes} bytes"
    article = "an" if parameter.size_bytes == 8 else "a"
    return f"{article} {parameter.size_bytes}-byte {_KINDS.get(parameter.kind, 'value')}"


_KINDS = {
    "f": "floating-point number",
    "u": "integer or pointer",
    "s": "integer",
    "i": "signed integer",
    "n": "unsigned integer",
    "t": "bool",
}


def _misfit(index: int, parameter: Parameter, arg: object, data: bytes | None) -> LaunchError:
    size = "" if data is None else f" of {len(data)} bytes"
    return LaunchError(
        f"args[{index}] is {shown(arg)}{size}; the kernel takes {_describe(parameter)} there. "
        f"{_remedy(parameter)}"
    )


def _remedy(parameter: Parameter) -> str:
    if parameter.is_struct:
        return "Pass a tile, or bytes or a NumPy structured scalar of that size."
    if parameter.kind == "f":
        return "Pass a float that it holds, or a NumPy scalar of that size."
    if parameter.kind == "t":
        return "Pass True or False."
    if parameter.kind in ("i", "n"):
        least, most = _range_of(parameter)
        return f"Pass an int from {least} to {most}, or a NumPy scalar of that size for its bits."
    return "Pass an int in range, a NumPy scalar of that size, or an array where it is a pointer."


def _bytes_of(parameter: Parameter, arg: object, view: View, device: int | None) -> bytes | None:
    if type(arg) in _NUMBERS:
        return _number(parameter, arg)
    if isinstance(view, ArrayView | Pointer):
        may_be = parameter.is_struct or parameter.kind in "ubin"  # a struct of one pointer too
        is_pointer = may_be and parameter.size_bytes == 8
        return view.address.to_bytes(8, "little") if is_pointer else None
    if view is not None:
        takes_it = parameter.is_struct or isinstance(view, PackedArgument)
        return _tile_bytes(parameter, view, device) if takes_it else None
    if isinstance(arg, bytes | np.ndarray):
        data = arg if isinstance(arg, bytes) else arg.tobytes()
        return data if parameter.is_struct else None
    if is_descriptor(arg):
        return map_bytes(arg) if parameter.is_struct else None
    return bytes_of_number(parameter, arg)


def bytes_of_number(parameter: Parameter, arg: object) -> bytes | None:
    """Return the bytes of a number or NumPy scalar; None if it does not fit the parameter."""
    if isinstance(arg, np.generic):  # before int and float: numpy.float64 is a float too
        floating = np.issubdtype(arg.dtype, np.inexact)
        agrees = parameter.kind == "b" or floating == (parameter.kind == "f") or parameter.is_struct
        if parameter.kind == "t" and arg not in (0, 1):
            return None
        return arg.tobytes() if agrees else None
    return _number(parameter, arg)


def _tile_bytes(parameter: Parameter, tile: KernelArgument, device: int | None) -> bytes:
    """Return a tile's bytes; a parameter with the size of a tensor map gets only the map."""
    if isinstance(tile, MapArgument) and parameter.size_bytes == TENSOR_MAP_BYTES:
        return tile.descriptor
    return tile.argument_on(device)


_FLOATS = {4: struct.Struct("<f"), 8: struct.Struct("<d")}


def _number(parameter: Parameter, arg: object) -> bytes | None:
    size = parameter.size_bytes
    if parameter.is_struct:
        return None
    if parameter.kind == "f":
        return _packed_float(size, arg) if size in _FLOATS else None
    least, most = _range_of(parameter)
    if isinstance(arg, int) and least <= arg <= most:
        return (arg % (1 << 8 * size)).to_bytes(size, "little")
    return None


def _packed_float(size: int, arg: Any) -> bytes | None:
    try:
        return _FLOATS[size].pack(arg)
    except (OverflowError, struct.error):  # too large for float32, or an int for float64
        return None


def _range_of(parameter: Parameter) -> tuple[int, int]:
    """Return the range of an integer parameter; of unknown sign, signed and unsigned combined."""
    bits = 8 * parameter.size_bytes
    if parameter.kind == "t":
        return 0, 1
    least = 0 if parameter.kind == "n" else -(1 << (bits - 1))
    return least, (1 << (bits - 1 if parameter.kind == "i" else bits)) - 1
