"""The build: cached like the cubins, and the errors of builds that fail."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from tmaasync import BackendError, CompileError, Kernel, LaunchError, emulate
from tmaasync._source.cache_folder import cache_dir
from tmaasync._source.compile import Parameter, Source, toolkit_include_dirs
from tmaasync.emulate import build
from tmaasync.emulate.chips import SM_90A
from tmaasync.emulate.chips.macros import macros_of
from tmaasync.emulate.frontend.cpp.headers import headers_of, prefix_of
from tmaasync.emulate.toolchain import can_precompile, flags, reported_if_slow

EMPTY = 'extern "C" __global__ void empty() {}\n'


@pytest.fixture(scope="module")
def cache_with_runtime(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Copy the runtime from the cache of all tests, because it takes seconds to compile."""
    folder = tmp_path_factory.mktemp("cache")
    kept = build(source(EMPTY), "empty").path.parent
    for path in (*kept.glob("runtime-*"), *kept.glob("prefix-*")):
        _copy(path, folder / path.name)
    return folder


def _copy(path: str | Path, target: str | Path) -> None:
    """Link a precompiled header, which has 20 MB and is never edited in place."""
    if Path(path).suffix == ".gch":
        with contextlib.suppress(OSError):  # another file system
            os.link(path, target)
            return
    shutil.copy2(path, target)


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cache_with_runtime: Path) -> Path:
    monkeypatch.setenv("TMAASYNC_CACHE_DIR", str(tmp_path / "cache"))
    folder = cache_dir()
    shutil.copytree(cache_with_runtime, folder, copy_function=_copy, dirs_exist_ok=True)
    return folder


def source(text: str, *folders: Path, preamble: str = "", options: tuple[str, ...] = ()) -> Source:
    return Source(
        text=text, name="mine.cu", include_dirs=folders, preamble=preamble, options=options
    )


def libraries(folder: Path) -> dict[Path, tuple[int, int]]:
    """Return the libraries in a cache, each with inode and time: every build writes a new file."""
    found = {path: path.stat() for path in folder.glob("*.so")}
    return {path: (status.st_ino, status.st_mtime_ns) for path, status in found.items()}


def test_the_second_time_the_compiler_is_not_asked(own_cache: Path) -> None:
    first = build(source(EMPTY), "empty")
    before = libraries(own_cache)

    assert build(source(EMPTY), "empty").path == first.path
    assert libraries(own_cache) == before


@pytest.mark.skipif(not can_precompile(), reason="clang++ checks no precompiled headers")
def test_sources_share_what_is_precompiled(own_cache: Path) -> None:
    for path in own_cache.glob("prefix-*"):
        path.unlink()
    for value in range(2):
        build(source(f"constexpr int kValue = {value};\n{EMPTY}"), "empty")

    assert len([*own_cache.glob("prefix-*.gch")]) == 1


PRIMITIVES = "#include <tmaasync/tmaasync.cuh>\n"


@pytest.mark.skipif(not can_precompile(), reason="clang++ reads no prefix")
@pytest.mark.parametrize(
    ("text", "options", "has_primitives"),
    [
        (f"// A kernel.\n{PRIMITIVES}{EMPTY}", (), True),
        (f"/* {PRIMITIVES} */{EMPTY}", (), False),
        (f"#define TMAASYNC_DEBUG 1\n{PRIMITIVES}{EMPTY}", (), False),
        (f"{PRIMITIVES}{EMPTY}", ("-DTMAASYNC_DEBUG=1",), False),
    ],
)
def test_primitives_are_precompiled_where_nothing_could_change_them(
    text: str, options: tuple[str, ...], has_primitives: bool
) -> None:
    one = source(text, options=options)
    kernel_flags = (*flags(is_kernel=True), *macros_of(SM_90A))
    prefix = prefix_of(one, kernel_flags, tuple(headers_of(text, one)), precompiles=False)

    assert prefix is not None
    assert ("tmaasync.cuh" in prefix.text) == has_primitives


