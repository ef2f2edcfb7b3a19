"""The engine against the H200: the same 6,000 random instructions, bit for bit."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from emulate.engine_library import Engine, Observer, aligned, descriptor_of
from parity.random_copies import DIGEST_CHARACTERS, IMAGE_BYTES, LOAD, STORE, Case, case, digest

KEPT = json.loads((Path(__file__).parents[1] / "data" / "copies_nvidia_h200.json").read_text())
SHARDS = 8


def run(engine: Engine, one: Case) -> str:
    memory = aligned(one.array_bytes)
    memory[:] = one.array()
    shared = aligned(IMAGE_BYTES)
    shared[:] = one.image()
    observer = Observer.of(memory.ctypes.data, memory.size)
    place = (
        descriptor_of(replace(one.spec, address=memory.ctypes.data)),
        np.array(one.at, np.int32),
        shared,
        0,
        observer,
    )
    completed = 1
    if one.operation == LOAD:
        completed = int(engine.call("tiled_load", *place) == one.box_bytes)
    elif one.operation == STORE:
        engine.call("tiled_store", *place)
    else:
        engine.call("tiled_reduce", int(one.reduce_op), *place)
    return digest(shared, memory, completed)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("shard", range(SHARDS))
def test_the_engine_does_what_the_chip_did(engine: Engine, shard: int) -> None:
    digests = KEPT["digests"]
    count = len(digests) // DIGEST_CHARACTERS

    differing = [
        number
        for number in range(shard, count, SHARDS)
        if run(engine, case(number))
        != digests[number * DIGEST_CHARACTERS : (number + 1) * DIGEST_CHARACTERS]
    ]

    assert count == 6000
    assert differing == [], [case(number) for number in differing[:3]]
