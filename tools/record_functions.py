"""Keep what the chip's functions return for drawn arguments: a digest of each signature.

Writes tests/data/functions_<gpu>.json. Run it on the GPU; tests compare the emulator with the file
on any machine. ``--results`` keeps the bytes too, to look at what differs.
"""

from __future__ import annotations

import argparse
import json
import sys
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

import cupy
import numpy as np

from tmaasync import _driver

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "tests"))

# Only now is their folder on the path.
from parity import function_digests  # noqa: E402
from parity.backends import Cuda  # noqa: E402

_KERNELS = 14


def _compile(number: int) -> None:
    function_digests.kernel(number, _KERNELS).compile()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", type=Path, default=ROOT / "tests" / "data")
    parser.add_argument("--results", type=Path)
    options = parser.parse_args()
    cupy.zeros(1)
    name = _driver.device_limits(0).name.lower().replace(" ", "_")
    # NVRTC takes 16 s for 300 functions, and one at a time in a process: each kernel has its own.
    with ProcessPoolExecutor(_KERNELS, get_context("spawn")) as pool:
        list(pool.map(_compile, range(_KERNELS)))
    given = function_digests.results(Cuda(), _KERNELS)
    facts = {"gpu": name, "functions": function_digests.digests(given)}
    path = options.folder / f"functions_{name}.json"
    path.write_text(json.dumps(facts, indent=1) + "\n")
    if options.results:
        np.savez_compressed(options.results, given)
    print(f"{len(facts['functions'])} signatures in {path}")


if __name__ == "__main__":
    main()
