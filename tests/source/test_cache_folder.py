"""The cache folder: whose it is, what it leaves alone, and what it takes no code from."""

from __future__ import annotations

import os
import resource
import stat
import subprocess
import sys
import tempfile
import traceback
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tmaasync import BackendError
from tmaasync._source.cache_folder import (
    cache_dir,
    current_path,
    load_facts,
    locked,
    read_own,
    store_with_facts,
    write_whole,
)
from tmaasync._source.compile import Source, compile_source
from tmaasync._source.includes import changed, recorded

OTHER = 12345
"""A user who has no account; only root can act as one."""
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can act as another user")
KEY = "a" * 64
EMPTY = 'extern "C" __global__ void empty() {}\n'


@pytest.fixture
def named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder that the user names, with files of his own."""
    folder = tmp_path / "named"
    folder.mkdir()
    monkeypatch.setenv("TMAASYNC_CACHE_DIR", str(folder))
    return folder


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def compiled() -> Path:
    return compile_source(Source(text=EMPTY, name="test.cu"), "sm_90").path


def refused() -> str:
    with pytest.raises(BackendError, match="TMAASYNC_CACHE_DIR") as caught:
        cache_dir()
    return str(caught.value)


def as_user(user: int, act: Callable[[], None]) -> None:
    """Run a function in a child process as another user; what it raises fails the test."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # the child starts no thread
        child = os.fork()
    if child == 0:
        status = 1
        try:
            os.setgroups([])
            os.setgid(user)
            os.setuid(user)
            act()
            status = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(status)
    assert os.waitpid(child, 0)[1] == 0


