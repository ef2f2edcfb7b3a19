"""Sequences of unequal length, on either back end: inside every byte right, outside untouched."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from emulate import tma_oracle as oracle
from parity.backends import Emulate
from parity.ragged_cases import (
    FORMS,
    POISON,
    Batches,
    Form,
    rows_first,
    source_words,
    tiles_seen,
    wrong_words,
)

# A build of seconds each on the CPU; the engine's own test has every form.
BOTH = (FORMS[1], FORMS[4], FORMS[6])


@pytest.mark.on_the_cpu(0)
@pytest.mark.parametrize("form", BOTH, ids=str)
def test_random_batches_move_and_nothing_else_does(backend: Any, form: Form) -> None:
    batches = 40 if isinstance(backend, Emulate) else 300
    assert wrong_words(form, batches, backend.module, seed=1) == 0


def expected_tiles(form: Form, sequence: Any) -> Iterator[Any]:
    """The tiles of one sequence, rows first in `sequence`, with zeros beyond its end."""
    padded = np.zeros((form.max_length + form.tile_rows, *sequence.shape[1:]), sequence.dtype)
    padded[: len(sequence)] = sequence
    for row in range(0, max(len(sequence), 1), form.tile_rows):
        for part in itertools.product(*map(range, form.parts[::-1])):
            corner = [index * side for index, side in zip(part, form.tile_others, strict=True)]
            sides = (form.tile_rows, *form.tile_others)
            tile = np.zeros(sides, sequence.dtype)
            inside = padded[
                tuple(
                    slice(start, start + side)
                    for start, side in zip((row, *corner), sides, strict=True)
                )
            ]
            tile[tuple(map(slice, inside.shape))] = inside
            yield np.moveaxis(tile, 0, form.ragged_dim)


def in_shared(form: Form, tile: Any) -> Any:
    """The bytes of a tile of one box as they lie in shared memory."""
    spec = form.map(np.zeros(form.shape(1), form.dtype)).spec
    raw = np.ascontiguousarray(tile).view(np.uint8).reshape(-1)
    places = [oracle.in_shared(spec, byte, 0) for byte in range(raw.size)]
    image = np.empty_like(raw)
    image[places] = raw
    return image


@pytest.mark.sampled(1)
@pytest.mark.on_the_cpu(1)
@pytest.mark.parametrize("form", BOTH, ids=str)
def test_a_load_fills_zeros_beyond_the_end_though_the_neighbours_are_nan(
    backend: Any, form: Form
) -> None:
    batches = Batches.drawn(form, 12, seed=2)
    source = source_words(form, batches, np, seed=2)

    seen = backend.host(tiles_seen(form, batches, backend.array(source), backend.module))

    by_row = rows_first(form, source)
    for tiles, (start, _), length in zip(seen, batches.starts, batches.lengths, strict=True):
        expected = [*expected_tiles(form, by_row[start : start + length])]
        for tile, wanted in zip(tiles, expected, strict=False):
            assert np.array_equal(tile, in_shared(form, wanted))
        assert (tiles[len(expected) :] == POISON).all()
