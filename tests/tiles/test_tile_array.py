"""Arrays of tiles on the host: contents, bounds, and what does not go together."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tmaasync import (
    ArgumentError,
    StaleTileError,
    TMATensorTile,
    TMATensorTileArray,
    create_tma_tile,
    create_tma_tile_im2col,
)


def tiles(count: int = 3) -> list[TMATensorTile]:
    return [
        create_tma_tile(np.zeros((8 * n, 64), np.float32), (8, 32)) for n in range(1, count + 1)
    ]


def test_it_holds_the_maps_one_after_the_other() -> None:
    made = tiles()

    array = TMATensorTileArray(made)

    assert array.descriptors == tuple(tile.descriptor for tile in made)
    assert int.from_bytes(array.argument[:8], "little") % 128 == 0
    assert int.from_bytes(array.argument[8:], "little") == len(array) == 3
    assert array.cuda_type == f"tmaasync::TMATensorTileArray<{made[0].cuda_type}>"


def test_indices_are_checked() -> None:
    made = tiles()
    array = TMATensorTileArray(made)

    assert (array[0], array[-1], list(array)) == (made[0], made[2], made)
    for index in (3, -4):
        with pytest.raises(IndexError, match=f"index is {index}; the array has 3 tiles"):
            array[index]


def test_a_tile_can_be_replaced() -> None:
    array, (other,) = TMATensorTileArray(tiles()), tiles(1)

    array[1] = other

    assert array[1] is other
    assert array.descriptors[1] == other.descriptor


def test_tiles_of_patches_keep_their_numbers() -> None:
    images = np.zeros((2, 8, 8, 32), np.float32)
    tile = create_tma_tile_im2col(images, (16, 32), filter_shape=(3, 3))

    array = TMATensorTileArray([tile, tile])

    assert array.descriptors == (tile.descriptor,) * 2
    assert array[1].argument == tile.argument


def test_a_tile_whose_array_was_freed_is_noticed() -> None:
    gone = np.zeros((8, 64), np.float32)
    array = TMATensorTileArray([*tiles(1), create_tma_tile(gone, (8, 32))])
    array.check_alive()

    gone.resize((0,), refcheck=False)

    assert not array.is_current
    with pytest.raises(StaleTileError, match=r"args\[2\]\[1\] is made for"):
        array.check_alive("args[2]")


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ([], "tiles is empty"),
        ([np.zeros(3)], r"tiles\[0\] is .* it is no tile"),
        (
            [*tiles(1), create_tma_tile(np.zeros((8, 64), np.float32), (8, 16))],
            r"tiles\[1\]\.cuda_type is .* of one type",
        ),
    ],
)
def test_what_is_refused_is_named(given: list[Any], said: str) -> None:
    with pytest.raises(ArgumentError, match=said):
        TMATensorTileArray(given)


def test_a_tile_of_another_type_does_not_replace_one() -> None:
    array = TMATensorTileArray(tiles())

    with pytest.raises(ArgumentError, match="cuda_type is"):
        array[0] = create_tma_tile(np.zeros((8, 64), np.float32), (8, 16))


@pytest.mark.parametrize("lone", [tiles(1)[0], None, 3])
def test_what_is_no_sequence_of_tiles_is_refused(lone: Any) -> None:
    with pytest.raises(
        ArgumentError, match=r"^tiles is .*must be a sequence of tiles. Pass a list"
    ):
        TMATensorTileArray(lone)