@pytest.fixture
def shared(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A named folder that every user reaches, like /tmp; pytest's own folders are private."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o1777)
        monkeypatch.setenv("TMAASYNC_CACHE_DIR", folder)
        yield Path(folder)


# --- what it leaves alone ---------------------------------------------------------------------


@pytest.mark.parametrize("before", [0o755, 0o500, 0o1777])
def test_builds_go_to_a_private_folder_below_the_named_one_which_stays_as_it_is(
    named: Path, before: int
) -> None:
    (named / "mine.so").touch()
    if before == 0o500:
        cache_dir()
    named.chmod(before)

    path = compiled()

    assert path.parent.parent == named
    assert mode(path.parent) == 0o700
    assert mode(named) == before
    assert {one.name for one in named.iterdir()} == {"mine.so", path.parent.name}
    named.chmod(0o700)


def test_missing_folders_are_made_private(named: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TMAASYNC_CACHE_DIR", str(named / "a" / "b"))

    assert [mode(path) for path in (cache_dir(), *cache_dir().parents[:2])] == [0o700] * 3


@pytest.mark.parametrize(
    ("variable", "value"),
    [
        ("TMAASYNC_CACHE_DIR", "~/mine"),
        ("TMAASYNC_CACHE_DIR", "mine"),
        ("TMAASYNC_CACHE_DIR", "./x/../mine"),
        ("TMAASYNC_CACHE_DIR", "mine/"),
        ("XDG_CACHE_HOME", "{}/mine"),
    ],
)
def test_a_path_may_start_at_home_or_at_the_working_folder(
    variable: str, value: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "x").mkdir()
    monkeypatch.delenv("TMAASYNC_CACHE_DIR", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv(variable, value.format(tmp_path))
    monkeypatch.chdir(tmp_path)

    path = compiled()
    monkeypatch.chdir("/")

    assert path.parents[1] == tmp_path / "mine"
    assert path.is_file()


def test_the_default_is_in_the_home_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TMAASYNC_CACHE_DIR", "")
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")  # which its specification has us ignore
    monkeypatch.setenv("HOME", str(tmp_path))

    assert cache_dir() == tmp_path / ".cache" / "tmaasync"


def test_a_home_of_nobody_is_an_error_of_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TMAASYNC_CACHE_DIR", "~unknown_user/cache")

    assert "no folder for the kernel cache" in refused()


def test_an_emulated_library_is_found_again_after_the_working_folder_has_changed(
    tmp_path: Path,
) -> None:
    # Reports read the library again by the name that the loader knows.
    code = (
        "import os, numpy as np\n"
        "from tmaasync import Kernel\n"
        "kernel = Kernel('extern \"C\" __global__ void k(float* p) { p[9] = 1; }', 'k')\n"
        "try: kernel(1, 1, (np.zeros(1, np.float32),))\n"
        "except Exception as error: print('kernel.cu:1' in str(error))\n"
        "os.chdir('/')\n"
        "try: kernel(1, 1, (np.zeros(1, np.float32),))\n"
        "except Exception as error: print('kernel.cu:1' in str(error))\n"
    )
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / f"tmaasync-{os.geteuid()}").symlink_to(cache_dir())  # has the runtime
    environment = {**os.environ, "TMAASYNC_CACHE_DIR": "mine"}
    ran = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=True,
        cwd=tmp_path,
        env=environment,
    )

    assert ran.stdout == "True\nTrue\n"


# --- what it takes no code from ---------------------------------------------------------------


@pytest.mark.parametrize("before", [0o777, 0o775, 0o757, 0o720])
def test_a_parent_that_others_can_change_is_refused(named: Path, before: int) -> None:
    named.chmod(before)

    message = refused()

    assert f"the folder {named} has mode {before:04o}" in message
    assert f"chmod go-w {named}" in message
    assert list(named.iterdir()) == []
    assert mode(named) == before


def test_a_cache_that_others_could_write_is_refused(named: Path) -> None:
    own = cache_dir()
    own.chmod(0o1777)

    assert f"{own} has mode 1777" in refused()
    assert mode(own) == 0o1777


@pytest.mark.parametrize("name", ["named", "named/{own}"])
def test_a_file_in_the_place_of_a_folder_is_refused(name: str, named: Path, tmp_path: Path) -> None:
    own = cache_dir()
    own.rmdir()
    if name == "named":
        named.rmdir()
    (tmp_path / name.format(own=own.name)).touch()

    assert f"the kernel cache {own} cannot be used: Not a directory" in refused()


def test_a_link_leads_to_its_folder_and_a_later_change_of_it_changes_nothing(
    named: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    link, other = tmp_path / "link", tmp_path / "other"
    other.mkdir()
    link.symlink_to("named", target_is_directory=True)
    monkeypatch.setenv("TMAASYNC_CACHE_DIR", str(link))

    path = compiled()
    link.unlink()
    link.symlink_to(other)

    assert path.parent.parent == named
    assert compiled().parent.parent == other


def test_links_in_a_circle_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a").symlink_to("b")
    (tmp_path / "b").symlink_to("a")
    monkeypatch.setenv("TMAASYNC_CACHE_DIR", str(tmp_path / "a"))

    assert "Too many levels of symbolic links" in refused()


def test_a_link_in_the_place_of_a_build_is_not_followed(named: Path, tmp_path: Path) -> None:
    path = compiled()
    data = path.read_bytes()
    moved = path.rename(tmp_path / "moved")
    path.symlink_to(moved)

    assert load_facts(path) is None
    assert compiled() == path
    assert not path.is_symlink()
    assert path.read_bytes() == data


def test_a_lock_follows_no_link_and_empties_nothing(named: Path, tmp_path: Path) -> None:
    target, lock = tmp_path / "target", cache_dir() / "x.lock"
    target.write_text("mine")
    lock.symlink_to(target)

    with pytest.raises(BackendError, match=r"x\.lock"), locked(lock):
        pass

    assert target.read_text() == "mine"
    lock.unlink()
    lock.write_text("left by a process that was killed")
    with locked(lock):
        assert lock.read_text() == "left by a process that was killed"
    assert not lock.exists()


@as_root
@pytest.mark.parametrize("planted", ["build", "facts"])
def test_a_build_that_another_user_has_written_is_not_run(named: Path, planted: str) -> None:
    path = compiled()
    good = path.read_bytes()
    store_with_facts(path, b"planted", {})
    os.chown(path if planted == "build" else path.with_suffix(".json"), OTHER, OTHER)

    assert load_facts(path) is None
    assert compiled().read_bytes() == good
    assert path.stat().st_uid == 0


def test_a_build_that_others_may_write_is_not_run(named: Path) -> None:
    path = compiled()
    path.chmod(0o666)

    assert read_own(path) is None
    assert compiled() == path
    assert mode(path) == 0o600


@as_root
@pytest.mark.parametrize("owned", ["parent", "own", "link"])
def test_a_path_that_another_user_owns_is_refused(
    owned: str, named: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = cache_dir()
    if owned == "link":
        named.chmod(0o1777)
        link = named / "link"
        link.symlink_to(own.parent)
        os.chown(link, OTHER, OTHER, follow_symlinks=False)
        monkeypatch.setenv("TMAASYNC_CACHE_DIR", str(link))
    else:
        os.chown(named if owned == "parent" else own, OTHER, OTHER)

    assert f"belongs to user {OTHER}" in refused()


@as_root
def test_two_users_name_the_same_folder_and_share_nothing(shared: Path) -> None:
    mine = compiled()

    def act() -> None:
        own = cache_dir()
        assert own.parent == shared
        assert own != mine.parent
        write_whole(own / "x.cubin", b"x")
        with pytest.raises(PermissionError):
            mine.read_bytes()

    as_user(OTHER, act)
    (theirs,) = (path for path in shared.iterdir() if path != mine.parent)
    assert (theirs.stat().st_uid, mode(theirs)) == (OTHER, 0o700)


@as_root
def test_a_folder_that_another_user_has_made_first_is_refused(shared: Path) -> None:
    own = cache_dir()
    own.rmdir()

    as_user(OTHER, own.mkdir)

    assert f"it belongs to user {OTHER}" in refused()
    assert list(own.iterdir()) == []


# --- where it cannot be written ---------------------------------------------------------------


def test_a_write_that_fails_is_an_error_of_ours_and_leaves_nothing(named: Path) -> None:
    path = cache_dir() / "large"
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100, limits[1]))
    try:
        with pytest.raises(BackendError, match=r"cannot be written: .* Set TMAASYNC_CACHE_DIR"):
            write_whole(path, bytes(1000))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)

    assert list(path.parent.iterdir()) == []


