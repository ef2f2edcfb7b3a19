"""Random single TMA instructions: what they are, how they run, and a digest of what they did.

A case follows from its number alone, so that the chip's digests can be kept and compared with those
of any back end. The kernel is the one that probes the hardware.
"""

from __future__ import annotations

import functools
import hashlib
import random
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from tmaasync import DataType, Kernel, OOBFill, ReduceOp, Swizzle, TensorMapSpec
from tmaasync._elements import element

SOURCE = Path(__file__).parents[2] / "benchmarks" / "probe_hardware.cu"
IMAGE_BYTES = 32768
LOAD, STORE, REDUCE = range(3)

POISON = 0xCC
MAX_ARRAY_BYTES = 1 << 20
PLACE = np.dtype([("at", "<i4", (5,)), ("offsets", "<u2", (3,)), ("padding", "<u2")])
TYPES = tuple(dtype for dtype in DataType if not dtype.needs_sm_100)
_INTEGERS = (ReduceOp.ADD, ReduceOp.MIN, ReduceOp.MAX, ReduceOp.AND, ReduceOp.OR, ReduceOp.XOR)
_HALVES = (ReduceOp.ADD, ReduceOp.MIN, ReduceOp.MAX)
REDUCTIONS: dict[DataType, tuple[ReduceOp, ...]] = {
    DataType.UINT32: tuple(ReduceOp),
    DataType.INT32: _INTEGERS,
    DataType.UINT64: _INTEGERS,
    DataType.INT64: (ReduceOp.MIN, ReduceOp.MAX),
    DataType.FLOAT16: _HALVES,
    DataType.BFLOAT16: _HALVES,
    DataType.FLOAT32: (ReduceOp.ADD,),
    DataType.FLOAT64: (ReduceOp.ADD,),
}
"""What the H200 does (docs/hardware.md); everything else is an illegal instruction."""


@dataclass(frozen=True, slots=True)
class Case:
    """One instruction on one random array; axes outermost first, coordinates innermost first."""

    number: int
    operation: int
    reduce_op: ReduceOp
    spec: TensorMapSpec  # at address 0
    at: tuple[int, ...]
    array_bytes: int

    @property
    def box_bytes(self) -> int:
        return self.spec.box_bytes

    @property
    def shared_bytes(self) -> int:
        """What the box spans in shared memory: swizzled rows lie a whole span apart (measured)."""
        spec = self.spec
        if spec.swizzle is Swizzle.NONE:
            return spec.box_bytes
        inner_bytes = spec.box_shape[-1] * spec.dtype.itemsize
        return spec.box_bytes // inner_bytes * spec.swizzle.span_bytes

    def array(self) -> np.ndarray[Any, Any]:
        """The bytes of the array before the instruction."""
        return random_bytes(self.number, self.array_bytes, self.spec.dtype)

    def image(self) -> np.ndarray[Any, Any]:
        """Shared memory before the instruction."""
        image = np.full(IMAGE_BYTES, POISON, np.uint8)
        if self.operation != LOAD:
            size = self.shared_bytes
            image[:size] = random_bytes(~self.number, size, self.spec.dtype)
        return image


def case(number: int) -> Case:
    """The case of this number."""
    rng = random.Random(number)
    while True:
        operation = rng.choices((LOAD, STORE, REDUCE), (5, 3, 2))[0]
        dtype = rng.choice(tuple(REDUCTIONS) if operation == REDUCE else TYPES)
        reduce_op = rng.choice(REDUCTIONS[dtype]) if operation == REDUCE else ReduceOp.ADD
        spec = _spec(rng, dtype)
        size = array_bytes(spec.shape, spec.strides_bytes, dtype.itemsize)
        if spec.violations() or size > MAX_ARRAY_BYTES:
            continue
        at = _coordinates(rng, spec, operation)
        found = Case(number, operation, reduce_op, spec, at, size)
        if found.shared_bytes <= IMAGE_BYTES:
            return found


