"""Explore all interleavings of every shipped, example and cookbook kernel at small sizes.

    python tools/verify_shipped.py [--cases matmul 05_multicast] [--max-runs 200] [--json FILE]

`search_false_alarms.py` lists the cases. Prints a row for each launch; exits with 1 if one
is violated.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import sys
from pathlib import Path

from search_false_alarms import cases

from tmaasync.emulate.launch.verdict import Verdict
from tmaasync.emulate.launch.verify import verifying
from tmaasync.errors import TMAError


def main() -> int:
    """Verify the cases; 1 if a launch is violated."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--cases", nargs="*", default=[], help="parts of names; all by default")
    parser.add_argument("--max-runs", type=int, default=200, help="of each launch")
    parser.add_argument("--max-seconds", type=float, default=30, help="of each launch")
    parser.add_argument("--json", type=Path, help="file for the verdicts, a line each")
    options = parser.parse_args()
    lines, violated = [], False
    for name, case in cases():
        if options.cases and not any(part in name for part in options.cases):
            continue
        with verifying(max_runs=options.max_runs, max_seconds=options.max_seconds) as verification:
            ended = _ended(case)
        verdict = Verdict(tuple(verification.verdicts))
        for one in verdict.launches:
            reasons = "; ".join((*one.not_checked, *map(str, filter(None, [one.error]))))
            print(
                f"{name}: {one.kernel}: {one.status}, {one.runs} runs, {one.operations:,} "
                f"operations, {one.unordered} unordered, {one.seconds:.2f} s {reasons}",
                flush=True,
            )
            lines.append({"case": name, **one.as_dict()})
        if ended:
            print(f"{name}: {ended}", flush=True)
        violated |= verdict.status == "violated"
    if options.json:
        options.json.write_text("".join(json.dumps(line) + "\n" for line in lines))
    counts = {
        status: sum(one["status"] == status for one in lines)
        for status in ("clean", "incomplete", "violated")
    }
    print(f"{len(lines)} launches: {counts}")
    return int(violated)


def _ended(case) -> str:
    try:
        with contextlib.redirect_stdout(io.StringIO()):
            case()
    except TMAError as error:
        return f"{type(error).__name__}: {error}"
    return ""


if __name__ == "__main__":
    sys.exit(main())
