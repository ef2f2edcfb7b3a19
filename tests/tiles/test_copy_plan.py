"""Plans of copies: what is chosen is legal, what is refused is not, and both say why."""

from __future__ import annotations

import itertools
import re
import struct
from collections import Counter
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from copy_problems import Problem, box_of, buffer_of, judged, problem
from hypothesis import given
from hypothesis import strategies as st

from tmaasync import (
    ArgumentError,
    ArrayTypeError,
    CachePolicy,
    CompileError,
    CopyPlan,
    Kernel,
    Swizzle,
    _arrays,
    create_tma_tile,
    plan_copy,
)
from tmaasync._elements import ELEMENTS
from tmaasync.copy_plan import starts
from tmaasync.copy_plan.request import conversion_violations
from tmaasync.tile import StridedTensor

PROBLEMS = 3000
BASE = 1 << 40
TMA = ("bulk", "multicast", "tensor")


def planned(number: int, **options: Any) -> tuple[Problem, CopyPlan, dict[str, Any]]:
    case = problem(number)
    array = case.array(buffer_of(case.buffer_bytes))
    return case, case.plan(array, **options), judged(case, array.ctypes.data)


# --- what is chosen and refused ---------------------------------------------------------------


@pytest.mark.slow
def test_the_fastest_legal_mechanism_is_chosen_and_exactly_the_illegal_ones_are_refused() -> None:
    wrong: list[object] = []
    seen: Counter[str] = Counter()
    for number in range(PROBLEMS):
        case, plan, legal = planned(number)
        possible = [name for name, is_legal in legal.items() if is_legal]
        refused = {refusal.mechanism for refusal in plan.refused}
        if (
            list(plan.possible) != possible
            or plan.mechanism != possible[0]
            or {*legal} - {*possible} - refused
            or (plan.access_bytes and plan.access_bytes != legal[plan.mechanism])
        ):
            wrong.append((number, case, plan, legal))
        seen[f"{plan.direction} {plan.mechanism} {plan.access_bytes}"] += 1

    assert wrong == []
    assert len(seen) == 14, seen
    assert min(seen.values()) > 20, seen


def test_a_preference_is_followed_wherever_it_is_legal() -> None:
    for number, prefer in itertools.product(range(300), ("tma", "cp_async", "sync")):
        _, plan, legal = planned(number, prefer=prefer)
        family = {"tma": TMA, "cp_async": ("cp_async",), "sync": ("loop",)}[prefer]
        able = [name for name, is_legal in legal.items() if is_legal]

        assert plan.mechanism == next((name for name in able if name in family), able[0])
        assert {*plan.possible} == {*able}


def test_without_tma_threads_copy_as_wide_as_they_can() -> None:
    for number in range(300):
        case, plan, legal = planned(number, disable_tma=True)

        assert plan.mechanism == ("cp_async" if legal["cp_async"] else "loop"), case
        assert plan.access_bytes == legal[plan.mechanism]
        assert plan.expected_bytes == 0


