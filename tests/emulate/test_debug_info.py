"""The compiler's debug information names shared memory and source lines."""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tmaasync import EmulatedFault, Kernel, create_tma_tile
from tmaasync._source.paths import include_dir, kernels_dir
from tmaasync.emulate import EmulatedLaunch, scheduled, toolchain
from tmaasync.emulate.report.debug_info import DebugInfo, Frame, debug_info, source_frame
from tmaasync.emulate.report.debug_info.library import calls_of_arm

ELFFile = pytest.importorskip("elftools.elf.elffile").ELFFile

SOURCE = """
#include <tmaasync/tmaasync.cuh>
using namespace tmaasync;

namespace inner {

struct Counters { u32 arrivals; alignas(16) u32 bytes[2]; };

template <typename Tile, int kStages>
struct Rings {
    typedef SharedMemBarrier Pair[2];
    struct Stage { typename Tile::Shared a; Pair ready; };

    struct SharedMemory : Counters {
        Stage stages[kStages];
        struct { SharedMemBarrier done; char padding[8]; };
        const Pair grid[2][3];
        union { SharedMemBarrier last; unsigned char raw[64]; };
        static constexpr int kConstant = 3;
        u32 low : 4, high : 28;
    };
};

}  // namespace inner

using SharedMemory = inner::Rings<Tile, 2>::SharedMemory;
extern "C" __device__ const int pass_shared_bytes = sizeof(SharedMemory);

#define PLACE(NAME, MEMBER) \\
    extern "C" __device__ const unsigned NAME = __builtin_offsetof(SharedMemory, MEMBER);
PLACE(at_arrivals, arrivals)
PLACE(at_bytes, bytes[1])
PLACE(at_tile, stages[1].a)
PLACE(at_ready, stages[1].ready[1])
PLACE(at_done, done)
PLACE(at_grid, grid[1][2][1])
PLACE(at_last, last)

__device__ __forceinline__ void open(SharedMemBarrier& barrier, unsigned count) {
    barrier.init(count);
}

__device__ __forceinline__ void open_both(SharedMemory& shared, unsigned count) {
    open(shared.done, count);
    open(shared.last, count + 1);
}

extern "C" __global__ void pass(const __grid_constant__ Tile tile, unsigned count) {
    __shared__ SharedMemBarrier fixed[3];
    auto& small = dynamic_shared<SharedMemBarrier>();
    auto& shared = dynamic_shared<SharedMemory>();
    const auto late = [&](unsigned more) { open(shared.stages[1].ready[1], more); };
    open_both(shared, count);
    open(fixed[2], count);
    late(count);
    open(small, count);
}
"""
NAMES = {
    "at_arrivals": "arrivals",
    "at_bytes": "bytes[1]",
    "at_tile": "stages[1].a",
    "at_ready": "stages[1].ready[1]",
    "at_done": "done",
    "at_grid": "grid[1][2][1]",
    "at_last": "last",
}
SOURCE_NAME = "kernel.cu"
BARRIER_BYTES = 8

# --- libraries ----------------------------------------------------------------------------------


@contextmanager
def compiled_with(*options: str) -> Iterator[None]:
    flags = toolchain.flags
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            toolchain,
            "flags",
            lambda *, is_kernel, **kept: (
                *flags(is_kernel=is_kernel, **kept),
                *(options if is_kernel else ()),
            ),
        )
        yield


def own_kernel() -> EmulatedLaunch:
    tile = create_tma_tile(np.ones((32, 32), np.float32), (32, 32))
    launch = Kernel(SOURCE, "pass", types={"Tile": tile}).prepare(1, 1, (tile, 1))
    assert isinstance(launch, EmulatedLaunch)
    return launch


@pytest.fixture(scope="module", params=[("-O0", "-gdwarf-5"), ("-O2", "-gdwarf-4")], ids=" ".join)
def own(request: pytest.FixtureRequest) -> EmulatedLaunch:
    with compiled_with("-g", *request.param):
        return own_kernel()


def information(launch: EmulatedLaunch) -> DebugInfo:
    return debug_info(launch._program.path)


def symbol(path: Path, name: str) -> Any:
    """Return a symbol's entry in the linker's table."""
    with path.open("rb") as stream:
        table: Any = ELFFile(stream).get_section_by_name(".symtab")
        return next(entry for entry in table.iter_symbols() if entry.name == name).entry


def instructions(path: Path, name: str) -> range:
    place = symbol(path, name)
    return range(place["st_value"], place["st_value"] + place["st_size"])


# --- shared memory ------------------------------------------------------------------------------


@pytest.mark.sampled(1)
def test_a_member_is_named_as_the_source_reaches_it(own: EmulatedLaunch) -> None:
    for place, name in NAMES.items():
        offset = ctypes.c_uint.in_dll(own._program.library, place).value
        assert information(own).shared_name(offset) == name


def test_a_static_barrier_is_named_by_where_its_thread_local_lies(own: EmulatedLaunch) -> None:
    start = symbol(own._program.path, "_ZZ4passE5fixed")["st_value"]

    assert information(own).static_shared_name(start + 2 * BARRIER_BYTES) == "fixed[2]"
    assert information(own).static_shared_name(1 << 40) is None


# --- lines --------------------------------------------------------------------------------------


def test_inlined_calls_are_reported_with_the_lines_that_call(own: EmulatedLaunch) -> None:
    found = information(own)
    lines = SOURCE.splitlines()
    callers = {
        (frame.function, lines[frame.line - 1].strip())
        for address in every_instruction(own._program.path)
        for frame in found.frames(address)
        if frame.file == SOURCE_NAME
    }

    assert ("open", "barrier.init(count);") in callers
    assert ("open_both", "open(shared.last, count + 1);") in callers
    assert ("pass", "open_both(shared, count);") in callers
    assert any(name == "operator()" and "late = [&]" in line for name, line in callers)


