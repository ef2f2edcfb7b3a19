"""``plan``: how `ops.matmul` cuts a product, and how well that fills a GPU."""

from __future__ import annotations

from typing import Annotated, Any

import typer
from rich.console import Console

from tmaasync._elements import Element, element
from tmaasync._hardware import INT32_LIMIT
from tmaasync.cli._tables import AsJson, print_json, table
from tmaasync.errors import ArgumentError
from tmaasync.ops._blocking import BLOCK_K_BYTES
from tmaasync.ops.gemm.matrix import Matrix
from tmaasync.ops.gemm.plan import Plan, plan_for
from tmaasync.ops.gemm.tune import Request
from tmaasync.ops.gemm.types import outputs_of

__all__ = ["plan"]

_H200_MULTIPROCESSORS = 132
_MAX_SIDE = INT32_LIMIT - 1
_MOST_THREADS = 2048  # that a multiprocessor holds at once


def plan(
    m: Annotated[int, typer.Argument(metavar="M", help="Rows of A [M, K].")],
    n: Annotated[int, typer.Argument(metavar="N", help="Columns of B [K, N].")],
    k: Annotated[int, typer.Argument(metavar="K", help="Columns of A, rows of B.")],
    dtype: Annotated[
        str,
        typer.Option(help="bfloat16, float16, float8_e4m3fn, float8_e5m2, int8, uint8 or tf32."),
    ] = "bfloat16",
    layout: Annotated[
        str, typer.Option(help="For A and B: n as written, t stored transposed; nt is A @ B.T.")
    ] = "nt",
    multiprocessors: Annotated[int, typer.Option(help="Of the GPU.")] = _H200_MULTIPROCESSORS,
    as_json: AsJson = False,
) -> None:
    """Show the blocks, stages, shared memory and rounds that ops.matmul chooses for a product.

    That is what its model gives; where tmaasync tune found a faster blocking, that is taken.
    """
    Request(m, n, k, layout=layout).check()
    if max(m, n, k) > _MAX_SIDE:
        raise ArgumentError(
            f"a side is {max(m, n, k)}; the kernel counts to {_MAX_SIDE}. Split the product."
        )
    if multiprocessors < 2:  # a pair of blocks takes two
        raise ArgumentError(
            f"multiprocessors is {multiprocessors}; it must be 2 or more. An H200 has 132."
        )
    kind = element(dtype)
    product = _product(m, n, k, kind, layout)
    facts = _facts(product, kind, multiprocessors)
    if as_json:
        print_json({"m": m, "n": n, "k": k, "dtype": kind.name, "layout": layout, **facts})
        return
    shown = table(f"{m} x {n} x {k}, {kind} {layout}, {multiprocessors} multiprocessors", ("", ""))
    for name, text in _lines(facts).items():
        shown.add_row(name, text)
    Console(highlight=False).print(shown)


def _product(m: int, n: int, k: int, kind: Element, layout: str) -> Plan:
    """The plan of a product of matrices that nobody has made."""
    a, b = _stored((m, k), layout[0], kind), _stored((k, n), layout[1], kind)
    output = element(outputs_of(kind)[0])
    c = _stored((m, n), "n", output).repacked()._replace(owns_padding=True)
    return plan_for(a, b, c, None)


def _stored(shape: tuple[int, int], letter: str, kind: Element) -> Matrix:
    rows, columns = shape if letter == "n" else shape[::-1]
    matrix = Matrix((rows, columns), (columns * kind.itemsize, kind.itemsize), kind, None, True)
    return matrix if letter == "n" else matrix.transposed


def _facts(product: Plan, kind: Element, multiprocessors: int) -> dict[str, Any]:
    problem, blocking = product.problem, product.blocking_on(None, multiprocessors)
    output = element(problem.output)
    clusters = problem.batches * blocking.clusters(problem.m, problem.n)
    at_once, size = blocking.clusters_at_once(multiprocessors), blocking.cluster_size
    rounds = -(-clusters // at_once)
    area = blocking.block_m * blocking.block_n
    return {
        "output": output.name,
        "copied_operands": product.copied_operands,
        "multiplies_transposes": problem.by_columns,
        "block": {
            "m": blocking.block_m,
            "n": blocking.block_n,
            "k": BLOCK_K_BYTES // kind.itemsize,
        },
        "consumers": blocking.consumers,
        "threads": blocking.threads,
        "accumulators_per_thread": blocking.rows * blocking.block_n // 128,
        "cluster": blocking.cluster,
        "side_by_side": blocking.side_by_side,
        "split": blocking.split,
        "ping_pong": blocking.ping_pong,
        "group_m": blocking.group_m,
        "stages": blocking.stages,
        "stage_bytes": blocking.stage_bytes,
        "shared_bytes": blocking.shared_bytes(output.itemsize),
        "blocks": clusters * size,
        "blocks_at_once": min(clusters, at_once) * size,
        "multiprocessors": multiprocessors,
        "rounds": rounds,
        "last_round": (clusters - (rounds - 1) * at_once) * size,
        "occupancy": blocking.threads / _MOST_THREADS,
        "useful": problem.m * problem.n / (rounds * multiprocessors * area) * blocking.split,
    }


def _lines(facts: dict[str, Any]) -> dict[str, str]:
    block, at_once = facts["block"], facts["blocks_at_once"]
    of = "the transposes' product" if facts["multiplies_transposes"] else "the product"
    copied = " and ".join(facts["copied_operands"])
    lines = {
        "block": f"{block['m']} x {block['n']} of {of}, {block['k']} of K at a time",
        "warpgroups": _warpgroups(facts),
        "accumulators": f"{facts['accumulators_per_thread']} registers of each multiplying thread",
        "cluster": _cluster(facts),
        "stages": f"{facts['stages']} of {facts['stage_bytes'] // 1024} KiB",
        "shared memory": f"{facts['shared_bytes']} bytes a block",
        "blocks": f"{facts['blocks']}, {at_once} at once, one a multiprocessor",
        "rounds": f"{facts['rounds']}; the last has {facts['last_round']} of {at_once} blocks",
        "occupancy": f"{facts['occupancy']:.0%} of the threads that a multiprocessor holds",
        "useful work": f"{facts['useful']:.1%}; edges and the last round leave the rest idle",
    }
    if copied:
        lines["copies"] = f"{copied} into rows of whole 16 bytes, before the product"
    return lines


def _warpgroups(facts: dict[str, Any]) -> str:
    turns = ", in turns, each blocks of its own" if facts["ping_pong"] else ""
    return f"{facts['consumers']} multiply{turns} and one loads: {facts['threads']} threads"


def _cluster(facts: dict[str, Any]) -> str:
    if facts["split"] > 1:
        return f"{facts['split']} blocks multiply a part of K each, of the same output"
    if facts["side_by_side"]:
        return "pairs of blocks, side by side, share loads of A"
    return "pairs of blocks share loads of B" if facts["cluster"] == 2 else "each block alone"
