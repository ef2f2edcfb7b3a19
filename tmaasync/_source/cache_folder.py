"""The cache folder: this user's own, private, and reached through folders that nobody else changes.

Everything that is kept between processes is read and written here. A build in it is machine code
that this process runs, so a file counts only if this user wrote it, and no parent folder lets
another user put a different folder in its place.
"""

from __future__ import annotations

import contextlib
import errno
import json
import logging
import os
import re
import stat
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from tmaasync._source.includes import changed, digest
from tmaasync.errors import BackendError

try:
    import fcntl
except ImportError:  # on Windows
    fcntl = None  # type: ignore[assignment]

_REMEDY = "Set TMAASYNC_CACHE_DIR to a folder of your own."
_MOST_LINKS = 40  # as in the kernel
_OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH
# O_PATH needs no permission to list a folder.
_OPEN = sum(getattr(os, flag, 0) for flag in ("O_PATH", "O_NOFOLLOW", "O_CLOEXEC"))


def cache_dir(part: str = "") -> Path:
    """Return the cache folder, or a folder in it, without links; make it if it is missing.

    It is ``~/.cache/tmaasync``, or lies in the folder that ``TMAASYNC_CACHE_DIR`` names, under a
    name of this user. It has mode 0700. A folder that is there keeps its mode.

    Raises:
        BackendError: It cannot be made, or another user could change its contents.
    """
    path = _wanted()
    try:
        return Path(_trusted(path / part))
    except OSError as error:
        raise BackendError(
            f"the kernel cache {path} cannot be used: {_reason(error)}. {_REMEDY}"
        ) from None


def _wanted() -> Path:
    chosen = os.environ.get("TMAASYNC_CACHE_DIR")
    caches = Path(os.environ.get("XDG_CACHE_HOME", ""))
    try:
        if chosen:
            return Path(chosen).expanduser().absolute() / f"tmaasync-{os.geteuid()}"
        if caches.is_absolute():  # the specification ignores other values
            return caches / "tmaasync"
        return Path("~/.cache/tmaasync").expanduser().absolute()
    except (OSError, RuntimeError) as error:  # no working folder, no home
        raise BackendError(f"there is no folder for the kernel cache: {error}. {_REMEDY}") from None


def _trusted(path: Path) -> str:
    """Open a folder step by step from the root; return its path without links.

    Every folder on the way is checked on its open descriptor, and so is the owner of every link.

    Raises:
        OSError: A folder cannot be made, or another user could replace what it holds.
    """
    with contextlib.ExitStack() as opened:
        root, pending, links, at = _open("/", None, opened), [*reversed(path.parts[1:])], 0, "/"
        folder = root
        _check_folder(os.fstat(root), "/", is_own=False)
        while pending:
            name = pending.pop()
            descriptor = _open(name, folder, opened)
            status, whole = os.fstat(descriptor), os.path.normpath(Path(at, name))
            if stat.S_ISLNK(status.st_mode):
                _check_owner(status, whole, "link")
                links += 1
                if links > _MOST_LINKS:
                    raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), whole)
                target = Path(os.readlink(name, dir_fd=folder))
                pending += reversed(target.parts[target.is_absolute() :])
                folder, at = (root, "/") if target.is_absolute() else (folder, at)
                continue
            _check_folder(status, whole, is_own=not pending)
            folder, at = descriptor, whole
        return at


def _open(name: str, folder: int | None, opened: contextlib.ExitStack) -> int:
    """Open an entry of a folder, which is made if it is missing."""
    try:
        descriptor = os.open(name, _OPEN, dir_fd=folder)
    except FileNotFoundError:
        with contextlib.suppress(FileExistsError):  # another process has made it
            os.mkdir(name, 0o700, dir_fd=folder)
        descriptor = os.open(name, _OPEN, dir_fd=folder)
    opened.callback(os.close, descriptor)
    return descriptor


def _check_folder(status: os.stat_result, path: str, *, is_own: bool) -> None:
    if not stat.S_ISDIR(status.st_mode):
        raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), path)
    if is_own and status.st_uid != os.geteuid():
        raise PermissionError(f"it belongs to user {status.st_uid}")
    _check_owner(status, path, "folder")
    is_shared = status.st_mode & stat.S_ISVTX and not is_own  # like /tmp
    if status.st_mode & _OTHERS_WRITE and not is_shared:
        mode = stat.S_IMODE(status.st_mode)
        raise PermissionError(
            f"the folder {path} has mode {mode:04o}, so other users could put their code into the "
            f"cache. Run chmod go-w {path}, or choose another folder"
        )


