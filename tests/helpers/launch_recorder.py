"""Record what operations ask of `Kernel.prepare`, and at which addresses they launch.

Nothing is compiled. ``python tests/helpers/launch_recorder.py FILE`` writes every call of
`launch_cases` with all details, to compare two commits; ``--short FILE`` writes the digests that
`test_recorded_launches` expects. It is a process of its own, since operations keep the launches
that stand in for real ones.
"""

from __future__ import annotations

import argparse
import hashlib
import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from launch_cases import Call, calls

from tmaasync import _arrays
from tmaasync.kernel import Kernel
from tmaasync.tile import KernelArgument, Pointer

Launch = dict[str, Any]

_MAP_BYTES, _RAGGED_BYTES = 128, 512


class RecordedLaunch:
    """Stands for a prepared launch; a launch is added to the record of the moment."""

    def __init__(self, asked: Launch, record: list[Launch]) -> None:
        self._asked = asked
        self._record = record

    def launch_at(self, addresses: Sequence[int], stream: int) -> None:
        """Note the addresses of the first arguments."""
        del stream
        self._record.append({**self._asked, "addresses": [int(one) for one in addresses]})

    def bind(self, addresses: Sequence[int], stream: int) -> Callable[[], None]:
        return lambda: self.launch_at(addresses, stream)

    def __call__(self) -> None:
        self._record.append(dict(self._asked))

    def release(self) -> None:
        """Nothing is kept."""


@contextmanager
def recording() -> Iterator[tuple[list[Launch], dict[str, Kernel]]]:
    """Give the launches of the block, and the kernels that it uses by their identity."""
    record: list[Launch] = []
    kernels: dict[str, Kernel] = {}

    def prepare(kernel: Kernel, grid: Any, block: Any, args: Sequence[Any], **config: Any) -> Any:
        source = kernel._recipe.source
        name = _digest(json.dumps(identity_of(kernel)).encode())
        kernels[name] = kernel
        asked = {
            "kernel": name,
            "source": source.name,
            "grid": grid,
            "block": block,
            "cluster": config.get("cluster"),
            "shared_mem": config.get("shared_mem"),
            "pdl": bool(config.get("pdl", False)),
            "arguments": [_described(arg) for arg in args],
            "below": [_bytes_below(arg) for arg in args],
        }
        return RecordedLaunch(asked, record)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Kernel, "prepare", prepare)
        yield record, kernels


def recorded(call: Call, record: list[Launch]) -> list[Launch]:
    """The launches of a call, their addresses as names of its arrays."""
    record.clear()
    results = call()
    results = results if isinstance(results, tuple) else (results,)
    arrays = dict(call.arrays) | {f"result {index}": one for index, one in enumerate(results)}
    found = [dict(launch) for launch in record]
    for launch in found:
        below = launch.pop("below")
        given = launch.get("addresses", ())
        launch["addresses"] = [
            _named(address + less, arrays) for address, less in zip(given, below, strict=False)
        ]
    return found


def _bytes_below(argument: Any) -> int:
    """How far below its array a map of packed sequences starts."""
    if not isinstance(argument, KernelArgument):
        return 0
    return argument.byte_bounds[0] - argument.address


def _named(address: int, arrays: dict[str, Any]) -> str:
    if address == 0:
        return "null"
    for name, array in arrays.items():
        view = _arrays.view(array)
        low, high = view.byte_bounds
        if low <= address < high:
            return f"{name} + {address - low}"
    return "other memory"


def _described(argument: Any) -> Any:
    """Bytes are what counts; where they hold addresses these are left out."""
    if isinstance(argument, KernelArgument) and not isinstance(argument, Pointer):
        data = bytearray(argument.argument)
        data[:8] = bytes(8)
        if len(data) == _RAGGED_BYTES:
            data[_MAP_BYTES : _MAP_BYTES + 8] = bytes(8)
        return f"{argument.cuda_type}: {_digest(bytes(data))}"
    if isinstance(argument, bytes):
        return argument.hex()
    if isinstance(argument, np.generic) or (
        isinstance(argument, np.ndarray) and argument.dtype.names is not None
    ):
        return argument.tobytes().hex()
    if isinstance(argument, bool | int | float):
        return argument if abs(argument) < 1 << 40 else "pointer"
    return "pointer"


def identity_of(kernel: Kernel) -> dict[str, Any]:
    """What decides the machine code, but for the files themselves."""
    source = kernel._recipe.source
    return {
        "source": source.name,
        "entry": kernel.name,
        "options": list(source.options),
        "preamble": source.preamble.splitlines(),
    }


def record_all(path: Path) -> None:
    """Write a line for every call, then one for every kernel."""
    with recording() as (record, kernels), path.open("w") as file:
        for call in calls():
            line = {"call": call.name, "launches": recorded(call, record)}
            file.write(json.dumps(line) + "\n")
        for name, kernel in sorted(kernels.items()):
            file.write(json.dumps({"kernel": name, **identity_of(kernel)}) + "\n")


def record_short(path: Path) -> None:
    """Write a line for every call: its kernels, launch configurations, and digests."""
    with recording() as (record, _), path.open("w") as file:
        for call in calls():
            launches = [_short(launch) for launch in recorded(call, record)]
            file.write(json.dumps({"call": call.name, "launches": launches}) + "\n")


def _short(launch: Launch) -> list[Any]:
    return [
        launch["source"],
        launch["kernel"],
        [launch[name] for name in ("grid", "block", "cluster", "shared_mem", "pdl")],
        *(_digest(json.dumps(launch[name]).encode()) for name in ("arguments", "addresses")),
    ]


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()[:12]


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--short", action="store_true", help="write digests instead of details")
    parser.add_argument("file", type=Path, help="the file to write")
    arguments = parser.parse_args()
    (record_short if arguments.short else record_all)(arguments.file)