CALLED = """
__device__ __noinline__ void once(int* x) { x[0] = 1; }
__device__ __noinline__ void twice(int* x) { x[1] = 2; }
extern "C" __global__ void call(int* x) {
    once(x);
    twice(x);
    twice(x + 2);
}
"""


def test_calls_that_are_not_inlined_are_found_in_the_code() -> None:
    launch = Kernel(CALLED, "call").prepare(1, 1, (np.ones(4, np.int32),))
    assert isinstance(launch, EmulatedLaunch)
    found, path = information(launch), launch._program.path

    def lines(function: str) -> list[int]:
        last = instructions(path, function)[-1]
        return sorted(found.frames(call)[0].line for call in found.callers(last))

    assert lines("_Z4oncePi") == [5]
    assert lines("_Z5twicePi") == [6, 7]


def every_instruction(path: Path) -> Iterator[int]:
    with path.open("rb") as stream:
        text: Any = ELFFile(stream).get_section_by_name(".text")
        yield from range(text["sh_addr"], text["sh_addr"] + text["sh_size"], 4)


# --- the frame to tell --------------------------------------------------------------------------

HEADER = Frame("wait", f"{include_dir()}/tmaasync/barrier.cuh", 40)
THEIRS = Frame("take", "/home/me/rings.cuh", 7)
OWN = Frame("pass", SOURCE_NAME, 20)


def test_the_innermost_frame_in_the_kernels_own_source_is_reported() -> None:
    outer = Frame("pass", SOURCE_NAME, 30)

    assert source_frame((HEADER, THEIRS, OWN, outer), SOURCE_NAME) == OWN


def test_a_header_next_to_the_shipped_kernels_is_a_piece_of_their_source() -> None:
    piece = Frame("multiply", f"{kernels_dir()}/gemm/consumer.cuh", 9)

    found = source_frame((HEADER, piece, OWN), SOURCE_NAME)

    assert found == Frame("multiply", "consumer.cuh", 9)


def test_without_one_it_is_the_innermost_outside_the_librarys_headers() -> None:
    assert source_frame((HEADER, THEIRS), SOURCE_NAME) == THEIRS
    assert source_frame((HEADER,), SOURCE_NAME) is None
    assert source_frame((), SOURCE_NAME) is None


LIBRARY = """
namespace util {
HOW void put(float* out, int at) {
    out[2 * at] = 1;
}
}
"""
CALLS = """
#include <util.hpp>
extern "C" __global__ void calls(float* out) {
    util::put(out, threadIdx.x);
    MORE
}
"""
AGAIN = "util::put(out, threadIdx.x);"


@pytest.mark.parametrize(
    ("how", "more", "lines"),
    [
        ("__device__ __noinline__ inline", AGAIN, "kernel.cu:4 or kernel.cu:5"),
        ("__device__ __noinline__ inline", 4 * AGAIN, ""),
        ("__device__ __forceinline__", "", ""),
    ],
    ids=["two calls", "many calls", "inlined"],
)
def test_the_users_line_comes_before_the_line_of_a_library(
    tmp_path: Path, how: str, more: str, lines: str
) -> None:
    (tmp_path / "util.hpp").write_text(LIBRARY.replace("HOW", how))
    text = CALLS.replace("MORE", more.replace("; ", ";\n"))
    kernel = Kernel(text.replace(";util", ";\nutil"), "calls", include_dirs=[tmp_path])

    with scheduled(races=False), pytest.raises(EmulatedFault) as caught:
        kernel(1, 64, (np.zeros(64, np.float32),))

    if "__forceinline__" in how:
        assert caught.value.source == "kernel.cu:4 (in util.hpp:4)"
    elif lines:
        assert caught.value.source == f"{lines} (in util.hpp:4)"
    else:
        assert caught.value.source == f"{tmp_path}/util.hpp:4"


# --- nothing to read ----------------------------------------------------------------------------


def knows_nothing(path: Path) -> bool:
    found = DebugInfo(path)
    facts = (found.frames(0x6000), found.shared_name(0), found.static_shared_name(0))
    return facts == ((), None, None)


def test_a_file_that_is_absent_or_no_library_yields_nothing(tmp_path: Path) -> None:
    (tmp_path / "text.so").write_text("not a library")

    assert knows_nothing(tmp_path / "absent.so")
    assert knows_nothing(tmp_path / "text.so")
    assert knows_nothing(tmp_path)


def test_a_damaged_library_yields_nothing(own: EmulatedLaunch, tmp_path: Path) -> None:
    whole = own._program.path.read_bytes()
    cut, blank = tmp_path / "cut.so", tmp_path / "blank.so"
    cut.write_bytes(whole[: len(whole) // 2])
    with own._program.path.open("rb") as stream:
        section: Any = ELFFile(stream).get_section_by_name(".debug_info")
        start, size = section["sh_offset"], section["sh_size"]
    blank.write_bytes(whole[:start] + bytes([0xFF]) * size + whole[start + size :])

    assert knows_nothing(cut)
    assert knows_nothing(blank)


def test_without_pyelftools_nothing_is_known(
    own: EmulatedLaunch, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in [name for name in sys.modules if name.partition(".")[0] == "elftools"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "elftools", None)

    assert knows_nothing(own._program.path)


def test_calls_of_arm_lead_forwards_and_backwards() -> None:
    forwards, backwards, none = 0x94000002, 0x97FFFFFF, 0x14000002
    code = b"".join(word.to_bytes(4, "little") for word in (forwards, backwards, none))

    assert list(calls_of_arm(code)) == [(3, 8), (7, 0)]
