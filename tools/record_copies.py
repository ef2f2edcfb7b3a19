"""Keep what the chip does with random TMA instructions: writes tests/data/copies_<gpu>.json.

Run it on the GPU; tests compare the emulator with the file on any machine.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

import cupy

from tmaasync import _driver

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "tests" / "parity"))

from random_copies import case, run  # noqa: E402 - after its folder is on the path


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=6000)
    parser.add_argument("--folder", type=Path, default=ROOT / "tests" / "data")
    options = parser.parse_args()
    cupy.zeros(1)
    digests = []
    for number in range(options.count):
        one = case(number)
        try:
            digests.append(run(one, cupy, _driver.encode))
        except Exception as error:
            raise SystemExit(f"case {number} is fatal: {one} ({error})") from error
    name = _driver.device_limits(0).name.lower().replace(" ", "_")
    path = options.folder / f"copies_{name}.json"
    path.write_text(json.dumps({"gpu": name, "digests": "".join(digests)}) + "\n")
    print(f"{len(digests)} digests, {len(set(digests))} different, in {path}")


if __name__ == "__main__":
    main()
