"""Tiles of packed types, of larger swizzle atoms and of listed rows, which came with sm_100a.

Emulated; not run on a chip.
"""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from arrays_in_memory import aligned
from parity.tile_oracle import loaded

from tmaasync import (
    ArrayTypeError,
    DataType,
    EmulatedFault,
    Kernel,
    Swizzle,
    TensorMapError,
    create_split_tma,
    create_tensor_tile,
    create_tma_tile,
    create_tma_tile_gather4,
    create_tma_tile_im2col_w,
    create_tma_tile_template,
    gather4_tile_bytes,
)
from tmaasync.emulate import scheduled
from tmaasync.swizzle import tile_offset

ATOMS = [one for one in Swizzle if one.needs_sm_100]


def bits_of(packed: Any, width: int) -> Any:
    """Return the elements of rows of packed bytes, low bits first."""
    bits = np.unpackbits(packed, axis=1, bitorder="little")
    return bits.reshape(len(packed), -1, width) @ (1 << np.arange(width))


def drawn(rows: int, row_bytes: int) -> Any:
    """Return random bytes that start at a multiple of 128."""
    array = aligned((rows, row_bytes), np.uint8)
    array[:] = np.random.default_rng(row_bytes).integers(0, 256, array.shape)
    return array


# --- one tile to shared memory and back -----------------------------------------------------------

COPY = """
#include <tmaasync/tmaasync.cuh>
using namespace tmaasync;

struct SharedMemory {
    Tile::Shared tile;
    SharedMemBarrier full;
};
extern "C" __device__ const int copy_shared_bytes = sizeof(SharedMemory);

// Shared memory after a load, and the bytes where element (row, column) begins.
extern "C" __global__ void copy(
    const __grid_constant__ Tile from, const __grid_constant__ Tile to, int column, int row,
    unsigned char* image, unsigned* offsets
) {
    auto& shared = dynamic_shared<SharedMemory>();
    if (threadIdx.x == 0) {
        shared.full.init();
        fence_barrier_init();
        shared.full.expect_bytes(Tile::kBytes);
        from.async_copy(shared.tile, shared.full, {column, row});
        shared.full.wait(0);
        for (int i = 0; i < sizeof(shared.tile.bytes); ++i) image[i] = shared.tile.bytes[i];
        for (int i = 0; i < Tile::kElements; ++i) {
            offsets[i] = Tile::tile_offset({i % Tile::side(1), i / Tile::side(1)});
        }
        STORE
    }
}
"""
STORE = "to.async_store(shared.tile, {column, row}); commit_group(); wait_group<0>();"


def copied(array: Any, sides: tuple[int, int], at: tuple[int, int], **options: Any) -> Any:
    """Return shared memory and the offsets of elements after a load, and what a store wrote."""
    target = drawn(*array.shape)
    target[:] = 0
    arch = options.setdefault("arch", "sm_100a")
    tiles = [create_tma_tile(one, sides, **options) for one in (array, target)]
    is_load_only = options.get("dtype") == "float4_e2m1fn_unpacked"
    text = COPY.replace("STORE", "" if is_load_only else STORE)
    image = np.full(sides[0] * sides[1], 0xEE, np.uint8)
    if tiles[0].element.shared_bits == 4:
        image = image[::2].copy()
    offsets = np.zeros(sides, np.uint32)
    with scheduled(races=True):
        kernel = Kernel(text, "copy", types={"Tile": tiles[0]}, arch=arch)
        kernel(1, 32, (*tiles, at[1], at[0], image, offsets))
    return tiles[0], image, offsets, target


