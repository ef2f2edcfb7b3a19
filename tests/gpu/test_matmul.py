"""ops.matmul on the chip against NumPy in float64."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

from tmaasync import ops
from tmaasync.ops._gemm.config import LINE_BYTES, TileConfig
from tmaasync.ops._gemm.legal_tiles import CONSUMER_LAYOUTS
from tmaasync.ops._operation import tile_configs

cupy = pytest.importorskip("cupy")

# Error of one rounding to the output type, relative to the Frobenius norm, with room.
TOLERANCE = {"bfloat16": 4e-3, "float16": 5e-4, "float32": 2e-5}


def random(rows: int, columns: int, dtype: str, seed: int) -> Any:
    values = np.random.default_rng(seed).standard_normal((rows, columns)).astype(np.float32)
    return values.astype(getattr(ml_dtypes, dtype, dtype))


def relative_error(got: Any, a: Any, b: Any) -> float:
    wanted = a.astype(np.float64) @ b.astype(np.float64)
    return float(np.linalg.norm(got.astype(np.float64) - wanted) / np.linalg.norm(wanted))


def test_nothing_to_add_up_is_zero_on_the_callers_stream() -> None:
    """The current stream is busy, and memory that it had before is full of NaN."""
    a, b = cupy.zeros((300, 0), cupy.float16), cupy.zeros((0, 200), cupy.float16)
    out = cupy.full((300, 200), cupy.nan, cupy.float32)
    stream = cupy.cuda.Stream(non_blocking=True)
    busy = cupy.zeros(1 << 27, cupy.float32)
    ops.matmul(a, b, out=out, stream=stream)  # nothing is compiled below
    out[...] = cupy.nan
    poison = [cupy.full((rows, 8), cupy.nan, cupy.float16) for rows in (300, 200)]
    cupy.cuda.Device().synchronize()
    del poison

    for _ in range(100):
        busy += 1
    ops.matmul(a, b, out=out, stream=stream)
    stream.synchronize()

    assert (cupy.asnumpy(out) == 0).all()


CONFIGS = [
    TileConfig(form.consumers, width, cluster, rows=form.rows, ping_pong=form.ping_pong)
    for form in CONSUMER_LAYOUTS
    for width in (*range(16, form.widest, 48), form.widest)
    for cluster in (1, 2)
]


@pytest.mark.parametrize("config", CONFIGS, ids=str)
@pytest.mark.parametrize("k", [64, 72, 600])
def test_every_tile_config_over_many_tiles_of_little_depth(config: TileConfig, k: int) -> None:
    """A short K leaves the epilogue's buffers the least time."""
    a, b = random(2000, k, "bfloat16", 15), random(k, 3000, "bfloat16", 16)
    with tile_configs(lambda _: config):
        in_rows, in_columns = cupy.asarray(b), cupy.asarray(np.ascontiguousarray(b.T)).T
        takes_rows = config.block_n % (LINE_BYTES // 2 * config.cluster) == 0
        for b_gpu in (in_columns, in_rows) if takes_rows else (in_columns,):
            c = ops.matmul(cupy.asarray(a), b_gpu)
            assert relative_error(cupy.asnumpy(c), a, b) < TOLERANCE["bfloat16"]


def test_a_plan_that_cupy_shares_keeps_torch_on_torchs_stream() -> None:
    torch = pytest.importorskip("torch")
    a, b = (torch.ones(512, 512, device="cuda").half() for _ in range(2))
    out = torch.zeros(512, 512, device="cuda").half()
    ops.matmul(a, b, out=out)
    ops.matmul(
        *(cupy.ones((512, 512), np.float16) for _ in range(2)),
        out=cupy.empty((512, 512), np.float16),
    )
    torch.cuda.synchronize()

    with torch.cuda.stream(torch.cuda.Stream()):
        torch.cuda._sleep(20_000_000)
        a.fill_(2)
        ops.matmul(a, b, out=out)
    torch.cuda.synchronize()

    assert bool((out == 1024).all())


@pytest.mark.parametrize("shape", [(1024, 1024, 1024), (2056, 520, 328), (16, 4096, 512)])
def test_ten_thousand_matmuls_in_a_row_are_the_same_bits(shape: tuple[int, int, int]) -> None:
    m, n, k = shape
    a, b = (cupy.asarray(random(*sides, "bfloat16", i)) for i, sides in enumerate([(m, k), (n, k)]))
    outs = [cupy.zeros((m, n), ml_dtypes.bfloat16) for _ in range(2)]
    differs = cupy.zeros((), np.int64)

    for turn in range(10_000):
        ops.matmul(a, b.T, out=outs[turn % 2])
        if turn % 100 == 99:
            differs += (outs[0].view(np.uint16) != outs[1].view(np.uint16)).sum()

    assert int(differs) == 0
    assert relative_error(cupy.asnumpy(outs[0]), cupy.asnumpy(a), cupy.asnumpy(b).T) < 4e-3
