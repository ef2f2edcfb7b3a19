"""The headers that a source may reach, found without a preprocessor, and digests of their text.

The scan may find a header too many (in a comment, in a branch that is left out), never one too few.
It searches bytes for patterns: to cut the 4 MB of headers that <cuda/barrier> and structured.cuh
reach into tokens takes ten times as long (2026-11-28).
"""

from __future__ import annotations

import hashlib
import itertools
import os
import re
import stat
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from tmaasync._source.tokens import without_comments

_T = TypeVar("_T")

# Between two tokens of a directive.
_GAP = rb"[ \t\f\v\r]*(?:/\*(?s:.*?)\*/[ \t\f\v\r]*)*"
_NAME = rb'(?:<([^>\n]+)>|"([^"\n]+)")'
_DIRECTIVE = re.compile(
    rb"#%b(?:include(_next)?|import|embed)(?!\w)%b(?:%b|([^\s<\"/]))" % (_GAP, _GAP, _NAME)
)
# A test for a header, of which some libraries make a macro: #if HAS_INCLUDE(<version>).
_TESTS = (re.compile(rb"#%b(?:el)?if\b[^\n]*" % _GAP), re.compile(rb"__has_(?:in|em)[^\n]*"))
_TESTED = re.compile(rb"\(%b%b" % (_GAP, _NAME))
_TEST_OVER_LINES = re.compile(rb"__has_(?:include|embed)(_next)?%b\(%b%b" % (_GAP, _GAP, _NAME))
_TEST_MACRO = re.compile(rb"#%bdefine[ \t]+(\w+)\([^\n]*__has_(?:in|em)" % _GAP)
_TESTED_AT_ALL = re.compile(rb"\([ \t]*[<\"/]")
_COMPUTED_TEST = re.compile(rb"__has_(?:include|embed)(?:_next)?%b\(%b([^\s<\"/)])" % (_GAP, _GAP))
_DEFINITION = re.compile(rb"%b#%bdefine\b" % (_GAP, _GAP))
_SPLICE = re.compile(rb"\\[ \t]*\r?\n")


class ComputedIncludeError(Exception):
    """An include directive, or a test for a header, whose file only the preprocessor knows."""


def reached_or_all(text: str, folders: tuple[Path, ...], own_folders: Iterable[Path]) -> list[Path]:
    """Return what `reached` does; for a macro's include, everything in the own folders."""
    try:
        return reached(text, folders)
    except ComputedIncludeError:
        found = (path for folder in own_folders for path in sorted(folder.rglob("*")))
        return [path for path in found if path.is_file()]


def reached(text: str, folders: tuple[Path, ...]) -> list[Path]:
    """Return every header that the text may reach, in a stable order."""
    return [Path(path) for path, _ in reached_digests(text, folders)]


def reached_digests(
    text: str, folders: tuple[Path, ...], own_folder: str | None = None
) -> tuple[tuple[str, str], ...]:
    """Return path and digest of every header that the text may reach, in a stable order.

    Args:
        text: The source.
        folders: The include path.
        own_folder: The folder that the text's quoted includes search first, if any.
    """
    asked = (_includes(text.encode(errors="surrogateescape")), (*map(str, folders),), own_folder)
    search = _SEARCHES.get(asked)
    if search is None or not search.is_current():
        if len(_SEARCHES) >= _MOST_SEARCHES:
            _SEARCHES.clear()
        search = _SEARCHES[asked] = _Search(*asked)
    return search.digests