def test_a_cache_that_is_read_only_gives_what_it_has_and_an_error_for_the_rest(
    shared: Path,
) -> None:
    def act() -> None:
        own = cache_dir()
        store_with_facts(own / "a.cubin", b"a", {})
        own.chmod(0o500)
        assert load_facts(cache_dir() / "a.cubin") is not None
        with pytest.raises(BackendError, match=r"cannot be written: Permission denied"):
            write_whole(own / "b.cubin", b"b")
        with pytest.raises(BackendError, match="cannot be written"), locked(own / "b.lock"):
            pass
        own.chmod(0o700)

    if os.geteuid() == 0:
        as_user(OTHER, act)
    else:
        act()


def test_an_emulator_that_cannot_be_loaded_is_an_error_of_ours(named: Path) -> None:
    # As from a folder that is mounted noexec: a library that its facts describe, and no code.
    code = (
        "from tmaasync._source.cache_folder import store_with_facts\n"
        "from tmaasync.emulate.runtime_library import _runtime\n"
        "for path in (_runtime().library, _runtime().part): store_with_facts(path, b'none', {})\n"
        "from tmaasync.emulate.frontend.program import loaded_runtime\n"
        "loaded_runtime(_runtime().library)\n"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)

    assert "BackendError: the emulator cannot be loaded" in ran.stderr
    assert "mounted noexec, set TMAASYNC_CACHE_DIR" in ran.stderr


# --- files that a key does not cover ----------------------------------------------------------


def test_a_build_moves_on_when_a_file_that_it_has_read_changes_and_back(
    named: Path, tmp_path: Path
) -> None:
    header, own = tmp_path / "system.h", cache_dir()
    paths = []
    for text in ("one", "two", "one", None):
        header.write_text(text) if text else header.unlink()
        path = current_path(own, KEY, ".so")
        if load_facts(path) is None:
            facts = {"also_read": recorded([str(header)], (), begun_ns=2**63)}
            store_with_facts(path, b"", facts)
        paths.append(path.name)

    assert paths[0] == paths[2] == f"{KEY}.so"
    assert len(set(paths)) == 3


def test_a_header_that_changes_while_it_is_compiled_makes_the_build_old_at_once(
    tmp_path: Path,
) -> None:
    header = tmp_path / "a.cuh"
    header.write_text("new")

    assert changed(recorded((), [(str(header), "digest of the old text")], begun_ns=0))
    assert changed(recorded([str(header)], (), begun_ns=0))
    assert changed(recorded([str(tmp_path / "gone")], (), begun_ns=0))


@pytest.mark.parametrize(
    "damaged",
    [
        '{"also_read": 5}',
        '{"also_read": {"/x": 5}}',
        '{"also_read": {"/x": []}}',
        "[" * 100_000,
        "7",
    ],
)
def test_damaged_facts_are_no_build(damaged: str, named: Path) -> None:
    path = cache_dir() / f"{KEY}.so"
    store_with_facts(path, b"text", {})
    path.with_suffix(".json").write_text(damaged, encoding="utf-8")

    assert current_path(cache_dir(), KEY, ".so") == path
    assert load_facts(path) is None


def test_a_folder_in_the_place_of_a_build_is_no_build(named: Path) -> None:
    path = cache_dir() / f"{KEY}.so"
    path.mkdir()
    path.with_suffix(".json").mkdir()

    assert load_facts(path) is None
