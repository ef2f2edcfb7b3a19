"""What the chip does with TMA instructions at the edge of the rules.

Writes tests/data/hardware_<gpu>.jsonl, a probe per line: facts, not timings.

Every probe runs one instruction in a process that may die: an illegal instruction takes the CUDA
context with it, so a worker runs probes until one kills it, and the next worker goes on from there.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from result_files import Section, name_in_paths, write_section

from tmaasync import DataType, Interleave, Kernel, OOBFill, ReduceOp, Swizzle, TensorMapSpec
from tmaasync._elements import element
from tmaasync.tensormap import Im2colSpec

_SOURCE = Path(__file__).with_suffix(".cu")
_FACTS = Path(__file__).parents[1] / "tests" / "data"
_LOAD, _STORE, _REDUCE, _IM2COL, _BULK_LOAD, _BULK_STORE = range(6)
_IMAGE_BYTES = 32768
_POISON = 0xCC
_POSITION = np.dtype([("at", "<i4", (5,)), ("offsets", "<u2", (3,)), ("padding", "<u2")])


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


# --- running one probe --------------------------------------------------------------------------


def _spec(probe: Probe, address: int) -> TensorMapSpec | Im2colSpec:
    array = probe.array
    shape = (array.shape[0] + probe.rows_below, *array.shape[1:])
    common = {
        "address": address - probe.rows_below * array.strides[0],
        "dtype": probe.dtype,
        "shape": shape,
        "strides_bytes": array.strides[:-1],
        "swizzle": probe.swizzle,
        "oob_fill": probe.oob_fill,
        "interleave": Interleave.NONE,
        "element_strides": probe.element_strides or (1,) * array.ndim,
    }
    if probe.corners is None:
        return TensorMapSpec(box_shape=probe.box, **common)
    pixels, channels = probe.box
    lower, upper = probe.corners
    return Im2colSpec(
        lower_corner=lower,
        upper_corner=upper,
        channels_per_pixel=channels,
        pixels_per_column=pixels,
        **common,
    )


def kernel_for(probe: Probe) -> Kernel:
    return Kernel(
        _SOURCE,
        "probe",
        constants={
            "RANK": 3 if probe.operation in (_BULK_LOAD, _BULK_STORE) else probe.array.ndim,
            "OPERATION": probe.operation,
            "REDUCE": int(probe.reduce_op),
        },
    )


def run(probe: Probe) -> Any:
    import cupy  # noqa: PLC0415

    from tmaasync import _driver  # noqa: PLC0415

    # A window is probed inside the array it was cut from.
    whole = probe.array if probe.array.flags.c_contiguous else probe.array.base
    memory = cupy.zeros(whole.nbytes + 4096, np.uint8)
    body = memory[: whole.nbytes]
    body.set(np.ascontiguousarray(whole).view(np.uint8).reshape(-1))
    is_bulk = probe.operation in (_BULK_LOAD, _BULK_STORE)
    descriptor = bytes(128) if is_bulk else _driver.encode(_spec(probe, memory.data.ptr))
    image = cupy.full(_IMAGE_BYTES, _POISON, np.uint8)
    if probe.image is not None:
        raw = np.ascontiguousarray(probe.image).view(np.uint8).reshape(-1)
        start = probe.shared_offset
        image[start : start + raw.size].set(raw)
    position = np.zeros((), _POSITION)
    position["at"][: len(probe.at)] = probe.at
    position["offsets"][: len(probe.offsets)] = probe.offsets
    completed = cupy.zeros(1, np.uint32)
    kernel = kernel_for(probe)
    target = memory[probe.bulk_offset_bytes :]
    arguments = (
        descriptor,
        position,
        image,
        target,
        np.uint32(probe.expected_bytes),
        np.uint32(probe.shared_offset),
        completed,
    )
    kernel(1, 256, arguments)
    cupy.cuda.Device().synchronize()
    after = cupy.asnumpy(body).view(whole.dtype).reshape(whole.shape)
    read = probe.read or _completion
    return read(probe, cupy.asnumpy(image), after, bool(completed.get()[0]))


def _completion(_: Probe, image: Any, __: Any, completed: bool) -> Any:
    touched = int((image != _POISON).sum())
    return {"completed": completed, "shared_bytes_written": touched}


# --- probes -------------------------------------------------------------------------------------

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
            for operation, word in ((_LOAD, "load"), (_STORE, "store")):
                if operation == _STORE and x == -1:
                    continue
                yield Probe(
                    f"{word} {dtype.name} x={x}",
                    operation,
                    array,
                    dtype,
                    (4, side),
                    (x, 0),
                    expected_bytes=size,
                    image=None if operation == _LOAD else _values(4, side, dtype=array.dtype),
                )
    for operation, word in ((_LOAD, "load"), (_STORE, "store"), (_REDUCE, "reduce add")):
        for at in ((0, -1), (0, -8), (-4, 0), (-8, 0), (0, 63), (0, 64), (252, 0)):
            yield Probe(
                f"{word} FLOAT32 at x={at[0]} y={at[1]}",
                operation,
                f32,
                DataType.FLOAT32,
                (4, 8),
                at,
                expected_bytes=128,
                image=None if operation == _LOAD else np.ones((4, 8), np.float32),
                read=_completion if operation == _LOAD else _changed,
            )


def windows() -> Iterator[Probe]:
    """Loads through a map that starts below the allocation, and misaligned swizzled coordinates."""
    rows = _values(64, 32)
    for below in (16, 4096, 1_000_000):
        yield Probe(
            f"load of rows 60 to 67 of 64 through a map {below} rows below the array",
            _LOAD,
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
            _LOAD,
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
            _STORE,
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
                        _LOAD,
                        array,
                        DataType.FLOAT16,
                        (8, row_bytes // 2),
                        (0, 0),
                        swizzle=swizzle,
                        expected_bytes=expected,
                        read=_row_pitch,
                    )


def _row_pitch(probe: Probe, image: Any, _: Any, completed: bool) -> Any:
    units = np.flatnonzero((image.reshape(-1, 16) != _POISON).any(1)) * 16
    span = probe.swizzle.span_bytes
    rows = [int(((units >= row * span) & (units < (row + 1) * span)).sum()) for row in range(8)]
    return {"completed": completed, "units_in_each_span": rows}


def alignments() -> Iterator[Probe]:
    """Shared addresses, map-free copies, and the 16-byte rule in other modes."""
    f32 = _values(64, 256)
    for offset in (0, 16, 64, 128):
        yield Probe(
            f"load to shared + {offset}",
            _LOAD,
            f32,
            DataType.FLOAT32,
            (4, 8),
            (0, 0),
            expected_bytes=128,
            shared_offset=offset,
        )
    line = _values(4096, dtype=np.uint8)
    for size, start, shared in ((256, 0, 0), (256, 8, 0), (256, 0, 8), (250, 0, 0), (256, 16, 16)):
        for operation, word in ((_BULK_LOAD, "bulk load"), (_BULK_STORE, "bulk store")):
            yield Probe(
                f"{word} of {size} bytes, global + {start}, shared + {shared}",
                operation,
                line,
                DataType.UINT8,
                expected_bytes=size,
                bulk_offset_bytes=start,
                shared_offset=shared,
                image=None if operation == _BULK_LOAD else _values(256, dtype=np.uint8),
                read=_completion if operation == _BULK_LOAD else _changed,
            )
    pixels = _values(2, 8, 8, 64, dtype=np.float16)
    for channel in (0, 1, 4, 8, -8):
        yield Probe(
            f"im2col load FLOAT16 c={channel}",
            _IM2COL,
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
                    _LOAD,
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
                _REDUCE,
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
            _LOAD,
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
                _STORE,
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
            _LOAD,
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


# --- workers ------------------------------------------------------------------------------------


def work(indices: list[int]) -> None:
    """Run probes, a line of JSON each, until one kills the context."""
    every = probes()
    for index in indices:
        kernel_for(every[index]).compile()
        try:
            result = run(every[index])
        except Exception as error:  # whatever the driver calls it
            print(json.dumps([index, {"dies": _cause(error)}]), flush=True)
            return
        print(json.dumps([index, result]), flush=True)


def _cause(error: Exception) -> str:
    words = str(error).replace(":", " ").split()
    return next((word for word in words if word.isupper() or word.startswith("cuda")), str(error))


def supervise(indices: list[int], seconds: int) -> dict[int, Any]:
    """Have workers run these probes; after each death a new worker goes on from there."""
    results: dict[int, Any] = {}
    left = list(indices)
    while left:
        command = [sys.executable, __file__, "--only", ",".join(map(str, left))]
        try:
            output = subprocess.run(
                command, capture_output=True, text=True, timeout=seconds, check=False
            ).stdout
            if not output:
                raise SystemExit(f"a worker said nothing; see what it does: {' '.join(command)}")
        except subprocess.TimeoutExpired as expired:
            output = (expired.stdout or b"").decode()
        answers = dict(json.loads(line) for line in output.splitlines() if line.startswith("["))
        results |= answers or {left[0]: {"dies": "no answer"}}
        left = [index for index in left if index not in results]
    return results


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", help="be the worker for these probes")
    parser.add_argument("--workers", type=int, default=12)
    parser.add_argument("--seconds", type=int, default=60, help="for each worker")
    options = parser.parse_args()
    if options.only is not None:
        work([int(index) for index in options.only.split(",")])
        return
    names = [probe.name for probe in probes()]
    shards = [list(range(first, len(names), options.workers)) for first in range(options.workers)]
    results: dict[int, Any] = {}
    with ThreadPoolExecutor(options.workers) as pool:
        for found in pool.map(lambda shard: supervise(shard, options.seconds), shards):
            results |= found
    for index, name in enumerate(names):
        print(f"{name:64s} {results[index]}")
    rows = [{"probe": name, **results[index]} for index, name in enumerate(names)]

    from race import circumstances  # noqa: PLC0415 - needs CuPy, which a worker may take down

    measured = circumstances()
    path = _FACTS / f"hardware_{name_in_paths(measured['gpu'])}.jsonl"
    print(write_section(path, Section(measured, rows)))


if __name__ == "__main__":
    main()
