from __future__ import annotations

from pathlib import Path

import pytest

from tmaasync import ArgumentError, BackendError
from tmaasync._source import paths
from tmaasync._source.paths import find_kernel, include_dir, kernels_dir, shipped_kernels


def _make_kernels(folder: Path, *names: str) -> Path:
    header = folder / "include" / "tmaasync" / "tmaasync.cuh"
    header.parent.mkdir(parents=True)
    header.touch()
    for name in names:
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).touch()
    return folder


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that plays the installed package."""
    folder = tmp_path / "site" / "tmaasync"
    folder.mkdir(parents=True)
    monkeypatch.setattr(paths, "_PACKAGE", folder)
    return folder


def test_the_one_include_is_on_the_include_path() -> None:
    assert (include_dir() / "tmaasync" / "tmaasync.cuh").is_file()


def test_every_shipped_kernel_is_found_by_its_bare_name() -> None:
    shipped = sorted(kernels_dir().rglob("*.cu"))

    assert [find_kernel(path.name) for path in shipped] == shipped
    assert sorted(shipped_kernels()) == shipped
    assert len({path.name for path in shipped}) == len(shipped)


@pytest.mark.parametrize(
    ("name", "folder"),
    [
        ("copy.cu", ""),
        ("ragged.cu", ""),
        ("gemm.cu", "gemm"),
        ("gemm_epilogue.cu", "gemm"),
        ("grouped_gemm.cu", "gemm"),
        ("scaled_gemm.cu", "gemm"),
        ("conv2d.cu", "gemm"),
        ("attention.cu", "attention"),
    ],
)
def test_the_names_that_users_pass_are_found_in_their_familys_folder(
    name: str, folder: str
) -> None:
    assert find_kernel(name) == kernels_dir() / folder / name


def test_an_installed_package_brings_its_own_kernels(package: Path) -> None:
    inside = _make_kernels(package / "kernels")
    _make_kernels(package.parent / "kernels")

    assert kernels_dir() == inside


def test_a_checkout_has_the_kernels_next_to_the_package(package: Path) -> None:
    sibling = _make_kernels(package.parent / "kernels")

    assert kernels_dir() == sibling


def test_somebody_elses_folder_named_kernels_is_not_taken(package: Path) -> None:
    (package.parent / "kernels").mkdir()

    with pytest.raises(BackendError, match=r"neither .*tmaasync/kernels nor .*Reinstall tmaasync"):
        kernels_dir()


def test_a_file_of_the_user_comes_before_a_shipped_kernel_of_the_same_name(
    package: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _make_kernels(package / "kernels", "copy.cu")
    mine = tmp_path / "copy.cu"
    mine.touch()
    monkeypatch.chdir(tmp_path)

    assert find_kernel("copy.cu") == mine
    assert find_kernel(mine) == mine


def test_an_unknown_kernel_is_answered_with_those_that_are_shipped(package: Path) -> None:
    _make_kernels(package / "kernels", "family/gemm.cu", "copy.cu")

    with pytest.raises(ArgumentError) as caught:
        find_kernel("gem.cu")

    assert str(caught.value) == (
        "kernel is 'gem.cu'; no file has this name. Pass the path of a .cu file, or the name of a "
        "shipped kernel: copy.cu, gemm.cu."
    )


@pytest.mark.parametrize(
    "name", ["kernels/gemm.cu", "../kernels/gemm.cu", "family/gemm.cu", "", "include", "family"]
)
def test_only_a_bare_file_name_is_looked_up_among_the_shipped(
    name: str, package: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _make_kernels(package / "kernels", "gemm.cu", "family/copy.cu")
    monkeypatch.chdir(tmp_path)

    with pytest.raises(ArgumentError, match="no file has this name"):
        find_kernel(name)
