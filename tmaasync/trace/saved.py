"""Save events in the JSON document that Perfetto draws, so that `load` can read them."""

from __future__ import annotations

import base64
import binascii
import json
import zlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from tmaasync.trace.events import EVENT_DTYPE, NAMED_KINDS, NOTHING, SIGNAL_KINDS, offset_name
from tmaasync.trace.launch import LaunchEvents
from tmaasync.trace.perfetto import trace_document
from tmaasync.trace.roles import WarpRoles

BROKEN = (KeyError, TypeError, ValueError, binascii.Error, zlib.error)
"""Exceptions that `arguments_of` raises for other JSON."""

_PLAIN = ("kernel_name", "unit", "dropped", "blocks_left_out", "device", "rank")
_EXTENTS = ("grid", "block", "cluster")


def document_of(launches: Sequence[LaunchEvents], blocks: int | None) -> str:
    """Return the JSON text of the launches; only the first ``blocks`` of each are drawn."""
    drawn = [launch if blocks is None else launch.of_first_blocks(blocks) for launch in launches]
    document = trace_document(drawn)
    document["otherData"]["tmaasync"] = [_facts_of(launch) for launch in launches]
    return json.dumps(document, separators=(",", ":"))


def _facts_of(trace: LaunchEvents) -> dict[str, Any]:
    """Return a trace as JSON values; names only of offsets that occur."""
    events = trace.events
    barriers = events["barrier"][~np.isin(events["kind"], (*NAMED_KINDS, *SIGNAL_KINDS))]
    offsets = np.unique(np.concatenate([barriers, events["shared"]]))
    names = {str(one): trace.name_of(one) for one in offsets.tolist() if one != NOTHING}
    return {
        **{name: getattr(trace, name) for name in (*_PLAIN, *_EXTENTS)},
        "names": {
            offset: name for offset, name in names.items() if name != offset_name(int(offset))
        },
        "roles": _saved_roles(trace.roles),
        "events": base64.b64encode(zlib.compress(events.tobytes())).decode(),
    }


def arguments_of(facts: Mapping[str, Any]) -> dict[str, Any]:
    """Return the `Trace` arguments of these facts; raises one of `BROKEN` for other JSON."""
    names = {int(offset): str(name) for offset, name in facts["names"].items()}
    raw = zlib.decompress(base64.b64decode(facts["events"], validate=True))
    return {
        "kernel_name": str(facts["kernel_name"]),
        "unit": _unit(facts["unit"]),
        "dropped": int(facts["dropped"]),
        "blocks_left_out": int(facts["blocks_left_out"]),
        "device": _number(facts.get("device")),
        "rank": _number(facts.get("rank")),
        **{name: _extents(facts[name]) for name in _EXTENTS},
        "events": np.frombuffer(raw, EVENT_DTYPE),
        "roles": _loaded_roles(facts.get("roles", {})),
        "name_of": lambda offset: names.get(offset) or offset_name(offset),
    }


def _saved_roles(roles: WarpRoles) -> dict[str, list[list[int]]]:
    """Return cluster, rank and warp of all warps of each role."""
    saved: dict[str, list[list[int]]] = {}
    for warp, role in roles.items():
        saved.setdefault(role, []).append(list(warp))
    return saved


def _loaded_roles(saved: Mapping[str, Any]) -> WarpRoles:
    return {
        (int(cluster), int(rank), int(warp)): str(role)
        for role, warps in saved.items()
        for cluster, rank, warp in warps
    }


def _unit(unit: str) -> str:
    if unit not in ("step", "ns"):
        raise ValueError(unit)
    return unit


def _number(value: Any) -> int | None:
    return None if value is None else int(value)


def _extents(sides: Any) -> tuple[int, int, int]:
    x, y, z = map(int, sides)
    if min(x, y, z) < 1:
        raise ValueError(sides)
    return x, y, z
