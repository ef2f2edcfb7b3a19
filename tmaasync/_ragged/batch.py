"""A batch of sequences: lengths or their cumulative lengths, checked and in host memory."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from tmaasync import _arrays
from tmaasync._hardware import INT32_LIMIT
from tmaasync._kinds import shown
from tmaasync.errors import ArgumentError, Violation

MAX_ROWS = INT32_LIMIT - 1
"""TMA's coordinates are signed numbers of 32 bits."""

_Integers = npt.NDArray[np.int64]


class BatchNames(NamedTuple):
    """Names of the caller's arguments, for error messages."""

    lengths: str = "lengths"
    cu_seqlens: str = "cu_seqlens"
    max_length: str = "max_length"
    packed: str = "the packed array"

    def with_room(self, rows: int) -> str:
        """Return what the caller passes for sequences of this many rows."""
        if self.max_length.isidentifier():
            return f"{self.max_length}={rows}"
        array, _, _ = self.max_length.partition(".")
        return f"{array} with {rows} rows for each sequence"


_USUAL_NAMES = BatchNames()


def cumulative_lengths(
    lengths: object = None,
    cu_seqlens: object = None,
    *,
    max_length: int,
    total_rows: int | None = None,
) -> npt.NDArray[np.int32]:
    """Return the cumulative lengths of a batch: 0, then the end of each sequence.

    An array on a device is read, which waits for the device.

    Args:
        lengths: Rows of each sequence.
        cu_seqlens: Instead of the lengths, their cumulative lengths.
        max_length: Rows of the longest sequence allowed.
        total_rows: Rows of the packed array, if there is one already.

    Raises:
        ArgumentError: Both or neither are given, or they describe no batch; every broken rule.
    """
    return checked_cu_seqlens(lengths, cu_seqlens, max_length=max_length, total_rows=total_rows)


def checked_cu_seqlens(
    lengths: object,
    cu_seqlens: object,
    *,
    max_length: int,
    total_rows: int | None,
    names: BatchNames = _USUAL_NAMES,
) -> npt.NDArray[np.int32]:
    """Return `cumulative_lengths`, with errors in the caller's names."""
    kind, values = one_of(lengths, cu_seqlens)
    numbers = _host_integers(values, getattr(names, kind))
    if kind == "lengths":
        sums = np.concatenate([[0], np.cumsum(numbers)])
        found = [*_length_violations(numbers, max_length, names)]
        total = f"the sum of {names.lengths}"
    else:
        sums = numbers
        found = [*_sum_violations(numbers, max_length, names)]
        total = f"{names.cu_seqlens}[{sums.size - 1}]"
    ArgumentError.raise_for([*found, *_total_violations(total, sums, total_rows, names)])
    return sums.astype(np.int32)


def one_of(lengths: object, cu_seqlens: object) -> tuple[str, Any]:
    """Return the name and the value of the one that was given.

    Raises:
        ArgumentError: Both or neither.
    """
    if (lengths is None) == (cu_seqlens is None):
        given = "neither" if lengths is None else "both"
        raise ArgumentError.broken(
            "lengths and cu_seqlens",
            f"{given} given",
            "a batch is described by one of them",
            "Pass the lengths, or their cumulative lengths as cu_seqlens",
            verb="are",
        )
    return ("cu_seqlens", cu_seqlens) if lengths is None else ("lengths", lengths)


# --- reading ----------------------------------------------------------------------------------


def _host_integers(values: Any, argument: str) -> _Integers:
    """Return the numbers in host memory.

    Raises:
        ArgumentError: Not one-dimensional, or no integers.
        ArrayTypeError: No array and no sequence.
    """
    array = on_host(values, argument)
    check_flat_integers(array.shape, array.dtype, argument)
    if array.dtype.kind == "u":  # larger numbers than int64 has stay too large
        array = np.minimum(array.astype(np.uint64), np.uint64(np.iinfo(np.int64).max))
    return array.astype(np.int64)


def check_flat_integers(shape: tuple[int, ...], dtype: np.dtype[Any], argument: str) -> None:
    """Refuse arrays that are not one-dimensional, or hold no integers."""
    found = []
    if len(shape) != 1:
        rule = "it holds one number per sequence, in one dimension"
        found.append(Violation(f"{argument}.shape", shape, rule, "Pass a flat array"))
    if dtype.kind not in "iu":
        rule = "rows are counted in integers"
        found.append(Violation(f"{argument}.dtype", dtype, rule, "Convert it to int32"))
    ArgumentError.raise_for(found)


