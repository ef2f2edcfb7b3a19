"""A bf16 GEMM of large matrices as a structured kernel: multicast clusters, L2 rasterisation."""

import sys
from pathlib import Path
from typing import NamedTuple

import ml_dtypes
import numpy as np

from tmaasync import Kernel, L2Promotion, Swizzle, create_tma_tile

GPU = "--gpu" in sys.argv
if GPU:
    import cupy as xp

    SIZES = [(8192, 8192, 8192), (4096, 4096, 4096), (1000, 1032, 520)]
    CTAS = xp.cuda.Device().attributes["MultiProcessorCount"] // 2 * 2
else:
    import numpy as xp

    SIZES, CTAS = [(300, 400, 200)], 2
DEPTH, CHUNK = 64, 64  # K of a stage; columns of a store: 128 bytes each


class Config(NamedTuple):
    """The CTA tile of two consumer warpgroups, stages, and CTAs that multicast A."""

    rows: int = 256
    columns: int = 192
    stages: int = 3
    cluster: int = 2


SMALL = Config(128, 256, 4, 1)  # in few waves, CTAs of a cluster would wait for each other


def bind(a, b, c, config):
    """Return a function that computes c = a b^T on each call; the arrays are bits of bf16."""
    (m, n), k = c.shape, a.shape[1]
    tiles = [
        create_tma_tile(
            array,
            sides,
            dtype="bfloat16",
            swizzle=Swizzle.B128,
            box_shape=box,
            l2_promotion=L2Promotion.B256,
        )
        for array, sides, box in [
            # A box for each CTA of the cluster, which multicasts it.
            (a, (config.rows, DEPTH), (config.rows // config.cluster, DEPTH)),
            (b, (config.columns, DEPTH), None),
            (c, (64, CHUNK), None),
        ]
    ]
    kernel = Kernel(
        Path(__file__).with_suffix(".cu"),
        "gemm",
        types=dict(zip(("ATile", "BTile", "CTile"), tiles, strict=True)),
        constants={"CONSUMERS": 2, "STAGES": config.stages, "CLUSTER": config.cluster},
    )
    args = (*tiles, m, n, k)
    return lambda: kernel(grid=CTAS, block=384, args=args, cluster=config.cluster)


def main():
    rng = np.random.default_rng(0)
    for m, n, k in SIZES:
        config = Config() if m > 4096 or not GPU else SMALL
        a, b = (
            rng.standard_normal(shape, np.float32).astype(ml_dtypes.bfloat16)
            for shape in ((m, k), (n, k))
        )
        c = xp.zeros((m, n), np.uint16)

        bind(*(xp.asarray(x.view(np.uint16)) for x in (a, b)), c, config)()

        rows = rng.permutation(m)[:64]
        expected = a[rows].astype(np.float32) @ b.astype(np.float32).T
        result = (c.get() if GPU else c)[rows].view(ml_dtypes.bfloat16).astype(np.float32)
        error = np.linalg.norm(result - expected) / np.linalg.norm(expected)
        if not error < 1e-2:
            raise SystemExit(f"the result is wrong by {error}")
        print(f"{m} x {n} x {k}: relative error {error:.1e}")


if __name__ == "__main__":
    main()
