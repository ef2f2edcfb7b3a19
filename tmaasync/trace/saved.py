"""Events in a JSON document, beside what Perfetto draws, so that a trace can be read again."""

from __future__ import annotations

import base64
import binascii
import zlib
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from tmaasync.trace.events import EVENT_DTYPE, NAMED_KINDS, NOTHING, offset_name

if TYPE_CHECKING:
    from tmaasync.trace.launches import Trace

__all__ = ["BROKEN", "facts_of", "told"]

BROKEN = (KeyError, TypeError, ValueError, binascii.Error, zlib.error)
"""What `told` raises for facts that are none."""

_PLAIN = ("kernel_name", "unit", "dropped", "blocks_left_out")
_EXTENTS = ("grid", "block", "cluster")


def facts_of(trace: Trace) -> dict[str, Any]:
    """All of a trace, in what JSON has; of names those of offsets that occur."""
    events = trace.events
    barriers = events["barrier"][~np.isin(events["kind"], NAMED_KINDS)]
    offsets = np.unique(np.concatenate([barriers, events["shared"]]))
    names = {str(one): trace.name_of(one) for one in offsets.tolist() if one != NOTHING}
    return {
        **{name: getattr(trace, name) for name in (*_PLAIN, *_EXTENTS)},
        "names": {
            offset: name for offset, name in names.items() if name != offset_name(int(offset))
        },
        "events": base64.b64encode(zlib.compress(events.tobytes())).decode(),
    }


def told(facts: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments of the `Trace` with these facts; raises one of `BROKEN` if they are not."""
    names = {int(offset): str(name) for offset, name in facts["names"].items()}
    raw = zlib.decompress(base64.b64decode(facts["events"], validate=True))
    return {
        "kernel_name": str(facts["kernel_name"]),
        "unit": _unit(facts["unit"]),
        "dropped": int(facts["dropped"]),
        "blocks_left_out": int(facts["blocks_left_out"]),
        **{name: _extents(facts[name]) for name in _EXTENTS},
        "events": np.frombuffer(raw, EVENT_DTYPE),
        "name_of": lambda offset: names.get(offset) or offset_name(offset),
    }


def _unit(unit: str) -> str:
    if unit not in ("step", "ns"):
        raise ValueError(unit)
    return unit


def _extents(sides: Any) -> tuple[int, int, int]:
    x, y, z = map(int, sides)
    if min(x, y, z) < 1:
        raise ValueError(sides)
    return x, y, z
