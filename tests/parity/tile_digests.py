"""Digests of memory after work on whole tiles: loads, stores, reductions, multicasts, sequences."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from typing import Any

import numpy as np
from parity import (
    test_clusters,
    test_gather,
    test_ragged,
    test_ragged_heads,
    test_split,
    test_tiles,
)
from parity.ragged_cases import Batches, move, source_words, tiles_seen

from tmaasync import Swizzle

POISON = 0xA5


def digests(backend: Any) -> dict[str, str]:
    """By case, a digest of shared memory or of the array afterwards."""
    found: dict[str, str] = {}
    for name, result in _results(backend):
        if name in found:
            raise ValueError(f"two cases are called {name}")
        found[name] = hashlib.blake2b(result.tobytes(), digest_size=8).hexdigest()
    return found


_Results = Iterator[tuple[str, Any]]


def _results(backend: Any) -> _Results:
    for part in (_tiles, _multicasts, _gathered, _split, _ragged, _heads):
        yield from part(backend)


def _tiles(backend: Any) -> _Results:
    for number, case in enumerate(test_tiles.CASES):
        yield f"load {number} {case}", test_tiles.load(backend, case)
    for case in test_tiles.STORED:
        yield f"store {test_tiles.CASES.index(case)} {case}", test_tiles.store(backend, case)
    for number, (case, ops) in enumerate(test_tiles.REDUCED):
        for op in ops:
            result, _ = test_tiles.reduce(backend, case, op)
            yield f"reduce {number} {case} {op.name}", result.view(np.uint8)


def _multicasts(backend: Any) -> _Results:
    for rank in range(1, 6):
        yield f"multicast {rank}d", test_clusters.multicast(backend, rank)[0]
    for ctas in (2, 4, 8):
        for is_partitioned in (False, True):
            seen = test_clusters.relay_rows(backend, ctas, is_partitioned, 12)
            kind = "shares" if is_partitioned else "turns"
            yield f"multicast to {ctas} in {kind}", seen


def _gathered(backend: Any) -> _Results:
    for number, form in enumerate(test_gather.FORMS):
        _, images = test_gather.gather(backend, form)
        yield f"gather {number}", np.concatenate(images)


def _split(backend: Any) -> _Results:
    for swizzle, fold_chunks in test_split.FOLDS:
        yield f"folded {swizzle.name}", test_split.load_folded(backend, swizzle, fold_chunks)[1]
    for swizzle in (Swizzle.B128, Swizzle.B32):
        yield f"row-major {swizzle.name}", test_split.load_atoms(backend, swizzle)
    yield "folded store", test_split.store_folded(backend)[0]


def _ragged(backend: Any) -> _Results:
    for number, form in enumerate(test_ragged.BOTH):
        batches = Batches.drawn(form, 12, seed=2)
        source = backend.array(source_words(form, batches, np, seed=2))
        target = backend.module.full_like(source, POISON)
        move(form, batches, source, target, backend.module, None)
        yield f"ragged {number} stored", backend.host(target)
        yield (
            f"ragged {number} loaded",
            backend.host(tiles_seen(form, batches, source, backend.module)),
        )


def _heads(backend: Any) -> _Results:
    for number, form in enumerate(test_ragged_heads.FORMS):
        _, target, seen = test_ragged_heads.move_heads(backend, form)
        yield f"head {number} stored", target
        yield f"head {number} loaded", seen
