"""Explore all interleavings of every shipped, example and cookbook kernel at small sizes.

    python tools/verify_shipped.py [--cases matmul 05_multicast] [--max-runs 2000] [--record]

`search_false_alarms.py` lists the cases; a few with a dynamic scheduler, or of several devices, are
smaller here. Prints a row for each launch; exits with 1 if one is violated. ``--record`` writes the
results file, or the rows of ``--cases`` in it.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import functools
import importlib
import io
import sys
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

import ml_dtypes
import numpy as np
from search_false_alarms import (
    KERNELS,
    ROOT,
    Case,
    backward,
    builder_of,
    cases,
    clc,
    drawn,
    launched,
    on_chip,
)

from tmaasync import emulate, enable_peer_access, ops
from tmaasync.emulate.launch.verdict import Verdict
from tmaasync.emulate.launch.verify import verifying
from tmaasync.ops import _all_gather_matmul, _matmul_reduce


def small() -> Iterator[Case]:
    """Yield calls whose dynamic schedulers hand out few tiles."""
    packed, ends = drawn(70, 1, 64), np.array([0, 40, 70], np.int32)
    yield "varlen_attention", lambda: ops.varlen_attention(packed, packed, packed, ends)
    yield "attention_backward", lambda: backward(64, 1)

    def backward_of_packed() -> None:
        out, lse = ops.varlen_attention(packed, packed, packed, ends, return_lse=True)
        ops.varlen_attention_backward(packed, packed, packed, packed, out, lse, ends)

    yield "varlen_attention_backward", backward_of_packed
    yield "tcgen05 GEMM by cluster launch", lambda: launched.multiply(launched.TEXT, 1, 200, 64, 64)
    source = clc.source_of(clc.ONE)
    yield "cluster launch control", lambda: clc.visit(source, (4, 1, 1), 1)
    several = clc.source_of(clc.SEVERAL)
    yield "cluster launch control of pairs", lambda: clc.visit(several, (6, 1, 1), 2)
    yield "planted steal", steal
    yield "examples/08_ragged_attention", lambda: main_of("08_ragged_attention", LENGTHS=[70, 5])
    yield "examples/ragged_mha", lambda: main_of("ragged_mha", TEXT="A text. Of three. Sentences.")
    yield "examples/ring_attention", ring
    yield "sm_100a: attention_backward", lambda: on_chip("sm_100a", lambda: backward(64, 1))
    yield (
        "sm_100a: varlen_attention_backward",
        lambda: on_chip("sm_100a", backward_of_packed),
    )
    yield from of_ranks()


def of_ranks() -> Iterator[Case]:
    """Yield kernels that no other case builds: matmuls of ranks in one kernel, and V before FP8."""
    for call in (ops.all_gather_matmul, ops.matmul_reduce_scatter, ops.matmul_all_reduce):
        yield call.__name__, functools.partial(multiply_on_ranks, call)
    for call in (ops.all_gather_scaled_matmul, ops.scaled_matmul_reduce_scatter):
        yield call.__name__, functools.partial(multiply_scaled_on_ranks, call)
    queries, keys = (drawn(1, rows, 1, 256, dtype=ml_dtypes.float8_e4m3fn) for rows in (130, 64))
    yield "attention float8 of many queries", lambda: ops.attention(queries, keys, keys)


def multiply_on_ranks(call: Callable[..., Any]) -> None:
    few = (
        (_all_gather_matmul, "_FEW_ROWS"),
        (_matmul_reduce.MatmulReduceScatter, "few_rows"),
        (_matmul_reduce.MatmulAllReduce, "few_rows"),
    )
    with contextlib.ExitStack() as stack:
        for owner, name in few:
            stack.enter_context(mock.patch.object(owner, name, 0))
        world = stack.enter_context(emulate.devices(2))
        enable_peer_access(range(2))
        a, b = ([one.array(drawn(rows, 64)) for one in world] for rows in (66, 64))
        call(a, [one.T for one in b])
        world.synchronize()


def multiply_scaled_on_ranks(call: Callable[..., Any]) -> None:
    with emulate.devices(2) as world:
        enable_peer_access(range(2))
        kind = ml_dtypes.float8_e4m3fn
        a, b = ([one.array(drawn(rows, 128, dtype=kind)) for one in world] for rows in (66, 64))
        of_a, of_b = (
            [one.array(np.ones((1, count), np.float32)) for one in world] for count in (66, 1)
        )
        call(a, [one.T for one in b], [one.T for one in of_a], of_b)
        world.synchronize()


def steal() -> None:
    job = KERNELS["steal"]()
    values, sums, counter, _ = job.arguments
    arguments, results = (values[:4], sums[:4], counter, 4), [(sums[:4], values[:4].sum(1))]
    dataclasses.replace(job, arguments=arguments, results=results).run(builder_of("steal"))


def main_of(name: str, **constants: Any) -> None:
    """Run an example with other sizes."""
    sys.path.append(str(ROOT / "examples"))
    module = importlib.import_module(name)
    vars(module).update(constants)
    module.main()


def ring() -> None:
    """Exchange gradients of as few rows as make two tiles of keys add to one part of dQ."""
    with emulate.devices(2) as world:
        enable_peer_access(range(2))
        q, k, v, dout = ([one.array(drawn(1, 66, 1, 64)) for one in world] for _ in range(4))
        out, lse = ops.ring_attention(q, k, v, causal=True, return_lse=True)
        world.synchronize()
        ops.ring_attention_backward(dout, q, k, v, out, lse, causal=True)
        world.synchronize()


def few_and_all() -> Iterator[Case]:
    """Yield the smaller calls first, then the other cases."""
    known = dict(small())
    yield from known.items()
    yield from ((name, case) for name, case in cases() if name not in known)


def main() -> int:
    """Verify the cases; 1 if a launch is violated."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--cases", nargs="*", default=[], help="parts of names; all by default")
    parser.add_argument("--max-runs", type=int, default=2000, help="of each launch")
    parser.add_argument("--max-seconds", type=float, default=60, help="of each launch")
    parser.add_argument("--record", action="store_true", help="write the results file")
    options = parser.parse_args()
    rows: list[dict[str, Any]] = []
    for name, case in few_and_all():
        if not options.cases or any(part in name for part in options.cases):
            rows += _verified(name, case, options.max_runs, options.max_seconds)
    if options.record:
        _record(rows, is_part=bool(options.cases))
    counts = {
        status: sum(row["status"] == status for row in rows)
        for status in ("clean", "incomplete", "violated")
    }
    print(f"{len(rows)} launches: {counts}")
    return int(counts["violated"] > 0)


