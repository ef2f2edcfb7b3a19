"""The factory of copy plans."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Literal, TypedDict, Unpack, overload

from tmaasync import _arrays
from tmaasync._arrays import ArrayView
from tmaasync._elements import Element, element
from tmaasync._kinds import is_integer, not_flags, shown
from tmaasync._tile.cut import (
    argument_violations,
    covering_tile,
    is_positive_integer,
    sides_of,
)
from tmaasync.copy_plan import starts as starts_
from tmaasync.copy_plan.bulk import bulk
from tmaasync.copy_plan.mechanism import Chosen, Mechanism, Refusal
from tmaasync.copy_plan.plan import CopyPair, CopyPlan
from tmaasync.copy_plan.request import (
    Options,
    Request,
    conversion_violations,
    layout,
    layout_violations,
    overlap_violations,
    same_shape_violations,
)
from tmaasync.copy_plan.starts import Start
from tmaasync.copy_plan.tensor import tensor
from tmaasync.copy_plan.threads import cp_async, loop
from tmaasync.errors import ArgumentError, TensorMapError, Violation
from tmaasync.modes import CachePolicy, Swizzle, SwizzleName

_Shared = Literal["shared"]
_Prefer = Literal["tma", "cp_async", "sync"]

_MECHANISMS: tuple[Callable[[Request, list[Refusal]], Chosen | None], ...] = (
    bulk,
    tensor,
    cp_async,
    loop,
)
"""Fastest first."""

_FAMILIES = {
    "tma": (Mechanism.BULK, Mechanism.MULTICAST, Mechanism.TENSOR),
    "cp_async": (Mechanism.CP_ASYNC,),
    "sync": (Mechanism.LOOP,),
}
_PAIR_TILE_BYTES = 16384
_MAX_MASK = 0xFFFF


class _Options(TypedDict, total=False):
    tile_shape: Sequence[int] | None
    swizzle: Swizzle | SwizzleName
    starts: Sequence[Start] | None
    shared_dtype: object
    eviction_policy: CachePolicy
    coalesced_width: int | None
    disable_tma: bool
    prefer: _Prefer | None
    cluster_mask: int


@overload
def plan_copy(  # type: ignore[overload-overlap]
    source: object, destination: _Shared, **options: Unpack[_Options]
) -> CopyPlan: ...
@overload
def plan_copy(  # type: ignore[overload-overlap]
    source: _Shared, destination: object, **options: Unpack[_Options]
) -> CopyPlan: ...
@overload
def plan_copy(source: object, destination: object, **options: Unpack[_Options]) -> CopyPair: ...
def plan_copy(  # noqa: PLR0913 - the two ends, and one argument per thing a caller may want
    source: object,
    destination: object,
    *,
    tile_shape: Sequence[int] | None = None,
    swizzle: Swizzle | SwizzleName = Swizzle.NONE,
    starts: Sequence[Start] | None = None,
    shared_dtype: object = None,
    eviction_policy: CachePolicy = CachePolicy.EVICT_NORMAL,
    coalesced_width: int | None = None,
    disable_tma: bool = False,
    prefer: _Prefer | None = None,
    cluster_mask: int = 0,
) -> CopyPlan | CopyPair:
    """Choose the fastest legal copy between an array and shared memory, and explain the choice.

    In order of preference: one 1-D bulk copy, a tensor load or store, ``cp.async`` of 16, 8 or 4
    bytes (loads only), a loop of ordinary accesses of 16 to 1 bytes. The loop takes any strides,
    alignment and edge, so that every array can be copied. All of them leave the same bytes at the
    same offsets of shared memory, with zeros for elements outside the array. Stores write nothing
    outside the array.

    Args:
        source: An array, as in `create_tma_tile` but with any strides and alignment; or
            ``"shared"``.
        destination: The other end. Two arrays of one shape are copied through shared memory.
        tile_shape: Elements per side of one copy, outermost first; with fewer numbers than
            dimensions the first sides are 1. By default the whole array, between two arrays tiles
            of about 16 KiB.
        swizzle: How the tile lies in shared memory, as in `create_tma_tile`.
        starts: First index of the copies, per dimension an int or a range of ints, from which
            alignment and bounds are proved. By default every multiple of the tile's side within
            the array.
        shared_dtype: Element type of the tile, if it is not the array's; only a loop converts.
            Between two arrays the default is the destination's type.
        eviction_policy: L2 eviction policy. Only TMA copies have one; the explanation reports a
            policy that is not applied.
        coalesced_width: Elements of one thread's access, a divisor of the widest; TMA ignores it.
        disable_tma: Whether TMA is excluded.
        prefer: Choose ``"tma"``, ``"cp_async"`` or a loop (``"sync"``) if it is possible.
        cluster_mask: The CTAs of a cluster, one bit each, to which one tensor load multicasts the
            tile, at the same offset of shared memory in each.

    Returns:
        A `CopyPlan`; for two arrays a pair of them, ``load`` and ``store``.

    Raises:
        ArgumentError: No mechanism is possible: shapes or types differ, tiles do not fit, elements
            of the destination share memory, options contradict each other, or ``swizzle`` names no
            mode.
        ArrayTypeError: Not an array, or not of a type that TMA can read.

    >>> import numpy as np
    >>> aligned, odd = np.zeros((64, 512), np.float16), np.zeros((64, 511), np.float16)
    >>> plan_copy(aligned, "shared", tile_shape=(64, 64), swizzle="128B").mechanism.value
    'tensor'
    >>> plan = plan_copy(odd, "shared", tile_shape=(64, 64), swizzle="128B")
    >>> plan.mechanism.value, plan.access_bytes
    ('loop', 2)
    >>> print(*{refusal.violation for refusal in plan.refused if refusal.mechanism == "tensor"})
    strides_bytes[0] is 1022; it must be a multiple of 16 bytes. Pad that dimension to 1024 bytes.
    """
    options = Options(
        policy=eviction_policy,
        coalesced_width=coalesced_width,
        disable_tma=disable_tma,
        prefer=prefer,
        cluster_mask=cluster_mask,
    )
    ArgumentError.raise_for(_option_violations(options))
    ends = _ends(source, destination)
    held = _held(ends, shared_dtype)
    sides = _sides(next(iter(ends.values())), tile_shape, is_pair=len(ends) > 1)
    cut = layout(held, sides, Swizzle.of(swizzle, "swizzle"))
    TensorMapError.raise_for(layout_violations(cut))
    ArgumentError.raise_for(_pair_violations(ends, options))
    plans = [
        _plan(Request(view, cut, name == "destination", _places(view, sides, starts), options))
        for name, view in ends.items()
    ]
    return plans[0] if len(plans) == 1 else CopyPair(*plans)


def _plan(request: Request) -> CopyPlan:
    options = request.options
    refused: list[Refusal] = []
    looks = [look(request, refused) for look in _MECHANISMS]
    able = [chosen for chosen in looks if chosen is not None]
    if options.cluster_mask:
        able = [chosen for chosen in able if chosen.mechanism is Mechanism.MULTICAST]
    if not able:
        last = Mechanism.MULTICAST if options.cluster_mask else Mechanism.LOOP
        decisive = [refusal for refusal in refused if refusal.access_bytes is None]
        ArgumentError.raise_for(
            refusal.violation for refusal in decisive if refusal.mechanism is last
        )
    family = _FAMILIES["tma" if options.prefer is None else options.prefer]
    able.sort(key=lambda chosen: chosen.mechanism not in family)
    possible = tuple(chosen.mechanism for chosen in able)
    return CopyPlan(request, able[0], possible, tuple(refused))


# --- the ends ---------------------------------------------------------------------------------


def _ends(source: object, destination: object) -> dict[str, ArrayView]:
    """Return the arrays among the two, checked for what no mechanism can."""
    named = {"source": source, "destination": destination}
    ends = {
        name: _arrays.view(end, argument=name)
        for name, end in named.items()
        if not (isinstance(end, str) and end == "shared")
    }
    ArgumentError.raise_for(_end_violations(ends))
    if "destination" in ends:
        _arrays.require_writable(ends["destination"], "destination")
    return ends


def _end_violations(ends: dict[str, ArrayView]) -> Iterator[Violation]:
    if not ends:
        rule = "one end of a copy is an array"
        yield Violation("source", "'shared', and so is destination", rule, "Pass an array")
    for name, view in ends.items():
        if view.ndim == 0:
            rule, remedy = "a tile has 1 to 5 sides", "Pass array.reshape(1)"
            yield Violation(name, "0-dimensional", rule, remedy)
        if view.is_empty:
            yield Violation(f"{name}.shape", view.shape, "nothing is to be copied", "Skip the copy")
    if "destination" in ends:
        yield from overlap_violations(ends["destination"])
    if len(ends) == 2:
        yield from _joint_violations(*ends.values())


def _joint_violations(source: ArrayView, destination: ArrayView) -> Iterator[Violation]:
    yield from same_shape_violations(source, destination)
    _arrays.common_device({"source": source, "destination": destination})
    if _arrays.may_overlap(source, destination):
        yield Violation(
            "destination",
            f"at {destination.address:#x}, where the source lies at {source.address:#x}",
            "they overlap, and the order of tiles is not defined",
            "Copy through a third array",
        )


def _held(ends: dict[str, ArrayView], shared_dtype: object) -> Element:
    held = ends["destination" if "destination" in ends else "source"].element
    if shared_dtype is not None:
        held = element(shared_dtype, argument="shared_dtype")
    if "source" in ends:
        ArgumentError.raise_for(conversion_violations(ends["source"].element, held))
    if "destination" in ends:
        ArgumentError.raise_for(conversion_violations(held, ends["destination"].element))
    return held


# --- tile and starts --------------------------------------------------------------------------


def _sides(view: ArrayView, tile_shape: Sequence[int] | None, *, is_pair: bool) -> tuple[int, ...]:
    if tile_shape is None:
        return covering_tile(view, _PAIR_TILE_BYTES) if is_pair else view.shape
    given = sides_of("tile_shape", tile_shape)
    sides = (*((1,) * (view.ndim - len(given))), *given)
    TensorMapError.raise_for(argument_violations(view.ndim, sides, None, (1,) * view.ndim))
    return tuple(int(side) for side in sides)


def _places(
    view: ArrayView, sides: tuple[int, ...], given: Sequence[Start] | None
) -> tuple[range, ...]:
    if given is None:
        return starts_.covering(view.shape, sides)
    ArgumentError.raise_for(starts_.violations(given, sides, view.shape))
    return tuple(places for start in given if (places := starts_.normalised(start)) is not None)


# --- options ----------------------------------------------------------------------------------


def _option_violations(options: Options) -> Iterator[Violation]:
    width, mask = options.coalesced_width, options.cluster_mask
    if not isinstance(options.policy, CachePolicy):
        names = ", ".join(policy.name for policy in CachePolicy)
        remedy = f"Pass one of CachePolicy's members: {names}"
        yield Violation("eviction_policy", repr(options.policy), "it must be a CachePolicy", remedy)
    if width is not None and not is_positive_integer(width):
        rule, remedy = "it counts elements", "Pass an int of 1 or more"
        yield Violation("coalesced_width", shown(width), rule, remedy)
    is_name = options.prefer is None or isinstance(options.prefer, str)
    if not is_name or options.prefer not in (None, *_FAMILIES):
        rule, remedy = "no mechanism has this name", f"Pass one of {', '.join(_FAMILIES)}"
        yield Violation("prefer", shown(options.prefer), rule, remedy)
    if not is_integer(mask) or not 0 <= mask <= _MAX_MASK:
        rule = "a cluster has at most 16 CTAs, one bit each"
        yield Violation("cluster_mask", shown(mask), rule, "Pass 0b11 for the first two")
        return
    yield from not_flags(disable_tma=options.disable_tma)
    if options.disable_tma is True and options.prefer == "tma":
        yield Violation("disable_tma", True, "prefer='tma' asks for it", "Leave one of them out")
    if mask and (options.disable_tma is True or options.prefer in ("cp_async", "sync")):
        rule = "a multicast is a tensor load, which another option rules out"
        yield Violation("cluster_mask", hex(mask), rule, "Leave one of them out")


def _pair_violations(ends: dict[str, ArrayView], options: Options) -> Iterator[Violation]:
    if len(ends) == 2 and options.cluster_mask:
        rule = "the CTAs that get one tile would all store it"
        remedy = 'Plan the two ways apart, each with "shared"'
        yield Violation("cluster_mask", hex(options.cluster_mask), rule, remedy)