@pytest.mark.parametrize("swizzle", [Swizzle.NONE, Swizzle.B128, Swizzle.B128_ATOM_32B])
@pytest.mark.parametrize(
    ("dtype", "width"),
    [
        ("float4_e2m1fn", 4),
        ("float4_e2m1fn_unpacked", 4),
        ("float6_e2m3fn", 6),
        (DataType.PACKED_16U6_ALIGN16B, 6),
    ],
)
def test_a_tile_of_packed_elements(dtype: Any, width: int, swizzle: Swizzle) -> None:
    columns = 512
    array, sides, at = drawn(12, columns * width // 8), (8, 256), (2, 128)

    tile, image, offsets, target = copied(array, sides, at, dtype=dtype, swizzle=swizzle)

    assert tile.spec.shape == (12, columns)
    assert tile.tile_bytes == 8 * 256 * width // 8  # the gaps are not counted
    assert tile.tiles_per_side == (2, 2)
    wanted = bits_of(array, width)[2:10, 128:384]
    is_dense = dtype == "float4_e2m1fn"
    run = 64 if is_dense else 16  # bits of shared memory for 16 elements: a word, or 16 bytes
    found = np.empty_like(wanted)
    for first in range(0, 256, 16):
        start = offsets[:, first, None] + np.arange(8 if run == 64 else 12 if width == 6 else 8)
        found[:, first : first + 16] = bits_of(image[start], width)
    assert (found == wanted).all()
    if dtype == "float4_e2m1fn_unpacked":
        return
    # The element that bytes hold is what a store packs; with gaps these are not the loaded ones.
    stored = bits_of(target, width)[2:10, 128:384]
    if not is_dense:
        wanted = image[offsets] & 0x3F
    assert (stored == wanted).all()
    outside = bits_of(target, width)
    outside[2:10, 128:384] = 0
    assert not outside.any()


@pytest.mark.parametrize("swizzle", ATOMS)
def test_a_tile_of_a_larger_swizzle_atom(swizzle: Swizzle) -> None:
    array = drawn(24, 512)

    tile, image, offsets, target = copied(array, (16, 256), (4, 128), swizzle=swizzle)

    assert tile.box_shape == (16, 128)
    line = np.arange(16 * 256) >> 7
    dense = np.concatenate([array[4:20, 128:256].ravel(), array[4:20, 256:384].ravel()])
    permuted = {  # by the address bits of the PTX ISA, "Swizzling modes"
        Swizzle.B128_ATOM_32B: (line & 3) << 5,
        Swizzle.B128_ATOM_32B_FLIP_8B: (line & 3) << 5 | (line & 1) << 3,
        Swizzle.B128_ATOM_64B: (line & 1) << 6,
    }[swizzle]
    assert (image[np.arange(16 * 256) ^ permuted] == dense).all()
    assert (image[offsets] == array[4:20, 128:384]).all()
    index = tuple(np.indices((16, 256)))
    assert (offsets == tile_offset(index, (16, 256), tile.box_shape, 1, swizzle)).all()
    assert (target[4:20, 128:384] == array[4:20, 128:384]).all()


def test_the_tile_of_a_template_and_of_an_operand() -> None:
    array = drawn(16, 128)
    template = create_tma_tile_template((8, 256), "e2m1", swizzle="128B_ATOM_32B", arch="sm_100a")
    tile = template.bind(array)
    assert (tile.cuda_type, tile.tile_bytes) == (template.cuda_type, template.tile_bytes)
    operand = create_tensor_tile(array, (8, 256), dtype="e2m1", swizzle="128B", arch="sm_100a")
    assert (operand.spec.shape, operand.box_shape) == ((16, 256), (8, 256))
    assert operand.rebind(drawn(16, 128)).spec.shape == (16, 256)


def test_a_split_tile_of_a_larger_swizzle_atom() -> None:
    array = np.zeros((64, 8, 128), np.float16)
    options: dict[str, Any] = {"swizzle": "128B_ATOM_32B", "fold_chunks": 2}
    with pytest.raises(TensorMapError, match=r'swizzle is .*pass arch="sm_100a"'):
        create_split_tma(array, (16, 1, 128), **options)
    tile = create_split_tma(array, (16, 1, 128), arch="sm_100a", **options)
    assert (tile.boxes_per_tile, tile.spec.swizzle) == (1, Swizzle.B128_ATOM_32B)
    assert "Swizzle::k128BAtom32B" in tile.cuda_type


REFUSED: dict[str, tuple[dict[str, Any], type[Exception], str]] = {
    "Hopper has no packed types": (
        {"dtype": "e2m1", "arch": "sm_90a"},
        TensorMapError,
        r'dtype is .*exists on sm_100a and sm_103a; this is sm_90a.*pass arch="sm_100a"',
    ),
    "nor has sm_120a": ({"dtype": "e2m3", "arch": "sm_120a"}, TensorMapError, "this is sm_120a"),
    "nor larger atoms": (
        {"swizzle": "128B_ATOM_64B", "arch": "sm_90a"},
        TensorMapError,
        r"swizzle is Swizzle.B128_ATOM_64B; it exists on .*Use Swizzle.B128, or pass arch",
    ),
    "a tile above 99 KiB": (
        {"arch": "sm_120a", "tile_shape": (1024, 128)},
        TensorMapError,
        "it takes 131072 bytes and a block has 101376 bytes",
    ),
    "an unknown chip": ({"arch": "sm_80"}, TensorMapError, "arch is 'sm_80'.*Pass one of sm_90a"),
    "a narrow box": (
        {"dtype": "e2m3", "box_shape": (8, 64)},
        TensorMapError,
        r"box_shape\[1\] is 64; the innermost side .* is 128 elements",
    ),
    "a narrow swizzle": (
        {"dtype": "e3m2", "swizzle": "64B"},
        TensorMapError,
        "takes the swizzles none, 128B",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_tile_that_the_chip_lacks_is_refused(name: str) -> None:
    options, kind, words = REFUSED[name]
    given = {"tile_shape": (8, 128), "arch": "sm_100a", **options}
    with pytest.raises(kind, match=words):
        create_tma_tile(drawn(16, 192), **given)


def test_an_array_with_one_packed_element_in_a_byte_is_refused() -> None:
    array = np.zeros((8, 128), ml_dtypes.float4_e2m1fn)
    with pytest.raises(ArrayTypeError, match=r"one element in a byte.*Pack the elements, low bits"):
        create_tma_tile(array, (8, 128), dtype="float4_e2m1fn", arch="sm_100a")


def test_a_store_of_unpacked_elements_does_not_compile() -> None:
    tile = create_tma_tile(drawn(8, 128), (8, 128), dtype="float4_e2m1fn_unpacked", arch="sm_100a")
    kernel = Kernel(COPY.replace("STORE", STORE), "copy", types={"Tile": tile}, arch="sm_100a")
    with pytest.raises(Exception, match="the unpacked type is of loads alone"):
        kernel(1, 32, (tile, tile, 0, 0, np.zeros(1024, np.uint8), np.zeros(1024, np.uint32)))


# --- rows by number -------------------------------------------------------------------------------

ROWS = """
#include <tmaasync/tmaasync.cuh>
using namespace tmaasync;

struct SharedMemory {
    Tile::Shared tile;
    SharedMemBarrier full;
};
extern "C" __device__ const int rows_shared_bytes = sizeof(SharedMemory);

// By the whole tile, or its groups of four from the last to the first.
extern "C" __global__ void rows(
    const __grid_constant__ Tile from, const __grid_constant__ Tile to, const i32* loaded,
    const i32* stored, int column, bool whole, unsigned char* image
) {
    constexpr int kRows = Tile::side(0);
    auto& shared = dynamic_shared<SharedMemory>();
    if (threadIdx.x != 0) return;
    shared.full.init();
    fence_barrier_init();
    shared.full.expect_tx(Tile::kBytes);
    static_assert(Tile::kGather4Bytes * kRows == 4 * Tile::kBytes);
    if (whole) {
        from.async_copy_gather4_tile(shared.tile, shared.full, column, loaded);
    } else {
        for (int first = kRows - 4; first >= 0; first -= 4) {
            const i32* four = loaded + first;
            from.async_copy_gather4(
                shared.tile, shared.full, column, {four[0], four[1], four[2], four[3]}, first
            );
        }
    }
    shared.full.arrive();
    shared.full.wait(0);
    for (int i = 0; i < Tile::kBytes; ++i) image[i] = shared.tile.bytes[i];
    if (whole) {
        to.async_store_scatter4_tile(shared.tile, column, stored);
    } else {
        for (int first = 0; first < kRows; first += 4) {
            const i32* four = stored + first;
            to.async_store_scatter4(
                shared.tile, column, {four[0], four[1], four[2], four[3]}, first
            );
        }
    }
    commit_group();
    wait_group<0>();
}
"""
FORMS = [
    ("float16", (8, 128), "128B"),
    ("float16", (4, 100), "128B"),
    ("float32", (16, 32), "64B"),
    ("float32", (16, 24), "none"),
]


def rows_of(form: Any, whole: bool, arch: str = "sm_100a") -> Any:
    """Gather rows of which two do not exist, and scatter them, one of them nowhere."""
    dtype, sides, swizzle = form
    rng = np.random.default_rng(3)
    array = rng.integers(1, 100, (50, 136)).astype(dtype)
    target = np.zeros_like(array)
    source = rng.integers(0, 50, sides[0]).astype(np.int32)
    source[[1, 2]] = -1, 50
    places = rng.permutation(50)[: sides[0]].astype(np.int32)
    places[3] = 77
    tiles = [
        create_tma_tile_gather4(one, sides, swizzle=swizzle, arch="sm_100a")
        for one in (array, target)
    ]
    image = np.full(tiles[0].tile_bytes, 0xCC, np.uint8)
    with scheduled(races=True):
        kernel = Kernel(ROWS, "rows", types={"Tile": tiles[0]}, arch=arch)
        kernel(1, 32, (*tiles, source, places, 64, whole, image))
    return tiles[0], array, source, places, image, target


@pytest.mark.parametrize("form", FORMS, ids=str)
@pytest.mark.parametrize("whole", [True, False])
def test_rows_in_any_order_by_the_single_instruction(form: Any, whole: bool) -> None:
    _, sides, swizzle = form

    tile, array, source, places, image, target = rows_of(form, whole)

    exists = (source >= 0) & (source < 50)
    picked = np.where(exists[:, None], array[source % 50], 0).astype(array.dtype)
    chunk, span = (sides[0], tile.box_shape[1]), int(Swizzle.of(swizzle, "swizzle"))
    assert np.array_equal(image, loaded(picked, (0, 64), sides, chunk, span_bits=span))
    assert tile.tile_bytes == gather4_tile_bytes(sides, form[0], swizzle=swizzle, arch="sm_100a")
    wanted = np.zeros_like(target)
    end = 64 + -(-sides[1] // tile.box_shape[1]) * tile.box_shape[1]
    for place, row in zip(places, picked, strict=True):
        if place < 50:
            wanted[place, 64:end] = row[64:end]
    assert np.array_equal(target, wanted)


def test_a_tile_of_four_rows_is_refused_on_hopper() -> None:
    with pytest.raises(Exception, match=r"this tensor copy is of sm_100a and sm_103a.*pass arch="):
        rows_of(FORMS[0], True, arch="sm_90a")


def test_four_rows_end_at_a_multiple_of_128_bytes() -> None:
    array = np.zeros((50, 64), np.float16)
    words = r"box_shape is \(4, 8\); a box of 64 bytes would make the next one start off a multiple"
    with pytest.raises(TensorMapError, match=words):
        create_tma_tile_gather4(array, (8, 8), arch="sm_100a")
    assert create_tma_tile_gather4(array, (4, 8), arch="sm_100a").boxes_per_tile == 1


def test_a_row_below_the_matrix_is_not_stored() -> None:
    array = np.zeros((50, 136), np.float16)
    tile = create_tma_tile_gather4(array, (4, 64), swizzle="128B", arch="sm_100a")
    rows, places = np.arange(4, dtype=np.int32), np.array([0, 1, 2, -1], np.int32)
    kernel = Kernel(ROWS, "rows", types={"Tile": tile}, arch="sm_100a")
    with pytest.raises(EmulatedFault, match=r"starts at \(0, 0, 1, 2, -1\), coordinate 4 below 0"):
        kernel(1, 32, (tile, tile, rows, places, 0, False, np.zeros(tile.tile_bytes, np.uint8)))


# --- pixels along the width -----------------------------------------------------------------------

WIDE = """
#include <tmaasync/tmaasync.cuh>
using namespace tmaasync;

struct SharedMemory {
    Tile::Shared tile;
    SharedMemBarrier full;
};
extern "C" __device__ const int wide_shared_bytes = sizeof(SharedMemory);

extern "C" __global__ void wide(const __grid_constant__ Tile tile, float16* seen, int w, int more) {
    auto& shared = dynamic_shared<SharedMemory>();
    if (threadIdx.x != 0) return;
    shared.full.init();
    fence_barrier_init();
    shared.full.expect_bytes(Tile::kBytes);
    tile.async_copy(shared.tile, shared.full, {0, w, 1, 2}, more);
    shared.full.wait(0);
    for (int i = 0; i < Tile::kElements; ++i) {
        const int row = i / Tile::side(1), channel = i % Tile::side(1);
        seen[i] = *(const float16*)(shared.tile.bytes + Tile::tile_offset({channel, row}));
    }
}
"""


@pytest.mark.parametrize("mode", ["w", "w128"])
@pytest.mark.parametrize(("halo", "more", "stride"), [(0, 0, 1), (2, 0, 2), (3, 4, 1)])
def test_a_tile_of_pixels_along_the_width(mode: str, halo: int, more: int, stride: int) -> None:
    rng = np.random.default_rng(5)
    images = rng.integers(1, 2000, (9, 3, 37, 128)).astype(np.float16)
    pixels, group = (128, 32) if mode == "w128" else (40, 40)
    lower, upper, start = -2, 1, 7
    tile = create_tma_tile_im2col_w(
        images, (pixels, 128), lower_corner=lower, upper_corner=upper, halo=halo, mode=mode,
        stride=stride, swizzle="128B",
    )  # fmt: skip
    seen = np.zeros(tile.tile_shape, np.float16)
    with scheduled(races=True):
        kernel = Kernel(WIDE, "wide", types={"Tile": tile}, arch="sm_100a")
        kernel(1, 32, (tile, seen, start, more))

    places, w, n = [], start + more, 2
    for pixel in range(1, pixels + 1):
        places.append((n, w))
        if pixel % group == 0:
            places += [(n, w + stride * beyond) for beyond in range(1, halo + 1)]
        w += stride
        if w >= 37 + upper + more:
            w, n = lower + more, n + 1
    assert tile.tile_shape == (len(places), 128)
    for row, (n, w) in zip(seen, places, strict=True):
        inside = 0 <= w < 37 and n < 9
        assert (row == (images[n, 1, w] if inside else 0)).all(), (n, w)


WIDE_REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "Hopper": ({"arch": "sm_90a"}, "wide is w; it exists on sm_100a and sm_103a"),
    "a wide halo": ({"halo": 600}, "halo is 600; im2col::w takes 0 to 511 pixels"),
    "a halo of every 32": ({"mode": "w128", "halo": 32}, "im2col::w::128 takes 0 to 31 pixels"),
    "other pixels": ({"mode": "w128"}, "pixels_per_column is 64; mode w128 takes 128 pixels"),
    "another mode": ({"mode": "h"}, "mode is 'h'; no mode has this name. Pass w or w128"),
}


@pytest.mark.parametrize("name", WIDE_REFUSED)
def test_a_wide_tile_that_the_chip_lacks_is_refused(name: str) -> None:
    options, words = WIDE_REFUSED[name]
    with pytest.raises(TensorMapError, match=words):
        create_tma_tile_im2col_w(np.zeros((2, 3, 40, 64), np.float16), (64, 64), **options)


# --- compilers ------------------------------------------------------------------------------------


@pytest.mark.parametrize("arch", ["sm_100a", "sm_103a"])
def test_tiles_compile_for_the_chip(arch: str) -> None:
    rows = create_tma_tile_gather4(drawn(8, 128), (8, 128), swizzle="128B", arch=arch)
    packed = create_tma_tile(drawn(8, 192), (8, 256), dtype="e2m3", arch=arch)
    images = create_tma_tile_im2col_w(np.zeros((3, 3, 40, 64), np.float16), (64, 64), arch=arch)
    text = COPY.replace("STORE", STORE)
    three = (ROWS, "rows", rows), (text, "copy", packed), (WIDE, "wide", images)
    for source, name, tile in three:
        assert Kernel(source, name, types={"Tile": tile}, arch=arch).compile().warnings == ()
