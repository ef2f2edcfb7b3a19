"""The form of a spec's arguments: types and lengths, before any rule looks at values."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, TypeGuard

from tmaasync._hardware import MAP_ARCHS, WIDE_PIXELS
from tmaasync.errors import Violation
from tmaasync.modes import DataType
from tmaasync.tensormap.fields import MODE_ARGUMENTS, MODES, Im2colFields, MapFields


def is_im2col(spec: MapFields) -> TypeGuard[Im2colFields]:
    """Tell an im2col map from a tiled one."""
    return spec.IS_IM2COL


def rank_of(spec: MapFields) -> int | None:
    """Return the number of dimensions, if the shape is a sequence."""
    shape: Any = spec.shape
    return len(shape) if isinstance(shape, tuple) else None


def malformed(spec: MapFields) -> Iterator[Violation]:
    """Yield every argument of the wrong type or length."""
    if not isinstance(spec.dtype, DataType):
        remedy = f"Pass one of DataType's members: {', '.join(member.name for member in DataType)}"
        yield Violation("dtype", repr(spec.dtype), "it must be a DataType", remedy)
    for argument, mode in MODE_ARGUMENTS.items():
        value = getattr(spec, argument)
        if not isinstance(value, mode):
            yield mode.violation(value, argument)
    yield from unknown_arch(spec.arch)
    wide: object = getattr(spec, "wide", "")
    if not isinstance(wide, str) or wide not in ("", *WIDE_PIXELS):
        yield Violation("wide", repr(wide), "no mode has this name", "Pass w or w128")
    scalars = ["address"]
    if is_im2col(spec):
        scalars += ["pixels_per_column", "channels_per_pixel"]
    for argument in scalars:
        yield from not_an_integer(argument, getattr(spec, argument))
    yield from _malformed_sequences(spec)


def unknown_arch(arch: object) -> Iterator[Violation]:
    """Yield a violation if no rules of tensor maps are known for an architecture."""
    if not isinstance(arch, str) or arch not in MAP_ARCHS:
        remedy = f"Pass one of {', '.join(MAP_ARCHS)}"
        yield Violation("arch", repr(arch), "tensor maps of it are not known", remedy)


def not_an_integer(argument: str, value: object) -> Iterator[Violation]:
    """Yield a violation if the value is anything but a plain integer."""
    if not is_integer(value):
        yield Violation(argument, repr(value), "it must be an integer", "Pass an int")


def _malformed_sequences(spec: MapFields) -> Iterator[Violation]:
    rank = rank_of(spec)
    for argument, missing in sequences(spec).items():
        values: Any = getattr(spec, argument)
        if not isinstance(values, tuple):
            rule, remedy = "it must be a sequence of integers", "Pass a tuple, outermost first"
            yield Violation(argument, repr(values), rule, remedy)
            continue
        for index, value in enumerate(values):
            yield from not_an_integer(f"{argument}[{index}]", value)
        if rank is not None and len(values) != max(rank - missing, 0):
            which = {0: "", 1: " but the innermost", 2: " but two: the spatial ones"}[missing]
            yield Violation(
                argument,
                values,
                f"shape has {rank} dimensions and {argument} needs a number for each{which}",
                f"Pass {max(rank - missing, 0)} numbers, outermost first",
            )


def sequences(spec: MapFields) -> dict[str, int]:
    """Return the sequences, and how many fewer numbers than dimensions each has."""
    own = {"lower_corner": 2, "upper_corner": 2} if is_im2col(spec) else {"box_shape": 0}
    return {"shape": 0, "strides_bytes": 1, **own, "element_strides": 0}


def is_integer(value: object) -> bool:
    """True for a plain int: neither a bool nor a mode."""
    return isinstance(value, int) and not isinstance(value, (bool, *MODES))
