"""Splits of a block's registers: which fit, what the compiler makes of them, what is refused."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tmaasync import ArgumentError, Kernel, RegisterSplit

SOURCE = """
#include <tmaasync/tmaasync.cuh>

using namespace tmaasync;

constexpr int kHeld = 16;

// Producers negate what consumers mix.
extern "C" __global__ void __launch_bounds__(THREADS, 1) split(u32* values) {
    values += blockIdx.x * kHeld * THREADS + threadIdx.x;
    if (warpgroup_index() < PRODUCERS) {
        release_registers<PRODUCER_REGISTERS>();
        for (int i = 0; i < kHeld; ++i) values[i * THREADS] = ~values[i * THREADS];
    } else {
        claim_registers<CONSUMER_REGISTERS>();
        u32 held[kHeld];
        for (int i = 0; i < kHeld; ++i) held[i] = values[i * THREADS];
        for (int turn = 0; turn < 16; ++turn) {
            for (int i = 0; i < kHeld; ++i) held[i] = held[i] * 5 + held[(i + 1) % kHeld];
        }
        for (int i = 0; i < kHeld; ++i) values[i * THREADS] = held[i];
    }
}
"""
SHAPES = [
    (producers, consumers)
    for producers, consumers in itertools.product(range(1, 8), repeat=2)
    if producers + consumers <= 8
]
REGISTERS = range(24, 257, 8)


def kernel(split: RegisterSplit) -> Kernel:
    constants = {"THREADS": split.threads, "PRODUCERS": split.producers, **split.constants}
    return Kernel(SOURCE, "split", constants=constants)


def mixed(values: Any, split: RegisterSplit) -> Any:
    """What the kernel makes of [blocks, 16, threads], in plain NumPy."""
    out = values.copy()
    first = 128 * split.producers
    out[..., :first] = ~values[..., :first]
    for _, i in itertools.product(range(16), range(16)):
        out[:, i, first:] = out[:, i, first:] * 5 + out[:, (i + 1) % 16, first:]
    return out


def hangs(producers: int, consumers: int, start: int, producer: int, consumer: int) -> bool:
    """Whether a consumer waits for ever: the pool, warpgroup by warpgroup."""
    pool = producers * (start - producer)
    for _ in range(consumers):
        if pool < consumer - start:
            return True
        pool -= consumer - start
    return False


# Splits in gemm.cu and other libraries: (producers, consumers), producer, consumer.
KNOWN = [((1, 1), 40, 232), ((1, 2), 40, 232), ((1, 3), 32, 160), ((1, 1), 24, 240),
         ((1, 2), 24, 240), ((2, 2), 24, 224), ((1, 3), 24, 160), ((1, 1), 56, 256)]  # fmt: skip


@pytest.mark.parametrize(("shape", "producer", "consumer"), KNOWN, ids=str)
def test_splits_that_are_known_to_run_fit(
    shape: tuple[int, int], producer: int, consumer: int
) -> None:
    split = RegisterSplit(*shape, producer, consumer)

    assert split.constants == {"PRODUCER_REGISTERS": producer, "CONSUMER_REGISTERS": consumer}
    assert split.threads == 128 * sum(shape)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_the_best_split_fits_and_no_larger_one_does(shape: tuple[int, int]) -> None:
    best = RegisterSplit.fit(producers=shape[0], consumers=shape[1])

    start = best.launch_registers
    assert not hangs(*shape, start, best.producer, best.consumer)
    assert start * best.threads <= 65536
    if best.consumer < 240:
        with pytest.raises(ArgumentError, match="would wait for ever"):
            RegisterSplit(*shape, best.producer, best.consumer + 8)


@given(st.sampled_from(SHAPES), st.sampled_from(REGISTERS), st.sampled_from(REGISTERS))
def test_what_is_refused_would_hang_or_raise(
    shape: tuple[int, int], producer: int, consumer: int
) -> None:
    threads = 128 * sum(shape)
    start = min(consumer, 65536 // threads // 8 * 8)
    is_legal = producer <= start and not hangs(*shape, start, producer, consumer)

    try:
        split = RegisterSplit(*shape, producer, consumer)
    except ArgumentError:
        assert not is_legal
    else:
        assert is_legal
        assert split.launch_registers == start


@pytest.mark.parametrize(
    "split",
    [
        RegisterSplit.fit(producers=1, consumers=1),
        RegisterSplit.fit(producers=1, consumers=2),
        RegisterSplit(1, 2, 40, 144),
        RegisterSplit(1, 3, 32, 160),
        RegisterSplit.fit(producers=2, consumers=3, producer=32),
        RegisterSplit.fit(producers=1, consumers=7),
    ],
    ids=str,
)
def test_the_compiler_starts_threads_with_what_the_split_says(split: RegisterSplit) -> None:
    program = kernel(split).compile()

    assert program.warnings == ()
    assert program.entries["split"].registers == split.launch_registers


def test_off_leaves_registers_as_they_are() -> None:
    off = RegisterSplit.fit(producers=1, consumers=2).off

    assert off.is_off
    assert off.constants == {"PRODUCER_REGISTERS": 0, "CONSUMER_REGISTERS": 0}
    assert "No thread releases or claims" in off.explain()
    assert "setmaxnreg" not in str(kernel(off).compile().warnings)


@pytest.mark.parametrize(
    ("numbers", "said"),
    [
        ((0, 2, 24, 240), "producers is 0; each role takes at least one warpgroup"),
        ((1, True - 1, 24, 240), "consumers is 0"),
        ((1, 2.0, 24, 240), "consumers is 2.0"),
        ((1, 2, 20, 240), "producer is 20; setmaxnreg takes multiples of 8 from 24 to 256"),
        ((1, 2, 16, 240), "producer is 16"),
        ((1, 2, 24, 264), "consumer is 264"),
        ((1, 2, 0, 240), "producer is 0"),
        ((1, 2, "24", 240), "producer is '24'"),
        ((2, 7, 24, 56), "the block has 1152 threads, and 1024 are the most"),
        ((1, 2, 176, 176), "its threads start with 168, and setmaxnreg.dec only lowers that"),
        ((1, 2, 24, 248), "would need 66560 registers and has 64512.* Use consumer=240"),
        ((1, 3, 40, 160), "would wait for ever. Use consumer=152"),
    ],
)
def test_what_cannot_be_is_refused_with_its_remedy(numbers: Any, said: str) -> None:
    with pytest.raises(ArgumentError, match=said):
        RegisterSplit(*numbers)


def test_every_wrong_number_is_named_at_once() -> None:
    with pytest.raises(ArgumentError) as caught:
        RegisterSplit(0, 0, 25, 7)

    assert len(str(caught.value).splitlines()) == 4


def test_a_fit_refuses_what_a_split_refuses() -> None:
    with pytest.raises(ArgumentError, match="the block has 1152 threads"):
        RegisterSplit.fit(producers=1, consumers=8)
    with pytest.raises(ArgumentError, match="producer is 12; setmaxnreg takes"):
        RegisterSplit.fit(producer=12)
