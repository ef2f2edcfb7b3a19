"""The emulator's TMA engine: equal, byte for byte, to a plain oracle and to what the H200 did."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from emulate import tma_oracle as oracle
from emulate.engine_library import (
    Copy,
    Engine,
    FaultError,
    Observer,
    Spec,
    aligned,
    copy_of,
    descriptor_of,
    random_bytes,
)
from hypothesis import given, settings
from hypothesis import strategies as st
from strategies import DATA_TYPES, SWIZZLES, im2col_specs, ordinary_tiled, specs, tiled_specs

from tmaasync.modes import DataType, Interleave, ReduceOp, Swizzle
from tmaasync.tensormap import Im2colSpec, TensorMapSpec

POISON = 0xCC
# --- drawn cases --------------------------------------------------------------------------------

seeds = st.integers(0, 1 << 32)


def packed_strides(draw: st.DrawFn, spec: Spec, shape: Sequence[int]) -> tuple[int, ...]:
    """Draw strides of rows that do not overlap, some with padding between them."""
    granule = 32 if spec.interleave is Interleave.B32 else 16
    strides: list[int] = []
    size = shape[-1] * spec.dtype.itemsize
    for extent in reversed(shape[:-1]):
        size = (-(-size // granule) + draw(st.integers(0, 2))) * granule
        strides.insert(0, size)
        size *= extent
    return tuple(strides)


def small_inner(draw: st.DrawFn, spec: Spec) -> int:
    """Draw an innermost side of at most 128 bytes, within the span of the swizzle."""
    side = spec.sides[-1].value
    return min(side, draw(st.integers(1, 8)) * (16 // spec.dtype.itemsize))


@st.composite
def tiled_copies(
    draw: st.DrawFn, *, dtypes: Sequence[DataType] = tuple(DATA_TYPES), is_store: bool = False
) -> Copy:
    """Draw a legal tiled map of any form over a small array, and coordinates near it."""
    spec = draw(tiled_specs(dtypes=tuple(dtypes)))
    inner = small_inner(draw, spec)
    most = {1: 1, 2: 9, 3: 5, 4: 4, 5: 3}[spec.rank]
    box = (*(1 + side % most for side in spec.box_shape[:-1]), inner)
    shape = (*(draw(st.integers(1, 8)) for _ in box[:-1]), draw(st.integers(1, 2 * inner + 3)))
    spec = replace(
        spec, shape=shape, box_shape=box, strides_bytes=packed_strides(draw, spec, shape)
    )
    spec.check()
    lowest = 0 if is_store else -1
    unit = 16 // spec.dtype.itemsize
    start = tuple(
        draw(st.integers(lowest * side * stride, extent + 1))
        for side, stride, extent in zip(box, spec.element_strides, shape, strict=True)
    )[:-1]
    innermost = draw(st.integers(lowest * (inner // unit + 1), (shape[-1] + unit) // unit)) * unit
    offset = draw(st.integers(0, 9)) * 128
    return copy_of(spec, (*start, innermost), draw(seeds), shared_offset=offset)


@st.composite
def im2col_copies(draw: st.DrawFn) -> Copy:
    """Draw a legal im2col map over a small array, and a start pixel in its bounding box."""
    spec = replace(draw(im2col_specs()), interleave=Interleave.NONE)
    inner = small_inner(draw, spec)
    if spec.swizzle is not Swizzle.NONE:
        inner = min(inner, spec.swizzle.span_bytes // spec.dtype.itemsize)
    spatial = [draw(st.integers(1, 6)) for _ in spec.lower_corner]
    lower = [draw(st.integers(-3, 3)) for _ in spatial]
    upper = [
        draw(st.integers(max(-6, corner - extent + 1), 3))
        for corner, extent in zip(lower, spatial, strict=True)
    ]
    shape = (draw(st.integers(1, 3)), *spatial, draw(st.integers(1, 2 * inner + 3)))
    spec = replace(
        spec,
        shape=shape,
        strides_bytes=packed_strides(draw, spec, shape),
        lower_corner=tuple(lower),
        upper_corner=tuple(upper),
        channels_per_pixel=inner,
        pixels_per_column=draw(st.integers(1, 40)),
    )
    spec.check()
    pixel = [
        draw(st.sampled_from(range(low, extent + high, stride)))
        for low, extent, high, stride in zip(
            lower, spatial, upper, spec.element_strides[1:-1], strict=True
        )
    ]
    unit = 16 // spec.dtype.itemsize
    channel = draw(st.integers(-2, (shape[-1] + unit) // unit)) * unit
    return copy_of(
        spec,
        (draw(st.integers(-1, shape[0])), *pixel, channel),
        draw(seeds),
        shared_offset=draw(st.integers(0, 9)) * 128,
        offsets=tuple(draw(st.integers(0, 4)) for _ in pixel),
    )


# --- the map ------------------------------------------------------------------------------------


@given(spec=specs)
def test_a_decoded_map_says_what_the_spec_says(engine: Engine, spec: Spec) -> None:
    strides = (spec.dtype.itemsize, *spec.strides_bytes[::-1])
    dims = zip(spec.shape[::-1], strides, spec.element_strides[::-1], strict=True)
    corners: list[tuple[int, int]] = []
    if isinstance(spec, Im2colSpec):
        corners = [*zip(spec.lower_corner, spec.upper_corner, strict=True)][::-1]

    assert engine.decode(descriptor_of(spec)) == [
        spec.address,
        isinstance(spec, Im2colSpec),
        spec.rank,
        spec.dtype,
        spec.interleave,
        spec.swizzle,
        spec.oob_fill,
        spec.box_bytes,
        *itertools.chain.from_iterable(dims),
        *itertools.chain.from_iterable(corners),
    ]


@pytest.mark.parametrize("offset", [8, 16, 32])
def test_a_map_off_64_bytes_is_a_fault(engine: Engine, offset: int) -> None:
    buffer = aligned(256)
    buffer[offset : offset + 128] = descriptor_of(ordinary_tiled())

    with pytest.raises(FaultError, match=r"the tensor map lies at 0x.*multiple of 64"):
        engine.decode(buffer[offset:])


@pytest.mark.parametrize(
    ("bit", "reason"),
    [
        (66, "bits are set"),
        (70, "rank is 7"),
        (74, "element type is 14"),
        (76, "interleave is 3"),
        (80, "element type is 6"),
        (511, "bits are set"),
        (577, "repeats after 18 bytes"),
    ],
)
def test_bits_that_no_map_sets_are_a_fault(engine: Engine, bit: int, reason: str) -> None:
    descriptor = descriptor_of(ordinary_tiled(interleave=Interleave.B16))
    descriptor[bit // 8] ^= 1 << bit % 8

    with pytest.raises(FaultError, match=f"no tensor map of sm_90: .*{reason}"):
        engine.decode(descriptor)


# --- loads --------------------------------------------------------------------------------------


@given(copy=tiled_copies())
def test_a_load_writes_the_box_and_credits_it(engine: Engine, copy: Copy) -> None:
    expected = copy.loaded()

    credited = copy.run(engine, "tiled_load")

    np.testing.assert_array_equal(copy.shared, expected)
    assert credited == copy.spec.box_bytes


@given(copy=tiled_copies())
def test_a_load_reports_each_byte_it_reads_and_writes_once(engine: Engine, copy: Copy) -> None:
    copy.run(engine, "tiled_load")
    size = copy.spec.dtype.itemsize
    elements = (oracle.address_of(copy.spec, place) for place in copy.places())
    inside = (address for address in elements if address is not None)

    read = copy.observer.bytes_seen(is_global=True, is_write=False)
    written = copy.observer.bytes_seen(is_global=False, is_write=True)

    assert sorted(read) == sorted(at for start in inside for at in range(start, start + size))
    assert sorted(written) == sorted(
        oracle.in_shared(copy.spec, byte, copy.shared_offset) for byte in range(copy.spec.box_bytes)
    )
    assert not copy.observer.bytes_seen(is_global=True, is_write=True)
    assert not copy.observer.bytes_seen(is_global=False, is_write=False)


@pytest.mark.parametrize("swizzle", SWIZZLES)
def test_the_swizzle_follows_the_absolute_address(engine: Engine, swizzle: Swizzle) -> None:
    inner = swizzle.span_bytes
    spec = TensorMapSpec(0, DataType.UINT8, (16, inner), (inner,), (16, inner), swizzle=swizzle)
    at = {offset: copy_of(spec, (0, 0), shared_offset=offset) for offset in (0, 128, 384, 1024)}
    for copy in at.values():
        copy.run(engine, "tiled_load")

    whole = at[0].shared[: spec.box_bytes]
    assert (at[1024].shared[1024:][: spec.box_bytes] == whole).all()
    shifted = (at[128].shared[128:][: spec.box_bytes] == whole).all()
    assert shifted == (swizzle is Swizzle.NONE)


# --- results of the chip: benchmarks/probe_hardware.py on an H200 ---


# Exponents at both ends, and fractions around a tie.
words = st.one_of(
    st.integers(0, (1 << 32) - 1),
    st.builds(
        lambda sign, exponent, kept, dropped: sign << 31 | exponent << 23 | kept << 13 | dropped,
        st.integers(0, 1),
        st.sampled_from([0, 1, 127, 254, 255]),
        st.sampled_from([0, 1, 1022, 1023]),
        st.sampled_from([0, 1, 0xFFF, 0x1000, 0x1001, 0x1FFF]),
    ),
)


@given(bits=st.lists(words, min_size=4, max_size=4))
def test_any_word_is_rounded_to_tf32_to_nearest_even(engine: Engine, bits: list[int]) -> None:
    spec = TensorMapSpec(0, DataType.TFLOAT32, (4,), (), (4,))
    copy = copy_of(spec, (0,))
    copy.memory[:] = np.array(bits, np.uint32).view(np.uint8)

    copy.run(engine, "tiled_load")

    assert copy.shared[:16].view(np.uint32).tolist() == [*map(oracle.as_tf32, bits)]


@pytest.mark.parametrize(
    ("box", "element_strides", "written"),
    [
        ((4, 8), (1, 2), 128),
        ((8, 8), (1, 2), 256),
        ((6, 16), (1, 2), 384),
        ((4, 8), (1, 4), 128),
        ((8, 8), (1, 4), 256),
        ((6, 16), (1, 4), 384),
        ((4, 8), (2, 1), 64),
        ((8, 8), (2, 1), 128),
        ((6, 16), (2, 1), 192),
        ((4, 8), (3, 1), 64),
        ((8, 8), (3, 1), 96),
        ((6, 16), (3, 1), 128),
    ],
)
def test_element_strides_write_and_credit_what_the_chip_does(
    engine: Engine, box: tuple[int, int], element_strides: tuple[int, int], written: int
) -> None:
    spec = TensorMapSpec(
        0, DataType.FLOAT32, (64, 256), (1024,), box, element_strides=element_strides
    )
    copy = copy_of(spec, (0, 0))
    copy.memory[:] = 1
    copy.shared[:] = POISON

    assert copy.run(engine, "tiled_load") == written
    assert np.count_nonzero(copy.shared != POISON) == written


# --- stores -------------------------------------------------------------------------------------


@given(copy=tiled_copies(is_store=True))
def test_a_store_writes_the_clipped_box_and_nothing_else(engine: Engine, copy: Copy) -> None:
    expected, shared = copy.stored(), copy.shared.copy()

    copy.run(engine, "tiled_store")

    np.testing.assert_array_equal(copy.memory, expected)
    np.testing.assert_array_equal(copy.shared, shared)


@given(copy=tiled_copies(is_store=True))
def test_a_store_reports_each_byte_it_reads_and_writes_once(engine: Engine, copy: Copy) -> None:
    changed = aligned(copy.memory.size)
    copy.shared[:] = 0xFF
    copy.memory, copy.observer = changed, Observer.of(changed.ctypes.data, changed.size)
    copy.spec = replace(copy.spec, address=changed.ctypes.data)

    copy.run(engine, "tiled_store")

    written = copy.observer.bytes_seen(is_global=True, is_write=True)
    read = copy.observer.bytes_seen(is_global=False, is_write=False)
    assert sorted(written) == (np.flatnonzero(changed) + changed.ctypes.data).tolist()
    assert len(set(read)) == len(read) == copy.spec.box_bytes
    assert not copy.observer.bytes_seen(is_global=False, is_write=True)


# --- reductions ---------------------------------------------------------------------------------

ARITHMETIC = {ReduceOp.ADD, ReduceOp.MIN, ReduceOp.MAX}
LOGIC = {ReduceOp.AND, ReduceOp.OR, ReduceOp.XOR}
OF_THE_CHIP: dict[DataType, set[ReduceOp]] = {
    DataType.UINT8: set(),
    DataType.UINT16: set(),
    DataType.UINT32: {*ReduceOp},
    DataType.INT32: ARITHMETIC | LOGIC,
    DataType.UINT64: ARITHMETIC | LOGIC,
    DataType.INT64: {ReduceOp.MIN, ReduceOp.MAX},
    DataType.FLOAT16: ARITHMETIC,
    DataType.BFLOAT16: ARITHMETIC,
    DataType.FLOAT32: {ReduceOp.ADD},
    DataType.FLOAT64: {ReduceOp.ADD},
    DataType.FLOAT32_FTZ: {ReduceOp.ADD},
    DataType.TFLOAT32: {ReduceOp.ADD},
    DataType.TFLOAT32_FTZ: {ReduceOp.ADD},
}
REDUCTIONS = [(op, dtype) for dtype, ops in OF_THE_CHIP.items() for op in sorted(ops)]


def line_of(dtype: DataType, values: list[int], given: list[int]) -> Copy:
    """Return a reduction of one line of elements, by their bits."""
    spec = TensorMapSpec(0, dtype, (len(values),), (), (len(values),))
    copy = copy_of(spec, (0,))
    unsigned = np.dtype(f"u{dtype.itemsize}")
    copy.memory[:] = np.array(values, unsigned).view(np.uint8)
    copy.shared[: copy.memory.size] = np.array(given, unsigned).view(np.uint8)
    return copy


def is_nan(bits: int, dtype: DataType) -> bool:
    return dtype in oracle.FORMS and math.isnan(oracle.number(bits, dtype))


@pytest.mark.parametrize("dtype", DATA_TYPES)
def test_reductions_exist_where_the_chip_has_them(engine: Engine, dtype: DataType) -> None:
    ones = [1] * (16 // dtype.itemsize)
    for op in ReduceOp:
        copy = line_of(dtype, ones, ones)
        if op in OF_THE_CHIP[dtype]:
            copy.run(engine, "tiled_reduce", op)
            continue
        reason = f"the chip has no reduction {op.name.lower()} for {dtype.name}"
        with pytest.raises(FaultError, match=reason):
            copy.run(engine, "tiled_reduce", op)


@pytest.mark.sampled(8)
@pytest.mark.parametrize(("op", "dtype"), REDUCTIONS)
@settings(max_examples=25)
@given(data=st.data())
def test_a_reduction_uses_the_maps_type(
    engine: Engine, op: ReduceOp, dtype: DataType, data: st.DataObject
) -> None:
    count = 64 // dtype.itemsize
    bits = 8 * dtype.itemsize
    edges = [0, 1, 1 << bits - 1, (1 << bits) - 1, (1 << bits - 1) - 1]
    element = st.one_of(st.integers(0, (1 << bits) - 1), st.sampled_from(edges))
    if dtype is DataType.FLOAT64:  # which NaN comes of NaN is not established there
        element = element.filter(lambda one: not is_nan(one, dtype))
    old, new = (data.draw(st.lists(element, min_size=count, max_size=count)) for _ in range(2))
    copy = line_of(dtype, old, new)

    copy.run(engine, "tiled_reduce", op)

    found = copy.memory.view(f"u{dtype.itemsize}").tolist()
    pairs = zip(old, new, strict=True)
    wanted = [oracle.reduced(op, before, given_bits, dtype) for before, given_bits in pairs]
    assert [*map(hex, found)] == [*map(hex, wanted)]


# --- im2col -------------------------------------------------------------------------------------


@given(copy=im2col_copies())
def test_an_im2col_load_traverses_the_bounding_boxes(engine: Engine, copy: Copy) -> None:
    expected = copy.loaded()

    credited = copy.run(engine, "im2col_load")

    np.testing.assert_array_equal(copy.shared, expected)
    assert credited == copy.spec.box_bytes


# --- copies without a map -----------------------------------------------------------------------


@pytest.mark.parametrize(("size", "moved"), [(256, 256), (250, 240), (16, 16), (8, 0), (0, 0)])
def test_a_bulk_copy_moves_whole_units_of_16_bytes(engine: Engine, size: int, moved: int) -> None:
    source, target = random_bytes(512, 0), aligned(512)
    observer = Observer.of(source.ctypes.data, source.size)

    assert engine.call("bulk_load", source[16:], size, target, 32, observer) == moved

    expected = np.zeros(512, np.uint8)
    expected[32 : 32 + moved] = source[16 : 16 + moved]
    np.testing.assert_array_equal(target, expected)
    assert len(observer.bytes_seen(is_global=True, is_write=False)) == moved
    back, observer = aligned(512), Observer.of(0, 1 << 63)
    assert engine.call("bulk_store", back, size, target, 32, observer) == moved
    np.testing.assert_array_equal(back[:moved], source[16 : 16 + moved])
    assert not back[moved:].any()
    assert len(observer.bytes_seen(is_global=True, is_write=True)) == moved


@pytest.mark.parametrize("name", ["bulk_load", "bulk_store"])
def test_a_bulk_copy_is_aligned_and_inside_an_array(engine: Engine, name: str) -> None:
    memory, shared = aligned(512), aligned(512)
    anywhere, inside = Observer.of(0, 1 << 63), Observer.of(memory.ctypes.data, 256)

    with pytest.raises(FaultError, match=r"global address is 0x.*8; .*multiple of 16"):
        engine.call(name, memory[8:], 256, shared, 0, anywhere)
    with pytest.raises(FaultError, match=r"shared address is 0x8; .*multiple of 16"):
        engine.call(name, memory, 256, shared, 8, anywhere)
    with pytest.raises(FaultError, match=f"256 bytes at {memory.ctypes.data + 16:#x}, outside"):
        engine.call(name, memory[16:], 256, shared, 0, inside)
