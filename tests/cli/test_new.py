"""``tmaasync new``: what it writes runs, is tested and has no findings; and what it refuses."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from command_line import assert_refused, run

from tmaasync.cli.new import Kind

KINDS = [kind.value for kind in Kind]


@pytest.fixture(autouse=True)
def here(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """The folder that the files are written to."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


def python(*arguments: str) -> subprocess.CompletedProcess[str]:
    # The package of this checkout; the files in the current folder are the user's. Plugins of
    # pytest, which they do not need, take longer to import than their tests run.
    paths = [str(Path(__file__).parents[2]), os.environ.get("PYTHONPATH", "")]
    return subprocess.run(
        [sys.executable, *arguments],
        capture_output=True,
        text=True,
        check=False,
        env={
            **os.environ,
            "PYTHONPATH": os.pathsep.join(filter(None, paths)),
            "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
        },
    )


def names(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


@pytest.mark.slow
def test_the_kernels_run_at_once_and_their_tests_pass(here: Path) -> None:
    made = [f"foo_Bar2_{kind}" for kind in KINDS]
    for kind, name in zip(KINDS, made, strict=True):
        before = names(here)
        new = run("new", kind, name)

        assert new.exit_code == 0, new.output
        assert names(here) - before == {f"{name}.cu", f"{name}.py", f"test_{name}.py"}
        ran = python(f"{name}.py")
        assert (ran.returncode, len(ran.stdout.splitlines())) == (0, 1), ran.stderr
    assert not any("my_kernel" in path.read_text() for path in here.iterdir() if path.is_file())
    tests = [f"test_{name}.py" for name in made]
    tested = python("-m", "pytest", "-q", "-p", "no:cacheprovider", *tests)
    assert tested.returncode == 0, tested.stdout
    assert " passed" in tested.stdout


@pytest.mark.sampled(1)
@pytest.mark.parametrize("kind", KINDS)
def test_the_kernel_compiles_for_the_gpu_without_findings(kind: str) -> None:
    run("new", kind, "foo")

    linted = run("lint", "foo.py")

    assert (linted.exit_code, linted.stdout) == (0, "0 findings in 1 kernel of foo.py.\n")


@pytest.mark.gpu
@pytest.mark.hopper
@pytest.mark.parametrize("kind", KINDS)
def test_the_kernel_runs_on_a_gpu(kind: str) -> None:
    pytest.importorskip("cupy")
    run("new", kind, "foo")

    ran = python("foo.py", "--gpu")

    assert ran.returncode == 0, ran.stderr


def test_the_next_steps_are_commands_with_the_name() -> None:
    steps = run("new", "copy", "foo").stdout

    assert steps.startswith("foo.cu, foo.py and test_foo.py are written. Next:\n")
    for command in ("python foo.py ", "pytest test_foo.py ", "tmaasync lint foo.py "):
        assert f"\n  {command}" in steps


@pytest.mark.parametrize("present", ["foo.cu", "foo.py", "test_foo.py"])
def test_nothing_is_overwritten_and_nothing_is_half_written(present: str, here: Path) -> None:
    (here / present).write_text("mine")

    assert_refused(f"name is 'foo'; {present}: in this folder already", "new", "copy", "foo")

    assert names(here) == {present}
    assert (here / present).read_text() == "mine"


@pytest.mark.parametrize(
    ("name", "rule", "remedy"),
    [
        ("row-norms", "it must be an identifier of C", "row_norms"),
        ("2d", "it must be an identifier of C", "my_2d"),
        ("a/b", "it must be an identifier of C", "a_b"),
        ("../up", "it must be an identifier of C", "up"),
        ("größe", "it must be an identifier of C", "gr_e"),
        ("", "it must be an identifier of C", "my_kernel"),
        ("double", "C++ or Python has this keyword", "my_double"),
        ("lambda", "C++ or Python has this keyword", "my_lambda"),
        ("json", "json.py would hide the module of Python's library", "my_json"),
        ("numpy", "the files use this word for something else", "my_numpy"),
        ("main", "the files use this word for something else", "my_main"),
        ("SharedMemory", "the files use this word for something else", "my_SharedMemory"),
    ],
)
def test_a_name_that_the_files_cannot_have_is_refused(
    name: str, rule: str, remedy: str, here: Path
) -> None:
    assert_refused(f"name is {name!r}; {rule}", "new", "reduce", name)

    assert names(here) == set()
    ran = run("new", "reduce", name)
    assert ran.stderr.endswith(f"Pass another, such as {remedy}.\n")


def test_an_unknown_kind_is_answered_with_those_that_there_are() -> None:
    ran = run("new", "gem", "foo")

    assert ran.exit_code == 2
    assert all(kind in ran.stderr for kind in KINDS)
    assert "Value error" not in ran.stderr


def test_a_folder_that_cannot_be_written_to_is_one_sentence(here: Path) -> None:
    (here / "foo.cu").symlink_to(here / "absent" / "foo.cu")

    ran = run("new", "copy", "foo")

    assert ran.exit_code == 1
    assert ran.stderr == (
        "error: foo.cu cannot be written (File exists). Run in a folder that you can write to.\n"
    )
