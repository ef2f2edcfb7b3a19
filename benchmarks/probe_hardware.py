"""What the chip does with TMA instructions at the edge of the rules.

Writes tests/data/hardware_<gpu>.jsonl, a probe per line: facts, not timings.

Every probe runs one instruction in a process that may die: an illegal instruction takes the CUDA
context with it, so a worker runs probes until one kills it, and the next worker goes on from there.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
from hardware_probes import BULK_LOAD, BULK_STORE, POISON, Probe, completion, probes
from result_files import Section, name_in_paths, write_section

from tmaasync import Interleave, Kernel, TensorMapSpec
from tmaasync.tensormap import Im2colSpec

_SOURCE = Path(__file__).with_suffix(".cu")
_FACTS = Path(__file__).parents[1] / "tests" / "data"
_IMAGE_BYTES = 32768
_POSITION = np.dtype([("at", "<i4", (5,)), ("offsets", "<u2", (3,)), ("padding", "<u2")])


# --- running one probe --------------------------------------------------------------------------


def _spec(probe: Probe, address: int) -> TensorMapSpec | Im2colSpec:
    array = probe.array
    shape = (array.shape[0] + probe.rows_below, *array.shape[1:])
    common = {
        "address": address - probe.rows_below * array.strides[0],
        "dtype": probe.dtype,
        "shape": shape,
        "strides_bytes": array.strides[:-1],
        "swizzle": probe.swizzle,
        "oob_fill": probe.oob_fill,
        "interleave": Interleave.NONE,
        "element_strides": probe.element_strides or (1,) * array.ndim,
    }
    if probe.corners is None:
        return TensorMapSpec(box_shape=probe.box, **common)
    pixels, channels = probe.box
    lower, upper = probe.corners
    return Im2colSpec(
        lower_corner=lower,
        upper_corner=upper,
        channels_per_pixel=channels,
        pixels_per_column=pixels,
        **common,
    )


def kernel_for(probe: Probe) -> Kernel:
    return Kernel(
        _SOURCE,
        "probe",
        constants={
            "RANK": 3 if probe.operation in (BULK_LOAD, BULK_STORE) else probe.array.ndim,
            "OPERATION": probe.operation,
            "REDUCE": int(probe.reduce_op),
        },
    )


def run(probe: Probe) -> Any:
    import cupy  # noqa: PLC0415

    from tmaasync import _driver  # noqa: PLC0415

    # A window is probed inside the array it was cut from.
    whole = probe.array if probe.array.flags.c_contiguous else probe.array.base
    memory = cupy.zeros(whole.nbytes + 4096, np.uint8)
    body = memory[: whole.nbytes]
    body.set(np.ascontiguousarray(whole).view(np.uint8).reshape(-1))
    is_bulk = probe.operation in (BULK_LOAD, BULK_STORE)
    descriptor = bytes(128) if is_bulk else _driver.encode(_spec(probe, memory.data.ptr))
    image = cupy.full(_IMAGE_BYTES, POISON, np.uint8)
    if probe.image is not None:
        raw = np.ascontiguousarray(probe.image).view(np.uint8).reshape(-1)
        start = probe.shared_offset
        image[start : start + raw.size].set(raw)
    position = np.zeros((), _POSITION)
    position["at"][: len(probe.at)] = probe.at
    position["offsets"][: len(probe.offsets)] = probe.offsets
    completed = cupy.zeros(1, np.uint32)
    kernel = kernel_for(probe)
    target = memory[probe.bulk_offset_bytes :]
    arguments = (
        descriptor,
        position,
        image,
        target,
        np.uint32(probe.expected_bytes),
        np.uint32(probe.shared_offset),
        completed,
    )
    kernel(1, 256, arguments)
    cupy.cuda.Device().synchronize()
    after = cupy.asnumpy(body).view(whole.dtype).reshape(whole.shape)
    read = probe.read or completion
    return read(probe, cupy.asnumpy(image), after, bool(completed.get()[0]))


# --- workers ------------------------------------------------------------------------------------


def work(indices: list[int]) -> None:
    """Run probes, a line of JSON each, until one kills the context."""
    every = probes()
    for index in indices:
        kernel_for(every[index]).compile()
        try:
            result = run(every[index])
        except Exception as error:  # whatever the driver calls it
            print(json.dumps([index, {"dies": _cause(error)}]), flush=True)
            return
        print(json.dumps([index, result]), flush=True)


def _cause(error: Exception) -> str:
    words = str(error).replace(":", " ").split()
    return next((word for word in words if word.isupper() or word.startswith("cuda")), str(error))


def supervise(indices: list[int], seconds: int) -> dict[int, Any]:
    """Have workers run these probes; after each death a new worker goes on from there."""
    results: dict[int, Any] = {}
    left = list(indices)
    while left:
        command = [sys.executable, __file__, "--only", ",".join(map(str, left))]
        try:
            output = subprocess.run(
                command, capture_output=True, text=True, timeout=seconds, check=False
            ).stdout
            if not output:
                raise SystemExit(f"a worker said nothing; see what it does: {' '.join(command)}")
        except subprocess.TimeoutExpired as expired:
            output = (expired.stdout or b"").decode()
        answers = dict(json.loads(line) for line in output.splitlines() if line.startswith("["))
        results |= answers or {left[0]: {"dies": "no answer"}}
        left = [index for index in left if index not in results]
    return results


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", help="be the worker for these probes")
    parser.add_argument("--workers", type=int, default=12)
    parser.add_argument("--seconds", type=int, default=60, help="for each worker")
    options = parser.parse_args()
    if options.only is not None:
        work([int(index) for index in options.only.split(",")])
        return
    names = [probe.name for probe in probes()]
    shards = [list(range(first, len(names), options.workers)) for first in range(options.workers)]
    results: dict[int, Any] = {}
    with ThreadPoolExecutor(options.workers) as pool:
        for found in pool.map(lambda shard: supervise(shard, options.seconds), shards):
            results |= found
    for index, name in enumerate(names):
        print(f"{name:64s} {results[index]}")
    rows = [{"probe": name, **results[index]} for index, name in enumerate(names)]

    from race import circumstances  # noqa: PLC0415 - needs CuPy, which a worker may take down

    measured = circumstances()
    path = _FACTS / f"hardware_{name_in_paths(measured['gpu'])}.jsonl"
    print(write_section(path, Section(measured, rows)))


if __name__ == "__main__":
    main()