class _Search:
    """The headers that includes reach, and the files and folders that this depends on.

    To ask for every path again is 3000 system calls, and took most of the 55 ms in which a kernel
    was found in the cache; to ask whether these have changed is 200.
    """

    def __init__(
        self, includes: Includes, folders: tuple[str, ...], own_folder: str | None
    ) -> None:
        begun_ns = time.time_ns()
        self._versions: dict[str, _Version | None] = {}
        self._names: dict[str, frozenset[str]] = {}  # by folder
        found: dict[str, str] = {}
        pending = list(self._existing(includes, folders, own_folder))
        while pending:
            path = pending.pop()
            if path not in found:
                version = self._versions[path]
                if version is not None:
                    found[path], includes = _read_file(path, version)
                    pending += self._existing(includes, folders, path.rpartition("/")[0])
        self.digests = tuple(sorted(found.items()))
        changes = (version.changed_ns for version in self._versions.values() if version)
        self._is_settled = _is_settled(max(changes, default=0), begun_ns)

    def is_current(self) -> bool:
        """Whether nothing has changed since, and no change just before can hide another."""
        return self._is_settled and all(
            _version(path) == version for path, version in self._versions.items()
        )

    def _existing(
        self, includes: Includes, folders: tuple[str, ...], own_folder: str | None
    ) -> Iterator[str]:
        nearby = () if own_folder is None else (own_folder,)
        for include in includes:
            if include.is_computed:
                raise ComputedIncludeError(include.name)
            for folder in (*nearby, *folders) if include.is_quoted else folders:
                is_absolute = include.name.startswith("/")
                path = include.name if is_absolute else f"{folder}/{include.name}"
                if self._has(path):
                    yield path
                    if not include.is_next:
                        break

    def _has(self, path: str) -> bool:
        # Versions before contents, so that what changes meanwhile is noticed later.
        folder, _, name = path.rpartition("/")
        folder = folder or "/"
        if folder not in self._names:
            self._versions[folder] = _version(folder)
            self._names[folder] = _names_in(folder)
        if name not in self._names[folder]:
            return False
        if path not in self._versions:
            self._versions[path] = _version(path)  # of a link to nothing so far, too
        version = self._versions[path]
        return version is not None and version.is_file


class _Version(NamedTuple):
    """The state of a file or folder; all but ``changed_ns`` can be the same after a change."""

    is_file: bool
    inode: int
    size_bytes: int
    modified_ns: int
    changed_ns: int


# A second change within one tick of the kernel's clock (1 to 10 ms) changes no time stamp.
_TIMES_ARE_RIGHT_WITHIN_NS = 100_000_000


def _version(path: str) -> _Version | None:
    """Return the version of a file or folder; None where there is none."""
    try:
        status = os.stat(path)  # noqa: PTH116
    except (OSError, ValueError):  # a name with a null byte
        return None
    is_file = stat.S_ISREG(status.st_mode)
    return _Version(is_file, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns)


def _is_settled(changed_ns: int, asked_ns: int) -> bool:
    return changed_ns < asked_ns - _TIMES_ARE_RIGHT_WITHIN_NS


def _names_in(folder: str) -> frozenset[str]:
    try:
        return frozenset(os.listdir(folder))  # noqa: PTH208
    except (OSError, ValueError):
        return frozenset()


class _Include(NamedTuple):
    name: str
    is_quoted: bool
    is_next: bool  # include_next: in a later folder than the file that has it
    is_computed: bool  # the name is a macro, which the preprocessor would have to expand


Includes = tuple[_Include, ...]
_SEARCHES: dict[tuple[Includes, tuple[str, ...], str | None], _Search] = {}
_MOST_SEARCHES = 256


def _includes(text: bytes) -> Includes:
    """Return what the include directives of a text name, and its tests for headers."""
    text = text.replace(b"\\\n", b"")
    if b"\\ " in text or b"\\\t" in text or b"\\\r" in text:
        text = _SPLICE.sub(b"", text)
    if b"%:" in text:
        text = text.replace(b"%:", b"#")
    return tuple(dict.fromkeys((*_directives(text), *_tests(text))))


def included(text: str) -> Includes:
    """Return the headers that a source includes or tests for."""
    return _includes(without_comments(text).encode(errors="surrogateescape"))


def _directives(text: bytes) -> Iterator[_Include]:
    for directive in _DIRECTIVE.finditer(text):
        following, angled, quoted, macro = directive.groups()
        if not macro:
            yield _Include(_decoded(angled or quoted), bool(quoted), bool(following), False)
        elif not _line_before(text, directive.start()).rpartition(b"*/")[2].strip():
            yield _Include(_decoded(directive[0]), False, False, True)  # and not prose