def _check_owner(status: os.stat_result, path: str, kind: str) -> None:
    """Refuse what belongs to neither this user nor the system, the owner of ``/``."""
    if status.st_uid not in (0, os.geteuid(), os.stat("/").st_uid):  # noqa: PTH116
        raise PermissionError(
            f"the {kind} {path} belongs to user {status.st_uid}, who could put other code into the "
            "cache"
        )


# --- files ------------------------------------------------------------------------------------


def read_own(path: Path) -> bytes | None:
    """Return a file's contents; None if it is missing, or if another user may have written it."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError:
        return None
    try:
        if not _is_own(os.fstat(descriptor)):
            return None
        with open(descriptor, "rb", closefd=False) as file:
            return file.read()
    finally:
        os.close(descriptor)


def _is_own(status: os.stat_result) -> bool:
    is_mine = stat.S_ISREG(status.st_mode) and status.st_uid == os.geteuid()
    return is_mine and not status.st_mode & _OTHERS_WRITE


def write_whole(path: Path, data: bytes) -> None:
    """Write a file; another process sees the whole file or none.

    Raises:
        BackendError: The disk is full, or the folder cannot be written.
    """
    temporary = None
    try:
        handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f"{path.name}.", suffix=_NEW)
        with os.fdopen(handle, "wb") as file:
            file.write(data)
        Path(temporary).replace(path)
    except BaseException as error:
        if temporary is not None:
            with contextlib.suppress(OSError):
                Path(temporary).unlink()
        if isinstance(error, OSError):
            raise _unwritable(path.parent, error) from None
        raise


def _unwritable(folder: Path, error: OSError) -> BackendError:
    is_full = error.errno in (errno.ENOSPC, errno.EDQUOT)
    space = "Make space with: tmaasync cache --clear. " if is_full else ""
    return BackendError(
        f"the kernel cache {folder} cannot be written: {_reason(error)}. {space}{_REMEDY}"
    )


def _reason(error: OSError) -> str:
    if error.strerror is None or error.filename is None:
        return error.strerror or str(error)
    return f"{error.strerror} ({error.filename})"


def builds(folder: Path, suffix: str) -> list[Path]:
    """Return the builds with this suffix in the cache folder, by the names that we give them."""
    return [path for path in _ours(folder) if path.suffix == suffix]


def leftovers(folder: Path) -> list[Path]:
    """Return the files that a process has left that was ended while it wrote them."""
    return [path for path in _ours(folder) if path.suffix == _NEW]


def _ours(folder: Path) -> list[Path]:
    found = (path for path in sorted(folder.iterdir()) if _OURS.fullmatch(path.name))
    return [path for path in found if path.is_symlink() or not path.is_dir()]


_NEW = ".new"
_OURS = re.compile(
    r"(?:prefix-|runtime-)?[0-9a-f]{64}(?:-part)?\.(?:cubin|ptx|so|o|gch|json)(?:\.\w+\.new)?"
)


def remove(path: Path) -> bool:
    """Remove a file of the cache; return whether it was there.

    Raises:
        BackendError: The folder cannot be written.
    """
    try:
        path.unlink()
    except FileNotFoundError:
        return False
    except OSError as error:
        raise _unwritable(path.parent, error) from None
    return True


def store_with_facts(path: Path, data: bytes, facts: Mapping[str, object]) -> None:
    """Put a compiled file into the cache, with a file of its facts."""
    write_whole(path, data)
    whole = {"sha256": digest(data), **facts}
    write_whole(path.with_suffix(".json"), json.dumps(whole, indent=1).encode())


def load_facts(path: Path) -> dict[str, Any] | None:
    """Return the facts of a cached file; None if it is missing or was changed."""
    facts, data = read_facts(path), read_own(path)
    if facts is None or data is None or digest(data) != facts.get("sha256"):
        return None
    return facts


def read_facts(path: Path) -> dict[str, Any] | None:
    """Return the facts of a cached file, which is not read itself."""
    try:
        facts = json.loads(read_own(path.with_suffix(".json")) or b"")
    except (ValueError, RecursionError):
        return None
    return facts if isinstance(facts, dict) and _are_records(facts.get("also_read", {})) else None


def _are_records(found: object) -> bool:
    """Whether a damaged file has not changed the records of headers."""
    return isinstance(found, dict) and all(isinstance(one, list) and one for one in found.values())


def current_path(folder: Path, key: str, suffix: str) -> Path:
    """Return the path of the build with this key, from files that are still the same.

    A build's record ``also_read`` has the files that its key does not cover. Once one has changed,
    the build moves on to another name: a library that is loaded may keep the first.
    """
    while True:
        path = folder / f"{key}{suffix}"
        now = changed((read_facts(path) or {}).get("also_read", {}))
        if not now:
            return path
        moved = digest(json.dumps([key, sorted(now.items())]).encode())
        key = _DIGEST.sub(moved, key)


_DIGEST = re.compile("[0-9a-f]{64}")


@contextlib.contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold a lock on a temporary file; the lock ends with the process.

    Raises:
        BackendError: The file cannot be made, or something else has its name.
    """
    while True:
        descriptor = _open_lock(path)
        _LOCKED.add(descriptor)
        try:
            _lock(descriptor, path)
            if not _is_at(path, descriptor):
                continue  # the previous holder removed the file; there may be a new one by now
            try:
                yield
            finally:
                path.unlink(missing_ok=True)
                _unlock(descriptor)
            return
        finally:
            _LOCKED.discard(descriptor)
            os.close(descriptor)


