"""Loads, stores, atomics, clusters and lanes of inline PTX, on both back ends."""

from __future__ import annotations

import contextlib
import functools
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from parity.backends import Emulate

from tmaasync import EmulatedRace, Kernel, emulate

SOURCE = Path(__file__).with_name("raw_ptx").joinpath("memory.cu").read_text()


@functools.cache
def kernel(name: str, release: str = "release", acquire: str = "acquire") -> Kernel:
    return Kernel(SOURCE.replace("RELEASE", release).replace("ACQUIRE", acquire), name)


def searched(backend: Any) -> Any:
    if isinstance(backend, Emulate):
        return emulate.scheduled("random", seed=3, races=True)
    return contextlib.nullcontext()


def test_words_move_and_counters_change_as_the_instructions_say(backend: Any) -> None:
    rng = np.random.default_rng(2)
    words = rng.integers(0, 2**32, (64, 4), np.uint64).astype(np.uint32)
    out = backend.array(np.full((128, 4), 0xA5A5A5A5, np.uint32))
    counts = backend.array(np.array([5, 0, 2**32 - 1, 0, 3], np.uint32))
    sums = backend.array(np.zeros(6, np.float32))

    with searched(backend):
        kernel("moves")(1, 64, (backend.array(words), out, counts, sums))

    a, b, c, d = words.T
    moved = backend.host(out)
    assert np.array_equal(moved[:64, 0], c.astype(np.int8).astype(np.int32).view(np.uint32))
    assert np.array_equal(moved[:64, 1], d & 0xFFFF)
    assert np.array_equal(moved[:64, 2], a)
    assert np.array_equal(moved[64:, :2], np.stack([a, b], 1))
    signed = a.view(np.int32)
    wanted = [
        5 + int((a & 7).sum()),
        max(0, int(signed.max())),
        0,
        64 % 41,
        3 + int((b & 255).sum()),
    ]
    assert backend.host(counts).tolist() == wanted
    totals = backend.host(sums)
    assert totals[[0, 2, 3]].tolist() == [96.0, 64.0, 128.0]
    assert totals[4:5].view(np.float16).tolist() == [128.0, 64.0]


def test_a_release_and_an_acquire_hand_data_on(backend: Any) -> None:
    data, flag, out = (backend.array(np.zeros(32, np.uint32)) for _ in range(3))

    with searched(backend):
        kernel("handed_on")(2, 32, (data, flag, out))

    assert backend.host(out).tolist() == [3 * i + 1 for i in range(32)]


def test_without_an_acquire_it_is_a_race() -> None:
    data, flag, out = (np.zeros(32, np.uint32) for _ in range(3))
    text = SOURCE.replace("fence.acq_rel.gpu;\\n\\t", "")
    relaxed = Kernel(text.replace("RELEASE", "relaxed").replace("ACQUIRE", "relaxed"), "handed_on")

    with (
        pytest.raises(EmulatedRace, match=r"a race on data\[\d+\]"),
        emulate.scheduled("random", seed=1, races=True),
    ):
        relaxed(2, 32, (data, flag, out))


def test_st_async_arrives_with_its_bytes(backend: Any) -> None:
    out = backend.array(np.zeros((4, 4), np.uint32))

    with searched(backend):
        kernel("remote")(4, 32, (out,), cluster=(2, 1, 1))

    wanted = [
        [11 - i % 2 + 100 * (i % 2), 2 + 100 * (i % 2), i // 2 + 100 * (i % 2), 77 + 100 * (i % 2)]
        for i in range(4)
    ]
    assert backend.host(out).tolist() == wanted


def test_lanes_exchange_words(backend: Any) -> None:
    x = np.random.default_rng(4).integers(0, 1000, 64).astype(np.uint32)
    out = backend.array(np.full((13, 64), 9999, np.uint32))

    kernel("lanes")(1, 64, (backend.array(x), out))

    lane = np.arange(64) % 32
    warps = x.reshape(2, 32)

    def each_warp(values: Any) -> Any:
        return np.repeat(np.array([*values], np.int64) & 0xFFFFFFFF, 32)

    def ballot(values: Any) -> int:
        return sum(int(value) << i for i, value in enumerate(values))

    got = backend.host(out).astype(np.int64)
    assert np.array_equal(got[0], x[np.arange(64) ^ 3])
    assert np.array_equal(got[1], np.where(lane >= 5, x[np.maximum(np.arange(64) - 5, 0)], 9))
    assert np.array_equal(got[2], x[np.arange(64) // 8 * 8 + 2])
    assert np.array_equal(got[3], each_warp(ballot(warp > 500) for warp in warps))
    assert np.array_equal(got[4], np.ones(64))
    odd = each_warp(ballot(warp & 1) for warp in warps)
    assert np.array_equal(got[5], np.where(x & 1, odd, odd ^ 0xFFFFFFFF))
    assert np.array_equal(got[6], each_warp(int(warp.sum()) for warp in warps))
    assert np.array_equal(
        got[7], each_warp(int(warp.astype(np.int64).min()) - 500 for warp in warps)
    )
    assert got[8].reshape(2, 32).sum(1).tolist() == [1, 1]
    assert np.array_equal(got[9], lane)
    assert np.array_equal(got[10], np.full(64, (x > 500).sum()))
    assert np.array_equal(got[11], np.arange(64) * 100 + lane)
    assert np.array_equal(got[12], np.where(np.arange(64) < 48, 1, 9999))


def test_arrivals_drop_out_and_copies_of_threads_are_ignored(backend: Any) -> None:
    out = backend.array(np.full(12, 99, np.uint32))

    with searched(backend):
        kernel("dropped")(1, 32, (backend.array(np.arange(1, 13, dtype=np.uint32)), out))

    assert backend.host(out).tolist() == [0, 0, 0, 0, 5, 6, 7, 8, 9, 0, 0, 0]
