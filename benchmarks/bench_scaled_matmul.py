"""FP8 matmul against cuBLAS: a scale per matrix, and block-scaled.

Writes sections "fp8_matmul" (ops.matmul against torch._scaled_mm, with and without its fast
accumulation) and "fp8_blockwise_matmul" (ops.scaled_matmul against torch's scaled_mm with
BlockWise1x128 and BlockWise128x128) of the results. A peer that refuses a case is left out of it.
Short matmuls run as CUDA graphs over operands that no cache holds. `--sweep` races every tile
config of ops.scaled_matmul instead, and writes nothing.
"""

from __future__ import annotations

import argparse
import itertools
from collections.abc import Callable, Iterator
from typing import Any

import torch
from bench_matmul import LAUNCHES, operand_sets
from race import (
    captured,
    geometric_mean,
    race,
    recorded,
    relative_error,
    speed_text,
    tera_per_second,
)

from tmaasync import _arrays, ops
from tmaasync.kernel import backend_of
from tmaasync.ops._gemm.coefficients import coefficients
from tmaasync.ops._gemm.config import Occupancy, PersistentWork, ScaledTileConfig
from tmaasync.ops._gemm.cost_model import choose_scaled_config
from tmaasync.ops._gemm.tiles import scaled_gemm_kernel, scaled_gemm_tiles

CUBES = (2048, 4096, 8192, 16384)
SHAPES = ((7168, 16384), (24576, 1536), (7168, 2048), (4096, 7168))
ROWS = (4096, 128)
FP8 = torch.float8_e4m3fn
LARGEST = 448.0
# For the output's rounding to bfloat16, and what the tensor cores drop of long accumulations.
TOLERANCE = {"tensor": 3e-2, "block": 4e-3}

Runs = dict[str, Callable[[], Any]]


# --- problems -------------------------------------------------------------------------------------


def drawn(rows: int, columns: int) -> torch.Tensor:
    return torch.randn(rows, columns, device="cuda")


