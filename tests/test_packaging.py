from __future__ import annotations

import subprocess
import sys
import tarfile
import zipfile
from email.parser import Parser
from pathlib import Path, PurePosixPath

import pytest

import tmaasync

_ROOT = Path(__file__).resolve().parents[1]


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the wheel and the source distribution of this checkout."""
    pytest.importorskip("hatchling", reason="hatchling builds the wheel (extra: dev)")
    folder = tmp_path_factory.mktemp("dist")
    for target in ("wheel", "sdist"):
        subprocess.run(
            [sys.executable, "-m", "hatchling", "build", "-t", target, "-d", str(folder)],
            check=True,
            cwd=_ROOT,
        )
    return folder


@pytest.fixture(scope="module")
def wheel(built: Path) -> zipfile.ZipFile:
    return zipfile.ZipFile(next(built.glob("*.whl")))


def _cuda_files(folder: str) -> set[str]:
    return {
        path.relative_to(_ROOT / folder).as_posix()
        for path in (_ROOT / folder).rglob("*")
        if path.suffix in (".cu", ".cuh")
    }


def test_the_wheel_holds_every_kernel_and_header(wheel: zipfile.ZipFile) -> None:
    names = set(wheel.namelist())

    missing = {f"tmaasync/kernels/{name}" for name in _cuda_files("kernels")} - names

    assert missing == set()
    assert "tmaasync/kernels/include/tmaasync/tmaasync.cuh" in names


def test_the_wheel_holds_every_module_and_says_that_it_is_typed(wheel: zipfile.ZipFile) -> None:
    modules = {path.relative_to(_ROOT).as_posix() for path in (_ROOT / "tmaasync").rglob("*.py")}

    assert {*modules, "tmaasync/py.typed"} <= set(wheel.namelist())


def test_the_wheel_installs_one_package_and_nothing_beside_it(wheel: zipfile.ZipFile) -> None:
    tops = {PurePosixPath(name).parts[0] for name in wheel.namelist()}

    assert tops == {"tmaasync", f"tmaasync-{tmaasync.__version__}.dist-info"}


def test_the_wheel_and_the_package_tell_the_same_version(wheel: zipfile.ZipFile) -> None:
    path = f"tmaasync-{tmaasync.__version__}.dist-info/METADATA"
    metadata = Parser().parsestr(wheel.read(path).decode())

    assert (metadata["Version"], metadata["License-Expression"]) == (
        tmaasync.__version__,
        "Apache-2.0",
    )


def test_the_source_distribution_holds_what_builds_and_tests_need(built: Path) -> None:
    with tarfile.open(next(built.glob("*.tar.gz"))) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}

    needed = {".ci/run", ".clang-format", "LICENSE", "Makefile", "README.md", "pyproject.toml"}
    kernels = {f"kernels/{name}" for name in _cuda_files("kernels")}
    tests = {path.relative_to(_ROOT).as_posix() for path in (_ROOT / "tests").rglob("*.py")}

    assert (needed | kernels | tests) - names == set()


def test_the_changelog_has_a_place_for_what_comes_next_and_no_version_from_the_future() -> None:
    headings = [
        line.removeprefix("## [").partition("]")[0]
        for line in (_ROOT / "CHANGELOG.md").read_text().splitlines()
        if line.startswith("## [")
    ]

    assert headings[0] == "Unreleased"
    assert headings[1:2] in ([], [tmaasync.__version__])
