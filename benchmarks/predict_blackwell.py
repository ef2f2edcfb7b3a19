"""What can be said of the kernels for tensor memory without a chip: the tables of performance.md.

    python benchmarks/predict_blackwell.py

Per problem: the chosen tiles, waves, bytes per clock, and the share of the peak that these leave.
Needs no GPU.
"""

from __future__ import annotations

from tmaasync import emulate
from tmaasync.emulate.chips import CHIPS
from tmaasync.kernel import backend_of
from tmaasync.ops._gemm.config import BLOCK_K_BYTES, Occupancy
from tmaasync.ops._gemm.legal_tiles import Problem
from tmaasync.ops._gemm.tensor_memory import tensor_memory_config

CHIP = "sm_100a"
PEAK, MEMORY = 2.25e15, 8e12  # bf16 FLOP/s and bytes/s of a B200: its datasheet
MULTIPLY_ADDS = 4096  # of bf16 in a clock of an SM: the peak at 1.85 GHz
SHAPES = ((1024, 1024, 1024), (2048,) * 3, (4096,) * 3, (8192,) * 3, (128, 8192, 8192))


def predicted(m: int, n: int, k: int) -> str:
    """Return the row of a GEMM of bf16 whose operands are K-major."""
    occupancy = Occupancy.of(backend_of(None))
    problem = Problem(m, n, k, 1, "bfloat16", "bfloat16", "nt", m_major=False, on_lines=True)
    config = tensor_memory_config(problem, occupancy, may_split=True)
    tiles, active = config.clusters(m, n), occupancy.max_active_clusters(config.cluster)
    waves = -(-tiles * config.split_k // active)
    clocks = config.block_m * config.block_n * BLOCK_K_BYTES // 2 // MULTIPLY_ADDS
    # The clocks of all waves, in which every CTA multiplies whole tiles.
    quantised = waves * occupancy.sms * config.block_m * config.block_n / (m * n * config.split_k)
    tensor_us = 2e6 * m * n * k / PEAK * quantised
    memory_us = 2e6 * (m * k + n * k + m * n) / MEMORY
    share = 2e6 * m * n * k / PEAK / max(tensor_us, memory_us)
    bound = "memory" if memory_us > tensor_us else "tensor cores" if share > 0.9 else "waves"
    rows = config.block_m * config.cluster
    return (
        f"| {m} x {n} x {k} | {rows} x {config.block_n} | {config.stages} | {waves} | {clocks} | "
        f"{config.stage_bytes / clocks:.0f} | {share:.0%} | {bound} |"
    )


def main() -> None:
    with emulate.chip(CHIP):
        print(f"on a {CHIPS[CHIP].gpu}, bf16")
        print("\n".join(predicted(*shape) for shape in SHAPES))


if __name__ == "__main__":
    main()
