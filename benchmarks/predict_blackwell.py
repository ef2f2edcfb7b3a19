"""What can be said of the kernels for tensor memory without a chip: the tables of performance.md.

    python benchmarks/predict_blackwell.py [--nvdisasm PATH] [--peer CUTLASS=gemm.cubin ...]

Per problem: the chosen tiles, waves, bytes per clock, and the share of the peak that these leave.
With nvdisasm: instructions of the innermost loops that multiply and that load, per stage of K, ours
and of the peers' cubins. Needs no GPU.
"""

from __future__ import annotations

import argparse
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from tmaasync import emulate, ops
from tmaasync._source.compile import compile_source
from tmaasync.emulate.chips import CHIPS
from tmaasync.kernel import backend_of
from tmaasync.kernel.observed import observe
from tmaasync.ops._gemm.config import BLOCK_K_BYTES, Occupancy
from tmaasync.ops._gemm.legal_tiles import Problem
from tmaasync.ops._gemm.tensor_memory import tensor_memory_config

CHIP = "sm_100a"
PEAK, MEMORY = 2.25e15, 8e12  # bf16 FLOP/s and bytes/s of a B200: its datasheet
MULTIPLY_ADDS = 4096  # of bf16 in a clock of an SM: the peak at 1.85 GHz
SHAPES = ((1024, 1024, 1024), (2048,) * 3, (4096,) * 3, (8192,) * 3, (128, 8192, 8192))
LOOPS = {"multiplies": "UTCHMMA", "loads": "UTMALDG"}
_INSTRUCTION = re.compile(r"/\*[0-9a-f]{4,}\*/\s+(.*?);")
_LABEL = re.compile(r"(\.L_x_\w+):")
_BRANCH = re.compile(r"BRA.*`\((\.L_x_\w+)\)")


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


def compiled() -> Path:
    """Return the cubin of a GEMM of fp16 in pairs of CTAs."""
    a = np.ones((4096, 64), np.float16)
    with observe(launches=False) as seen:
        ops.matmul(a, a.T)
    (kernel,) = seen.kernels
    return compile_source(kernel.source, CHIP).path


def innermost(nvdisasm: str, cubin: Path, opcode: str) -> int | None:
    """Return the instructions of the shortest loop with an opcode, per stage; None without one."""
    text = subprocess.run([nvdisasm, "-c", str(cubin)], capture_output=True, text=True, check=True)
    return min(_loops(text.stdout.splitlines(), opcode), default=None)


def _loops(lines: list[str], opcode: str) -> Iterator[int]:
    found: list[str] = []
    labels: dict[str, int] = {}
    for line in lines:
        if label := _LABEL.match(line.strip()):
            labels[label[1]] = len(found)
        if instruction := _INSTRUCTION.search(line):
            found.append(instruction[1])
    for end, text in enumerate(found):
        start = labels.get(branch[1], end + 1) if (branch := _BRANCH.search(text)) else end + 1
        if any(opcode in one for one in found[start : end + 1]):
            yield end + 1 - start


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--nvdisasm")
    parser.add_argument("--peer", nargs="*", default=[])
    arguments = parser.parse_args()
    with emulate.chip(CHIP):
        print(f"on a {CHIPS[CHIP].gpu}, bf16")
        print("\n".join(predicted(*shape) for shape in SHAPES))
        if arguments.nvdisasm is None:
            return
        cubins = {"ours": compiled()}
    cubins |= {name: Path(path) for name, path in (one.split("=") for one in arguments.peer)}
    for loop, opcode in LOOPS.items():
        counts = [
            f"{name} {innermost(arguments.nvdisasm, at, opcode)}" for name, at in cubins.items()
        ]
        print(f"{loop}: {', '.join(counts)}")


if __name__ == "__main__":
    main()
