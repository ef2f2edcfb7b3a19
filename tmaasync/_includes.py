"""The headers that a source reaches, found without a preprocessor, and digests of their text."""

from __future__ import annotations

import functools
import hashlib
import itertools
import os
import re
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

__all__ = ["ComputedIncludeError", "digest", "file_digest", "reached", "reached_or_all"]

_INCLUDE = re.compile(
    r'^[ \t]*#[ \t]*include(_next)?[ \t]*(?:<([^>\n]+)>|"([^"\n]+)"|(\S+))', re.MULTILINE
)


class ComputedIncludeError(Exception):
    """An include directive whose file only the preprocessor knows."""


def reached_or_all(text: str, folders: tuple[Path, ...], own_folders: Iterable[Path]) -> list[Path]:
    """Return what `reached` does; for a macro's include, everything in the own folders."""
    try:
        return reached(text, folders)
    except ComputedIncludeError:
        return [path for folder in own_folders for path in sorted(folder.rglob("*.*"))]


def reached(text: str, folders: tuple[Path, ...]) -> list[Path]:
    """Return every header that the text reaches and that lies in the folders, in a stable order."""
    asked = (_includes(text), folders)
    search = _SEARCHES.get(asked)
    if search is None or not search.is_current():
        if len(_SEARCHES) >= _MOST_SEARCHES:
            _SEARCHES.clear()
        search = _SEARCHES[asked] = _Search(*asked)
    return [*search.headers]


class _Search:
    """The headers that includes reach, and the files and folders that this depends on.

    To ask for every path again is 3000 system calls, and took most of the 55 ms in which a kernel
    was found in the cache; to ask whether these have changed is 200.
    """

    def __init__(self, includes: tuple[_Include, ...], folders: tuple[Path, ...]) -> None:
        begun_ns = time.time_ns()
        self._versions: dict[str, int | None] = {}
        self._files: dict[str, frozenset[str]] = {}  # by folder
        found: dict[Path, None] = {}
        pending = list(self._existing(includes, folders))
        while pending:
            path = pending.pop()
            if path not in found:
                found[path] = None
                self._versions[str(path)] = _version(str(path))
                pending += self._existing(_read_file(path)[1], (path.parent, *folders))
        self.headers = sorted(found)
        newest_ns = max(filter(None, self._versions.values()), default=0)
        self._is_settled = newest_ns < begun_ns - _TIMES_ARE_RIGHT_WITHIN_NS

    def is_current(self) -> bool:
        """Whether nothing has changed since, and no change just before can hide another."""
        return self._is_settled and all(
            _version(path) == version for path, version in self._versions.items()
        )

    def _existing(self, includes: Iterable[_Include], folders: tuple[Path, ...]) -> Iterator[Path]:
        for include in includes:
            if include.macro:
                raise ComputedIncludeError(include.macro)
            having = (folder for folder in folders if self._has(folder, include.name))
            paths = (folder / include.name for folder in having)
            yield from paths if include.is_next else itertools.islice(paths, 1)

    def _has(self, folder: Path, name: str) -> bool:
        parent, base = os.path.split(f"{folder}/{name}")
        if parent not in self._files:
            # Before the folder is read, so that what changes meanwhile is noticed later.
            self._versions[parent] = _version(parent)
            self._files[parent] = _files_in(parent)
        return os.path.normcase(base) in self._files[parent]


_SEARCHES: dict[tuple[tuple[_Include, ...], tuple[Path, ...]], _Search] = {}
_MOST_SEARCHES = 256
# Of two changes within a tick of the kernel's clock, 1 to 10 ms, the second one shows in no time.
_TIMES_ARE_RIGHT_WITHIN_NS = 100_000_000


def _version(path: str) -> int | None:
    """Return when a file or folder was changed last; None where there is none."""
    try:
        return os.stat(path).st_mtime_ns  # noqa: PTH116
    except OSError:
        return None


def _files_in(folder: str) -> frozenset[str]:
    try:
        with os.scandir(folder) as entries:
            return frozenset(os.path.normcase(entry.name) for entry in entries if entry.is_file())
    except OSError:
        return frozenset()


class _Include(NamedTuple):
    name: str
    macro: str  # that the preprocessor would have to expand
    is_next: bool  # include_next: in a later folder than the file that has it


def _includes(text: str) -> tuple[_Include, ...]:
    """Return what the include directives of a text name."""
    return tuple(
        _Include(angled or quoted, macro, bool(following))
        for following, angled, quoted, macro in _INCLUDE.findall(text)
    )


def digest(data: bytes) -> str:
    """Return a hash that names the data."""
    return hashlib.sha256(data).hexdigest()


def file_digest(path: Path) -> str:
    """Return the digest of a file's contents."""
    return _read_file(path)[0]


def _read_file(path: Path) -> tuple[str, tuple[_Include, ...]]:
    """Return a file's digest and what it includes."""
    return _read_version(path, path.stat().st_mtime_ns)


@functools.lru_cache(maxsize=4096)  # libcu++ has more than 1000 headers
def _read_version(path: Path, modified_ns: int) -> tuple[str, tuple[_Include, ...]]:
    data = path.read_bytes()
    return digest(data), _includes(data.decode(errors="replace"))
