"""Random tensor maps, legal and illegal: our verdict, bytes and decoder against the driver's.

Writes section "tensormap_fuzz": how many agreed, and every spec that did not.
"""

from __future__ import annotations

import argparse
import random
from collections import Counter
from collections.abc import Callable
from typing import Any

import cupy
from race import record

from tmaasync import DataType, Interleave, L2Promotion, OOBFill, Swizzle, TensorMapSpec, _driver
from tmaasync.errors import DriverError
from tmaasync.tensormap import Im2colSpec

_BASE = 0x7F0000000000
_CORNER_LIMIT = {3: 1 << 15, 4: 1 << 7, 5: 1 << 4}


def log_uniform(rng: random.Random, highest: int) -> int:
    return max(1, min(highest, int(2 ** rng.uniform(0, highest.bit_length()))))


def tiled(rng: random.Random) -> dict[str, Any]:
    """Return the arguments of a spec that is mostly legal."""
    dtype = DataType(rng.randrange(13))
    rank = rng.randint(1, 5)
    interleave = Interleave(rng.choice((0, 0, 0, 1, 2)) if rank >= 3 else 0)
    swizzle = Swizzle.B32 if interleave is Interleave.B32 else Swizzle(rng.randrange(4))
    unit = 32 if interleave is Interleave.B32 else 16
    granule = max(1, 16 // dtype.itemsize)
    span = 256 * dtype.itemsize if swizzle is Swizzle.NONE else swizzle.span_bytes
    inner = granule * rng.randint(1, max(1, min(256, span // dtype.itemsize) // granule))
    others = [log_uniform(rng, 256 if rng.random() < 0.1 else 32) for _ in range(rank - 1)]
    return {
        "address": _BASE + unit * rng.randrange(1 << 30),
        "dtype": dtype,
        "shape": tuple(log_uniform(rng, 1 << rng.choice((6, 16, 32))) for _ in range(rank)),
        "strides_bytes": tuple(
            unit * rng.randrange(1 << rng.choice((6, 16, 34))) for _ in range(rank - 1)
        ),
        "box_shape": (*others, inner),
        "element_strides": tuple(rng.choice((1, 1, 1, rng.randint(1, 8))) for _ in range(rank)),
        "interleave": interleave,
        "swizzle": swizzle,
        "l2_promotion": L2Promotion(rng.randrange(4)),
        "oob_fill": OOBFill(rng.randrange(2)) if dtype.is_float else OOBFill.ZERO,
    }


def im2col(rng: random.Random) -> dict[str, Any]:
    arguments = tiled(rng)
    while len(arguments["shape"]) < 3:
        arguments = tiled(rng)
    rank = len(arguments["shape"])
    limit = _CORNER_LIMIT[rank]
    arguments["channels_per_pixel"] = arguments.pop("box_shape")[-1]
    arguments["pixels_per_column"] = log_uniform(rng, 1024)
    for corner in ("lower_corner", "upper_corner"):
        near = rng.random() < 0.8
        arguments[corner] = tuple(
            rng.randint(-4, 4) if near else rng.randint(-limit, limit - 1) for _ in range(rank - 2)
        )
    return arguments


def broken(rng: random.Random, arguments: dict[str, Any]) -> dict[str, Any]:
    """Return the same with one to three arguments at or beyond their limits."""
    arguments = dict(arguments)
    for _ in range(rng.choice((1, 1, 2, 3))):
        _break_one(rng, arguments)
    return arguments


def _break_one(rng: random.Random, arguments: dict[str, Any]) -> None:
    edges: dict[str, Callable[[], Any]] = {
        "address": lambda: arguments["address"] + rng.choice((1, 2, 4, 8, 16)),
        "dtype": lambda: DataType(rng.randrange(16)),
        "shape": lambda: _with(rng, arguments["shape"], (0, 1, 1 << 31, 1 << 32, (1 << 32) + 1)),
        "strides_bytes": lambda: _with(
            rng, arguments["strides_bytes"], (0, 8, 16, 24, (1 << 40) - 32, (1 << 40) - 16, 1 << 40)
        ),
        "box_shape": lambda: _with(rng, arguments["box_shape"], (0, 1, 3, 16, 255, 256, 257, 512)),
        "element_strides": lambda: _with(rng, arguments["element_strides"], (0, 2, 7, 8, 9, 16)),
        "interleave": lambda: Interleave(rng.randrange(3)),
        "swizzle": lambda: Swizzle(rng.randrange(7)),
        "oob_fill": lambda: OOBFill.NAN,
        "channels_per_pixel": lambda: rng.choice((0, 1, 8, 64, 256, 257)),
        "pixels_per_column": lambda: rng.choice((0, 1, 1023, 1024, 1025)),
        "lower_corner": lambda: _with(rng, arguments["lower_corner"], (-16, -17, 127, 128, 9999)),
        "upper_corner": lambda: _with(rng, arguments["upper_corner"], (-16, -17, -128, -129, 15)),
    }
    name = rng.choice([name for name in edges if name in arguments])
    arguments[name] = edges[name]()


def _with(rng: random.Random, values: tuple[int, ...], choices: tuple[int, ...]) -> tuple[int, ...]:
    if not values:
        return values
    index = rng.randrange(len(values))
    return (*values[:index], rng.choice(choices), *values[index + 1 :])


def judge(spec: TensorMapSpec | Im2colSpec) -> str:
    """Return the verdicts of the driver and of the rules on a spec, in a word."""
    try:
        theirs = _driver.encode(spec)
    except DriverError:
        return "both refuse" if spec.violations() else "only the driver refuses"
    if spec.violations():
        return "only we refuse"
    if spec.encode() != theirs:
        return "other bytes"
    return "agree" if type(spec).decode(theirs) == spec else "decoded otherwise"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=24000)
    parser.add_argument("--seed", type=int, default=20261120)
    options = parser.parse_args()
    cupy.zeros(1)
    rng = random.Random(options.seed)
    verdicts: dict[str, Counter[str]] = {"im2col": Counter(), "tiled": Counter()}
    exceptions: dict[str, list[dict[str, str]]] = {kind: [] for kind in verdicts}
    for index in range(options.count):
        kind = "im2col" if index % 3 == 2 else "tiled"
        arguments = im2col(rng) if kind == "im2col" else tiled(rng)
        if index % 2:
            arguments = broken(rng, arguments)
        spec = (Im2colSpec if kind == "im2col" else TensorMapSpec)(**arguments)
        verdict = judge(spec)
        verdicts[kind][verdict] += 1
        if verdict not in ("agree", "both refuse"):
            exceptions[kind].append({"verdict": verdict, "spec": repr(spec)})
    rows = [
        {"case": kind, "seed": options.seed, "verdicts": counts, "exceptions": exceptions[kind]}
        for kind, counts in verdicts.items()
    ]
    for row in rows:
        print(row["case"], dict(row["verdicts"]))
    found = [item for items in exceptions.values() for item in items]
    for item in found[:20]:
        print(item)
    print(record("tensormap_fuzz", rows))
    if found:
        raise SystemExit(f"{len(found)} of {options.count} specs disagree")


if __name__ == "__main__":
    main()
