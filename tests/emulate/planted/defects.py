# ruff: noqa: E501 - a row a defect
"""Defects to plant in the kernels of this folder: what replaces what, and what must be reported.

`Defect.line` is part of a line of the changed text.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from emulate.planted.defects_of_rows import HANDOFF, RAGGED, RING, SCAN, STENCIL
from emulate.planted.defects_of_tiles import DSMEM, MULTICAST, PIPE, STEAL, WSGEMM
from emulate.planted.expected import ARGUMENT, EITHER, OUTSIDE
from emulate.planted.kernels import Job
from planted import FAULT, Defect, Edit, without

from tmaasync import create_tma_tile


def _options(**options: Any) -> Callable[[Job], Any]:
    return lambda job: job.options.update(options)


def _argument(index: int, value: Any) -> Callable[[Job], Any]:
    def replace(job: Job) -> None:
        given = job.arguments[index]
        job.arguments = [*job.arguments]
        job.arguments[index] = value(given) if callable(value) else value

    return replace


def _without_last_argument(job: Job) -> None:
    job.arguments = job.arguments[:-1]


def _set(name: str, value: Any) -> Callable[[Job], Any]:
    return lambda job: setattr(job, name, value)


HOST = tuple(
    Defect(kernel, name, (), reported, says, kind="parameter", host=host)
    for kernel, name, host, reported, says in (
        ("pipe", "a tile of another box", _argument(0, lambda tile: create_tma_tile(tile.array, (8, 32))),
         ARGUMENT, r"Tile|type"),
        ("pipe", "an array for a tile", _argument(0, lambda tile: tile.array), ARGUMENT,
         r"tile|Tile|TMATensorTile"),
        ("pipe", "an argument too few", _without_last_argument, ARGUMENT, r"pipe takes 3"),
        ("pipe", "more threads than __launch_bounds__", _set("block", 192), ARGUMENT, r"160|launch_bounds"),
        ("pipe", "too few threads", _set("block", 128), EITHER, r"full\[0\]|consumers|arrivals"),
        ("steal", "values of another type", _argument(0, lambda x: x.astype("float64")), ARGUMENT, r"float"),
        ("steal", "a strided array", _argument(0, lambda x: x.repeat(2, 1)[:, ::2]), ARGUMENT,
         r"contiguous|stride"),
        ("steal", "a read-only array", _argument(1, lambda x: x.setflags(write=False) or x), ARGUMENT,
         r"read-only|write"),
        ("steal", "counter of 64 bits", _argument(2, lambda x: x.astype("int64")), ARGUMENT, r"int"),
        ("steal", "too little shared memory", _options(shared_mem=64), FAULT + ARGUMENT, r"shared"),
        ("multicast", "no cluster", lambda job: job.options.clear(), FAULT + ARGUMENT, r"cluster|CTA"),
        ("multicast", "a grid off the cluster", _set("grid", 3), ARGUMENT, r"cluster|multiple"),
        ("dsmem", "a cluster of two", _options(cluster=2), FAULT, r"cluster|CTA"),
        ("wsgemm", "an unswizzled tile", _argument(0, lambda tile: create_tma_tile(tile.array, (128, 64))),
         ARGUMENT, r"type|Tile"),
        ("stencil", "a chunk too many", _argument(2, 6), FAULT, OUTSIDE),
    )
)  # fmt: skip

# Edits that keep a kernel sound. None may be blamed.
SOUND = tuple(
    Defect(kernel, name, (edit,))
    for kernel, name, edit in (
        ("pipe", "the issuer fences after the barrier",
         Edit("fence_async_view_proxy(); consumers.sync();", "consumers.sync(); fence_async_view_proxy();")),
        ("pipe", "another stage is released",
         Edit("shared.empty[state.index].arrive();", "shared.empty[(state.index + 1) % kStages].arrive();")),
        ("dsmem", "cluster_sync publishes the inits", without("fence_barrier_init();")),
        ("ragged", "the wait comes after the leader's own", without("__syncthreads();", nth=2)),
        ("handoff", "an arrival that nobody waits for", without("if (step + 2 < steps)")),
        ("multicast", "acquired from the own CTA, as CUTLASS does",
         Edit("wait_acquire<Scope::kCluster>", "wait_acquire<Scope::kCta>")),
    )
)  # fmt: skip

DEFECTS = (
    *PIPE, *STEAL, *MULTICAST, *DSMEM, *WSGEMM, *RAGGED, *RING, *STENCIL, *SCAN, *HANDOFF, *HOST,
)  # fmt: skip
