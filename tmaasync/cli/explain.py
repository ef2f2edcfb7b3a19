"""``explain``: the rules of TMA that an array breaks, and the nearest legal tensor map."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Collection
from typing import Annotated, Any

import typer
from rich.console import Console

from tmaasync._arrays import ArrayView
from tmaasync._elements import Element, element
from tmaasync._hardware import TMA_ALIGNMENT
from tmaasync._tile.cut import layout_violations
from tmaasync.cli._arguments import address as read_address
from tmaasync.cli._arguments import integers
from tmaasync.cli._maps import field_facts, map_facts, rule_facts, rules_table
from tmaasync.cli._tables import AsJson, print_json
from tmaasync.cli._wording import with_short_names
from tmaasync.copy_plan import CopyPlan, plan_copy
from tmaasync.errors import ArgumentError
from tmaasync.modes import Interleave, OOBFill, Swizzle
from tmaasync.tensormap import Explanation, TensorMapSpec

_SOMEWHERE = "0x7f0000000000"
_BOX_ROWS = 64
_MAX_BOX_SIDE = 256
_MEMORY_BYTES = 1 << 56


def explain(  # noqa: PLR0913 - one per field of the tensor map
    ctx: typer.Context,
    shape: Annotated[str, typer.Argument(metavar="SHAPE", help="As in 100x33, outermost first.")],
    dtype: Annotated[str, typer.Option(help="Element type, as in bf16, fp16 or e4m3.")] = "float16",
    strides: Annotated[
        str | None,
        typer.Option(help="Bytes from one index to the next, as in 66,2; by default contiguous."),
    ] = None,
    box: Annotated[
        str | None,
        typer.Option(
            help="Elements that one instruction moves, as in 64x64; by default up to 64 rows."
        ),
    ] = None,
    swizzle: Annotated[str, typer.Option(help="none, 32B, 64B or 128B.")] = "none",
    interleave: Annotated[str, typer.Option(help="none, 16B or 32B.")] = "none",
    element_strides: Annotated[
        str | None, typer.Option(help="Take every n-th element, as in 2,1.")
    ] = None,
    oob_fill: Annotated[str, typer.Option(help="zero or nan.")] = "zero",
    address: Annotated[str, typer.Option(help="Address of the first element.")] = _SOMEWHERE,
    full: Annotated[
        bool, typer.Option("--full", help="Also print why faster mechanisms are refused.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Explain which rules of TMA an array breaks, and print the nearest legal tensor map.

    The array need not exist. Below the rules it prints how plan_copy loads tiles of it as it is.
    """
    view = _view(shape, element(dtype), strides, read_address("address", address))
    swizzled = Swizzle.of(swizzle, "swizzle")
    sides = _box(view, swizzled) if box is None else integers("box", box, like="64x64")
    spec = TensorMapSpec(
        view.address,
        view.element.data_type,
        view.shape,
        view.strides_bytes[:-1],
        sides,
        element_strides=()
        if element_strides is None
        else integers("element_strides", element_strides, like="2,1"),
        interleave=Interleave.of(interleave, "interleave"),
        swizzle=swizzled,
        oob_fill=OOBFill.of(oob_fill, "oob_fill"),
    )
    judged, plan = _judged(view, spec), _plan(view, sides, swizzled)
    if as_json:
        print_json(_facts(judged, plan))
    else:
        _show(view, judged, plan, full, [str(one.name) for one in ctx.command.params])


# --- arguments --------------------------------------------------------------------------------


def _view(shape: str, kind: Element, strides: str | None, address: int) -> ArrayView:
    sides = integers("shape", shape, like="100x33")
    if min(sides) < 1:
        rule, remedy = "every side must be 1 or more", "Pass the shape of an array with elements"
        raise ArgumentError.broken("shape", shape, rule, remedy)
    steps = _contiguous(sides, kind.itemsize)
    if strides is not None:
        steps = integers("strides", strides, like=",".join(map(str, steps)))
    if len(steps) != len(sides):
        rule = f"the array has {len(sides)} dimensions and needs one number of bytes for each"
        remedy = f"Contiguous it would be {','.join(map(str, _contiguous(sides, kind.itemsize)))}"
        raise ArgumentError.broken("strides", strides, rule, remedy)
    if max(map(abs, (*sides, *steps))) >= _MEMORY_BYTES:
        rule = f"no array is that large: its strides reach {_MEMORY_BYTES} bytes"
        remedy = "Pass a smaller shape"
        raise ArgumentError.broken("shape", shape, rule, remedy)
    return ArrayView(address, sides, steps, kind, None, True, "other", None)


