"""Tensor maps that came with sm_100a: rules with remedies, and the bytes that copies move."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import arrays_in_memory
import numpy as np
import pytest

from tmaasync import DataType, EmulatedFault, Im2colSpec, Kernel, Swizzle, TensorMapSpec
from tmaasync.emulate import scheduled

U4, U4_GAPS, U6_GAPS = (
    DataType.PACKED_16U4_ALIGN8B,
    DataType.PACKED_16U4_ALIGN16B,
    DataType.PACKED_16U6_ALIGN16B,
)


def packed(dtype: DataType, columns: int = 256, side: int = 128, **others: Any) -> TensorMapSpec:
    """Return the map of 8 rows of packed elements, without padding."""
    stride = columns * dtype.bits // 8
    given = {"arch": "sm_100a", **others}
    return TensorMapSpec(0x7F0000000000, dtype, (8, columns), (stride,), (4, side), **given)


@pytest.mark.parametrize("dtype", [U4, U4_GAPS, U6_GAPS])
def test_the_packed_types_are_legal_where_they_exist(dtype: DataType) -> None:
    for arch in ("sm_100a", "sm_103a"):
        spec = packed(dtype, arch=arch)
        assert spec.violations() == ()
        assert spec.box_bytes == 4 * 128 * dtype.bits // 8
        assert TensorMapSpec.decode(spec.encode()) == replace(spec, arch="sm_100a")
    for arch in ("sm_90a", "sm_120a"):
        (found,) = packed(dtype, arch=arch).violations()
        assert found.argument == "dtype"
        assert 'or pass arch="sm_100a"' in str(found)


@pytest.mark.parametrize("swizzle", [one for one in Swizzle if one.needs_sm_100])
def test_the_larger_atoms_are_legal_where_they_exist(swizzle: Swizzle) -> None:
    spec = TensorMapSpec(0, DataType.FLOAT16, (8, 64), (128,), (8, 64), swizzle=swizzle)
    assert [one.argument for one in spec.violations()] == ["swizzle"]
    legal = replace(spec, arch="sm_100a")
    assert legal.violations() == ()
    assert TensorMapSpec.decode(legal.encode()) == legal


BROKEN: dict[str, tuple[TensorMapSpec, dict[str, Any], str]] = {
    "an odd extent": (packed(U4, side=32), {"shape": (8, 255)}, "Pad the dimension to 256"),
    "a side of half a unit": (packed(U4), {"box_shape": (4, 48)}, "24 bytes.*Use 64 elements"),
    "a side over the span": (
        packed(U4),
        {"box_shape": (4, 256), "swizzle": Swizzle.B64},
        "above the 64 of Swizzle.B64. Use 128 elements",
    ),
    "another side": (packed(U4_GAPS), {"box_shape": (4, 64)}, "is 128 elements. Use 128"),
    "another extent": (packed(U6_GAPS), {"shape": (8, 192)}, "Pad the dimension to 256"),
    "an address of 16": (packed(U4_GAPS), {"address": 16}, "multiple of 32 for DataType.PACKED"),
    "a stride of 16": (packed(U6_GAPS), {"strides_bytes": (208,)}, "multiple of 32 bytes for"),
    "a narrow swizzle": (packed(U4_GAPS), {"swizzle": Swizzle.B64}, "takes the swizzles none, 128"),
    "NaN fill": (packed(U4), {"oob_fill": "nan"}, "Use OOBFill.ZERO"),
    "interleave": (
        TensorMapSpec(
            0, DataType.UINT8, (8, 8, 128), (1024, 128), (1, 8, 128),
            swizzle=Swizzle.B128_ATOM_64B, arch="sm_100a",
        ),
        {"interleave": "16B"},
        "Use Interleave.NONE",
    ),
    "an unknown chip": (packed(U4), {"arch": "sm_80"}, "Pass one of sm_90a, sm_100a"),
}  # fmt: skip


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_rule_has_a_remedy(name: str) -> None:
    spec, changes, words = BROKEN[name]
    assert spec.violations() == ()
    with pytest.raises(Exception, match=words):
        replace(spec, **changes).check()
    replace(spec, **changes).explain()


# --- copies ---------------------------------------------------------------------------------------

COPY = """
#include <tmaasync/tmaasync.cuh>
#include <tmaasync/ptx/cp_async_bulk_tensor_im2col_w.cuh>
using namespace tmaasync;
struct SharedMemory {
    alignas(1024) unsigned char bytes[BYTES];
    SharedMemBarrier full;
};
extern "C" __device__ const int copy_shared_bytes = sizeof(SharedMemory);
extern "C" __global__ void copy(
    const ptx::TensorMap* map, const ptx::TensorMap* to, const unsigned char* data,
    unsigned char* target, unsigned char* seen, int credited
) {
    auto& shared = dynamic_shared<SharedMemory>();
    if (threadIdx.x == 0) {
        shared.full.init(1);
        fence_barrier_init();
        shared.full.expect_bytes(credited);
        const u32 at = ptx::shared_address(shared.bytes);
        LOAD
        shared.full.wait(0);
        for (int i = 0; i < BYTES; ++i) seen[i] = shared.bytes[i];
        STORE
    }
}
"""
TILED = "ptx::cp_async_bulk_tensor_load<2>(at, map, {128, 1}, shared.full.address(), 0);"
STORED = """
        ptx::cp_async_bulk_tensor_store<2>(to, {128, 3}, at, 0);
        commit_group();
        wait_group<0>();
