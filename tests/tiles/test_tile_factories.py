"""Other factories of tiles, and modes by their names."""

from __future__ import annotations

import enum
from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from arrays_in_memory import aligned

from tmaasync import (
    ArgumentError,
    Kernel,
    L2Promotion,
    LaunchError,
    OOBFill,
    Swizzle,
    TensorMapError,
    create_ragged_tensor_map,
    create_ragged_tma_3d_tile,
    create_split_tma,
    create_tensor_tile,
    create_tma_tile,
    create_tma_tile_gather4,
    create_tma_tile_im2col,
    create_tma_tile_template,
)

# --- other factories --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("swizzle", "box", "boxes"),
    [(Swizzle.NONE, (64, 8), 16), (Swizzle.B32, (64, 16), 8), (Swizzle.B128, (64, 64), 2)],
)
def test_a_tensor_tile_is_cut_at_every_chunk(
    swizzle: Swizzle, box: tuple[int, int], boxes: int
) -> None:
    tile = create_tensor_tile(aligned((256, 256), np.float16), (64, 128), swizzle=swizzle)

    assert (tile.box_shape, tile.boxes_per_tile) == (box, boxes)


def test_a_tensor_tile_with_k_across_takes_its_sides_in_the_other_order() -> None:
    array = aligned((256, 512), np.float16)

    tile = create_tensor_tile(array, (128, 64), swizzle=Swizzle.B128, k_major_tma=False)

    assert (tile.tile_shape, tile.box_shape) == ((64, 128), (64, 64))


def test_only_a_matrix_has_two_orders() -> None:
    with pytest.raises(TensorMapError, match=r"k_major_tma is False; .* tile_shape has 3"):
        create_tensor_tile(aligned((4, 4, 64)), (2, 2, 32), k_major_tma=False)


def test_a_template_has_the_type_and_sizes_of_the_tiles_it_binds() -> None:
    template = create_tma_tile_template((64, 128), "bfloat16", swizzle=Swizzle.B128)

    tile = template.bind(aligned((256, 512), np.dtype(ml_dtypes.bfloat16)))

    for name in ("cuda_type", "tile_shape", "box_shape", "tile_bytes", "boxes_per_tile", "element"):
        assert getattr(template, name) == getattr(tile, name)
    assert template.smem_alignment == tile.smem_alignment == 1024


def test_a_template_lists_what_no_array_could_mend() -> None:
    with pytest.raises(TensorMapError) as caught:
        create_tma_tile_template((512, 3), np.float32, box_shape=(512, 3))

    named = {violation.argument for violation in caught.value.violations}
    assert "box_shape[0]" in named
    assert any("box_shape[1]" in argument for argument in named)


def test_a_template_refuses_an_array_of_another_rank() -> None:
    template = create_tma_tile_template((64, 64), np.float32)

    with pytest.raises(TensorMapError, match="the array has 3 dimensions"):
        template.bind(aligned((4, 64, 64)))


def test_a_launch_refuses_a_template() -> None:
    template = create_tma_tile_template((64, 64), np.float32)
    text = '\nextern "C" __global__ void k(const __grid_constant__ Tile t) {}\n'
    kernel = Kernel(text, "k", types={"Tile": template})

    with pytest.raises(LaunchError, match=r"args\[0\] is .* no array fills.*template.bind"):
        kernel(1, 32, (template,))


MATRIX = np.zeros((512, 256), np.float16)
IMAGES = np.zeros((2, 8, 8, 64), np.float16)
FACTORIES: dict[str, Callable[..., Any]] = {
    "create_tma_tile": lambda **modes: create_tma_tile(MATRIX, (64, 64), **modes),
    "create_tensor_tile": lambda **modes: create_tensor_tile(MATRIX, (64, 64), **modes),
    "create_tma_tile_gather4": lambda **modes: create_tma_tile_gather4(MATRIX, (8, 64), **modes),
    "create_tma_tile_template": lambda **modes: create_tma_tile_template(
        (64, 64), "fp16", **modes
    ).bind(MATRIX),
    "create_split_tma": lambda **modes: create_split_tma(MATRIX, (64, 64), **modes),
    "create_tma_tile_im2col": lambda **modes: create_tma_tile_im2col(
        IMAGES, (64, 64), filter_shape=(3, 3), padding=1, **modes
    ),
    "create_ragged_tensor_map": lambda **modes: create_ragged_tensor_map(MATRIX, (64, 64), **modes),
    "create_ragged_tma_3d_tile": lambda **modes: create_ragged_tma_3d_tile(
        MATRIX.reshape(512, 4, 64), 64, **modes
    ),
}
MODES_BY_NAME: dict[str, tuple[str, Any]] = {
    "swizzle": ("128B", Swizzle.B128),
    "l2_promotion": ("256B", L2Promotion.B256),
    "oob_fill": ("nan", OOBFill.NAN),
}


@pytest.mark.parametrize("factory", FACTORIES)
@pytest.mark.parametrize("argument", MODES_BY_NAME)
def test_every_factory_takes_modes_by_name(factory: str, argument: str) -> None:
    if (factory, argument) in (
        ("create_tensor_tile", "l2_promotion"),
        ("create_tensor_tile", "oob_fill"),
    ):
        pytest.skip("the factory does not take it")
    name, member = MODES_BY_NAME[argument]
    base = {"swizzle": "128B"}

    by_name = FACTORIES[factory](**base | {argument: name})
    by_member = FACTORIES[factory](**base | {argument: member})

    assert by_name.spec == by_member.spec
    assert by_name.cuda_type == by_member.cuda_type


@pytest.mark.parametrize("factory", FACTORIES)
@pytest.mark.parametrize("wrong", ["96B", 3, 7, None, [128], L2Promotion.B256])
def test_every_factory_refuses_a_swizzle_that_is_none(factory: str, wrong: Any) -> None:
    FACTORIES[factory](swizzle=Swizzle.B128)  # which the cache of tiles holds under its number

    with pytest.raises(
        ArgumentError, match=r"^swizzle is .*; .*\. Pass one of none, 32B, 64B, 128B"
    ):
        FACTORIES[factory](swizzle=wrong)


@pytest.mark.parametrize("wrong", ["one", 7, None])
def test_other_modes_are_refused_by_their_names(wrong: Any) -> None:
    for argument, names in {
        "oob_fill": "zero, nan",
        "l2_promotion": "none, 64B, 128B, 256B",
        "interleave": "none, 16B, 32B",
    }.items():
        with pytest.raises(ArgumentError, match=rf"^{argument} is .*Pass one of {names}"):
            create_tma_tile(MATRIX, (64, 64), **{argument: wrong})


@pytest.mark.parametrize("argument", ["tile_shape", "box_shape", "element_strides"])
def test_numbers_per_side_must_be_a_sequence(argument: str) -> None:
    arguments: Any = {"tile_shape": (64, 64)} | {argument: 64}
    with pytest.raises(TensorMapError, match=rf"^{argument} is 64; .*Pass a tuple"):
        create_tma_tile(MATRIX, **arguments)


def test_a_mode_is_its_number_to_the_cuda_bindings_and_no_other_mode() -> None:
    class CUtensorMapSwizzle(enum.IntEnum):
        CU_TENSOR_MAP_SWIZZLE_128B = 3

    assert CUtensorMapSwizzle(Swizzle.B128) == Swizzle.B128 == 3
    assert Swizzle.B64 != L2Promotion.B128
    assert {Swizzle.B64: 1, L2Promotion.B128: 2}[Swizzle.B64] == 1