def _contiguous(shape: tuple[int, ...], itemsize: int) -> tuple[int, ...]:
    inner = itertools.accumulate(reversed(shape[1:]), lambda step, n: step * n, initial=itemsize)
    return tuple(inner)[::-1]


def _box(view: ArrayView, swizzle: Swizzle) -> tuple[int, ...]:
    """Return the default box: a swizzle's span of up to 64 rows, or rows of whole 16 bytes."""
    itemsize = view.element.itemsize
    if swizzle is Swizzle.NONE:
        granule = TMA_ALIGNMENT // itemsize
        last = min(-(-view.shape[-1] // granule) * granule, _MAX_BOX_SIDE)
    else:
        last = swizzle.span_bytes // itemsize
    rows = (min(side, _BOX_ROWS) for side in view.shape[-2:-1])
    return (*(1 for _ in view.shape[:-2]), *rows, last)


# --- output -----------------------------------------------------------------------------------


def _judged(view: ArrayView, spec: TensorMapSpec) -> Explanation[TensorMapSpec]:
    """Return all broken rules, also of the innermost stride, which a map does not hold."""
    judged = spec.explain()
    outside = layout_violations(view)
    if not outside:
        return judged
    violations = (*outside, *judged.violations)
    return dataclasses.replace(judged, violations=violations, proposal=_turned(view, spec))


def _turned(view: ArrayView, spec: TensorMapSpec) -> TensorMapSpec | None:
    """Return the nearest legal map with the contiguous dimension last, if there is one."""
    order = sorted(range(view.ndim), key=lambda dim: -abs(view.strides_bytes[dim]))
    if len(spec.box_shape) != view.ndim or view.strides_bytes[order[-1]] != view.element.itemsize:
        return None
    turned = dataclasses.replace(
        spec,
        shape=tuple(view.shape[dim] for dim in order),
        strides_bytes=tuple(view.strides_bytes[dim] for dim in order[:-1]),
        box_shape=tuple(spec.box_shape[dim] for dim in order),
    )
    return turned.explain().proposal


def _plan(view: ArrayView, sides: tuple[int, ...], swizzle: Swizzle) -> CopyPlan | str:
    """Return what loads tiles of the array as it is, or why nothing does."""
    try:
        return plan_copy(view, "shared", tile_shape=sides, swizzle=swizzle)
    except ArgumentError as error:
        return str(error)


def _facts(judged: Explanation[TensorMapSpec], plan: CopyPlan | str) -> dict[str, Any]:
    nearest = judged.proposal
    return {
        "spec": field_facts(judged.spec),
        "legal": judged.is_legal,
        "violations": rule_facts(judged.violations),
        "hazards": rule_facts(judged.hazards),
        "nearest": None if nearest is None else map_facts(nearest),
        "changes": judged.changes,
        "load": {"refused": plan} if isinstance(plan, str) else _plan_facts(plan),
    }


def _plan_facts(plan: CopyPlan) -> dict[str, Any]:
    return {
        "mechanism": plan.mechanism,
        "access_bytes": plan.access_bytes,
        "possible": plan.possible,
        "refused": [
            {"mechanism": refusal.mechanism, "source": refusal.source, **rules}
            for refusal in plan.refused
            for rules in rule_facts([refusal.violation])
        ],
    }


def _show(
    view: ArrayView,
    judged: Explanation[TensorMapSpec],
    plan: CopyPlan | str,
    full: bool,
    parameters: Collection[str],
) -> None:
    console = Console(highlight=False)
    shape, box = ("x".join(map(str, sides)) for sides in (view.shape, judged.spec.box_shape))
    verdict = "TMA moves" if judged.is_legal else "TMA cannot move"
    typer.echo(f"{view.element} [{shape}], strides {view.strides_bytes}: {verdict} boxes of {box}.")
    if judged.violations:
        console.print(rules_table("Why not", judged.violations, parameters))
        typer.echo("The nearest legal map:")
        for change in judged.changes or ("none; correct the lengths first",):
            typer.echo(f"  {with_short_names(change)}")
    if judged.hazards:
        console.print(rules_table("Hazards", judged.hazards, parameters))
    typer.echo("\nHow plan_copy loads these tiles from the array as it is:")
    typer.echo(plan if isinstance(plan, str) else _loads(plan, full))


def _loads(plan: CopyPlan, full: bool) -> str:
    text = plan.explain()
    return text if full else text.partition("\n  why not")[0]