NO_HALF = "#include <cuda_fp16.h>\nstruct half {};\n"  # only CUDA_NO_HALF leaves that name free


def test_macros_change_cudas_headers(tmp_path: Path) -> None:
    build(source(f"#include <cuda_fp16.h>\n{EMPTY}"), "empty")
    build(source(f"#define CUDA_NO_HALF\n{NO_HALF}{EMPTY}"), "empty")
    build(source(f"{NO_HALF}{EMPTY}", options=("-DCUDA_NO_HALF",)), "empty")
    (tmp_path / "mine.cuh").write_text("#define CUDA_NO_HALF\n")
    build(source(f"#include <mine.cuh>\n{NO_HALF}{EMPTY}", tmp_path), "empty")
    with pytest.raises(CompileError):
        build(source(f"{NO_HALF}{EMPTY}"), "empty")


# The toolkit's header with these keywords, as a C++ compiler for the host reads it.
KEYWORDS = """
#ifndef __HOST_DEFINES_H__
#define __HOST_DEFINES_H__
#define __align__(n) __attribute__((aligned(n)))
#define __builtin_align__(n) __align__(n)
#define __cluster_dims__(...) __attribute__((cluster_dims(__VA_ARGS__)))
#define CUDARTAPI
#define __host__
#define __device__
#define __global__
#define __constant__
#define __device_builtin__
#define __device_builtin_texture_type__
#define __device_builtin_surface_type__
#define __cudart_builtin__
#endif
"""
BOUNDED = """
#include <cuda_fp16.h>
extern "C" __global__ void __launch_bounds__(64, 1) bounded(
    const __grid_constant__ int n, __half* out
) {
    if (int(threadIdx.x) < n) out[threadIdx.x] = __float2half(float(threadIdx.x));
}
"""


def run_bounded(toolkit: Path) -> None:
    """Compile and run a kernel with the CUDA headers of a folder, which its includes find first."""
    out = np.zeros(64, np.float16)
    Kernel(BOUNDED, "bounded", include_dirs=(toolkit,))(1, 64, (40, out))
    assert out.tolist() == [*range(40), *[0] * 24]


@pytest.mark.slow
def test_a_toolkits_keywords_next_to_its_headers_are_not_read(tmp_path: Path) -> None:
    # The headers name "crt/host_defines.h" in quotes, which finds the file next to them first.
    headers = next(folder for folder in toolkit_include_dirs() if (folder / "cuda_fp16.h").exists())
    for header in headers.glob("*.h*"):
        (tmp_path / header.name).symlink_to(header)
    (tmp_path / "crt").mkdir()
    (tmp_path / "crt" / "host_defines.h").write_text(KEYWORDS)

    run_bounded(tmp_path)


def test_an_edited_header_an_option_and_a_damaged_library_compile_anew(tmp_path: Path) -> None:
    header = tmp_path / "mine.cuh"
    header.write_text("constexpr int kMine = 1;\n")
    text = f"#include <mine.cuh>\n{EMPTY}"
    before = build(source(text, tmp_path), "empty").path
    whole = before.read_bytes()

    header.write_text("constexpr int kMine = 2;\n")

    assert build(source(text, tmp_path), "empty").path != before
    header.write_text("constexpr int kMine = 1;\n")
    assert build(source(text, tmp_path, options=("-DX=1",)), "empty").path != before
    before.unlink()
    before.write_bytes(whole[:-1])
    assert len(build(source(text, tmp_path), "empty").path.read_bytes()) == len(whole)