def _spec(rng: random.Random, dtype: DataType) -> TensorMapSpec:
    rank = rng.randint(1, 5)
    swizzle = Swizzle(rng.randrange(4))
    granule = max(1, 16 // dtype.itemsize)
    span = 256 * dtype.itemsize if swizzle is Swizzle.NONE else swizzle.span_bytes
    inner = granule * rng.randint(1, max(1, min(256, span // dtype.itemsize) // granule))
    strides = [rng.choice((1, 1, 1, 2, 3)) for _ in range(rank - 1)]
    sides = [rng.randint(1, 8) * stride for stride in strides]
    shape = [rng.randint(1, 12) for _ in range(rank - 1)] + [rng.randint(1, 3 * inner)]
    return TensorMapSpec(
        0,
        dtype,
        tuple(shape),
        padded_strides_bytes(rng, shape, dtype.itemsize),
        (*sides, inner),
        element_strides=(*strides, 1),
        swizzle=swizzle,
        oob_fill=OOBFill(rng.randrange(2)) if dtype.is_float else OOBFill.ZERO,
    )


def padded_strides_bytes(rng: random.Random, shape: list[int], itemsize: int) -> tuple[int, ...]:
    """Rows padded by up to three sectors, so that a store's last sector stays inside its row."""
    strides: list[int] = []
    size = shape[-1] * itemsize
    for extent in reversed(shape[:-1]):
        size = -(-size // 16) * 16 + 16 * rng.randint(0, 3)
        strides.append(size)
        size *= extent
    return tuple(reversed(strides))


def array_bytes(shape: tuple[int, ...], strides_bytes: tuple[int, ...], itemsize: int) -> int:
    """Bytes from the first element to the end of the last one's sector."""
    row = -(-shape[-1] * itemsize // 16) * 16
    pairs = zip(shape[:-1], strides_bytes, strict=True)
    return row + sum((extent - 1) * stride for extent, stride in pairs)


def _coordinates(rng: random.Random, spec: TensorMapSpec, operation: int) -> tuple[int, ...]:
    """Inside and across the edges; innermost a multiple of 16 bytes, of a store none negative."""
    granule = max(1, 16 // spec.dtype.itemsize)
    at = []
    for extent, side in zip(reversed(spec.shape), reversed(spec.box_shape), strict=True):
        lowest = -side if operation == LOAD else 0
        at.append(rng.randint(lowest, extent + 1))
    at[0] = at[0] // granule * granule
    if operation != LOAD:
        at[0] = max(at[0], 0)
    return tuple(at)


def random_bytes(seed: int, size: int, dtype: DataType) -> np.ndarray[Any, Any]:
    """Random values of the type: any integer, normally distributed floats."""
    rng = np.random.default_rng(seed & (1 << 63) - 1)
    if not dtype.is_float:
        return rng.integers(0, 256, size, np.uint8)
    count = -(-size // dtype.itemsize)
    values = rng.standard_normal(count).astype(element(dtype).dtype)
    return values.view(np.uint8)[:size].copy()


@functools.cache
def kernel(rank: int, operation: int, reduce_op: int) -> Kernel:
    """The kernel that issues one instruction of this kind."""
    constants = {"RANK": rank, "OPERATION": operation, "REDUCE": reduce_op}
    return Kernel(SOURCE, "probe", constants=constants)


def run(one: Case, arrays: Any, encode: Any) -> str:
    """Run a case on the back end of an array module (NumPy or CuPy); returns the digest.

    Args:
        one: The case.
        arrays: The array module.
        encode: From a spec to its 128 bytes.
    """
    memory = placed(arrays, one.array())
    image = arrays.asarray(one.image())
    completed = arrays.zeros(1, np.uint32)
    place = np.zeros((), PLACE)
    place["at"][: len(one.at)] = one.at
    spec = TensorMapSpec(address(memory), *_but_address(one.spec), **_modes(one.spec))
    kernel(one.spec.rank, one.operation, int(one.reduce_op))(
        1,
        64,
        (encode(spec), place, image, memory, np.uint32(one.box_bytes), np.uint32(0), completed),
    )
    return digest(host(image), host(memory), int(host(completed)[0]))


def placed(arrays: Any, values: np.ndarray[Any, Any]) -> Any:
    """The bytes at a multiple of 16, in memory of the array module."""
    target = arrays.asarray(values)
    padded = arrays.concatenate([target, arrays.zeros(128, np.uint8)])
    start = -address(padded) % 16
    memory = padded[start : start + values.size]
    memory[:] = target
    return memory


def _but_address(spec: TensorMapSpec) -> tuple[Any, ...]:
    return spec.dtype, spec.shape, spec.strides_bytes, spec.box_shape


def _modes(spec: TensorMapSpec) -> dict[str, Any]:
    names = ("element_strides", "swizzle", "oob_fill")
    return {name: getattr(spec, name) for name in names}


def address(array: Any) -> int:
    """Where an array of NumPy or CuPy lies."""
    return int(array.ctypes.data if isinstance(array, np.ndarray) else array.data.ptr)


def host(array: Any) -> np.ndarray[Any, Any]:
    """The array in host memory."""
    return array if isinstance(array, np.ndarray) else np.asarray(array.get())


DIGEST_CHARACTERS = 12


def digest(image: np.ndarray[Any, Any], memory: np.ndarray[Any, Any], completed: int) -> str:
    """The state after an instruction: shared memory, the array, and whether its phase ended."""
    state = hashlib.blake2b(digest_size=DIGEST_CHARACTERS // 2)
    for part in (image.tobytes(), memory.tobytes(), bytes([completed])):
        state.update(part)
    return state.hexdigest()
