"""Timelines of kernels on tensor memory: what overlaps in the emulator's order of steps."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest
from emulate.shipped import whole_text

from tmaasync import Kernel, emulate, ops
from tmaasync.emulate.chips import CHIPS
from tmaasync.ops._gemm.tensor_memory import TensorMemoryConfig
from tmaasync.ops._gemm.tiles import gemm_constants
from tmaasync.ops._operation import tile_configs
from tmaasync.tile import create_tma_tile
from tmaasync.trace import EventKind, Trace, record

TILES, K, COLUMNS = 4, 1024, 64
TWO = "AccumulatorRing<Sum, kN, 2, CTAS>"
CONFIG = TensorMemoryConfig(1, COLUMNS, 1, rows=128)


def traced_gemm(buffers: int) -> Trace:
    """Multiply the tiles of one CTA with this number of accumulators in tensor memory."""
    text = whole_text("gemm_tensor_memory.cu")
    assert text.count(TWO) == 1
    rng = np.random.default_rng(0)
    a, b = (rng.integers(-2, 3, (rows, K)).astype(np.float16) for rows in (128, TILES * COLUMNS))
    out = np.zeros((128, TILES * COLUMNS), np.float32)
    tiles = {
        "ATile": create_tma_tile(a, (128, 64), swizzle="128B"),
        "BTile": create_tma_tile(b, (COLUMNS, 64), swizzle="128B"),
        "CTile": create_tma_tile(out, (128, 32), swizzle="128B"),
    }
    kernel = Kernel(
        text.replace(TWO, TWO.replace("2", str(buffers))),
        "gemm_tensor_memory",
        types=tiles,
        constants=gemm_constants(False, True, CONFIG),
        arch="sm_100a",
    )
    with emulate.scheduled("round_robin", races=False), record() as seen:
        kernel(1, CONFIG.threads, (*tiles.values(), *out.shape, K, 1))
    np.testing.assert_array_equal(out, a.astype(np.float64) @ b.T)
    (trace,) = seen.launches
    assert isinstance(trace, Trace)
    return trace


def waits_of_mma(trace: Trace, barrier: str) -> Iterator[int]:
    """Yield the steps of each wait of the MMA warp on a barrier of an array of this name."""
    begun = 0
    for event in trace:
        if event.role != "mma" or not (event.barrier_name or "").startswith(barrier):
            continue
        if event.kind is EventKind.WAIT_BEGIN:
            begun = event.time
        elif event.kind is EventKind.WAIT_END:
            yield event.time - begun


@pytest.mark.parametrize(("buffers", "waiting_tiles"), [(2, 0), (1, TILES - 1)])
def test_mma_wait_for_the_epilogue_without_a_second_buffer(
    buffers: int, waiting_tiles: int
) -> None:
    waits = list(waits_of_mma(traced_gemm(buffers), "accumulators.empty"))

    assert len(waits) == TILES
    assert sum(steps > 0 for steps in waits) == waiting_tiles, waits


def softmaxes(trace: Trace) -> Iterator[tuple[int, int]]:
    """Yield the steps at which a warp has scores, and hands on their probabilities."""
    begun: dict[int | None, int] = {}
    for event in trace:
        name = (event.barrier_name or "").partition(".")[2]
        if event.kind is EventKind.WAIT_END and name == "scores_full":
            begun[event.warp] = event.time
        elif event.kind is EventKind.ARRIVE and name == "probabilities_full":
            yield begun.pop(event.warp), event.time


def mmas(trace: Trace) -> Iterator[tuple[int, int]]:
    """Yield the steps at which each MMA is issued and done."""
    issued: dict[int | None, int] = {}
    for event in trace:
        if event.kind is EventKind.MMA_ISSUED:
            issued[event.sequence] = event.time
        elif event.kind is EventKind.MMA_EXECUTED:
            yield issued[event.sequence], event.time


@pytest.mark.slow
@pytest.mark.parametrize(("sms", "query_tiles"), [(1, 2), (148, 1)])
def test_mma_run_during_the_softmax_where_a_cta_has_two_query_tiles(
    sms: int, query_tiles: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On many SMs, few query tiles have a CTA each, whose tensor cores wait for the softmax."""
    whole = CHIPS["sm_100a"]
    monkeypatch.setitem(CHIPS, whole.arch, replace(whole, device=replace(whole.device, sms=sms)))
    rng = np.random.default_rng(0)
    q, k, v = (rng.standard_normal((1, 256, 1, 64)).astype(np.float16) for _ in range(3))

    with (
        emulate.chip("sm_100a"),
        emulate.scheduled("round_robin", races=False),
        tile_configs(lambda chosen: chosen),  # without the calls of other tests
        record() as seen,
    ):
        ops.attention(q, k, v)

    (trace,) = seen.launches
    assert isinstance(trace, Trace)
    for block in trace.by_cluster():
        busy = list(mmas(block))
        overlaps = [
            any(start < done and issued < end for issued, done in busy)
            for start, end in softmaxes(block)
        ]
        assert overlaps
        assert set(overlaps) == {query_tiles == 2}
