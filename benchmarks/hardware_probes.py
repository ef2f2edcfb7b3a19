"""The TMA instructions at the edge of the rules that probe_hardware.py runs, one in each probe."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from tmaasync import DataType, OOBFill, ReduceOp, Swizzle
from tmaasync._elements import element

LOAD, STORE, REDUCE, IM2COL, BULK_LOAD, BULK_STORE = range(6)
POISON = 0xCC


@dataclass(frozen=True)
class Probe:
    """One instruction: its array, its map, its coordinates, and the measurement taken from it."""

    name: str
    operation: int
    array: np.ndarray[Any, Any]
    dtype: DataType
    box: tuple[int, ...] = ()
    at: tuple[int, ...] = ()  # innermost first
    element_strides: tuple[int, ...] | None = None
    swizzle: Swizzle = Swizzle.NONE
    oob_fill: OOBFill = OOBFill.ZERO
    expected_bytes: int = 0
    shared_offset: int = 0
    reduce_op: ReduceOp = ReduceOp.ADD
    image: np.ndarray[Any, Any] | None = None
    corners: tuple[tuple[int, ...], tuple[int, ...]] | None = None
    offsets: tuple[int, ...] = ()
    rows_below: int = 0  # how far below the allocation the map starts
    bulk_offset_bytes: int = 0
    read: Callable[[Probe, Any, Any, bool], Any] | None = None


def completion(_: Probe, image: Any, __: Any, completed: bool) -> Any:
    touched = int((image != POISON).sum())
    return {"completed": completed, "shared_bytes_written": touched}


_RANDOM = np.random.default_rng(0)


def _values(*shape: int, dtype: Any = np.float32) -> np.ndarray[Any, Any]:
    # No byte is the poison, so that bytes written can be counted.
    raw = _RANDOM.integers(1, 100, (*shape, np.dtype(dtype).itemsize), dtype=np.uint8)
    return raw.view(dtype)[..., 0]


def coordinates() -> Iterator[Probe]:
    """Which innermost coordinates a tiled load or store survives."""
    f32, f16, u8 = (_values(64, 256, dtype=kind) for kind in (np.float32, np.float16, np.uint8))
    kinds = [(f32, DataType.FLOAT32, 8), (f16, DataType.FLOAT16, 16), (u8, DataType.UINT8, 32)]
    for array, dtype, side in kinds:
        granule = 16 // array.itemsize
        for x in (0, 1, granule, -1, -granule, 256 - granule, 256):
            size = 4 * side * array.itemsize
            for operation, word in ((LOAD, "load"), (STORE, "store")):
                if operation == STORE and x == -1:
                    continue
                yield Probe(
                    f"{word} {dtype.name} x={x}",
                    operation,
                    array,
                    dtype,
                    (4, side),
                    (x, 0),
                    expected_bytes=size,
                    image=None if operation == LOAD else _values(4, side, dtype=array.dtype),
                )
    for operation, word in ((LOAD, "load"), (STORE, "store"), (REDUCE, "reduce add")):
        for at in ((0, -1), (0, -8), (-4, 0), (-8, 0), (0, 63), (0, 64), (252, 0)):
            yield Probe(
                f"{word} FLOAT32 at x={at[0]} y={at[1]}",
                operation,
                f32,
                DataType.FLOAT32,
                (4, 8),
                at,
                expected_bytes=128,
                image=None if operation == LOAD else np.ones((4, 8), np.float32),
                read=completion if operation == LOAD else _changed,
            )


def windows() -> Iterator[Probe]:
    """Loads through a map that starts below the allocation, and misaligned swizzled coordinates."""
    rows = _values(64, 32)
    for below in (16, 4096, 1_000_000):
        yield Probe(
            f"load of rows 60 to 67 of 64 through a map {below} rows below the array",
            LOAD,
            rows,
            DataType.FLOAT32,
            (8, 32),
            (0, below + 60),
            expected_bytes=1024,
            rows_below=below,
            read=_last_rows_then_zeros,
        )
    f16 = _values(64, 256, dtype=np.float16)
    for x in (0, 1, -3, 8):
        yield Probe(
            f"load FLOAT16 x={x} with Swizzle.B128",
            LOAD,
            f16,
            DataType.FLOAT16,
            (8, 64),
            (x, 0),
            expected_bytes=1024,
            swizzle=Swizzle.B128,
        )
    for at in ((-8, 0), (0, -8)):
        yield Probe(
            f"store FLOAT16 at x={at[0]} y={at[1]} with Swizzle.B128",
            STORE,
            f16,
            DataType.FLOAT16,
            (8, 64),
            at,
            swizzle=Swizzle.B128,
            image=_values(8, 64, dtype=np.float16),
        )


def _last_rows_then_zeros(probe: Probe, image: Any, _: Any, completed: bool) -> Any:
    got = image[:1024].view(np.float32).reshape(8, 32)
    right = bool((got[:4] == probe.array[60:]).all() and (got[4:] == 0).all())
    return {"completed": completed, "rows_then_zeros": right}


def _changed(probe: Probe, _: Any, after: Any, __: bool) -> Any:
    return {"elements_changed": int((after != probe.array).sum())}


def narrow_rows() -> Iterator[Probe]:
    """Where swizzled rows land that are narrower than the span."""
    array = _values(64, 64, dtype=np.float16)
    for swizzle in (Swizzle.B32, Swizzle.B64, Swizzle.B128):
        for row_bytes in (16, 32, 64, 128):
            for expected in sorted({8 * row_bytes, 8 * swizzle.span_bytes}):
                if row_bytes <= swizzle.span_bytes:
                    yield Probe(
                        f"rows of {row_bytes} bytes under {swizzle} expecting {expected}",
                        LOAD,
                        array,
                        DataType.FLOAT16,
                        (8, row_bytes // 2),
                        (0, 0),
                        swizzle=swizzle,
                        expected_bytes=expected,
                        read=_row_pitch,
                    )


def _row_pitch(probe: Probe, image: Any, _: Any, completed: bool) -> Any:
    units = np.flatnonzero((image.reshape(-1, 16) != POISON).any(1)) * 16
    span = probe.swizzle.span_bytes
    rows = [int(((units >= row * span) & (units < (row + 1) * span)).sum()) for row in range(8)]
    return {"completed": completed, "units_in_each_span": rows}


def alignments() -> Iterator[Probe]:
    """Shared addresses, map-free copies, and the 16-byte rule in other modes."""
    f32 = _values(64, 256)
    for offset in (0, 16, 64, 128):
        yield Probe(
            f"load to shared + {offset}",
            LOAD,
            f32,
            DataType.FLOAT32,
            (4, 8),
            (0, 0),
            expected_bytes=128,
            shared_offset=offset,
        )
    line = _values(4096, dtype=np.uint8)
    for size, start, shared in ((256, 0, 0), (256, 8, 0), (256, 0, 8), (250, 0, 0), (256, 16, 16)):
        for operation, word in ((BULK_LOAD, "bulk load"), (BULK_STORE, "bulk store")):
            yield Probe(
                f"{word} of {size} bytes, global + {start}, shared + {shared}",
                operation,
                line,
                DataType.UINT8,
                expected_bytes=size,
                bulk_offset_bytes=start,
                shared_offset=shared,
                image=None if operation == BULK_LOAD else _values(256, dtype=np.uint8),
                read=completion if operation == BULK_LOAD else _changed,
            )
    pixels = _values(2, 8, 8, 64, dtype=np.float16)
    for channel in (0, 1, 4, 8, -8):
        yield Probe(
            f"im2col load FLOAT16 c={channel}",
            IM2COL,
            pixels,
            DataType.FLOAT16,
            (8, 32),
            (channel, 0, 0, 0),
            expected_bytes=512,
            corners=((0, 0), (0, 0)),
        )


def element_strides() -> Iterator[Probe]:
    """What lands in shared memory, and which byte count ends the phase."""
    f32 = _values(64, 256)
    for strides in ((1, 2), (1, 4), (2, 1), (3, 1)):
        for box in ((4, 8), (8, 8), (6, 16)):
            rows = -(-box[0] // strides[0])
            whole = rows * box[1] * 4
            candidates = {whole, rows * -(-box[1] // strides[1]) * 4, box[0] * box[1] * 4}
            candidates.add(box[0] // strides[0] * (box[1] // strides[1]) * 4)
            for expected in sorted(candidates):
                yield Probe(
                    f"load box {box} with element strides {strides} expecting {expected}",
                    LOAD,
                    f32,
                    DataType.FLOAT32,
                    box,
                    (0, 0),
                    element_strides=strides,
                    expected_bytes=expected,
                )


_TYPES = tuple(dtype for dtype in DataType if not dtype.needs_sm_100)


def reductions() -> Iterator[Probe]:
    """Which operation exists for which type, and what it computes."""
    for dtype in _TYPES:
        kind = element(dtype).dtype
        array = np.arange(4 * 32).reshape(4, 32).astype(kind)
        image = (np.arange(2 * 16) * 3 % 7).reshape(2, 16).astype(kind)
        for op in ReduceOp:
            yield Probe(
                f"reduce {op.name} {dtype.name}",
                REDUCE,
                array,
                dtype,
                (2, 16),
                (0, 0),
                reduce_op=op,
                image=image,
                read=_reduced,
            )


def _reduced(probe: Probe, _: Any, after: Any, __: bool) -> Any:
    old, new = probe.array[:2, :16], probe.image
    op = probe.reduce_op
    logical = {
        ReduceOp.AND: np.bitwise_and,
        ReduceOp.OR: np.bitwise_or,
        ReduceOp.XOR: np.bitwise_xor,
    }
    if op in logical:
        if old.dtype.kind not in "iu":
            return {"result": "runs"}
        wanted = logical[op](old, new)
    elif op is ReduceOp.INC:
        wanted = np.where(old >= new, 0, old + np.ones_like(old))
    elif op is ReduceOp.DEC:
        wanted = np.where((old == 0) | (old > new), new, old - np.ones_like(old))
    else:
        function = {ReduceOp.ADD: np.add, ReduceOp.MIN: np.minimum, ReduceOp.MAX: np.maximum}[op]
        wanted = function(old, new)
    as_expected = bool((after[:2, :16] == wanted.astype(after.dtype)).all())
    return {"result": "as NumPy" if as_expected else f"{after[0, :6].astype(float).tolist()}"}


def fills() -> Iterator[Probe]:
    """The bits of NaN fill, by type."""
    for dtype in _TYPES:
        if not dtype.is_float:
            continue
        array = np.ones((4, 16), element(dtype).dtype)
        yield Probe(
            f"NaN fill {dtype.name}",
            LOAD,
            array,
            dtype,
            (4, 16),
            (16, 0),
            oob_fill=OOBFill.NAN,
            expected_bytes=array.nbytes,
            read=_fill_bits,
        )


def _fill_bits(probe: Probe, image: Any, _: Any, __: bool) -> Any:
    return {"bits": "0x" + image[: probe.array.itemsize][::-1].tobytes().hex()}


def sectors() -> Iterator[Probe]:
    """What a store writes beyond the inner extent."""
    for extent in (464, 466, 470, 480):
        whole = np.zeros((4, 512), np.uint8)
        for x in (448, 464):
            yield Probe(
                f"store of 32 columns at {x} into {extent} columns of uint8",
                STORE,
                whole[:, :extent],
                DataType.UINT8,
                (4, 32),
                (x, 0),
                image=np.full((4, 32), 7, np.uint8),
                read=_columns_written,
            )


def _columns_written(_: Probe, __: Any, after: Any, ___: bool) -> Any:
    columns = np.flatnonzero(after[0])
    return {"columns_written": [int(columns[0]), int(columns[-1])] if columns.size else []}


def conversions() -> Iterator[Probe]:
    """How a load through a tf32 or flush-to-zero map changes the bits."""
    patterns = np.array([0x3F801FFF, 0x3F801000, 0x3F800FFF, 0x00000001, 0x7F800001], np.uint32)
    array = np.resize(patterns, (4, 16)).view(np.float32)
    for dtype in (DataType.FLOAT32, DataType.FLOAT32_FTZ, DataType.TFLOAT32, DataType.TFLOAT32_FTZ):
        yield Probe(
            f"bits loaded through {dtype.name}",
            LOAD,
            array,
            dtype,
            (4, 16),
            (0, 0),
            expected_bytes=256,
            read=_loaded_words,
        )


def _loaded_words(_: Probe, image: Any, __: Any, ___: bool) -> Any:
    return {"words": [f"0x{word:08x}" for word in image[:20].view(np.uint32)]}


GROUPS = (
    coordinates,
    windows,
    narrow_rows,
    alignments,
    element_strides,
    reductions,
    fills,
    sectors,
    conversions,
)


def probes() -> list[Probe]:
    return [probe for group in GROUPS for probe in group()]