def test_a_coalesced_width_divides_what_is_possible() -> None:
    for number in range(300):
        case, plan, _ = planned(number, prefer="sync")
        most = max(plan.access_bytes // case.itemsize, 1)
        array = case.array(buffer_of(case.buffer_bytes))
        for width in range(1, most + 2):
            options = {"coalesced_width": width, "disable_tma": True, "prefer": "sync"}
            if most % width:
                with pytest.raises(ArgumentError, match=rf"^coalesced_width is {width}; {most} el"):
                    case.plan(array, **options)
            else:
                narrow = case.plan(array, **options)
                wanted = plan.access_bytes if most == 1 else width * case.itemsize
                assert (narrow.mechanism, narrow.access_bytes) == ("loop", wanted)


def test_a_mask_makes_a_multicast_of_every_legal_tensor_load_and_of_nothing_else() -> None:
    seen: Counter[bool] = Counter()
    for number in range(400):
        case = problem(number)
        array = case.array(buffer_of(case.buffer_bytes))
        is_legal = judged(case, array.ctypes.data)["tensor"] and not case.is_store
        seen[is_legal] += 1
        if is_legal:
            plan = case.plan(array, cluster_mask=0b110)
            assert plan.mechanism == "multicast"
            assert plan.cuda_type.endswith("tmaasync::CachePolicy::kEvictNormal, 0x6>")
            continue
        with pytest.raises(ArgumentError) as caught:
            case.plan(array, cluster_mask=0b110)
        if not case.is_store:
            tensor = [r for r in case.plan(array).refused if r.mechanism == "tensor"]
            assert str(caught.value) == "\n".join(str(refusal.violation) for refusal in tensor)
    assert min(seen.values()) > 50


# --- sizes ------------------------------------------------------------------------------------


def test_sizes_equal_the_tile_whatever_moves_it() -> None:
    for number in range(500):
        case, plan, _ = planned(number)
        box = box_of(case)
        counts = [-(-side // part) for side, part in zip(case.tile, box, strict=True)]
        size = int(np.prod(box) * np.prod(counts)) * case.itemsize

        assert plan.box_shape == box
        assert plan.boxes_per_tile == int(np.prod(counts))
        assert plan.tile_bytes == size
        assert plan.smem_alignment == max(128, 8 * case.swizzle.span_bytes)
        assert plan.expected_bytes == (0 if case.is_store or plan.access_bytes else size)
        assert plan.tiles_per_side == tuple(map(len, case.starts))
        if plan.access_bytes:
            assert plan.accesses_per_tile == (
                int(np.prod(case.tile)) * case.itemsize // plan.access_bytes
            )


def test_the_parameter_of_a_tensor_copy_is_the_map_of_the_same_tile() -> None:
    array = np.zeros((64, 200), np.float16)
    tile = create_tma_tile(array, (32, 64), swizzle=Swizzle.B128)

    plan = plan_copy(array, "shared", tile_shape=(32, 64), swizzle=Swizzle.B128)

    assert plan.argument == tile.descriptor
    assert plan.cuda_type == f"tmaasync::TensorCopy<{tile.cuda_type}>"


def test_the_parameter_of_the_others_is_address_strides_and_extents_innermost_first() -> None:
    array = np.zeros((6, 5, 4), np.float32)[::2, ::-1]

    plan = plan_copy(array, "shared", tile_shape=(2, 4))

    assert plan.argument == struct.pack("<Q3q3i4x", array.ctypes.data, 4, -16, 160, 4, 5, 3)
    assert plan.argument == StridedTensor(array).argument
    assert plan.tile_shape == (1, 2, 4)


def test_policies_are_carried_by_tma_and_said_to_be_dropped_elsewhere() -> None:
    array = np.zeros((64, 64), np.float32)

    bulk = plan_copy(array, "shared", tile_shape=(8, 64), eviction_policy=CachePolicy.EVICT_LAST)
    loop = plan_copy(
        "shared",
        array[:, ::2],
        tile_shape=(8, 8),
        eviction_policy=CachePolicy.EVICT_FIRST,
        coalesced_width=1,
    )

    assert bulk.policy is CachePolicy.EVICT_LAST
    assert bulk.cuda_type.endswith("tmaasync::CachePolicy::kEvictLast>")
    assert loop.policy is CachePolicy.EVICT_NORMAL
    assert "not applied: EVICT_FIRST, which only TMA carries" in loop.explain()
    assert "coalesced_width" not in loop.explain()


# --- pairs ------------------------------------------------------------------------------------


def test_two_arrays_are_copied_by_a_pair_of_plans_for_one_tile() -> None:
    source, target = np.zeros((100, 64), np.float32), np.zeros((100, 72), np.float32)[:, :64]

    load, store = plan_copy(source, target)

    assert (load.direction, load.mechanism) == ("load", "tensor")
    assert (store.direction, store.mechanism) == ("store", "tensor")
    assert load.tile_shape == store.tile_shape == (64, 64)
    assert load.explain() in plan_copy(source, target).explain()


def test_a_pair_converts_on_the_way_in() -> None:
    source, target = np.zeros((32, 64), np.float32), np.zeros((32, 64), ml_dtypes.bfloat16)

    load, store = plan_copy(source, target, tile_shape=(16, 64))

    assert (load.mechanism, load.element.name) == ("loop", "bfloat16")
    assert load.cuda_type.endswith(", 16, float>") or load.access_bytes < 16
    assert (store.mechanism, store.element.name) == ("bulk", "bfloat16")


@pytest.mark.parametrize(
    "given", [e for e in ELEMENTS if e.data_type.name != "TFLOAT32_FTZ"], ids=str
)
def test_conversions_lose_nothing_but_precision_and_range_of_their_kind(given: Any) -> None:
    """Integers and bool become integers and wide floats; floats their neighbours."""
    wide = {"float32", "float64"}
    integers = {f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)}
    wanted = {given.name}
    if given.name in integers | {"bool"}:
        wanted |= integers | wide
    if given.name in ("float16", "bfloat16", "float32"):
        wanted |= {"float16", "bfloat16", "float32"}
    if given.name in wide:
        wanted |= wide

    possible = {e.name for e in ELEMENTS if not list(conversion_violations(given, e))}

    assert possible == wanted


# --- refusals of everything -------------------------------------------------------------------

FLAT = np.zeros((64, 64), np.float32)
READ_ONLY = np.broadcast_to(np.float32(0), (64, 64))


@pytest.mark.parametrize(
    ("source", "destination", "options", "said"),
    [
        ("shared", "shared", {}, "source is 'shared', and so is destination; one end"),
        (np.zeros(()), "shared", {}, "source is 0-dimensional; .* Pass array.reshape"),
        (np.zeros((0, 4)), "shared", {}, r"source.shape is \(0, 4\); nothing .* Skip the copy"),
        (FLAT, np.zeros((64, 63), np.float32), {}, r"destination.shape is \(64, 63\); the source"),
        (FLAT, np.zeros((64, 64), np.int32), {}, "element type is int32; the source holds float32"),
        (FLAT, FLAT[:], {}, "destination is at .*overlap.* Copy through a third array"),
        (np.zeros((2, 2)), READ_ONLY[:2, :2], {}, r"destination.strides\[0\] is 0; .* share mem"),
        ("shared", READ_ONLY[:1, :1], {}, "destination is read only"),
        (FLAT, "shared", {"tile_shape": (8, 0)}, r"tile_shape\[1\] is 0; .* positive integer"),
        (FLAT, "shared", {"tile_shape": (1, 8, 8)}, "tile_shape is .*the array has 2 dimensions"),
        (np.zeros((512, 512)), "shared", {}, r"tile_shape is \(512, 512\); .* 232448 bytes"),
        (FLAT, "shared", {"tile_shape": (8, 8), "swizzle": Swizzle.B128}, "would leave gaps"),
        (FLAT, "shared", {"swizzle": Swizzle.B128_ATOM_32B}, "swizzle is .*exists on sm_100"),
        (np.zeros((2,) * 6), "shared", {}, "array.shape is .*; a tile has 1 to 5 sides"),
        (FLAT, "shared", {"starts": (0,)}, r"starts is \(0,\); the array has 2 dimensions"),
        (FLAT, "shared", {"starts": (0, 1.5)}, r"starts\[1\] is 1.5; it must be an int or a ra"),
        (FLAT, "shared", {"starts": (0, range(0))}, r"starts\[1\] is range\(0, 0\); it is empty"),
        (FLAT, "shared", {"starts": (64, 0)}, r"starts\[0\] is 64; no copy of 64 .* within"),
        (FLAT, "shared", {"starts": (range(0, 1 << 32, 64), 0)}, "have 32 bits with a sign"),
        (FLAT, "shared", {"eviction_policy": "first"}, "eviction_policy is 'first'; .*EVICT_LAST"),
        (FLAT, "shared", {"coalesced_width": 0}, "coalesced_width is 0; it counts elements"),
        (FLAT, "shared", {"prefer": "fast"}, "prefer is 'fast'; .* tma, cp_async, sync"),
        (FLAT, "shared", {"prefer": "tma", "disable_tma": True}, "disable_tma is True; prefer"),
        (FLAT, "shared", {"cluster_mask": 1 << 16}, "cluster_mask is 65536; .* 16 CTAs"),
        (FLAT, "shared", {"cluster_mask": 3, "prefer": "sync"}, "cluster_mask is 0x3; a multica"),
        ("shared", FLAT, {"cluster_mask": 3}, "cluster_mask is 0x3; a store has one source"),
        (FLAT, np.ones_like(FLAT), {"cluster_mask": 3}, "would all store it.*Plan the two ways"),
    ],
)
def test_what_no_mechanism_can_is_refused_with_rule_and_remedy(
    source: Any, destination: Any, options: dict[str, Any], said: str
) -> None:
    with pytest.raises(ArgumentError, match=said) as caught:
        plan_copy(source, destination, **options)

    assert all(line.count("; ") and line.endswith(".") for line in str(caught.value).split("\n"))


def test_elements_of_sixteen_bytes_have_no_type_and_a_way_out() -> None:
    array = np.zeros((8, 16), np.complex128)

    with pytest.raises(ArrayTypeError, match=r"^source.dtype is complex128; .*array\.view"):
        plan_copy(array, "shared")

    assert plan_copy(array.view(np.float64), "shared").mechanism == "bulk"


def test_extents_beyond_32_bits_are_for_tma_alone() -> None:
    long = np.broadcast_to(np.uint8(0), (4, 1 << 31))
    view = _arrays.view(long)
    rows = view._replace(address=BASE, strides_bytes=(1 << 31, 1))
    at: dict[str, Any] = {"tile_shape": (1, 256), "starts": (0, range(0, 1 << 20, 256))}

    assert plan_copy(rows, "shared", **at).possible == ("tensor",)
    with pytest.raises(ArgumentError, match=r"^array\.shape\[1\] is 2147483648; coordinates in"):
        plan_copy(rows, "shared", disable_tma=True, **at)


def test_the_overlap_of_a_destination_with_itself_is_found_before_anything_is_planned() -> None:
    memory = np.zeros(64, np.float32)
    windows = np.lib.stride_tricks.as_strided(memory, (4, 8), (16, 4))

    assert plan_copy(windows, "shared").mechanism == "tensor"
    with pytest.raises(ArgumentError, match=r"destination\.strides\[0\] is 16; .* over 32 bytes"):
        plan_copy("shared", windows)


# --- what is said -----------------------------------------------------------------------------


def test_an_explanation_has_every_reason_against_what_was_not_possible() -> None:
    for number in range(200):
        _, plan, _ = planned(number)
        text = plan.explain()

        for refusal in plan.refused:
            is_reported = (
                refusal.mechanism not in plan.possible or refusal.mechanism == plan.mechanism
            )
            assert (f"{refusal.violation} [{refusal.source}]" in text) == is_reported
            assert refusal.source
        assert str(plan.mechanism) in text
        assert len(repr(plan)) < 120


def test_an_explanation_reads_like_this() -> None:
    array = _arrays.view(np.zeros((64, 511), np.float16))
    plan = plan_copy(
        array._replace(address=0x7F0000000000), "shared", tile_shape=(64, 64), swizzle=Swizzle.B128
    )

    assert plan.explain().startswith(
        "load: tiles of 64x64 float16 from float16 [64x511]\n"
        "  array: address 0x7f0000000000, strides of (1022, 2) bytes\n"
        "  chosen: loop, 4096 accesses of 2 bytes a tile\n"
        "  shared memory: 8192 bytes at a multiple of 1024, 1 box of 64x64, Swizzle.B128\n"
        "  waited for: by __syncthreads\n"
        "  why not bulk:\n"
    )
    assert (
        "  why not tensor:\n"
        "    strides_bytes[0] is 1022; it must be a multiple of 16 bytes. Pad that dimension to "
        "1024 bytes. [cuda.h, cuTensorMapEncodeTiled, and docs/hardware.md]\n"
    ) in plan.explain()
    assert repr(plan) == "<CopyPlan load 64x64 of float16 [64x511] by loop of 2 bytes>"


# --- starts -----------------------------------------------------------------------------------


@given(
    first=st.integers(-12, 30),
    step=st.integers(1, 9),
    count=st.integers(1, 6),
    side=st.integers(1, 9),
    extent=st.integers(1, 30),
)
def test_what_copies_touch_is_given_by_its_first_index_and_the_distances(
    first: int, step: int, count: int, side: int, extent: int
) -> None:
    places = range(first, first + step * count, step)
    indices = sorted({at + i for at in places for i in range(side) if 0 <= at + i < extent})

    found = starts.touched(places, side, extent)

    if not indices:
        assert found is None
    else:
        gaps = [index - indices[0] for index in indices]
        assert found == (indices[0], int(np.gcd.reduce(gaps)) if len(gaps) > 1 else 0)


@given(
    first=st.integers(-40, 10),
    step=st.integers(1, 20),
    times=st.integers(1, 6),
    units=st.integers(1, 6),
    count=st.sampled_from([2, 4, 8, 16]),
)
def test_a_vector_straddles_if_it_begins_before_the_array_and_ends_in_it(
    first: int, step: int, times: int, units: int, count: int
) -> None:
    places, side = range(first, first + step * times, step), units * count
    begins = {at + unit * count for at in places for unit in range(units)}

    found = starts.straddling(places, side, count)

    assert (found is not None) == any(-count < begin < 0 for begin in begins)


# --- kernels ----------------------------------------------------------------------------------

KERNEL = """
#include <tmaasync/tmaasync.cuh>
using namespace tmaasync;
extern "C" __global__ void moved(const __grid_constant__ Source source) {
    auto& shared = dynamic_shared<Source::Shared>();
    SharedMemBarrier barrier;
    CALL;
}
"""


@pytest.mark.parametrize(
    ("options", "call", "said"),
    [
        ({"disable_tma": True}, "tma_copy(shared, source, {0, 0}, barrier)", "did not choose TMA"),
        ({}, "async_copy(shared, source, {0, 0})", "did not choose cp.async"),
        ({}, "copy(shared, source, {0, 0, 0})", "one coordinate per dimension"),
    ],
)
def test_a_call_that_the_plan_did_not_choose_ends_the_compilation_in_words(
    options: dict[str, Any], call: str, said: str
) -> None:
    plan = plan_copy(FLAT, "shared", tile_shape=(8, 32), **options)

    with pytest.raises(CompileError, match=re.escape(said)):
        Kernel(KERNEL.replace("CALL", call), "moved", types={"Source": plan}).compile()


def test_a_plan_is_stale_when_its_array_has_moved() -> None:
    array = np.zeros((64, 64), np.float32)
    plan = plan_copy(array, "shared", tile_shape=(8, 8))
    assert plan.is_current

    array.resize((1, 8), refcheck=False)

    assert not plan.is_current
    with pytest.raises(ArgumentError, match="freed, resized or moved"):
        plan.check_alive()
