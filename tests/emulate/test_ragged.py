"""The ragged map on the emulator's engine: random batches, no access outside a sequence."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import pytest
from emulate import tma_oracle as oracle
from emulate.engine_library import (
    Bytes,
    Engine,
    FaultError,
    Observer,
    aligned,
    descriptor_of,
    device_order,
    random_bytes,
)
from parity.ragged_cases import POISON, Form

from tmaasync import DataType, RaggedTensorMap, Swizzle, TensorMapSpec, create_ragged_tensor_map

BATCHES = 1_200

# Tiles of whole rows and one box.
FORMS = (
    Form("float32", (32,), 8, (32,), 21, Swizzle.B128),
    Form("float16", (3, 32), 5, (3, 32), 12, Swizzle.B64),
    Form("uint8", (48,), 7, (48,), 17),
    Form("float64", (2, 2, 4), 4, (2, 2, 4), 13, Swizzle.B32),
    Form("float16", (2, 1, 40), 3, (2, 1, 40), 4),
    Form("float32", (1, 4), 16, (1, 4), 9),
)


@functools.cache
def places_in_shared(form: Form) -> Any:
    """Return the position of each byte of a tile in shared memory."""
    spec = form.map(np.zeros(form.shape(1), form.dtype)).spec
    return np.array([oracle.in_shared(spec, byte, 0) for byte in range(spec.box_bytes)])


class Batch:
    """A batch between rows that belong to no sequence, and the memory around it."""

    def __init__(self, form: Form, seed: int) -> None:
        rng = np.random.default_rng(seed)
        self.form = form
        lengths = rng.integers(0, form.max_length + 1, rng.integers(1, 6))
        special = (0, 1, min(form.tile_rows, form.max_length), form.max_length)
        self.lengths = np.where(rng.random(lengths.size) < 0.3, rng.choice(special), lengths)
        self.sums = np.concatenate([[0], np.cumsum(self.lengths)])
        self.rows = int(self.sums[-1]) + 2
        self.row_bytes = int(np.prod(form.others)) * form.itemsize
        self.memory = aligned(self.rows * self.row_bytes, 16)
        self.memory[:] = np.frombuffer(rng.bytes(self.memory.size), np.uint8)
        shape = form.shape(self.rows)
        self.map = form.map(self.memory.view(form.dtype).reshape(shape))
        self.work = self.map.work_list(self.lengths)
        self.descriptor = aligned(128)
        self.descriptor[:] = np.frombuffer(self.map.descriptor[:128], np.uint8)

    def own(self, tile: int) -> tuple[int, int]:
        """Return start and end of the tile's bytes, up to the end of its sequence."""
        sequence, row = self.work.sequences[tile], self.work.rows[tile]
        end = min(row + self.form.tile_rows, self.lengths[sequence])
        first = self.sums[sequence]
        return (first + row) * self.row_bytes, (first + end) * self.row_bytes


def watch(observer: Observer, start: int, end: int) -> None:
    """Fault at any access to global memory outside these addresses."""
    observer.array_start, observer.array_bytes, observer.accesses = start, end - start, 0


