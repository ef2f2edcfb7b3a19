"""``plan``: the tile config of `ops.matmul` for a GEMM, and its waves on a GPU."""

from __future__ import annotations

from typing import Annotated, Any

import typer
from rich.console import Console

from tmaasync._elements import Element, element
from tmaasync._hardware import INT32_LIMIT
from tmaasync.cli._tables import AsJson, print_json, table
from tmaasync.errors import ArgumentError
from tmaasync.ops._gemm.config import BLOCK_K_BYTES, Occupancy
from tmaasync.ops._gemm.operands import check_operands, outputs_of
from tmaasync.ops._layouts import Layout
from tmaasync.ops._matmul import Matmul
from tmaasync.ops._tuning import Request

_H200_SMS = 132
_OPERANDS = {
    "bfloat16": "bf16",
    "float16": "fp16",
    "float8_e4m3fn": "e4m3",
    "float8_e5m2": "e5m2",
    "int8": "int8",
    "uint8": "uint8",
    "tfloat32": "tf32",
}
"""Types that ops.matmul multiplies, with their short names."""
_MAX_SIDE = INT32_LIMIT - 1
_PARTIAL_BYTES = 4  # of an accumulator
_MOST_THREADS = 2048  # that an SM holds at once


def plan(
    m: Annotated[int, typer.Argument(metavar="M", help="Rows of A [M, K].")],
    n: Annotated[int, typer.Argument(metavar="N", help="Columns of B [K, N].")],
    k: Annotated[int, typer.Argument(metavar="K", help="Columns of A, rows of B.")],
    dtype: Annotated[
        str,
        typer.Option(help="bf16, fp16, e4m3, e5m2, int8, uint8 or tf32."),
    ] = "bfloat16",
    layout: Annotated[
        str, typer.Option(help="For A and B: n as written, t stored transposed; nt is A @ B.T.")
    ] = "nt",
    sms: Annotated[int, typer.Option(help="SMs of the GPU.")] = _H200_SMS,
    as_json: AsJson = False,
) -> None:
    """Print the tile config of ops.matmul for a GEMM: CTA tile, cluster, stages, split-K, waves.

    It is the config that tmaasync tune kept for this GEMM, else the choice of the cost model.
    """
    Request(m, n, k, layout=layout).check()
    if max(m, n, k) > _MAX_SIDE:
        raise ArgumentError.broken(
            "a side", max(m, n, k), f"the kernel counts to {_MAX_SIDE}", "Split the GEMM"
        )
    if sms < 2:  # a pair of CTAs takes two
        raise ArgumentError.broken("sms", sms, "it must be 2 or more", "An H200 has 132")
    kind = _operand(dtype)
    operation = _matmul(m, n, k, kind, layout)
    facts = _facts(operation, kind, Occupancy.estimated(sms))
    if as_json:
        print_json({"m": m, "n": n, "k": k, "dtype": kind.name, "layout": layout, **facts})
        return
    shown = table(f"{m} x {n} x {k}, {kind} {layout}, {sms} SMs", ("", ""))
    for name, text in _lines(facts).items():
        shown.add_row(name, text)
    Console(highlight=False).print(shown)


def _operand(dtype: str) -> Element:
    """Return the element type of A and B.

    Raises:
        ArgumentError: ops.matmul does not multiply it.
        ArrayTypeError: It names no element type.
    """
    kind = element(dtype)
    if kind.name == "float32":
        raise ArgumentError.broken(
            "dtype",
            "float32",
            "the tensor cores round it to tf32, 10 bits of fraction",
            "Pass --dtype tf32",
        )
    if kind.name not in _OPERANDS:
        raise ArgumentError.broken(
            "dtype",
            kind,
            f"ops.matmul multiplies {', '.join(_OPERANDS.values())}",
            "Pass one of them",
        )
    return kind


def _matmul(m: int, n: int, k: int, kind: Element, layout: str) -> Matmul:
    """Return the operation on matrices that do not exist."""
    a, b = _stored((m, k), layout[0], kind), _stored((k, n), layout[1], kind)
    output = element(outputs_of(kind)[0])
    c = _stored((m, n), "n", output).padded()._replace(owns_padding=True)
    check_operands(a, b)
    return Matmul(a, b, c)


