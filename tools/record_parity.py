"""Keep what the chip does with whole tiles, im2col loads, edits of maps and a rare barrier.

Writes tests/data/parity_<gpu>.json. Run it on the GPU; tests compare the emulator with the file on
any machine.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

import cupy

from tmaasync import _driver

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT / "tests"), str(ROOT / "tests" / "helpers")]

# Only now is their folder on the path.
from parity import map_edits, random_columns, tile_digests  # noqa: E402
from parity.backends import Cuda  # noqa: E402


def _columns(count: int) -> str:
    digests = []
    for number in range(count):
        one = random_columns.case(number)
        try:
            digests.append(random_columns.run(one, cupy, _driver.encode))
        except Exception as error:
            raise SystemExit(f"column {number} is fatal: {one} ({error})") from error
    return "".join(digests)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=3000)
    parser.add_argument("--folder", type=Path, default=ROOT / "tests" / "data")
    options = parser.parse_args()
    cupy.zeros(1)
    name = _driver.device_limits(0).name.lower().replace(" ", "_")
    facts = {
        "gpu": name,
        "landed_first": map_edits.landed_first(Cuda()),
        "maps": map_edits.edited(Cuda()),
        "tiles": tile_digests.digests(Cuda()),
        "columns": _columns(options.count),
    }
    path = options.folder / f"parity_{name}.json"
    path.write_text(json.dumps(facts, indent=1) + "\n")
    counts = f"{options.count} columns, {len(facts['maps'])} edits, {len(facts['tiles'])} tiles"
    print(f"{counts} in {path}")


if __name__ == "__main__":
    main()
