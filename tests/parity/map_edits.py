"""What the 128 bytes of a map are after each edit, without the address; and one rare barrier."""

from __future__ import annotations

from typing import Any

import numpy as np
from parity.barrier_sequences import CALL, LANDED_FIRST, Sequence
from parity.barrier_sequences import run as run_sequence
from parity.test_tile_edits import (
    ADDRESS,
    BOX,
    DIM,
    DIM_STRIDES,
    ELEMENT_STRIDE,
    FILL,
    REST,
    SWIZZLE,
    TYPE,
    address_of,
    edit,
    run,
)

from tmaasync import L2Promotion, TMATensorTileArray, create_tma_tile

_FIELDS = {
    "global_address": ADDRESS,
    "global_dim": DIM,
    "global_dim and global_stride": DIM_STRIDES,
    "fill_mode": FILL,
    "swizzle_mode": SWIZZLE,
    "box_dim": BOX,
    "element_stride": ELEMENT_STRIDE,
    "elemtype": TYPE,
    "rank and interleave_layout": REST,
}
_BYTES = {BOX: 6 * 64, ELEMENT_STRIDE: 8 * 64}


def edited(backend: Any) -> dict[str, str]:
    """By field and memory space, the map after the edit, in hexadecimal from its ninth byte on."""
    array = backend.array(np.zeros((25, 16), np.float32))
    # The recorded maps have this granule.
    tile = create_tma_tile(array, (16, 16), l2_promotion=L2Promotion.B256)
    found = {}
    for name, field in _FIELDS.items():
        for space in ("shared", "global"):
            tiles = TMATensorTileArray([tile] * 2)
            order = edit(
                (0, 0),
                address=address_of(array),
                shape=(20, 16),
                strides_bytes=(64,),
                side=6 if field == BOX else 2,
            )
            run(backend, tiles, [order] * 2, field, space == "shared", _BYTES.get(field, 0))
            found[f"{name} in {space}"] = tiles.descriptors[0][8:].hex()
    return found


def landed_first(backend: Any) -> list[int]:
    """What a barrier says when its last bytes are expected after they landed and all arrived."""
    calls = np.array(list(LANDED_FIRST), CALL)
    seen = run_sequence(backend, Sequence(1, calls, np.zeros(len(calls), np.uint8)))
    return [int(bits) for bits in seen[:-1]]
