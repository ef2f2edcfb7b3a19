from __future__ import annotations

import re
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from email.message import Message
from email.parser import Parser
from pathlib import Path, PurePosixPath

import pytest

import tmaasync
from tmaasync._torch_internals import LEAST_RELEASE
from tmaasync._wheels import WHEELS

_ROOT = Path(__file__).resolve().parents[2]


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
    assert {
        "tmaasync/emulate/foreign/cccl/cuda/std/array",
        "tmaasync/_source/nvrtc_headers/cmath",
    } <= set(names)


def test_the_wheel_holds_every_module_and_says_that_it_is_typed(wheel: zipfile.ZipFile) -> None:
    modules = {path.relative_to(_ROOT).as_posix() for path in (_ROOT / "tmaasync").rglob("*.py")}

    assert {*modules, "tmaasync/py.typed"} <= set(wheel.namelist())


def test_the_wheel_installs_one_package_and_the_pytest_plugin(wheel: zipfile.ZipFile) -> None:
    tops = {PurePosixPath(name).parts[0] for name in wheel.namelist()}

    assert tops == {"pytest_tmaasync.py", "tmaasync", f"tmaasync-{tmaasync.__version__}.dist-info"}


@pytest.fixture(scope="module")
def metadata(wheel: zipfile.ZipFile) -> Message:
    path = f"tmaasync-{tmaasync.__version__}.dist-info/METADATA"
    return Parser().parsestr(wheel.read(path).decode())


def test_the_wheel_and_the_package_have_the_same_version(metadata: Message) -> None:
    assert (metadata["Version"], metadata["License-Expression"]) == (
        tmaasync.__version__,
        "Apache-2.0",
    )


def test_the_metadata_name_the_authors_and_no_address(metadata: Message) -> None:
    assert metadata["Author"] == "The tmaasync authors"
    assert {"Author-email", "Home-page", "Project-URL"} & set(metadata) == set()
    assert {"cuda", "flash attention", "hopper", "pytorch", "tma"} <= set(
        metadata["Keywords"].split(",")
    )


# Links and pictures of Markdown and HTML; addresses on the web and anchors are absolute.
RELATIVE = re.compile(r"""(?:\]\(|(?:href|src|srcset)=["'])(?!https?:|#)[^)"'\s]+""")

LINK = re.compile(r"\[([^\]]+)\]\((?!https?:|#)")


def test_the_description_has_no_link_or_picture_that_only_the_repository_has(
    metadata: Message,
) -> None:
    text = _without_code(str(metadata.get_payload()))

    assert RELATIVE.search(text) is None
    named = LINK.findall(_without_code(_README.read_text()))
    assert named, "the README has no link or picture to test this with"
    assert [words for words in named if words not in text] == []


def test_the_description_shows_the_code_of_the_readme(metadata: Message) -> None:
    assert _CODE.findall(str(metadata.get_payload())) == _CODE.findall(_README.read_text())


_README = _ROOT / "README.md"
_CODE = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)


def _without_code(text: str) -> str:
    return _CODE.sub("", text)


def test_a_plain_installation_has_what_kernels_need_on_the_cpu(metadata: Message) -> None:
    requirements = metadata.get_all("Requires-Dist", [])
    plain = {re.split("[<>=;]", name)[0] for name in requirements if "extra ==" not in name}

    assert "nvidia-cuda-runtime" in plain
    assert {"cupy-cuda13x", "matplotlib", "nvidia-cuda-nvrtc", "torch"} & plain == set()
    with_torch = {name for name in requirements if name.endswith(("extra == 'torch'", '"torch"'))}
    assert {re.split("[<>=;]", name)[0] for name in with_torch} == {
        "cuda-python",
        "nvidia-cuda-cccl",
        "nvidia-cuda-nvrtc",
        "torch",
    }
    assert set(metadata.get_all("Provides-Extra", [])) == {
        *("cpu", "cuda12", "cuda13", "torch", "plot"),
        *("dev", "docs", "test"),
    }


def test_one_torch_release_is_the_oldest_in_the_import_the_requirements_and_the_guide() -> None:
    least = ".".join(map(str, LEAST_RELEASE))
    project = tomllib.loads((_ROOT / "pyproject.toml").read_text())["project"]

    assert f"torch>={least}" in project["optional-dependencies"]["torch"]
    assert f"needs torch {least} or later" in (_ROOT / "docs" / "install.md").read_text()


def _extras() -> dict[str, list[str]]:
    project = tomllib.loads((_ROOT / "pyproject.toml").read_text())["project"]
    return {**project["optional-dependencies"], "headers": project["dependencies"]}


@pytest.mark.parametrize("extra", WHEELS)
def test_messages_name_the_wheels_of_the_extras(extra: str) -> None:
    wheels, required = set(WHEELS[extra]), set(_extras()[extra])

    assert wheels <= required if extra == "headers" else wheels == required


def test_no_text_installs_tmaasync_from_a_package_index() -> None:
    """There the name may be another's; a clone has the path `.[extra]`."""
    folders = ("tmaasync", "docs", "examples", "benchmarks", "tools", "kernels")
    files = [path for name in folders for path in (_ROOT / name).rglob("*") if _is_text(path)]
    files += [_ROOT / name for name in ("README.md", "CHANGELOG.md", "Makefile", "pyproject.toml")]

    named = re.compile(r"""pip3? install [^\n`]*?(?<![\w./-])tmaasync(?![\w/.-])|['"]tmaasync\[""")
    assert len(files) > 300
    assert [str(path) for path in files if named.search(path.read_text(encoding="utf-8"))] == []


def _is_text(path: Path) -> bool:
    suffixes = (".py", ".md", ".cu", ".cuh", ".hpp", ".cpp", ".ipynb", ".toml")
    return path.suffix in suffixes and "__pycache__" not in path.parts


def test_torchs_own_index_serves_torch_alone() -> None:
    """A package of another name could come from it in place of the default index's."""
    for name in ("Makefile", ".ci/run"):
        text = (_ROOT / name).read_text()

        assert "--extra-index-url" not in text
        found = re.findall(r".*--index-url.*", text)
        assert found, name
        assert all("--no-deps" in line for line in found), found


def test_the_source_distribution_holds_what_builds_and_tests_need(built: Path) -> None:
    with tarfile.open(next(built.glob("*.tar.gz"))) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}

    needed = {".ci/run", ".clang-format", "LICENSE", "Makefile", "README.md", "SECURITY.md"}
    needed.add("pyproject.toml")
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


def test_make_quick_names_tests_that_exist() -> None:
    listed = re.search(
        r"^QUICK := (.*?)\n\n", (_ROOT / "Makefile").read_text(), re.DOTALL | re.MULTILINE
    )
    assert listed is not None
    named = re.findall(r"(\w+\.py)::(\w+)", listed[1])
    assert len(named) > 5
    for file, test in named:
        text = (_ROOT / "tests" / "parity" / f"test_{file}").read_text()
        assert f"def {test}(" in text, f"{file}::{test}"