@pytest.mark.sampled(2)
@pytest.mark.parametrize("form", FORMS, ids=str)
def test_random_batches_are_right_inside_and_never_reach_outside(
    engine: Engine, form: Form
) -> None:
    shared = aligned(-(-(int(places_in_shared(form).max()) + 1) // 1024) * 1024)
    places, observer = places_in_shared(form), Observer.of(0, 0)

    for seed in range(BATCHES // len(FORMS) + 1):
        batch = Batch(form, seed)
        base, before = batch.memory.ctypes.data, batch.memory.copy()
        coordinates = batch.work.coordinates
        loaded = []
        for tile, at in enumerate(coordinates):
            start, end = batch.own(tile)
            watch(observer, base + start, base + end)
            shared[:] = POISON
            engine.call("tiled_load", batch.descriptor, at, shared, 0, observer)
            loaded.append(shared[places])
            assert loaded[-1][: end - start].tobytes() == before[start:end].tobytes()
            assert not loaded[-1][end - start :].any()
        batch.memory[:] = POISON
        for tile, at in enumerate(coordinates):
            start, end = batch.own(tile)
            watch(observer, base + start, base + end)
            shared[:] = 0xFF  # what lies beyond the end must not get out
            shared[places[: end - start]] = loaded[tile][: end - start]
            engine.call("tiled_store", batch.descriptor, at, shared, 0, observer)
        filled = batch.sums[-1] * batch.row_bytes
        assert np.array_equal(batch.memory[:filled], before[:filled]), seed
        assert (batch.memory[filled:] == POISON).all()


def attempt(engine: Engine, map_: RaggedTensorMap, at: Any, memory: Bytes, name: str) -> Bytes:
    shared = random_bytes(4096, 7)
    observer = Observer.of(memory.ctypes.data, memory.size)
    descriptor = aligned(128)
    descriptor[:] = np.frombuffer(map_.descriptor[:128], np.uint8)
    engine.call(name, descriptor, device_order(at), shared, 0, observer)
    return shared


TOUCHES_THE_ADDRESS = "no element in bounds, so the chip touches the map's address"


def test_a_sequence_of_no_rows_stores_nothing_and_is_not_loaded(engine: Engine) -> None:
    """Kernels load these tiles through the other map: `OutlyingTile` in ragged.cuh."""
    memory = random_bytes(16 * 64, 1)
    before = memory.copy()
    map_ = create_ragged_tensor_map(memory.reshape(16, 64), (4, 64), max_length=8)

    for start in (0, 5, 16):
        at = map_.store_coordinates(start, 0, (0, 0))
        attempt(engine, map_, at, memory, "tiled_store")
        with pytest.raises(FaultError, match=TOUCHES_THE_ADDRESS):
            attempt(engine, map_, at, memory, "tiled_load")

    assert np.array_equal(memory, before)


def test_a_sequence_longer_than_the_window_faults_in_a_store(engine: Engine) -> None:
    memory = random_bytes(16 * 64, 1)
    map_ = create_ragged_tensor_map(memory.reshape(16, 64), (4, 64), max_length=8)

    with pytest.raises(FaultError, match="coordinate 1 below 0"):
        attempt(engine, map_, (9, -1, 0), memory, "tiled_store")


# --- the other scheme ---------------------------------------------------------------------------


def wrapping(address: int, size_bytes: int, row_bytes: int, tile_rows: int) -> TensorMapSpec:
    """The same clipping with the array's own address: a further dimension takes the window back.

    Its stride is 2**34 less one row, so that 2**30 of them are 2**64, nothing at all, less 2**30
    rows. It costs a dimension of the five.
    """
    rows = size_bytes // row_bytes
    return TensorMapSpec(
        address,
        DataType.UINT8,
        (2**30 + 1, rows + 1, 2**30, row_bytes),
        (2**34 - row_bytes, row_bytes, row_bytes),
        (1, 1, tile_rows, row_bytes),
    )


def test_addresses_that_wrap_around_clip_alike_on_64_bits(engine: Engine) -> None:
    memory = random_bytes(40 * 64, 3)
    spec = wrapping(memory.ctypes.data, memory.size, 64, 8)
    spec.check()
    start, length = 11, 13

    for row in (0, 8):
        at = (2**30, start + length, 2**30 - length + row, 0)
        spec.check_coordinates(at, store=True)
        shared = random_bytes(1024, 5)
        own = Observer.of(memory.ctypes.data + start * 64, length * 64)
        engine.call("tiled_load", descriptor_of(spec), device_order(at), shared, 0, own)
        end = min(row + 8, length)
        wanted = memory[(start + row) * 64 : (start + end) * 64]
        assert np.array_equal(shared[: wanted.size], wanted)
        assert not shared[wanted.size : 512].any()
