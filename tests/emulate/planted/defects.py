# ruff: noqa: E501 - a row a defect
"""Defects to plant in the kernels of this folder: what replaces what, and what must be reported.

`Defect.line` is part of a line of the changed text.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from emulate.planted.defects_of_rows import (
    CHAIN,
    EDIT,
    HANDOFF,
    HISTOGRAM,
    PDL,
    RAGGED,
    REDUCE,
    RING,
    SCAN,
    STENCIL,
    STRIDED,
)
from emulate.planted.defects_of_tiles import DSMEM, MULTICAST, PIPE, STEAL, TRANSPOSE, WSGEMM
from emulate.planted.expected import ARGUMENT, EITHER, OUTSIDE, RACE_OR_FAULT
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


def _host(kernel: str, name: str, host: Callable[[Job], Any], says: str, **more: Any) -> Defect:
    reported = more.pop("reported", ARGUMENT)
    return Defect(kernel, name, (), reported, says, kind="parameter", host=host, **more)


def _other_box(tile: Any) -> Any:
    return create_tma_tile(tile.array, (8, 32))


HOST = (
    _host("pipe", "a tile of another box", _argument(0, _other_box), r"Tile|type"),
    _host(
        "pipe",
        "an array for a tile",
        _argument(0, lambda tile: tile.array),
        r"tile|Tile|TMATensorTile",
    ),
    _host("pipe", "an argument too few", _without_last_argument, r"pipe takes 3"),
    _host("pipe", "more threads than __launch_bounds__", _set("block", 192), r"160|launch_bounds"),
    _host(
        "pipe",
        "too few threads",
        _set("block", 128),
        r"full\[0\]|consumers|arrivals",
        reported=EITHER,
    ),
    _host("steal", "values of another type", _argument(0, lambda x: x.astype("float64")), r"float"),
    _host(
        "steal",
        "a strided array",
        _argument(0, lambda x: x.repeat(2, 1)[:, ::2]),
        r"contiguous|stride",
    ),
    _host(
        "steal",
        "a read-only array",
        _argument(1, lambda x: x.setflags(write=False) or x),
        r"read-only|write",
    ),
    _host("steal", "counter of 64 bits", _argument(2, lambda x: x.astype("int64")), r"int"),
    _host(
        "steal",
        "too little shared memory",
        _options(shared_mem=64),
        r"shared",
        reported=FAULT + ARGUMENT,
    ),
    _host(
        "multicast",
        "no cluster",
        lambda job: job.options.clear(),
        r"cluster|CTA",
        reported=FAULT + ARGUMENT,
    ),
    _host("multicast", "a grid off the cluster", _set("grid", 3), r"cluster|multiple"),
    _host("dsmem", "a cluster of two", _options(cluster=2), r"cluster|CTA", reported=FAULT),
    _host(
        "wsgemm", "an unswizzled tile", _argument(0, lambda tile: _unswizzled(tile)), r"type|Tile"
    ),
    _host("wsgemm", "four warpgroups", _set("block", 512), r"384|launch_bounds"),
    _host("reduce", "count beyond the array", _argument(1, 1001), OUTSIDE, reported=FAULT),
    _host("histogram", "a text for a number", _argument(1, "2000"), r"int|number|str"),
    _host(
        "strided",
        "threads along x alone",
        _set("block", 256),
        r"shared|rows|none of",
        reported=RACE_OR_FAULT,
    ),
    _host("stencil", "a chunk too many", _argument(2, 6), OUTSIDE, reported=FAULT),
)


def _unswizzled(tile: Any) -> Any:
    return create_tma_tile(tile.array, (128, 64))


# Edits that keep a kernel sound. None may be blamed.
SOUND = tuple(
    Defect(kernel, name, (edit,))
    for kernel, name, edit in (
        ("pipe", "the issuer fences after the barrier",
         Edit("fence_async_view_proxy(); consumers.sync();", "consumers.sync(); fence_async_view_proxy();")),
        ("pipe", "another stage is released",
         Edit("shared.empty[state.index].arrive();", "shared.empty[(state.index + 1) % kStages].arrive();")),
        ("dsmem", "cluster_sync publishes the inits", without("fence_barrier_init();")),
        ("reduce", "the sum is added up after the barrier before", without("__syncthreads();", nth=3)),
        ("chain", "the writers alone fence for TMA", without("ptx::fence_proxy_async_global();", nth=1)),
        ("chain", "the reader alone fences for TMA", without("ptx::fence_proxy_async_global();", nth=2)),
        ("pdl", "the next grid starts before the results",
         Edit("scaled[i] = 2 * values[i]; launch_dependent_grids();",
              "launch_dependent_grids(); scaled[i] = 2 * values[i];")),
        ("ragged", "the wait comes after the leader's own", without("__syncthreads();", nth=2)),
        ("handoff", "an arrival that nobody waits for", without("if (step + 2 < steps)")),
        ("multicast", "acquired from the own CTA, as CUTLASS does",
         Edit("wait_acquire<Scope::kCluster>", "wait_acquire<Scope::kCta>")),
    )
)  # fmt: skip

DEFECTS = (
    *PIPE, *STEAL, *MULTICAST, *DSMEM, *TRANSPOSE, *WSGEMM, *REDUCE, *CHAIN, *PDL, *RAGGED, *RING, *STENCIL,
    *SCAN, *HISTOGRAM, *EDIT, *HANDOFF, *STRIDED, *HOST,
)  # fmt: skip