def _stored(shape: tuple[int, int], letter: str, kind: Element) -> Layout:
    rows, columns = shape if letter == "n" else shape[::-1]
    matrix = Layout((rows, columns), (columns * kind.itemsize, kind.itemsize), kind, None, True)
    return matrix if letter == "n" else matrix.transposed


def _facts(operation: Matmul, kind: Element, occupancy: Occupancy) -> dict[str, Any]:
    problem, config = operation.problem, operation.config_on(None, occupancy)
    output = element(problem.output)
    clusters = problem.batches * config.clusters(problem.m, problem.n)
    clusters *= config.split_k // config.cluster_splits
    size = config.cluster_size
    active = occupancy.max_active_clusters(size)
    waves = -(-clusters // active)
    area = config.block_m * config.block_n
    stored_bytes = _PARTIAL_BYTES if config.over_grid else output.itemsize
    return {
        "output": output.name,
        "staged_operands": operation.staged_operands,
        "swap_ab": problem.m_major,
        "tile": {
            "m": config.block_m,
            "n": config.block_n,
            "k": BLOCK_K_BYTES // kind.itemsize,
        },
        "consumers": config.consumers,
        "threads": config.threads,
        "accumulators_per_thread": config.rows * config.block_n // 128,
        "cluster": config.cluster,
        "side_by_side": config.side_by_side,
        "split_k": config.split_k,
        "over_grid": config.over_grid,
        "ping_pong": config.ping_pong,
        "group_m": config.group_m,
        "stages": config.stages,
        "stage_bytes": config.stage_bytes,
        "shared_bytes": config.shared_bytes(stored_bytes),
        "ctas": clusters * size,
        "ctas_at_once": min(clusters, active) * size,
        "sms": occupancy.sms,
        "waves": waves,
        "last_wave": (clusters - (waves - 1) * active) * size,
        "occupancy": config.threads / _MOST_THREADS,
        "useful": problem.m * problem.n / (waves * occupancy.sms * area) * config.split_k,
    }


def _lines(facts: dict[str, Any]) -> dict[str, str]:
    tile, at_once = facts["tile"], facts["ctas_at_once"]
    of = ", swap AB" if facts["swap_ab"] else ""
    staged = " and ".join(facts["staged_operands"])
    lines = {
        "CTA tile": f"{tile['m']} x {tile['n']} of the output{of}, K in steps of {tile['k']}",
        "warpgroups": _warpgroups(facts),
        "accumulators": f"{facts['accumulators_per_thread']} registers of each consumer thread",
        "cluster": _cluster(facts),
        "pipeline": f"{facts['stages']} stages of {facts['stage_bytes'] // 1024} KiB",
        "shared memory": f"{facts['shared_bytes']} bytes a CTA",
        "CTA tiles": f"{facts['ctas']}, at most {at_once} at once, one on each SM",
        "waves": f"{facts['waves']}; the last has {facts['last_wave']} of {at_once} tiles",
        "occupancy": f"{facts['occupancy']:.0%} of the threads that an SM holds",
        "useful work": f"{facts['useful']:.1%}; the rest is tile edges and wave quantisation",
    }
    if facts["over_grid"]:
        lines["split-K"] = f"{facts['split_k']} over the grid, added up by a combine kernel"
    if staged:
        lines["staging copies"] = f"{staged} into rows of whole 16 bytes"
    return lines


def _warpgroups(facts: dict[str, Any]) -> str:
    form = "ping-pong: " if facts["ping_pong"] else ""
    return f"{form}{facts['consumers']} consumer + 1 producer, {facts['threads']} threads"


def _cluster(facts: dict[str, Any]) -> str:
    if facts["split_k"] > 1 and not facts["over_grid"]:
        return f"split-K {facts['split_k']} in a cluster, reduced in distributed shared memory"
    if facts["side_by_side"]:
        return "2 CTAs along N, A multicast"
    return "2 CTAs along M, B multicast" if facts["cluster"] == 2 else "none"