def is_listed(values: object) -> bool:
    """True for a list or a tuple of numbers; a view of an array is a tuple too."""
    return isinstance(values, list | tuple) and not isinstance(values, _arrays.ArrayView)


def on_host(values: Any, argument: str) -> np.ndarray[Any, Any]:
    """Lengths or sums as a NumPy array, which waits for a device; not checked."""
    if isinstance(values, np.ndarray):
        return values
    if is_listed(values):
        return _flat_list(values, argument)
    view = _arrays.view(values, argument=argument)
    if view.framework == "cupy":
        return np.asarray(values.get())
    if view.framework == "torch":
        numbers = values.cpu()
        if view.element.dtype.isbuiltin == 1:
            return np.asarray(numbers.numpy())
        return np.asarray(numbers.float().numpy().astype(view.element.dtype))  # bfloat16, say
    if view.framework == "jax" or view.is_on_host:
        is_plain = view.framework != "other"
        return np.asarray(values) if is_plain else _arrays.host_array(view).copy()
    rule = "only CuPy, torch and JAX can copy an array to the host"
    raise ArgumentError.broken(argument, "an array on a device", rule, "Pass a NumPy array")


def _flat_list(values: list[Any] | tuple[Any, ...], argument: str) -> np.ndarray[Any, Any]:
    try:
        return np.asarray(values, dtype=None if values else np.int64)
    except ValueError:  # nested lists of unequal lengths
        rule, remedy = "it holds one number per sequence, in one dimension", "Pass a flat list"
        raise ArgumentError.broken(argument, shown(values), rule, remedy) from None


# --- rules ------------------------------------------------------------------------------------


def _first(where: np.ndarray[Any, Any]) -> tuple[int, str] | None:
    """Return the first index where a rule is broken, and how many more there are."""
    (indices,) = np.nonzero(where)
    if indices.size == 0:
        return None
    more = f" ({indices.size - 1} more like it)" if indices.size > 1 else ""
    return int(indices[0]), more


def _length_violations(
    lengths: _Integers, max_length: int, names: BatchNames
) -> Iterator[Violation]:
    if negative := _first(lengths < 0):
        index, more = negative
        rule = f"a sequence has 0 rows or more{more}"
        yield Violation(f"{names.lengths}[{index}]", lengths[index], rule, "Pass what it has")
    if longer := _first(lengths > max_length):
        index, more = longer
        limit = f"{names.max_length}, {max_length} rows{more}"
        name = f"{names.lengths}[{index}]"
        yield _too_long(name, lengths[index], limit, names.with_room(lengths.max()))


def _sum_violations(sums: _Integers, max_length: int, names: BatchNames) -> Iterator[Violation]:
    name = names.cu_seqlens
    if sums.size == 0 or sums[0] != 0:
        value = sums[0] if sums.size else "missing"
        rule = "the first sequence starts at row 0, and so do cumulative lengths"
        yield Violation(f"{name}[0]", value, rule, "Put a 0 before the cumulative lengths")
    lengths = np.diff(sums)
    if falling := _first(lengths < 0):
        index, more = falling
        rule = f"cumulative lengths never decrease, and {name}[{index}] is {sums[index]}{more}"
        remedy = "Pass a 0, then numpy.cumsum of the lengths"
        yield Violation(f"{name}[{index + 1}]", sums[index + 1], rule, remedy)
    if longer := _first(lengths > max_length):
        index, more = longer
        limit = f"{names.max_length}, {max_length} rows{more}"
        difference = f"{name}[{index + 1}] - {name}[{index}]"
        yield _too_long(difference, lengths[index], limit, names.with_room(lengths.max()))


def _too_long(name: str, value: int, limit: str, enough: str) -> Violation:
    rule = f"no sequence may have more than {limit}"
    return Violation(name, value, rule, f"Use {enough}, or cut the sequence")


def _total_violations(
    name: str, sums: _Integers, total_rows: int | None, names: BatchNames
) -> Iterator[Violation]:
    total = int(sums[-1]) if sums.size else 0
    if total_rows is not None and total > total_rows:
        rule = f"{names.packed} has {total_rows} rows"
        yield Violation(name, total, rule, f"Pass a packed array of {total} rows")
    elif total > MAX_ROWS:
        rule = "TMA's coordinates are signed numbers of 32 bits"
        yield Violation(name, total, rule, "Split the batch into several packed arrays")