def made_once(path: Path, make: Callable[[], bytes], facts: Mapping[str, Any]) -> Path:
    """Return the path of a complete cache file; one caller makes it while the others wait.

    ``make`` may add to the facts.
    """
    if load_facts(path) is None:
        with locked(path.with_suffix(".lock")):
            if load_facts(path) is None:
                data = make()
                store_with_facts(path, data, facts)
    return path


_LOCKED: set[int] = set()


def _close_in_child() -> None:
    """Close the lock files of the parent: with one, a child would keep its lock."""
    for descriptor in _LOCKED:
        os.close(descriptor)
    _LOCKED.clear()


if fcntl is not None:
    os.register_at_fork(after_in_child=_close_in_child)


def _open_lock(path: Path) -> int:
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise _unwritable(path.parent, error) from None
    if _is_own(os.fstat(descriptor)):
        return descriptor
    os.close(descriptor)
    raise BackendError(f"{path} is not a file of this user. Remove it. {_REMEDY}")


def _lock(descriptor: int, path: Path) -> None:
    """Wait for the lock. On a file system without locks two processes may make the same file."""
    if fcntl is None:
        return
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        _wait_for_lock(descriptor, path)
    except OSError:
        return


_NOTICE_AFTER_SECONDS = 2.0


def _wait_for_lock(descriptor: int, path: Path) -> None:
    """Wait for the process with the lock; after two seconds a line says so."""
    line = f"tmaasync: waiting for {_holder(descriptor)}, which builds {path.with_suffix('')}"
    notice = threading.Timer(_NOTICE_AFTER_SECONDS, logging.getLogger("tmaasync").warning, [line])
    notice.daemon = True
    notice.start()
    try:
        with contextlib.suppress(OSError):
            fcntl.flock(descriptor, fcntl.LOCK_EX)
    finally:
        notice.cancel()


def _holder(descriptor: int) -> str:
    """Name the process that holds the lock of a file, from proc_locks(5)."""
    inode = os.fstat(descriptor).st_ino
    with contextlib.suppress(OSError, ValueError, IndexError):
        for line in Path("/proc/locks").read_text(encoding="ascii").splitlines():
            words = line.split()
            is_held = words[1] == "FLOCK" and words[5].endswith(f":{inode}")
            if is_held and int(words[4]) > 0:  # 0 or less: of another PID namespace
                is_own = int(words[4]) == os.getpid()
                return "another thread" if is_own else f"process {words[4]}"
    return "another process"


def _unlock(descriptor: int) -> None:
    """Release the lock, of which a child between fork and exec may have a copy."""
    if fcntl is None:
        return
    with contextlib.suppress(OSError):
        fcntl.flock(descriptor, fcntl.LOCK_UN)


def _is_at(path: Path, descriptor: int) -> bool:
    try:
        return os.path.samestat(os.fstat(descriptor), path.lstat())
    except FileNotFoundError:
        return False
