"""Calls on all ranks of a process, timed from the host and as a CUDA graph per rank."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from bench_peers import World, microseconds, summary

Work = Callable[[], Any]


def with_graphs(world: World, works: dict[str, Work], calls: int) -> dict[str, Work]:
    """Return ``calls`` calls of each work, and their replay from a CUDA graph per rank."""
    candidates = {}
    for name, work in works.items():
        candidates[name] = functools.partial(repeat, work, calls)
        try:
            candidates[f"{name}_graph"] = captured(world, candidates[name])
        except RuntimeError as error:  # torch cannot capture it
            print(f"no graph of {name}: {error}", flush=True)
    return candidates


def repeat(work: Work, calls: int) -> None:
    for _ in range(calls):
        work()


def captured(world: World, work: Work) -> Work:
    """Return the replay of each rank's part of the work, which was called before."""
    graphs = [torch.cuda.CUDAGraph() for _ in world.ranks]
    for device, stream, graph in zip(world.devices, world.streams, graphs, strict=True):
        with torch.cuda.device(device), torch.cuda.stream(stream):
            graph.capture_begin(capture_error_mode="relaxed")
    work()
    for device, stream, graph in zip(world.devices, world.streams, graphs, strict=True):
        with torch.cuda.device(device), torch.cuda.stream(stream):
            graph.capture_end()

    def replay() -> None:
        for device, stream, graph in zip(world.devices, world.streams, graphs, strict=True):
            with torch.cuda.device(device), torch.cuda.stream(stream):
                graph.replay()

    return replay


def interleaved(
    world: World, candidates: dict[str, Work], calls: int, rounds: int, reference: str
) -> dict[str, Any]:
    """Return the medians, and the speeds over the reference's, in rounds of all candidates.

    Each candidate makes this number of calls.
    """
    found: dict[str, list[float]] = {name: [] for name in candidates}
    for number in range(rounds + 1):
        for name in list(candidates) if number % 2 else reversed(list(candidates)):
            us = microseconds(world, [candidates[name]]) / calls
            if number:  # the first round warms up
                found[name].append(us)
    return {**summary(found, reference), "rounds": rounds, "ranks": len(world)}