def _verified(
    name: str, case: Callable[[], Any], max_runs: int, max_seconds: float
) -> Iterator[dict[str, Any]]:
    with verifying(max_runs=max_runs, max_seconds=max_seconds) as verification:
        try:
            with contextlib.redirect_stdout(io.StringIO()):
                case()
        except (Exception, SystemExit) as error:  # an example ends so, where it lacks something
            print(f"{name}: {type(error).__name__}: {error}", flush=True)
    for number, one in enumerate(Verdict(tuple(verification.verdicts)).launches):
        row = one.as_dict()
        reasons = "; ".join((*one.not_checked, row["error"] or ""))
        print(
            f"{name}: {one.kernel}: {one.status}, {one.runs} runs, {one.operations:,} operations, "
            f"{one.unordered} unordered, {one.seconds:.2f} s {reasons}",
            flush=True,
        )
        yield {"case": f"{name}: {number} {one.kernel}", **row}


def _record(rows: list[dict[str, Any]], *, is_part: bool) -> None:
    from result_files import (  # noqa: PLC0415 - of benchmarks/
        RESULTS,
        Section,
        circumstances_on_cpu,
        write_part,
        write_section,
    )

    write = write_part if is_part else write_section
    print(write(RESULTS / "cpu" / "verified.jsonl", Section(circumstances_on_cpu(), rows)))


if __name__ == "__main__":
    sys.exit(main())