def test_parameters_and_shared_bytes_are_those_that_the_source_declares() -> None:
    text = (
        "struct S { int a[3]; };\n"
        'extern "C" __device__ const int k_shared_bytes = 4321;\n'
        'extern "C" __global__ void __launch_bounds__(128, 1)\n'
        "k(S s, const float f, double d, int i, long long l, void* p, char c) {}\n"
    )

    program = build(source(text), "k")

    assert program.shared_bytes == 4321
    assert program.parameters == (
        Parameter("struct", 12),
        Parameter("f", 4),
        Parameter("f", 8),
        Parameter("u", 4),
        Parameter("u", 8),
        Parameter("u", 8),
        Parameter("u", 1),
    )


def test_an_error_shows_the_users_line_and_what_is_not_defined() -> None:
    text = '\nextern "C" __global__ void k() { int x = MISSING; }\n'

    with pytest.raises(CompileError) as caught:
        build(source(text, preamble="constexpr int A = 1;\n"), "k")

    assert "mine.cu:2:" in str(caught.value)
    assert "int x = MISSING" in str(caught.value)
    assert "Not defined: MISSING. " in str(caught.value)
    assert "types={'Name': tile}" in str(caught.value)


def test_a_slow_build_is_reported_and_a_fast_one_is_not(caplog: pytest.LogCaptureFixture) -> None:
    with reported_if_slow("building", seconds=0.01):
        deadline = time.monotonic() + 30
        while not caplog.records and time.monotonic() < deadline:
            time.sleep(0.001)
    with reported_if_slow("too fast", seconds=30):
        pass

    assert caplog.messages == ["building"]


def test_without_a_compiler_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.setenv("PATH", "")

    with pytest.raises(BackendError, match=r"no C\+\+ compiler .*apt install g\+\+"):
        build(source(EMPTY), "empty")


@pytest.mark.parametrize("bounds", ["64", "2 * kWarp, 1", "larger(kWarp, 64)", "THREADS"])
def test_a_block_has_no_more_threads_than_the_launch_bounds(bounds: str) -> None:
    text = (
        "constexpr int kWarp = 32;\nconstexpr int larger(int a, int b) { return a > b ? a : b; }\n"
        f'extern "C" __global__ void __launch_bounds__({bounds}) k(int* x)\n'
        "{ x[32 * threadIdx.y + threadIdx.x] = 1; }"
    )
    kernel, out = Kernel(text, "k", constants={"THREADS": 64}), np.zeros(96, np.int32)

    kernel(1, (32, 2), (out,))
    with pytest.raises(
        LaunchError, match=r"block is \(96, 1, 1\), .* with __launch_bounds__\(64\)"
    ):
        kernel(1, 96, (out,))
    assert out.sum() == 64


@pytest.mark.slow
def test_of_several_processes_one_makes_a_file_and_the_others_wait(tmp_path: Path) -> None:
    code = (
        "import os, sys, time\n"
        "from pathlib import Path\n"
        "from tmaasync._source.cache_folder import made_once\n"
        "folder = Path(sys.argv[1])\n"
        "def make():\n"
        "    (folder / f'made by {os.getpid()}').touch()\n"
        "    time.sleep(0.2)\n"
        "    return b'whole'\n"
        "print(made_once(folder / 'file.o', make, {}).read_bytes().decode())\n"
    )
    command = [sys.executable, "-c", code, str(tmp_path)]
    running = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(3)]

    assert [one.communicate()[0] for one in running] == ["whole\n"] * 3
    assert len([*tmp_path.glob("made by *")]) == 1
    assert sorted(path.suffix for path in tmp_path.glob("file.*")) == [".json", ".o"]


def test_launches_with_race_checks_and_without_share_a_build(own_cache: Path) -> None:
    kernel = Kernel('\nextern "C" __global__ void nothing(int*) {}\n', "nothing")
    compiled: list[int] = []
    for races in (True, False, True):
        before = libraries(own_cache)
        with emulate.scheduled(races=races):
            kernel(1, 1, (np.zeros(1, np.int32),))
        compiled.append(len(dict(libraries(own_cache).items() - before.items())))

    assert compiled == [1, 0, 0]
