"""The compile cache: what it covers, who may read it, and what survives damage."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import NoReturn

import numpy as np
import pytest

from tmaasync import Kernel
from tmaasync._source.cache_folder import cache_dir
from tmaasync._source.compile import (
    Parameter,
    Program,
    Source,
    compile_source,
    headers_near,
    load_nvrtc,
)
from tmaasync._source.includes import reached
from tmaasync.errors import BackendError, CompileError

EMPTY = 'extern "C" __global__ void empty() {}\n'


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TMAASYNC_CACHE_DIR", str(tmp_path / "cache"))


def compiled(text: str, *folders: Path, arch: str = "sm_90") -> Program:
    return compile_source(Source(text=text, name="test.cu", include_dirs=folders), arch)


def written(path: Path) -> tuple[int, int]:
    """Which file it is, and since when: every build writes a new one."""
    status = path.stat()
    return status.st_ino, status.st_mtime_ns


def test_the_second_time_the_compiler_is_not_asked() -> None:
    first = compiled(EMPTY)
    before = written(first.path)

    assert compiled(EMPTY) == first
    assert written(first.path) == before


@pytest.mark.parametrize("options", [("--define-macro=X=1",), ("--define-macro=X=2",)])
def test_options_are_part_of_the_key(options: tuple[str, ...]) -> None:
    plain = compiled(EMPTY)
    source = Source(text=EMPTY, name="test.cu", options=options)

    assert compile_source(source, "sm_90").path != plain.path


OF_CPP20 = """
template <typename T>
concept Small = sizeof(T) <= 4;
struct Point { int x, y; };

extern "C" __global__ void f(int* x, volatile int* y) {
    const auto twice = []<Small T>(T value) { return value * 2; };
    x[0] = twice(Point{.x = 3, .y = 4}.y);
    y[0] += 1;
}
"""


def test_kernels_are_cpp20_on_both_back_ends_and_what_it_deprecates_is_no_warning(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert compiled(OF_CPP20).warnings == ()

    # In a cache of its own it would compile the emulator's runtime again: 19 s of CPU time, not 1.6
    # (pytest with os.times, 2026-11-24).
    monkeypatch.undo()
    x, y = (np.zeros(1, np.int32) for _ in range(2))
    Kernel(OF_CPP20, "f")(1, 1, (x, y))
    assert (x[0], y[0]) == (8, 1)


@pytest.mark.parametrize("option", ["--std=c++17", "-std=c++17"])
def test_a_standard_among_the_options_takes_the_place_of_ours(option: str) -> None:
    with pytest.raises(CompileError, match="concept"):
        compile_source(Source(text=OF_CPP20, name="f.cu", options=(option,)), "sm_90")

    plain = Source(text=EMPTY, name="f.cu", options=(option,))
    assert compile_source(plain, "sm_90").warnings == ()


def test_a_header_that_includes_the_next_one_of_its_name_reaches_that(tmp_path: Path) -> None:
    first, second, other = (tmp_path / name for name in ("first", "second", "other"))
    for folder in (first, second, other):
        folder.mkdir()
        (folder / "same.cuh").write_text("#include_next <same.cuh>\n" if folder is first else "")
    (other / "unrelated.cuh").write_text("")

    found = reached("#include <same.cuh>\n", (first, second, other))

    assert set(found) == {folder / "same.cuh" for folder in (first, second, other)}


def test_a_header_that_comes_into_an_earlier_folder_is_found_there(tmp_path: Path) -> None:
    early, late = tmp_path / "early", tmp_path / "late"
    late.mkdir()
    (late / "one.cuh").write_text('#include "two.cuh"\n')
    (late / "two.cuh").write_text("")

    def found() -> list[Path]:
        return reached("#include <part/one.cuh>\n#include <one.cuh>\n", (early, late))

    assert found() == found() == [late / "one.cuh", late / "two.cuh"]
    (early / "part").mkdir(parents=True)
    assert found() == [late / "one.cuh", late / "two.cuh"]
    (early / "part" / "one.cuh").write_text("")
    assert found() == [early / "part" / "one.cuh", late / "one.cuh", late / "two.cuh"]
    (late / "two.cuh").unlink()
    (early / "two.cuh").write_text("")
    assert found() == [early / "part" / "one.cuh", early / "two.cuh", late / "one.cuh"]


def test_an_include_that_names_a_macro_is_compiled_every_time(tmp_path: Path) -> None:
    (tmp_path / "a.cuh").write_text("")
    text = '#define HEADER "a.cuh"\n#include HEADER\n' + EMPTY
    first = compiled(text, tmp_path)
    before = written(first.path)

    assert compiled(text, tmp_path).path == first.path
    assert written(first.path) != before


def test_a_damaged_cubin_is_compiled_anew() -> None:
    program = compiled(EMPTY)
    good = program.path.read_bytes()
    program.path.write_bytes(good[:-1] + b"?")

    assert compiled(EMPTY).path.read_bytes() == good


def test_a_refused_source_leaves_nothing_in_the_cache() -> None:
    with pytest.raises(CompileError):
        compiled("nonsense")

    assert list(cache_dir().iterdir()) == []


def test_an_error_shows_the_users_line_and_number() -> None:
    source = Source(
        text='\nextern "C" __global__ void k() { int x = missing; }\n',
        name="mine.cu",
        preamble="constexpr int A = 1;\nconstexpr int B = 2;\n",
    )

    with pytest.raises(CompileError) as caught:
        compile_source(source, "sm_90")

    assert "mine.cu(2): error" in str(caught.value)
    assert "int x = missing" in str(caught.value)
    assert "types={'Name': tile}" in str(caught.value)
    assert "missing" in caught.value.log


@pytest.mark.parametrize("arch", ["sm_90", "sm_100", "sm_120a"])
def test_the_parameters_of_a_kernel_are_read_with_their_kinds(arch: str) -> None:
    text = (
        "struct S { int a[3]; };\n"
        'extern "C" __global__ void k(S s, float f, double d, int i, long long l, void* p, char c)'
        " {}\n"
    )

    entry = compiled(text, arch=arch).entries["k"]

    assert entry.parameters == (
        Parameter("struct", 12),
        Parameter("f", 4),
        Parameter("f", 8),
        Parameter("u", 4),
        Parameter("u", 8),
        Parameter("u", 8),
        Parameter("u", 1),
    )


def test_the_shared_memory_that_a_kernel_needs_is_read() -> None:
    text = EMPTY + 'extern "C" __device__ const int empty_shared_bytes = 4321;\n'

    assert compiled(text).entries["empty"].shared_bytes == 4321
    assert compiled(EMPTY).entries["empty"].shared_bytes is None


def test_spills_are_reported() -> None:
    text = """
