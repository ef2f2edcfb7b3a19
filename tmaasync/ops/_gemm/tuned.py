"""Tuned tile configs, the measured fastest, kept in one file per GPU."""

from __future__ import annotations

import functools
import json
import re
import warnings
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tmaasync._source.cache_folder import cache_dir, read_own, remove, write_whole
from tmaasync.ops._gemm import tensor_memory
from tmaasync.ops._gemm.config import TileConfig
from tmaasync.ops._gemm.legal_tiles import Problem, is_legal
from tmaasync.ops._gemm.tensor_memory import TensorMemoryConfig
from tmaasync.ops._gemm.tiles import kernel_digest

_FORMAT = 3
_FOLDER = "tuned"


@dataclass(frozen=True, slots=True)
class Winner:
    """The fastest tile config, and the cost model's choice measured in the same rounds."""

    problem: Problem
    config: TileConfig
    microseconds: float
    default_microseconds: float

    @property
    def gain(self) -> float:
        return self.default_microseconds / self.microseconds


def tuned_config(gpu: str, problem: Problem) -> TileConfig | None:
    """Return the tuned tile config for this GPU; None if there is none."""
    return _configs(gpu).get(problem)


@functools.cache
def _configs(gpu: str) -> dict[Problem, TileConfig]:
    """Read the file once per process; warn once if it is unusable."""
    try:
        return {winner.problem: winner.config for winner in _read(_path(gpu), gpu)}
    except ValueError as error:
        warnings.warn(
            f"{_path(gpu)} is ignored: {error}. Run tmaasync tune again, or tmaasync tune --clear.",
            RuntimeWarning,
            stacklevel=2,
        )
        return {}


def forget() -> None:
    _configs.cache_clear()


def keep(gpu: str, winners: Iterable[Winner]) -> Path:
    """Add winners to a GPU's file, and replace earlier ones for the same problems."""
    path = _path(gpu)
    try:
        known = {winner.problem: winner for winner in _read(path, gpu)}
    except ValueError:
        known = {}
    known |= {winner.problem: winner for winner in winners}
    whole = {
        "format": _FORMAT,
        "gpu": gpu,
        "kernel": kernel_digest(),
        "problems": [_as_json(winner) for _, winner in sorted(known.items())],
    }
    cache_dir(_FOLDER)  # makes it
    write_whole(path, json.dumps(whole, indent=1).encode())
    forget()
    return path


def kept() -> tuple[dict[str, list[Winner]], dict[str, str]]:
    """Return the winners by GPU name, and the reasons why other files are ignored."""
    winners: dict[str, list[Winner]] = {}
    ignored: dict[str, str] = {}
    for path in files():
        try:
            gpu = str(_document(path).get("gpu"))
            winners[gpu] = _read(path, gpu)
        except ValueError as error:
            ignored[path.name] = str(error)
    return winners, ignored


def clear() -> int:
    """Remove the winners of every GPU; return the number of files."""
    removed = sum(map(remove, files()))
    forget()
    return removed


# --- the files --------------------------------------------------------------------------------


def _path(gpu: str) -> Path:
    return cache_dir() / _FOLDER / f"{re.sub(r'[^a-z0-9]+', '_', gpu.lower())}.json"


def files() -> tuple[Path, ...]:
    """Return the files of all GPUs, by the names that we give them."""
    found = sorted((cache_dir() / _FOLDER).glob("*.json"))
    return tuple(path for path in found if re.fullmatch(r"[a-z0-9_]+", path.stem))


def _document(path: Path) -> Mapping[str, Any]:
    """Return the file's contents, empty if it is missing; raise ValueError if it is unusable."""
    try:
        written = read_own(path)
        whole = {} if written is None else json.loads(written)
    except (OSError, ValueError) as error:
        raise ValueError(f"it cannot be read ({error})") from error
    if not isinstance(whole, dict):
        raise ValueError("it is not what tmaasync tune writes")
    return whole


def _read(path: Path, gpu: str) -> list[Winner]:
    """Return a file's winners; raise ValueError for another GPU, kernel or format."""
    whole = _document(path)
    if not whole:
        return []
    for what, expected in (("format", _FORMAT), ("gpu", gpu), ("kernel", kernel_digest())):
        if whole.get(what) != expected:
            raise ValueError(f"it is of another {what}")
    try:
        return [_from_json(item) for item in whole["problems"]]
    except (KeyError, TypeError, IndexError, ValueError) as error:
        raise ValueError(f"a problem in it is broken ({error!r})") from error


CHOSEN = (
    "consumers",
    "rows",
    "block_n",
    "cluster",
    "group_m",
    "split_k",
    "ping_pong",
    "side_by_side",
    "over_grid",
)
_TYPES = {name: type(getattr(TileConfig(1, 8), name)) for name in CHOSEN}
_ON_TENSOR_MEMORY = "on_tensor_memory"


def _as_json(winner: Winner) -> dict[str, Any]:
    return {
        "problem": winner.problem._asdict(),
        "config": {name: getattr(winner.config, name) for name in CHOSEN},
        _ON_TENSOR_MEMORY: isinstance(winner.config, TensorMemoryConfig),
        "microseconds": winner.microseconds,
        "default_microseconds": winner.default_microseconds,
    }


def _from_json(item: Mapping[str, Any]) -> Winner:
    problem = Problem(**item["problem"])
    if [type(value) for value in problem] != [int, int, int, int, str, str, str, bool, bool]:
        raise TypeError(f"{problem} has fields of other types")
    chosen = item["config"]
    if {name: type(value) for name, value in chosen.items()} != _TYPES:
        raise TypeError(f"{chosen} is no tile config")
    config = _config(chosen, problem, on_tensor_memory=item[_ON_TENSOR_MEMORY] is True)
    times = float(item["microseconds"]), float(item["default_microseconds"])
    return Winner(problem, config, *times)


def _config(chosen: Mapping[str, Any], problem: Problem, *, on_tensor_memory: bool) -> TileConfig:
    given = {**chosen, "m_major": problem.m_major}
    config: TileConfig
    if on_tensor_memory:
        config = on_chip = TensorMemoryConfig(**given)
        legal = tensor_memory.is_legal(on_chip, problem)
    else:
        config = TileConfig(**given)
        legal = is_legal(config, problem)
    if not legal:
        raise ValueError(f"{config} is not for {problem}")
    return config
