"""Operations of several GPUs: on all, and with ranks that share one.

timeout 600 python -m pytest -m gpu -p no:benchmark tests/gpu/test_ops_of_ranks.py
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from scaled_ranks import E4M3, drawn_parts, drawn_shards, multiplied, terms

from tmaasync import enable_peer_access, ops
from tmaasync.ops._ranks import MAX_RANKS

# Before the first context: where ranks share a GPU, no launch may queue up after one that waits for
# it.
os.environ.setdefault("CUDA_DEVICE_MAX_CONNECTIONS", "32")

cupy: Any = pytest.importorskip("cupy")

pytestmark = pytest.mark.timeout(200)

Arrays = list[Any]


@pytest.fixture(params=range(2, MAX_RANKS + 1))
def ranks(request: pytest.FixtureRequest) -> int:
    return int(request.param)


def on(device: int, host: Any) -> Any:
    with cupy.cuda.Device(device):
        return cupy.asarray(host)


def on_each(devices: list[int], arrays: Arrays) -> Arrays:
    return [on(device, array) for device, array in zip(devices, arrays, strict=True)]


def k_major_on_each(devices: list[int], b: Arrays) -> Arrays:
    """Return matrices [K, N] on their devices, with K contiguous."""
    return [one.T for one in on_each(devices, [np.ascontiguousarray(one.T) for one in b])]


def poisoned(devices: list[int], shapes: list[tuple[int, ...]], dtype: Any = np.float16) -> Arrays:
    return on_each(devices, [np.full(shape, np.nan, dtype) for shape in shapes])


def settle(devices: list[int]) -> None:
    for device in set(devices):
        cupy.cuda.Device(device).synchronize()


def host(array: Any) -> Any:
    with array.device:
        return cupy.asnumpy(array)


def check(out: Arrays, a: Arrays, b: Arrays) -> None:
    """Compare with float64 on the first GPU."""
    whole = on(0, np.concatenate(a)).astype(np.float64)
    for output, own in zip(out, b, strict=True):
        wanted = whole @ on(0, own).astype(np.float64)
        found = on(0, host(output)).astype(np.float64)
        bound = 2.0**-10 * abs(wanted) + 2.0**-9 * np.sqrt(whole.shape[1])
        assert bool((abs(found - wanted) <= bound).all())


def draw(rng: np.random.Generator, *shape: int) -> Any:
    return rng.standard_normal(shape, np.float32).astype(np.float16)


def test_calls_of_different_shapes_follow_each_other(devices: list[int], streams: Arrays) -> None:
    rng, ranks, calls = np.random.default_rng(len(devices)), len(devices), []
    for call in range(24):
        k, widths = int(rng.integers(1, 300)) * 8, rng.integers(1, 80, ranks) * 8
        rows = rng.integers(1, 900, ranks) * (rng.random(ranks) > 0.2)
        a = [draw(rng, int(count), k) for count in rows]
        b = [draw(rng, k, int(width)) for width in widths]
        right = (k_major_on_each if call % 2 else on_each)(devices, b)
        out = poisoned(devices, [(int(rows.sum()), int(width)) for width in widths])
        calls.append((out, a, b, on_each(devices, a), right))
    settle(devices)
    for out, _, _, left, right in calls:
        ops.all_gather_matmul(left, right, out=out, streams=streams)
    settle(devices)

    for out, a, b, *_ in calls:
        check(out, a, b)


def bit_equal_repeats(
    call: Callable[..., object],
    repeats: int,
    devices: list[int],
    streams: Arrays,
    shapes: list[tuple[int, ...]],
    dtype: Any = np.float16,
) -> Arrays:
    """Return the outputs of a call, and check that repeats write the same bits."""
    first, again = poisoned(devices, shapes, dtype), poisoned(devices, shapes, dtype)
    different = on_each(devices, [np.zeros(1, np.int64)] * len(devices))
    settle(devices)
    call(out=first)
    for _ in range(repeats):
        call(out=again)
        for device, stream, one, other, count in zip(
            devices, streams, first, again, different, strict=True
        ):
            with cupy.cuda.Device(device), stream:
                count += (one.view(np.int16) != other.view(np.int16)).sum()
                other[...] = np.nan
    settle(devices)

    assert [int(host(count)[0]) for count in different] == [0] * len(devices)
    return first


def test_every_rank_has_all_rows(devices: list[int], streams: Arrays) -> None:
    rng, ranks, calls = np.random.default_rng(1), len(devices), []
    for columns in (8, 200, 4096, 1032, 64) * 3:
        rows = rng.integers(0, 700, ranks)
        parts = [draw(rng, int(count), columns) for count in rows]
        out = poisoned(devices, [(int(rows.sum()), columns)] * ranks)
        calls.append((out, parts, on_each(devices, parts)))
    settle(devices)
    for out, _, own in calls:
        ops.all_gather(own, out=out, streams=streams)
    settle(devices)

    for out, parts, _ in calls:
        for one in out:
            assert np.array_equal(host(one), np.concatenate(parts))


def captured(call: Callable[[], object], devices: list[int], streams: Arrays) -> Callable[[], None]:
    """Capture a call into a graph for each rank; return what launches them."""
    ranks = list(zip(devices, streams, strict=True))
    for device, stream in ranks:
        with cupy.cuda.Device(device):
            stream.begin_capture(cupy.cuda.runtime.streamCaptureModeRelaxed)
    call()
    graphs = []
    for device, stream in ranks:
        with cupy.cuda.Device(device):
            graphs.append(stream.end_capture())
            graphs[-1].upload(stream)

    def replay() -> None:
        for (device, stream), graph in zip(ranks, graphs, strict=True):
            with cupy.cuda.Device(device):
                graph.launch(stream)

    return replay


def test_graphs_repeat_calls_on_new_contents(devices: list[int], streams: Arrays) -> None:
    """A graph for each rank, replayed next to calls without a graph."""
    rng, ranks = np.random.default_rng(2), len(devices)
    b = [draw(rng, 512, 256) for _ in range(ranks)]
    left = poisoned(devices, [(300, 512)] * ranks)
    right, out = on_each(devices, b), poisoned(devices, [(300 * ranks, 256)] * ranks)
    settle(devices)
    call = functools.partial(ops.all_gather_matmul, left, right, out=out, streams=streams)
    call()  # allocates
    settle(devices)
    replay = captured(call, devices, streams)
    for turn in range(5):
        a = [draw(rng, 300, 512) for _ in range(ranks)]
        for own, new in zip(left, a, strict=True):
            with own.device:
                own[...] = cupy.asarray(new)
        settle(devices)
        if turn == 2:
            call()
        replay()
        settle(devices)
        check(out, a, b)


def check_scattered(out: Arrays, a: Arrays, b: Arrays) -> None:
    """Compare with float64 on the first GPU; every rank rounds what it sends."""
    terms = [on(0, x).astype(np.float64) @ on(0, y).astype(np.float64)
                for x, y in zip(a, b, strict=True)]  # fmt: skip
    wanted = sum(terms[1:], terms[0])
    scale = sum(map(abs, terms[1:]), abs(terms[0]))
    found = on(0, np.concatenate([host(one) for one in out])).astype(np.float64)
    depth = sum(one.shape[1] for one in a)
    assert bool((abs(found - wanted) <= 2.0**-10 * scale + 2.0**-9 * np.sqrt(depth)).all())


def test_reduce_scatters_of_different_shapes_follow_each_other(
    devices: list[int], streams: Arrays
) -> None:
    rng, ranks, calls = np.random.default_rng(len(devices)), len(devices), []
    for call in range(24):
        n, depths = int(rng.integers(1, 80)) * 8, rng.integers(1, 300, ranks) * 8
        rows = rng.integers(1, 900, ranks) * (rng.random(ranks) > 0.2)
        a = [draw(rng, int(rows.sum()), int(k)) for k in depths]
        b = [draw(rng, int(k), n) for k in depths]
        right = (k_major_on_each if call % 2 else on_each)(devices, b)
        out = poisoned(devices, [(int(count), n) for count in rows])
        calls.append((out, a, b, on_each(devices, a), right))
    settle(devices)
    for out, _, _, left, right in calls:
        ops.matmul_reduce_scatter(left, right, out=out, streams=streams)
    settle(devices)

    for out, a, b, *_ in calls:
        check_scattered(out, a, b)


def check_reduced(out: Arrays, a: Arrays, b: Arrays) -> None:
    """Check the sum, and that all ranks have the same bits."""
    for one in out[1:]:
        assert host(one).tobytes() == host(out[0]).tobytes()
    check_scattered(out[:1], a, b)


def test_all_reduced_matmuls_of_different_shapes_follow_each_other(
    devices: list[int], streams: Arrays
) -> None:
    """Some of one tile, and one of many, whose finished rows are pushed in steps."""
    rng, ranks, calls = np.random.default_rng(len(devices)), len(devices), []
    shapes = [(1, 64), (100, 200), (700, 640), (4096, 4096), (65, 1024), (2000, 520)]
    for m, n in shapes * 2:
        depths = rng.integers(1, 60, ranks) * 8
        a = [draw(rng, m, int(k)) for k in depths]
        b = [draw(rng, int(k), n) for k in depths]
        out = poisoned(devices, [(m, n)] * ranks)
        right = k_major_on_each(devices, b)
        calls.append((out, a, b, on_each(devices, a), right))
    settle(devices)
    for out, _, _, left, right in calls:
        ops.matmul_all_reduce(left, right, out=out, streams=streams)
    settle(devices)

    for out, a, b, *_ in calls:
        check_reduced(out, a, b)


def test_sums_of_all_ranks(devices: list[int], streams: Arrays) -> None:
    """Scattered, everywhere, and in place, of sizes from a few bytes to several tiles per CTA."""
    rng, ranks, calls = np.random.default_rng(3), len(devices), []
    for rows, columns in ((1, 8), (500, 200), (33, 4096), (9000, 1032), (70, 64)) * 2:
        parts = [draw(rng, rows, columns) for _ in range(ranks)]
        own, whole = on_each(devices, parts), on_each(devices, parts)
        counts = [len(one) for one in np.array_split(parts[0], ranks)]
        scattered = poisoned(devices, [(count, columns) for count in counts])
        reduced = poisoned(devices, [(rows, columns)] * ranks)
        calls.append((parts, own, scattered, reduced, whole))
    settle(devices)
    for _, own, scattered, reduced, whole in calls:
        ops.reduce_scatter(own, out=scattered, streams=streams)
        ops.all_reduce(own, out=reduced, streams=streams)
        ops.all_reduce(whole, out=whole, streams=streams)
    settle(devices)

    for parts, _, scattered, reduced, whole in calls:
        total = parts[0].astype(np.float32)
        for one in parts[1:]:
            total = total + one
        wanted = total.astype(np.float16)
        assert np.array_equal(np.concatenate([host(one) for one in scattered]), wanted)
        for one in (*reduced, *whole):
            assert np.array_equal(host(one), wanted)


@pytest.mark.parametrize(
    ("operation", "repeats", "m", "k", "out_rows", "checks"),
    [
        (ops.all_gather_matmul, 200, 512, 2048, "all", check),
        (ops.matmul_reduce_scatter, 1000, 512, 512, "own", check_scattered),
        (ops.matmul_all_reduce, 1000, 1024, 256, "own", check_reduced),
    ],
)
def test_repeated_matmuls_are_bit_equal(
    devices: list[int], streams: Arrays, operation: Callable[..., object], repeats: int, m: int,
    k: int, out_rows: str, checks: Callable[..., None],
) -> None:  # fmt: skip
    """One stale tile in any of the calls would show."""
    rng, ranks = np.random.default_rng(0), len(devices)
    rows = m * ranks if operation is ops.matmul_reduce_scatter else m
    a = [draw(rng, rows, k) for _ in range(ranks)]
    b = [draw(rng, k, 1024) for _ in range(ranks)]
    left, right = on_each(devices, a), on_each(devices, b)
    shapes: list[tuple[int, ...]] = [(m * ranks if out_rows == "all" else m, 1024)] * ranks
    call = functools.partial(operation, left, right, streams=streams)

    checks(bit_equal_repeats(call, repeats, devices, streams, shapes), a, b)


def test_repeated_sums_are_bit_equal(devices: list[int], streams: Arrays) -> None:
    rng, ranks = np.random.default_rng(4), len(devices)
    own = on_each(devices, [draw(rng, 600, 1024) for _ in range(ranks)])
    shapes: list[tuple[int, ...]] = [(600, 1024)] * ranks
    call = functools.partial(ops.all_reduce, own, streams=streams)

    bit_equal_repeats(call, 1000, devices, streams, shapes)


def test_graphs_repeat_sums_on_new_contents(devices: list[int], streams: Arrays) -> None:
    rng, ranks = np.random.default_rng(5), len(devices)
    b = [draw(rng, 256, 256) for _ in range(ranks)]
    left, right = poisoned(devices, [(300, 256)] * ranks), on_each(devices, b)
    out, total = (poisoned(devices, [(300, 256)] * ranks) for _ in range(2))

    def work() -> None:
        ops.matmul_all_reduce(left, right, out=out, streams=streams)
        ops.all_reduce(out, out=total, streams=streams)

    settle(devices)
    work()  # allocates
    settle(devices)
    replay = captured(work, devices, streams)
    for _ in range(4):
        a = [draw(rng, 300, 256) for _ in range(ranks)]
        for own, new in zip(left, a, strict=True):
            with own.device:
                own[...] = cupy.asarray(new)
        settle(devices)
        replay()
        settle(devices)
        check_reduced(out, a, b)
        wanted = (ranks * host(out[0]).astype(np.float32)).astype(np.float16)
        assert np.allclose(host(total[0]), wanted, rtol=2.0**-10, atol=0)


def test_torch_tensors_in_bfloat16() -> None:
    torch = pytest.importorskip("torch")
    count = torch.cuda.device_count()
    if count < 2:
        pytest.skip("this process sees one GPU")
    enable_peer_access(range(count))
    ranks = min(count, 8)
    a = [torch.randn(1000 + rank, 1024, dtype=torch.bfloat16, device=f"cuda:{rank}")
         for rank in range(ranks)]  # fmt: skip
    w = [torch.randn(768, 1024, dtype=torch.bfloat16, device=f"cuda:{rank}")
         for rank in range(ranks)]  # fmt: skip

    out = ops.all_gather_matmul(a, [one.T for one in w])
    gathered = ops.all_gather(a)

    whole = torch.cat([one.cpu() for one in a])
    for rank in range(ranks):
        assert torch.equal(gathered[rank].cpu(), whole)
        wanted = whole.to(f"cuda:{rank}").double() @ w[rank].double().T
        assert torch.allclose(out[rank].double(), wanted, rtol=2.0**-8, atol=0.3)


# --- block-scaled FP8 ---------------------------------------------------------------------------

AS_FP8 = {"a_dtype": "float8_e4m3fn", "b_dtype": "float8_e4m3fn"}
GATHER, SCATTER = ops.all_gather_scaled_matmul, ops.scaled_matmul_reduce_scatter


def scaled_on_each(devices: list[int], operands: tuple[Arrays, ...], *, staged: bool) -> Arrays:
    """Return a, b, scale_a and scale_b on their devices, of bytes, in layouts that TMA reads."""
    a, b, scale_a, scale_b = operands
    a, b = ([one.astype(E4M3).view(np.uint8) for one in x] for x in (a, [y.T for y in b]))
    if staged:
        right = on_each(devices, [np.ascontiguousarray(one.T) for one in b])
        return [on_each(devices, a), right, on_each(devices, scale_a), on_each(devices, scale_b)]
    right = [one.T for one in on_each(devices, b)]
    return [
        on_each(devices, a),
        right,
        k_major_on_each(devices, scale_a),
        on_each(devices, scale_b),
    ]


def check_exact(call: Callable[..., object], out: Arrays, operands: tuple[Arrays, ...]) -> None:
    """Compare float32 with float64: the operands are whole numbers times powers of two."""
    if call is GATHER:
        for found, wanted in zip(out, multiplied(*operands), strict=True):
            assert np.array_equal(host(found), wanted.astype(np.float32))
        return
    wanted = sum(terms(*operands))
    found = np.concatenate([host(one) for one in out])
    assert np.array_equal(found, wanted.astype(np.float32))


def drawn_scaled(
    rng: np.random.Generator,
    call: Callable[..., object],
    rows: Any,
    depths: Any,
    widths: Any,
    columns: int = 128,
) -> tuple[tuple[Arrays, ...], Any]:
    if call is GATHER:
        shapes = [(int(sum(rows)), int(width)) for width in widths]
        return drawn_shards(rng, rows, int(depths[0]), widths, columns), shapes
    n = int(widths[0])
    operands = drawn_parts(rng, int(sum(rows)), depths, n, columns)
    return operands, [(int(count), n) for count in rows]


@pytest.mark.parametrize("call", [GATHER, SCATTER], ids=["gather", "scatter"])
def test_scaled_matmuls_of_different_shapes_follow_each_other(
    devices: list[int], streams: Arrays, call: Callable[..., object]
) -> None:
    """Scales of B per column or per 128, in layouts that TMA reads or not, uneven and empty."""
    rng, ranks, calls = np.random.default_rng(len(devices)), len(devices), []
    for number in range(16):
        rows = rng.integers(1, 2400 // ranks, ranks) * (rng.random(ranks) > 0.2)
        depths, widths = rng.integers(1, 150, ranks) * 16, rng.integers(1, 80, ranks) * 8
        columns = 1 if number % 4 == 1 else 128
        operands, shapes = drawn_scaled(rng, call, rows, depths, widths, columns)
        given = scaled_on_each(devices, operands, staged=number % 4 == 3)
        calls.append((poisoned(devices, shapes, np.float32), operands, given))
    settle(devices)
    for out, _, given in calls:
        call(*given, out=out, streams=streams, **AS_FP8)
    settle(devices)

    for out, operands, _ in calls:
        check_exact(call, out, operands)


@pytest.mark.parametrize("call", [GATHER, SCATTER], ids=["gather", "scatter"])
@pytest.mark.parametrize(("m", "k", "n"), [(300, 2048, 1024), (2048, 2048, 1024)])
def test_repeated_scaled_matmuls_are_bit_equal(
    devices: list[int], streams: Arrays, call: Callable[..., object], m: int, k: int, n: int
) -> None:
    """One stale tile or scale in any of the calls would show."""
    rng, ranks = np.random.default_rng(0), len(devices)
    rows = [m // ranks + 1] * ranks
    operands, shapes = drawn_scaled(rng, call, rows, [k] * ranks, [n] * ranks)
    given = scaled_on_each(devices, operands, staged=False)

    repeated = functools.partial(call, *given, streams=streams, **AS_FP8)
    out = bit_equal_repeats(repeated, 300, devices, streams, shapes, np.float32)
    check_exact(call, out, operands)


@pytest.mark.parametrize("call", [GATHER, SCATTER], ids=["gather", "scatter"])
def test_graphs_repeat_scaled_matmuls_on_new_contents(
    devices: list[int], streams: Arrays, call: Callable[..., object]
) -> None:
    """Operands and scales change between replays."""
    rng, ranks = np.random.default_rng(2), len(devices)
    rows, depths, widths = [301] * ranks, [640] * ranks, [256] * ranks
    operands, shapes = drawn_scaled(rng, call, rows, depths, widths)
    given = scaled_on_each(devices, operands, staged=False)
    out = poisoned(devices, shapes, np.float32)
    work = functools.partial(call, *given, out=out, streams=streams, **AS_FP8)
    settle(devices)
    work()  # allocates
    settle(devices)
    replay = captured(work, devices, streams)
    for turn in range(5):
        operands, _ = drawn_scaled(rng, call, rows, depths, widths)
        new = scaled_on_each(devices, operands, staged=False)
        for old, fresh in zip(given, new, strict=True):
            for one, values in zip(old, fresh, strict=True):
                with one.device:
                    one[...] = values
        settle(devices)
        if turn == 2:
            work()
        replay()
        settle(devices)
        check_exact(call, out, operands)
