"""Legal tensor-map specs: ordinary ones, and any, drawn from the rules as cuda.h words them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from hypothesis import strategies as st

from tmaasync.modes import DataType, Interleave, L2Promotion, OOBFill, Swizzle
from tmaasync.tensormap import Im2colSpec, TensorMapSpec

DATA_TYPES = [dtype for dtype in DataType if dtype < DataType.PACKED_16U4_ALIGN8B]
SWIZZLES = [Swizzle.NONE, Swizzle.B32, Swizzle.B64, Swizzle.B128]

_BLOCK_BYTES = 227 * 1024
_EXTENTS = st.one_of(st.integers(1, 300), st.integers(1, 1 << 32))


def ordinary_tiled(**changes: Any) -> TensorMapSpec:
    spec = TensorMapSpec(
        0x7F0000000000, DataType.FLOAT16, (4, 128, 512), (131072, 1024), (1, 64, 64)
    )
    return replace(spec, **changes)


def ordinary_im2col(**changes: Any) -> Im2colSpec:
    """A 3x3 convolution with padding 1."""
    spec = Im2colSpec(
        0x7F0000000000,
        DataType.BFLOAT16,
        (8, 28, 28, 128),
        (200704, 7168, 256),
        (-1, -1),
        (-1, -1),
        64,
        128,
        swizzle=Swizzle.B128,
    )
    return replace(spec, **changes)


@st.composite
def tiled_specs(
    draw: st.DrawFn,
    *,
    ranks: tuple[int, int] = (1, 5),
    dtypes: tuple[DataType, ...] = tuple(DATA_TYPES),
) -> TensorMapSpec:
    """Any legal tiled spec whose box fits a block."""
    rank = draw(st.integers(*ranks))
    common = draw(_common(rank, dtypes))
    inner = draw(_inner_sides(common))
    room = _BLOCK_BYTES // (inner * common["dtype"].itemsize)
    sides = [inner]
    for _ in range(rank - 1):
        sides.insert(0, draw(st.integers(1, min(256, room))))
        room //= sides[0]
    return TensorMapSpec(box_shape=tuple(sides), **common)


@st.composite
def im2col_specs(draw: st.DrawFn) -> Im2colSpec:
    """Any legal im2col spec whose columns fit a block."""
    rank = draw(st.integers(3, 5))
    common = draw(_common(rank, tuple(DATA_TYPES)))
    channels = draw(_inner_sides(common))
    room = _BLOCK_BYTES // (channels * common["dtype"].itemsize)
    first = 1 if common["interleave"] is Interleave.NONE else 2
    reach = {3: 1 << 15, 4: 1 << 7, 5: 1 << 4}[rank]
    extents = [draw(st.integers(1, 1 << 20)) for _ in range(rank - 2)]
    lower = [draw(st.integers(-reach, reach - 1)) for _ in extents]
    upper = [
        draw(st.integers(max(-reach, corner - extent + 1), reach - 1))
        for corner, extent in zip(lower, extents, strict=True)
    ]
    common["shape"] = (*common["shape"][:first], *extents, *common["shape"][first + rank - 2 :])
    return Im2colSpec(
        lower_corner=tuple(lower),
        upper_corner=tuple(upper),
        channels_per_pixel=channels,
        pixels_per_column=draw(st.integers(1, min(1024, room))),
        **common,
    )


specs = st.one_of(tiled_specs(), im2col_specs())


@st.composite
def _common(draw: st.DrawFn, rank: int, dtypes: tuple[DataType, ...]) -> dict[str, Any]:
    dtype = draw(st.sampled_from(dtypes))
    layouts = list(Interleave) if rank >= 3 else [Interleave.NONE]
    interleave = draw(st.sampled_from(layouts))
    granule = 32 if interleave is Interleave.B32 else 16
    is_float = dtype >= DataType.FLOAT16
    return {
        "address": draw(st.integers(0, (1 << 48) // granule)) * granule,
        "dtype": dtype,
        "shape": tuple(draw(_EXTENTS) for _ in range(rank)),
        "strides_bytes": tuple(
            draw(st.integers(0, (1 << 40) // granule - 1)) * granule for _ in range(rank - 1)
        ),
        "element_strides": tuple(draw(st.integers(1, 8)) for _ in range(rank)),
        "interleave": interleave,
        "swizzle": draw(st.sampled_from(SWIZZLES)),
        "l2_promotion": draw(st.sampled_from(L2Promotion)),
        "oob_fill": draw(st.sampled_from(list(OOBFill) if is_float else [OOBFill.ZERO])),
    }


def _inner_sides(common: dict[str, Any]) -> st.SearchStrategy[int]:
    """Elements of a multiple of 16 bytes, at most 256 of them and at most the swizzle's span."""
    itemsize = common["dtype"].itemsize
    is_bound = common["swizzle"] is not Swizzle.NONE and common["interleave"] is Interleave.NONE
    most = min(256, (16 << common["swizzle"]) // itemsize) if is_bound else 256
    step = 16 // itemsize
    return st.integers(1, most // step).map(lambda count: count * step)
