"""Sequences of unequal length on the chip: 100,000 random batches, and lengths on the device."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from parity.ragged_cases import FORMS, Form, wrong_words

from tmaasync import ArgumentError, create_ragged_tensor_map, ops

cupy = pytest.importorskip("cupy")

BATCHES = 100_000
POISON = 0xA5


@pytest.mark.parametrize("form", FORMS, ids=str)
def test_random_batches_move_and_nothing_else_does(form: Form) -> None:
    assert wrong_words(form, BATCHES // len(FORMS) + 1, cupy, seed=3) == 0


def guarded(*arguments: str) -> str:
    """What the script says, from a process of its own."""
    script = Path(__file__).with_name("guarded_ragged.py")
    ran = subprocess.run(
        [sys.executable, str(script), *arguments],
        capture_output=True,
        text=True,
        check=False,
        timeout=200,
    )
    return ran.stdout.strip() or ran.stderr


@pytest.mark.parametrize("direction", ["load", "store"])
def test_addresses_outside_the_array_are_never_touched(direction: str) -> None:
    assert guarded(direction) == "ok"


# Why RaggedTensorMap holds a second map. Were it "ok", the emulator would be too strict.
@pytest.mark.parametrize(("direction", "outcome"), [("load", "fault"), ("store", "ok")])
def test_only_loads_without_an_element_in_bounds_touch_the_address_of_the_map(
    direction: str, outcome: str
) -> None:
    assert guarded("outside", direction) == outcome


# --- packing and spreading out ------------------------------------------------------------------


def random_words(shape: tuple[int, ...], seed: int) -> Any:
    raw = cupy.random.RandomState(seed).randint(0, 1 << 16, int(np.prod(shape)))
    return raw.astype(cupy.uint16).reshape(shape)


@pytest.mark.parametrize("row", [(64,), (3, 32), (16, 128), (8, 2, 64), (2056,)])
@pytest.mark.parametrize(("batch", "longest"), [(1, 1000), (7, 129), (300, 33), (5000, 9)])
def test_large_batches_are_packed_and_spread_out(
    batch: int, longest: int, row: tuple[int, ...]
) -> None:
    lengths = np.random.default_rng(batch).integers(0, longest + 1, batch)
    padded = random_words((batch, longest, *row), batch)
    inside = cupy.asarray(np.arange(longest) < lengths[:, None])
    total = int(lengths.sum())
    out = cupy.full((total + 9, *row), POISON, cupy.uint16)

    ops.ragged_store(padded, lengths, out)
    spread = ops.ragged_load(out, lengths, cupy.full_like(padded, POISON))

    assert bool((out[:total] == padded[cupy.nonzero(inside)]).all())
    assert bool((out[total:] == POISON).all())
    mask = inside.reshape(batch, longest, *(1,) * len(row))
    assert bool((spread == cupy.where(mask, padded, cupy.uint16(0))).all())


@pytest.mark.parametrize("dtype", ["int32", "int64"])
@pytest.mark.parametrize("kind", ["lengths", "cu_seqlens"])
def test_lengths_may_lie_on_the_device(dtype: str, kind: str) -> None:
    lengths = np.random.default_rng(0).integers(0, 30, 100)
    values = lengths if kind == "lengths" else np.concatenate([[0], np.cumsum(lengths)])
    given: Any = {kind: cupy.asarray(values.astype(dtype))}
    padded = random_words((100, 30, 64), 1)
    inside = cupy.nonzero(cupy.asarray(np.arange(30) < lengths[:, None]))
    out = cupy.full((int(lengths.sum()), 64), POISON, cupy.uint16)

    ops.ragged_store(padded, out=out, **given)
    spread = ops.ragged_load(out, max_length=30, **given)

    assert bool((out == padded[inside]).all())
    assert bool((spread[inside] == padded[inside]).all())
    assert int((spread != 0).sum()) == int((out != 0).sum())
    assert bool((ops.ragged_store(padded, check=True, **given) == out).all())


def test_the_work_list_reads_lengths_from_the_device() -> None:
    map_ = create_ragged_tensor_map(random_words((64, 32), 2), (8, 32), max_length=20)
    lengths = [3, 20, 0, 17]

    work = map_.work_list(cupy.asarray(lengths))

    assert np.array_equal(work.coordinates, map_.work_list(lengths).coordinates)


def test_lengths_on_the_device_are_not_waited_for() -> None:
    padded = random_words((50, 64, 512), 3)
    lengths = cupy.full(50, 64, cupy.int32)
    out = cupy.empty((50 * 64, 512), cupy.uint16)
    stream = cupy.cuda.Stream(non_blocking=True)
    with stream:
        busy = cupy.zeros(1 << 27, cupy.float32)
        # All of it once, so that nothing is compiled or allocated below.
        busy += 1
        padded[...] = 6
        ops.ragged_store(padded, lengths, out)
        stream.synchronize()
        for _ in range(100):
            busy += 1
        padded[...] = 7
        ops.ragged_store(padded, lengths, out)
        is_done = stream.done
    stream.synchronize()

    assert not is_done
    assert bool((out == 7).all())


def assert_reported(call: Callable[..., Any], *arrays: Any, **given: Any) -> None:
    """The next call like the last one raises what the kernel found."""
    cupy.cuda.Device().synchronize()
    with pytest.raises(ArgumentError, match="of an earlier call is wrong about sequence"):
        call(*arrays, **given)


def test_unchecked_lengths_are_cut_and_checked_ones_refused() -> None:
    padded, packed = random_words((2, 8, 64), 4), cupy.full((20, 64), POISON, cupy.uint16)
    too_long, beyond = cupy.asarray([9, 4]), cupy.asarray([0, 8, 24], cupy.int32)

    for given in ({"lengths": too_long}, {"cu_seqlens": beyond}):
        with pytest.raises(ArgumentError):
            ops.ragged_store(padded, out=packed, check=True, **given)
    assert bool((packed == POISON).all())

    ops.ragged_store(padded, too_long, packed)

    assert bool((packed[:8] == padded[0]).all())
    assert bool((packed[8] == POISON).all())
    assert bool((packed[9:13] == padded[1, :4]).all())
    assert bool((packed[13:] == POISON).all())
    assert_reported(ops.ragged_store, padded, too_long, packed)

    packed.fill(POISON)
    ops.ragged_store(padded, cu_seqlens=beyond, out=packed[:12])  # the second would end at row 16

    assert bool((packed[:8] == padded[0]).all())
    assert bool((packed[8:] == POISON).all())
    assert_reported(ops.ragged_store, padded, cu_seqlens=beyond, out=packed[:12])

    spread = cupy.full_like(padded, POISON)
    ops.ragged_load(packed[:12], cu_seqlens=beyond, out=spread)

    assert bool((spread[0] == padded[0]).all())
    assert not bool(spread[1].any())
    assert_reported(ops.ragged_load, packed[:12], cu_seqlens=beyond, out=spread)

    around = cupy.full((60, 64), POISON, cupy.uint16)
    for wrong in ([0, -5, 3], [3000, 3004, 3008], [70, 4, 8]):
        sums = cupy.asarray(wrong, cupy.int32)
        ops.ragged_store(padded, cu_seqlens=sums, out=around[20:40])
        assert_reported(ops.ragged_store, padded, cu_seqlens=sums, out=around[20:40])
    assert bool((around[:20] == POISON).all())
    assert bool((around[40:] == POISON).all())


def test_what_cannot_be_known_without_waiting_is_asked_for() -> None:
    padded, packed = random_words((2, 8, 64), 5), random_words((16, 64), 6)
    lengths = cupy.asarray([3, 4])

    with pytest.raises(ArgumentError, match="out is None; lengths lies on a device"):
        ops.ragged_store(padded, lengths)
    with pytest.raises(ArgumentError, match="max_length is None; lengths lies on a device"):
        ops.ragged_load(packed, lengths)
    with pytest.raises(ArgumentError, match="the arrays lie on the host"):
        ops.ragged_store(cupy.asnumpy(padded), lengths)


def test_torch_arrays_come_back_as_torch_arrays() -> None:
    torch = pytest.importorskip("torch")
    lengths = torch.tensor([3, 0, 5], device="cuda")
    packed = torch.randn(8, 4, 32, device="cuda", dtype=torch.bfloat16)

    padded = ops.ragged_load(packed, lengths, max_length=5)
    back = ops.ragged_store(padded, lengths.cpu().tolist())

    assert isinstance(padded, torch.Tensor)
    assert padded.shape == (3, 5, 4, 32)
    assert torch.equal(back, packed)
    assert torch.equal(padded[2], packed[3:])
    assert not padded[1].any()