"""


def words_of(bits: int) -> Any:
    """Return a map in 128 aligned bytes of its own."""
    map_ = aligned(1, 128)[0]
    map_[:] = np.frombuffer(bits.to_bytes(128, "little"), np.uint8)
    return map_


def bits_of(spec: Any) -> int:
    return int.from_bytes(spec.encode(), "little")


def aligned(rows: int, row_bytes: int) -> Any:
    return arrays_in_memory.aligned((rows, row_bytes), np.uint8)


def copied(
    load: str,
    maps: list[int],
    data: Any,
    size: int,
    credited: int,
    arch: str = "sm_100a",
    target: Any = None,
) -> Any:
    seen = np.zeros(size, np.uint8)
    target = np.zeros(1, np.uint8) if target is None else target
    text = COPY.replace("BYTES", str(size)).replace("LOAD", load)
    text = text.replace("STORE", STORED if len(maps) > 1 else "")
    words = [words_of(one) for one in maps]
    with scheduled(races=True):
        Kernel(text, "copy", arch=arch)(1, 32, (words[0], words[-1], data, target, seen, credited))
    return seen


def swizzled(image: Any, swizzle: Swizzle) -> Any:
    """Permute an image by the address bits that the PTX ISA names."""
    if swizzle is Swizzle.NONE:
        return image
    where = np.arange(image.size)
    line = where >> 7
    if swizzle is Swizzle.B128:
        moved = where ^ (line & 7) << 4
    elif swizzle is Swizzle.B128_ATOM_64B:
        moved = where ^ (line & 1) << 6
    else:
        moved = where ^ (line & 3) << 5
        if swizzle is Swizzle.B128_ATOM_32B_FLIP_8B:
            moved ^= (line & 1) << 3
    result = np.zeros_like(image)
    result[moved] = image
    return result


@pytest.mark.parametrize("swizzle", list(Swizzle)[:1] + list(Swizzle)[3:])
def test_larger_atoms_permute_the_bits_of_the_isa(swizzle: Swizzle) -> None:
    data = aligned(16, 256)
    data[:] = np.random.default_rng(1).integers(0, 256, data.shape)
    spec = TensorMapSpec(
        data.ctypes.data, DataType.UINT8, data.shape, (256,), (8, 128),
        swizzle=swizzle, arch="sm_100a",
    )  # fmt: skip
    back = replace(spec, address=(target := aligned(16, 256)).ctypes.data)
    seen = copied(TILED, [bits_of(spec), bits_of(back)], data, 1024, 1024, target=target)
    assert (seen == swizzled(data[1:9, 128:].reshape(-1), swizzle)).all()
    assert (target[3:11, 128:] == data[1:9, 128:]).all()


@pytest.mark.parametrize("dtype", [U4, U4_GAPS, U6_GAPS])
@pytest.mark.parametrize("swizzle", [Swizzle.NONE, Swizzle.B128, Swizzle.B128_ATOM_32B])
def test_packed_elements_land_with_their_gaps(dtype: DataType, swizzle: Swizzle) -> None:
    row_bytes = 256 * dtype.bits // 8
    data = aligned(8, row_bytes)
    data[:] = np.random.default_rng(2).integers(0, 256, data.shape)
    columns = 256 if dtype is U4 else 128
    wide = aligned(8, 2 * row_bytes)
    wide[:, row_bytes // 2 : row_bytes // 2 + row_bytes] = data
    spec = TensorMapSpec(
        wide.ctypes.data, dtype, (8, 512), (2 * row_bytes,), (4, columns),
        swizzle=swizzle, arch="sm_100a",
    )  # fmt: skip
    seen = copied(TILED, [bits_of(spec)], wide, 512, spec.box_bytes)
    first = 128 * dtype.bits // 8
    rows = wide[1:5, first : first + columns * dtype.bits // 8]
    if dtype is U4:
        expected, is_data = rows.reshape(-1), np.ones(512, bool)
    else:
        unit = 2 * dtype.bits
        expected = np.zeros((32, 16), np.uint8)
        expected[:, :unit] = rows.reshape(32, unit)
        is_data = np.tile(np.arange(16) < unit, 32)
        expected = expected.reshape(-1)
    where = swizzled(is_data, swizzle)
    assert (seen[where] == swizzled(expected, swizzle)[where]).all()


def test_elements_of_six_bits_are_stored_from_bytes() -> None:
    source, target = aligned(4, 128), aligned(8, 192)
    source[:] = np.random.default_rng(3).integers(0, 256, source.shape)
    load = TensorMapSpec(source.ctypes.data, DataType.UINT8, (4, 128), (128,), (4, 128))
    store = TensorMapSpec(target.ctypes.data, U6_GAPS, (8, 256), (192,), (4, 128), arch="sm_100a")
    text = TILED.replace("{128, 1}", "{0, 0}")
    copied(text, [bits_of(load), bits_of(store)], source, 512, 512, target=target)
    bits = (source[..., None] >> np.arange(6) & 1).reshape(4, -1)
    expected = np.packbits(bits, axis=1, bitorder="little")
    assert (target[3:7, 96:] == expected).all()
    assert not target[:, :96].any()


def test_elements_with_gaps_of_four_bits_are_not_stored() -> None:
    spec = packed(U4_GAPS)
    data = aligned(8, 128)
    bits = bits_of(replace(spec, address=data.ctypes.data))
    with pytest.raises(EmulatedFault, match="16U4_ALIGN16B, is for loads only"):
        copied(TILED, [bits, bits], data, 512, 256)


@pytest.mark.parametrize("arch", ["sm_90a", "sm_120a"])
def test_a_map_of_another_chip_is_a_fault(arch: str) -> None:
    data = aligned(8, 128)
    bits = bits_of(replace(packed(U4), address=data.ctypes.data))
    with pytest.raises(EmulatedFault, match=r'exist on sm_100a and sm_103a.*pass arch="sm_100a"'):
        copied(TILED, [bits], data, 256, 256, arch)


# --- im2col along the width -----------------------------------------------------------------------


@pytest.mark.parametrize("is_128", [False, True])
@pytest.mark.parametrize(("halo", "offset"), [(0, 0), (2, 0), (3, 1)])
def test_pixels_along_the_width_with_halos(is_128: bool, halo: int, offset: int) -> None:
    images, height, width, channels = 8, 3, 21, 16
    data = aligned(images * height * width, channels)
    data[:] = np.random.default_rng(4).integers(1, 256, data.shape)
    shape = (images, height, width, channels)
    strides = (height * width * channels, width * channels, channels)
    pixels = 128 if is_128 else 40
    lower, upper, start, row = -1, -2, 5, 1
    spec = Im2colSpec(
        data.ctypes.data, DataType.UINT8, shape, strides, (0, lower), (0, upper), channels, pixels,
        wide="w128" if is_128 else "w", arch="sm_100a",
    )  # fmt: skip
    assert Im2colSpec.decode(spec.encode()) == spec
    group = 32 if is_128 else pixels
    places, w, n = [], start + offset, 1
    for pixel in range(pixels):
        places.append((n, w))
        if (pixel + 1) % group == 0:
            places += [(n, w + beyond) for beyond in range(1, halo + 1)]
        w += 1
        if w >= width + upper + offset:
            w, n = lower + offset, n + 1
    size = len(places) * channels
    load = (
        f"ptx::cp_async_bulk_tensor_load_im2col_w<4, {str(is_128).lower()}>(at, map, "
        f"{{0, {start}, {row}, 1}}, {{{halo}, {offset}}}, shared.full.address(), 0);"
    )
    seen = copied(load, [bits_of(spec)], data, size, size).reshape(-1, channels)
    pixel_of = data.reshape(shape)
    for place, (n, w) in zip(seen, places, strict=True):
        inside = 0 <= w < width and n < images
        assert (place == (pixel_of[n, row, w] if inside else 0)).all(), (n, w)


def wide(**changes: Any) -> Im2colSpec:
    shape, strides = (4, 8, 32, 64), (32768, 4096, 128)
    given = {"wide": "w", "arch": "sm_100a", **changes}
    corners = (0, -1), (0, 1)
    return replace(Im2colSpec(0, DataType.FLOAT16, shape, strides, *corners, 64, 128), **given)


WIDE_BROKEN: dict[str, tuple[dict[str, Any], str]] = {
    "Hopper": ({"arch": "sm_90a"}, "wide is w; it exists on sm_100a and .*Leave it out"),
    "another name": ({"wide": "h"}, "wide is 'h'; no mode has this name. Pass w or w128"),
    "a corner of the height": ({"lower_corner": (-1, 0)}, r"lower_corner\[0\] is -1; .*Use 0"),
    "fewer pixels": ({"wide": "w128", "pixels_per_column": 64}, "mode w128 takes 128 pixels"),
    "a far corner": ({"upper_corner": (0, 40000)}, r"upper_corner\[1\] is 40000; .*-32768 to"),
}


@pytest.mark.parametrize("name", WIDE_BROKEN)
def test_a_broken_rule_of_wide_im2col_has_a_remedy(name: str) -> None:
    changes, words = WIDE_BROKEN[name]
    assert wide().violations() == ()
    broken = wide(**changes)
    with pytest.raises(Exception, match=words):
        broken.check()
    proposal = broken.explain().proposal
    assert name == "another name" or (proposal is not None and not proposal.violations())