extern "C" __global__ void __launch_bounds__(1024) spills(volatile float* p) {
    float v[96];
    #pragma unroll
    for (int i = 0; i < 96; ++i) v[i] = p[i * 1024 + threadIdx.x];
    __syncthreads();
    #pragma unroll
    for (int i = 0; i < 96; ++i) p[i * 2048 + threadIdx.x] = v[i * 37 % 96] - v[i];
}
"""
    entry = compiled(text).entries["spills"]

    assert entry.spill_bytes > 0
    assert entry.registers == 64


@pytest.mark.parametrize(
    ("library", "headers"),
    [
        ("cuda/lib64/libnvrtc.so.13", "cuda/include"),
        ("site-packages/nvidia/cu13/lib/libnvrtc.so.13", "site-packages/nvidia/cu13/include"),
        (
            "site-packages/nvidia/cuda_nvrtc/lib/libnvrtc.so.12",
            "site-packages/nvidia/cuda_runtime/include",
        ),
    ],
)
def test_nvrtc_reads_the_headers_of_its_own_release(
    tmp_path: Path, library: str, headers: str
) -> None:
    for path in (library, f"{headers}/cuda_bf16.h"):
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).touch()

    assert headers_near(tmp_path / library) == (tmp_path / headers,)
    (tmp_path / headers / "cuda_bf16.h").unlink()
    assert headers_near(tmp_path / library) == ()


def test_without_nvrtc_the_error_says_how_to_install_it() -> None:
    def absent() -> NoReturn:
        raise RuntimeError("libnvrtc.so.13 was not found\nin one folder\nin another")

    with pytest.raises(
        BackendError, match=r"pip install .*'nvidia-cuda-nvrtc>=13,<14'.*not found\)$"
    ):
        load_nvrtc(lambda: SimpleNamespace(nvrtcVersion=absent))


def test_an_nvrtc_that_does_not_compile_the_headers_is_refused() -> None:
    def nvrtc(*version: int) -> SimpleNamespace:
        return SimpleNamespace(nvrtcVersion=lambda: ("NVRTC_SUCCESS", *version))

    with pytest.raises(BackendError, match=r"NVRTC is 12\.8; .* need 12\.9 .* pip install"):
        load_nvrtc(lambda: nvrtc(12, 8))
    for version in ((12, 9), (13, 0)):
        assert load_nvrtc(partial(nvrtc, *version)).nvrtcVersion()[1:] == version