def by_tensor(matrix: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    scale = matrix.abs().max() / LARGEST
    return (matrix / scale).to(FP8), scale.reshape(1, 1)


def by_rows(matrix: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Quantise with scales of 1 x 128, [rows, columns / 128], the rows contiguous."""
    rows, columns = matrix.shape
    blocks = matrix.view(rows, columns // 128, 128)
    scales = blocks.abs().amax(2) / LARGEST
    quantised = (blocks / scales[:, :, None]).to(FP8).view(rows, columns)
    return quantised, scales.T.contiguous().T


def by_blocks(matrix: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Quantise with scales of 128 x 128, [rows / 128, columns / 128 padded to a multiple of 4]."""
    rows, columns = matrix.shape
    blocks = matrix.view(rows // 128, 128, columns // 128, 128)
    scales = blocks.abs().amax((1, 3)) / LARGEST
    quantised = (blocks / scales[:, None, :, None]).to(FP8).view(rows, columns)
    padding = -scales.shape[1] % 4
    return quantised, torch.nn.functional.pad(scales, (0, padding), value=1.0)


def spread(quantised: torch.Tensor, scales: torch.Tensor, *, rows: int) -> torch.Tensor:
    """Dequantise to float64; a scale is for ``rows`` rows and 128 columns."""
    whole = scales.double().repeat_interleave(rows, 0).repeat_interleave(128, 1)
    return quantised.double() * whole[: quantised.shape[0], : quantised.shape[1]]


def check(got: torch.Tensor, a: torch.Tensor, b: torch.Tensor, tolerance: float) -> None:
    """Compare with float64 [rows, K] @ [N, K].T on rows drawn at random."""
    wanted = a @ b.T
    error = relative_error(got, wanted)
    if not error < tolerance:
        raise SystemExit(f"{tuple(a.shape)} @ {tuple(b.T.shape)}: relative error {error:.2e}")


def some_rows(m: int) -> torch.Tensor:
    return torch.randint(m, (min(m, 128),), device="cuda")


# --- candidates ----------------------------------------------------------------------------------


def able(label: str, runs: Runs) -> Runs:
    """Return the candidates that do not refuse the case."""
    found: Runs = {}
    for name, run in runs.items():
        try:
            run()
            torch.cuda.synchronize()
        except (AttributeError, NotImplementedError, RuntimeError, TypeError, ValueError) as error:
            if name == "tmaasync":
                raise
            print(f"{label}: {name} refuses: {str(error).splitlines()[0]}", flush=True)
        else:
            found[name] = run
    return found


def tensor_case(m: int, n: int, k: int) -> tuple[Runs, torch.Tensor]:
    (a, scale_a), (b, scale_b) = by_tensor(drawn(m, k)), by_tensor(drawn(n, k))
    ours = torch.full((m, n), torch.nan, dtype=torch.bfloat16, device="cuda")

    def matmul() -> Any:
        return ops.matmul(a, b.T, scale_a=scale_a, scale_b=scale_b, out=ours)

    def peer(*, fast: bool) -> Callable[[], Any]:
        one_a, one_b = scale_a.reshape(()), scale_b.reshape(())
        return lambda: torch._scaled_mm(
            a, b.T, one_a, one_b, out_dtype=torch.bfloat16, use_fast_accum=fast
        )

    rows = some_rows(m)
    check(
        matmul()[rows],
        a[rows].double() * scale_a.double(),
        b.double() * scale_b.double(),
        TOLERANCE["tensor"],
    )
    return {
        "tmaasync": matmul,
        "torch": peer(fast=True),
        "torch without fast accumulation": peer(fast=False),
    }, ours


def block_case(m: int, n: int, k: int) -> tuple[Runs, torch.Tensor]:
    (a, scale_a), (b, scale_b) = by_rows(drawn(m, k)), by_blocks(drawn(n, k))
    ours = torch.full((m, n), torch.nan, dtype=torch.bfloat16, device="cuda")

    def scaled_matmul() -> Any:
        return ops.scaled_matmul(a, b.T, scale_a, scale_b.T, out=ours)

    def peer() -> Any:
        functional = torch.nn.functional
        return functional.scaled_mm(
            a,
            b.T,
            scale_a,
            functional.ScalingType.BlockWise1x128,
            scale_b.T,
            functional.ScalingType.BlockWise128x128,
            output_dtype=torch.bfloat16,
        )

    rows = some_rows(m)
    check(
        scaled_matmul()[rows],
        spread(a[rows], scale_a[rows], rows=1),
        spread(b, scale_b, rows=128),
        TOLERANCE["block"],
    )
    return {"tmaasync": scaled_matmul, "torch": peer}, ours


def fp8_operand_sets(m: int, n: int, k: int) -> int:
    return operand_sets(2 * m * n * k, m * k + n * k + 2 * m * n)


def measure(case: Any, m: int, n: int, k: int, rounds: int) -> dict[str, Any]:
    label = f"e4m3 {m} x {n} x {k}"
    copies = fp8_operand_sets(m, n, k)
    sets = [case(m, n, k)[0] for _ in range(copies)]
    runs = able(label, sets[0])
    works = max(LAUNCHES, copies) if copies > 1 else 1
    if copies > 1:
        order = [sets[index % copies] for index in range(works)]
        runs = {name: captured([one[name] for one in order]) for name in runs}
    reference = "torch" if "torch" in runs else "tmaasync"
    row = {"case": label, "m": m, "n": n, "k": k, "dtype": "float8_e4m3fn"}
    row |= race(
        runs, rounds=rounds, reference=reference, seconds_per_slice=0.1, works_per_call=works
    )
    row["tflop_per_s"] = tera_per_second(row, 2 * m * n * k)
    return row


def report(row: dict[str, Any]) -> str:
    figures = ", ".join(f"{name} {figure:.0f}" for name, figure in row["tflop_per_s"].items())
    speed = f"  {speed_text(row, 'torch')}" if "speed_over_torch" in row else ""
    return f"{row['case']:28s} TFLOP/s: {figures}{speed}"


# --- every tile config ----------------------------------------------------------------------------


def occupancy() -> Occupancy:
    return Occupancy.of(backend_of(0))


def candidates(m: int) -> Iterator[ScaledTileConfig]:
    numbers = coefficients().scaled
    if m > numbers.max_skinny_rows:
        for shape, cluster, group_m in itertools.product(numbers.throughput, (1, 2), (4, 8, 16)):
            yield ScaledTileConfig(*shape, cluster, group_m)
        return
    for consumers, width in itertools.product((1, 2), (32, 64, 128, 256)):
        yield ScaledTileConfig(consumers, width)


def name_of(config: ScaledTileConfig) -> str:
    shape = f"{config.block_m} x {config.block_n}"
    return f"{shape}, {config.cluster} share B, group {config.group_m}"


def launch_of(
    config: ScaledTileConfig, operands: tuple[Any, ...], out: Any, depth: int
) -> Callable[[], Any]:
    views = [_arrays.view(array) for array in (*operands, out)]
    tiles = scaled_gemm_tiles(
        (views[0], views[1], views[2], views[3]), views[4], config, b_scales_transposed=True
    )
    kernel = scaled_gemm_kernel([tile.cuda_type for tile in tiles], True, config)
    m, n = out.shape
    active = occupancy().max_active_clusters(config.cluster_size)
    clusters = config.clusters(m, n)
    return kernel.prepare(
        min(clusters, active) * config.cluster,
        config.threads,
        (*tiles, m, n, depth),
        cluster=config.cluster if config.cluster > 1 else None,
        pdl=config.starts_early(PersistentWork(m, depth, clusters), active),
    )


def race_configs(m: int, n: int, k: int, rounds: int) -> None:
    (a, scale_a), (b, scale_b) = by_rows(drawn(m, k)), by_blocks(drawn(n, k))
    out = torch.empty(m, n, dtype=torch.bfloat16, device="cuda")
    scales = scale_b[:, : k // 128]
    runs: Runs = {
        name_of(one): launch_of(one, (a, b, scale_a.T, scales), out, k) for one in candidates(m)
    }
    first = name_of(choose_scaled_config(m, n, occupancy(), column_scales=False))
    row = race(runs, rounds=rounds, reference=first, seconds_per_slice=0.05)
    print(f"{m} x {n} x {k}, chosen: {first}")
    for name, us in sorted(row["us"].items(), key=lambda pair: pair[1])[:8]:
        print(f"  {name:40s} {2 * m * n * k / us / 1e6:7.1f} TFLOP/s", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--only", choices=["tensor", "block"], help="one of the two sections")
    parser.add_argument("--sweep", action="store_true", help="race tile configs instead")
    options = parser.parse_args()
    torch.manual_seed(0)
    shapes = [(m, n, k) for m in ROWS for n, k in SHAPES]
    if options.sweep:
        for shape in shapes:
            race_configs(*shape, options.rounds)
        return
    sections = {
        "block": ("fp8_blockwise_matmul", block_case, shapes),
        "tensor": ("fp8_matmul", tensor_case, [(side, side, side) for side in CUBES]),
    }
    for name, (section, case, sizes) in sections.items():
        if options.only not in {None, name}:
            continue
        with recorded(section) as rows:
            for m, n, k in sizes:
                rows.append(measure(case, m, n, k, options.rounds))
                print(report(rows[-1]), flush=True)
        raced = [row for row in rows if "torch" in row["us"]]
        if raced:
            print(f"{section}: geometric mean {geometric_mean(raced, 'torch'):.3f} x torch")


if __name__ == "__main__":
    main()
