"""Swizzled shared-memory offsets of a tile, and the bank conflicts of warp accesses.

Pure arithmetic on integers and NumPy arrays; ``swizzle.cuh`` holds the device version. Offsets
count bytes from the start of the tile, which is aligned to ``Swizzle.alignment``.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from tmaasync._hardware import MAX_SHARED_BYTES, SHARED_LINE_BYTES, SWIZZLE_CHUNK_BYTES
from tmaasync._kinds import (
    check_integers,
    is_integer,
    is_sequence,
    not_integers,
    not_sequences_of_integers,
    shown,
)
from tmaasync.errors import ArgumentError, Violation
from tmaasync.modes import Swizzle, SwizzleName

__all__ = [
    "bank_conflicts",
    "bank_words",
    "linear_offset",
    "render",
    "shared_offset",
    "tile_offset",
]

_Offset = TypeVar("_Offset", int, npt.NDArray[np.int64])

_BANKS = 32
_BANK_BYTES = 4
_ROW_SHIFT = 7  # address bits 7-9 select the XOR pattern of a 128-byte line
_UNIT_SHIFT = 4  # the pattern is applied to bits 4-6, the index of the 16-byte unit

# The lowest of the address bits that change, and their number, in modes with larger atoms.
_ATOMS = {
    Swizzle.B128_ATOM_32B: (5, 2),
    Swizzle.B128_ATOM_32B_FLIP_8B: (5, 2),
    Swizzle.B128_ATOM_64B: (6, 1),
}


def shared_offset(offset_bytes: _Offset, swizzle: Swizzle | SwizzleName) -> _Offset:
    """Return the swizzled offset of the byte at the linear offset ``offset_bytes``.

    The index of the 16-byte unit (address bits 4 to 6) is XORed with address bits 7 to 9: ``B32``
    uses one of these bits, ``B64`` two and ``B128`` all three. The modes of sm_100a XOR the index
    of a larger atom: bits 5 and 6 with 7 and 8, or bit 6 with 7; ``B128_ATOM_32B_FLIP_8B`` also bit
    3 with 7.

    Args:
        offset_bytes: One offset or an array of offsets, 0 or more.
        swizzle: The mode of the tensor map or its short name.

    Raises:
        ArgumentError: No mode has this name.

    Sources: measured on an H200 by ``tmaasync swizzle --probe``; PTX ISA, "Swizzling modes", for
    the modes of sm_100a.

    >>> shared_offset(128 + 16, "128B"), shared_offset(128 + 16, "64B")
    (128, 128)
    >>> shared_offset(np.array([0, 128, 256]), Swizzle.B128).tolist()
    [0, 144, 288]
    """
    _check_offsets(offset_bytes=offset_bytes)
    mode = Swizzle.of(swizzle, "swizzle")
    shift, bits = _ATOMS.get(mode, (_UNIT_SHIFT, mode.value))
    line = offset_bytes >> _ROW_SHIFT
    moved = offset_bytes ^ ((line & (1 << bits) - 1) << shift)
    return moved ^ ((line & 1) << 3) if mode is Swizzle.B128_ATOM_32B_FLIP_8B else moved


def linear_offset(shared_offset_bytes: _Offset, swizzle: Swizzle | SwizzleName) -> _Offset:
    """Return the linear offset of a swizzled one: `shared_offset` is its own inverse."""
    _check_offsets(shared_offset_bytes=shared_offset_bytes)
    return shared_offset(shared_offset_bytes, swizzle)


def tile_offset(
    index: Sequence[_Offset],
    tile_shape: Sequence[int],
    box_shape: Sequence[int],
    itemsize: int,
    swizzle: Swizzle | SwizzleName = Swizzle.NONE,
) -> _Offset:
    """Return an element's offset in shared memory, in bytes from the start of the tile.

    The boxes of a tile lie back to back. In the grid of boxes the last side varies slowest, the
    others are row-major. Each box is dense, and the swizzle applies to the whole tile. If only the
    last side is split, the layout is ``[chunks][other sides][chunk]``.

    Args:
        index: The element's index, one number or array per side, outermost first.
        tile_shape: Elements per side of the tile, outermost first.
        box_shape: Elements per side of the box that lands in shared memory, outermost first.
        itemsize: Bytes of one element.
        swizzle: The mode of the tensor map or its short name.

    Raises:
        ArgumentError: The numbers of sides differ, or one is below 1.

    >>> tile_offset((1, 64), (128, 128), (128, 64), 2, Swizzle.B128)  # second chunk, row 1
    16528
    """
    _check_sides(index, tile_shape, box_shape, itemsize)
    grid = [-(-side // box) for side, box in zip(tile_shape, box_shape, strict=True)]
    box_number = index[-1] // box_shape[-1]
    for place, count, side in zip(index[:-1], grid, box_shape, strict=False):
        box_number = box_number * count + place // side
    within = index[0] % box_shape[0]
    for place, side in zip(index[1:], box_shape[1:], strict=True):
        within = within * side + place % side
    return shared_offset((box_number * math.prod(box_shape) + within) * itemsize, swizzle)


def _is_array_of_integers(value: object) -> bool:
    dtype = getattr(value, "dtype", None)
    return getattr(dtype, "kind", None) in ("i", "u")


def _check_offsets(**offsets: object) -> None:
    ArgumentError.raise_for(
        Violation(name, shown(value), "offsets are integers", "Pass an int or an array of integers")
        for name, value in offsets.items()
        if not is_integer(value) and not _is_array_of_integers(value)
    )


def _check_sides(
    index: Sequence[object], tile_shape: Sequence[int], box_shape: Sequence[int], itemsize: int
) -> None:
    shapes = not_sequences_of_integers(tile_shape=tile_shape, box_shape=box_shape)
    ArgumentError.raise_for([*shapes, *not_integers(itemsize=itemsize)])
    if not is_sequence(index):
        rule, remedy = "it must be a number or an array for each side", "Pass a tuple"
        raise ArgumentError.broken("index", shown(index), rule, remedy)
    _check_offsets(**{f"index[{dim}]": place for dim, place in enumerate(index)})
    ArgumentError.raise_for(_side_violations(len(index), tile_shape, box_shape, itemsize))


def _side_violations(
    rank: int, tile_shape: Sequence[int], box_shape: Sequence[int], itemsize: int
) -> Iterator[Violation]:
    ranks = (rank, len(tile_shape), len(box_shape))
    if len({*ranks}) > 1 or not rank:
        yield Violation(
            "index, tile_shape and box_shape",
            ", ".join(map(str, ranks)) + " numbers long",
            "each has one number per side of the tile",
            "Pass one per side, outermost first",
        )
    sides = {"tile_shape": tile_shape, "box_shape": box_shape, "itemsize": (itemsize,)}
    for name, values in sides.items():
        if any(value < 1 for value in values):
            shown_value = values[0] if name == "itemsize" else tuple(values)
            yield Violation(name, shown_value, "it cannot be below 1", "Pass 1 or more")


def bank_conflicts(addresses_bytes: npt.ArrayLike, access_bytes: int) -> int:
    """Return the number of extra passes of one warp access due to bank conflicts; 0 if none.

    Shared memory has 32 banks of 4 bytes. A warp access is served in phases: all 32 lanes at up
    to 4 bytes each, half the warp at 8, and eight lanes at 16. Within a phase, lanes conflict if
    they access different words of one bank; lanes that access the same word do not.

    Args:
        addresses_bytes: The shared-memory address of each lane, for 1 to 32 lanes.
        access_bytes: Bytes per lane: 1, 2, 4, 8 or 16; each address is a multiple of it.

    Raises:
        ArgumentError: Another width, a misaligned address, or more than 32 lanes.

    >>> rows = np.arange(8) * 128  # eight rows of a tile, the same column
    >>> bank_conflicts(rows, 16), bank_conflicts(shared_offset(rows, Swizzle.B128), 16)
    (7, 0)
    """
    return int((bank_words(addresses_bytes, access_bytes).max(axis=1) - 1).sum())


def bank_words(addresses_bytes: npt.ArrayLike, access_bytes: int) -> npt.NDArray[np.int64]:
    """Count the distinct words that one warp access reads from each bank, phase by phase.

    The passes of a phase equal the word count of its busiest bank. `bank_conflicts` says which
    lanes form a phase.

    Args:
        addresses_bytes: As in `bank_conflicts`.
        access_bytes: As in `bank_conflicts`.

    Returns:
        Word counts, of shape (phases, 32).

    Raises:
        ArgumentError: As `bank_conflicts`.

    >>> bank_words(np.arange(8) * 128, 16)[0, :8]
    array([8, 8, 8, 8, 0, 0, 0, 0])
    """
    addresses = _addresses(addresses_bytes)
    check_integers(access_bytes=access_bytes)
    if access_bytes not in (1, 2, 4, 8, 16):
        raise ArgumentError.broken(
            "access_bytes", access_bytes, "a lane moves 1, 2, 4, 8 or 16 bytes", "Pass one of them"
        )
    if not 1 <= addresses.size <= _BANKS or np.any(addresses % access_bytes):
        raise ArgumentError.broken(
            "addresses_bytes",
            f"{addresses.size} lanes",
            f"a warp has 1 to 32, and each address must be a multiple of {access_bytes}",
            "Pass the addresses of one warp",
            verb="has",
        )
    lanes = _BANKS * _BANK_BYTES // max(access_bytes, _BANK_BYTES)
    phases = (addresses[start : start + lanes] for start in range(0, addresses.size, lanes))
    return np.stack([_words_of_a_phase(phase, access_bytes) for phase in phases])


def _addresses(given: npt.ArrayLike) -> npt.NDArray[np.int64]:
    try:
        addresses = np.asarray(given)
    except ValueError:  # lists of different lengths
        addresses = np.asarray(given, dtype=object)
    if addresses.dtype.kind not in "iu" and addresses.size:
        rule, remedy = "addresses are integers", "Pass the address of each lane in bytes"
        raise ArgumentError.broken("addresses_bytes", shown(given), rule, remedy)
    return addresses.astype(np.int64).ravel()


def _words_of_a_phase(addresses: npt.NDArray[np.int64], access_bytes: int) -> npt.NDArray[np.int64]:
    words_each = max(access_bytes // _BANK_BYTES, 1)
    words = np.unique(addresses[:, None] // _BANK_BYTES + np.arange(words_each))
    return np.bincount(words % _BANKS, minlength=_BANKS)


def render(
    tile_shape: Sequence[int],
    box_shape: Sequence[int],
    itemsize: int,
    swizzle: Swizzle | SwizzleName = Swizzle.NONE,
    *,
    lines: int = 16,
) -> str:
    """Return a drawing of shared memory for the terminal: the tile's 16-byte chunks, line by line.

    A line is 128 bytes, a cell 16 bytes. A cell shows the row of the tile (all sides but the last,
    flattened) and the index of the 16-byte chunk within that row.

    Args:
        tile_shape: As in `tile_offset`.
        box_shape: As in `tile_offset`; its last side is a multiple of 16 bytes.
        itemsize: As in `tile_offset`.
        swizzle: As in `tile_offset`.
        lines: Maximum number of lines.

    Raises:
        ArgumentError: As `tile_offset`, or the box's last side is no multiple of 16 bytes.

    >>> print(render((4, 64), (4, 64), 2, Swizzle.B128))
    Swizzle.B128, 128 bytes a line, row.chunk
         0 | 0.0 0.1 0.2 0.3 0.4 0.5 0.6 0.7
       128 | 1.1 1.0 1.3 1.2 1.5 1.4 1.7 1.6
       256 | 2.2 2.3 2.0 2.1 2.6 2.7 2.4 2.5
       384 | 3.3 3.2 3.1 3.0 3.7 3.6 3.5 3.4
    """
    _check_sides(tile_shape, tile_shape, box_shape, itemsize)
    tile_bytes = math.prod(tile_shape) * itemsize
    if tile_bytes > MAX_SHARED_BYTES:
        raise ArgumentError.broken(
            "tile_shape",
            f"{tuple(tile_shape)}, {tile_bytes} bytes",
            f"a block has {MAX_SHARED_BYTES} bytes of shared memory",
            "Pass a smaller tile",
        )
    check_integers(lines=lines)
    if lines < 1:
        raise ArgumentError.broken("lines", lines, "a drawing has at least one", "Pass 1 or more")
    if box_shape[-1] * itemsize % SWIZZLE_CHUNK_BYTES:
        rule = f"it takes {box_shape[-1] * itemsize} bytes, which must be a multiple of 16"
        remedy = "Pass whole units of 16 bytes"
        raise ArgumentError.broken("box_shape[-1]", box_shape[-1], rule, remedy)
    shown = lines * SHARED_LINE_BYTES // SWIZZLE_CHUNK_BYTES
    cells: dict[int, str] = {}
    for offset, name in _chunks(tile_shape, box_shape, itemsize, swizzle):
        if offset // SWIZZLE_CHUNK_BYTES < shown:
            cells[offset // SWIZZLE_CHUNK_BYTES] = name
    width = max(map(len, cells.values()))
    drawn = [f"{swizzle}, {SHARED_LINE_BYTES} bytes a line, row.chunk"]
    units = SHARED_LINE_BYTES // SWIZZLE_CHUNK_BYTES
    for start in range(0, max(cells) + 1, units):
        row = " ".join(cells.get(unit, "-").rjust(width) for unit in range(start, start + units))
        drawn.append(f"{start * SWIZZLE_CHUNK_BYTES:>6} | {row}")
    whole = math.prod(tile_shape) * itemsize
    if whole > lines * SHARED_LINE_BYTES:
        drawn.append(f"   ... {whole - lines * SHARED_LINE_BYTES} bytes more")
    return "\n".join(drawn)


def _chunks(
    tile_shape: Sequence[int],
    box_shape: Sequence[int],
    itemsize: int,
    swizzle: Swizzle | SwizzleName,
) -> Iterator[tuple[int, str]]:
    """Yield the offset and the name of each 16-byte chunk of a tile."""
    step = max(SWIZZLE_CHUNK_BYTES // itemsize, 1)
    rows = itertools.product(*map(range, tile_shape[:-1]))
    for number, row in enumerate(rows):
        for chunk, column in enumerate(range(0, tile_shape[-1], step)):
            place = tile_offset((*row, column), tile_shape, box_shape, itemsize, swizzle)
            yield place, f"{number}.{chunk}"