def _tests(text: bytes) -> Iterator[_Include]:
    if _TESTED_AT_ALL.search(text):
        for test in itertools.chain.from_iterable(one.findall(text) for one in _TESTS):
            for angled, quoted in _TESTED.findall(test):
                yield _Include(_decoded(angled or quoted), bool(quoted), b"_next" in test, False)
    if b"__has_" in text:
        for following, angled, quoted in _TEST_OVER_LINES.findall(text):
            yield _Include(_decoded(angled or quoted), bool(quoted), bool(following), False)
        for name in _computed_tests(text):
            yield _Include(_decoded(name), False, False, True)


def _computed_tests(text: bytes) -> Iterator[bytes]:
    """Yield the tests, and macros of tests, that are given a macro."""
    for macro in _TEST_MACRO.findall(text):
        used = re.compile(rb"#%b(?:el)?if\b[^\n]*\b%b%b\(%b\w" % (_GAP, macro, _GAP, _GAP))
        if used.search(text):
            yield macro
    for computed in _COMPUTED_TEST.finditer(text):
        if not _DEFINITION.match(_line_before(text, computed.start())):
            yield computed[0]


def _decoded(name: bytes) -> str:
    return name.decode(errors="surrogateescape")


def _line_before(text: bytes, end: int) -> bytes:
    return text[text.rfind(b"\n", 0, end) + 1 : end]


def text_of(path: Path) -> str:
    """Return a header's text; none if it is unreadable, which is the compiler's to report."""
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


def digest(data: bytes) -> str:
    """Return a hash that names the data."""
    return hashlib.sha256(data).hexdigest()


def file_digest(path: Path) -> str:
    """Return the digest of a file's contents; an empty text if there is no such file."""
    version = _version(str(path))
    return "" if version is None else _read(str(path), version, digest)


def _read_file(path: str, version: _Version) -> tuple[str, Includes]:
    """Return the digest of this version of a file, and what it includes."""
    return _read(path, version, _digest_and_includes)


def _read(path: str, version: _Version, of: Callable[[bytes], _T]) -> _T:
    """Return a fact of this version of a file, which is read once."""
    read = _READ.get((path, of))
    if read is None or read[0] != version:
        begun_ns = time.time_ns()
        try:
            data = Path(path).read_bytes()
        except OSError:  # which is the compiler's to report, if it needs the file
            return of(b"")
        read = version, of(data)
        if _is_settled(version.changed_ns, begun_ns):
            _READ[path, of] = read
    return read[1]


_READ: dict[tuple[str, Callable[[bytes], Any]], tuple[_Version, Any]] = {}


def _digest_and_includes(data: bytes) -> tuple[str, Includes]:
    return digest(data), _includes(data)


# --- files that a compiler has read ---------------------------------------------------------------

_CHANGED_MEANWHILE = "changed while it was read"
Records = dict[str, list[Any]]  # by path: the file's version, and its digest


def recorded(read: Iterable[str], headers: Iterable[tuple[str, str]], begun_ns: int) -> Records:
    """Return records for `changed` of the files that a compiler has read.

    Args:
        read: The compiler's list, if it makes one.
        headers: The headers that a key covers; they have a record only if they changed meanwhile.
        begun_ns: When the compiler was started.
    """
    known = dict(headers)
    records: Records = {
        path: [*_NO_VERSION, _CHANGED_MEANWHILE]
        for path, was in known.items()
        if file_digest(Path(path)) != was
    }
    for path in {*read} - {*known}:
        version = _version(path)
        if version is None or version.changed_ns >= begun_ns:
            records[path] = [*_NO_VERSION, _CHANGED_MEANWHILE]
        else:
            is_settled = _is_settled(version.changed_ns, begun_ns)
            records[path] = [*(version if is_settled else _NO_VERSION), file_digest(Path(path))]
    return records


def changed(records: Records) -> dict[str, str]:
    """Return the digests of the recorded files that have changed; empty for one that is gone."""
    suspects = {
        path: file_digest(Path(path))
        for path, (*version, _) in records.items()
        if _version(path) != tuple(version)
    }
    return {path: now for path, now in suspects.items() if now != records[path][-1]}


_NO_VERSION = _Version(False, 0, 0, 0, 0)
