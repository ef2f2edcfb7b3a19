"""A note of each report quotes the lines of the source that it names."""

from __future__ import annotations

import pickle
import re
import traceback
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tmaasync import Kernel, TMAError, create_tma_tile
from tmaasync.emulate import scheduled

SOURCE = """
#include <tmaasync/tmaasync.cuh>
using namespace tmaasync;
extern "C" __global__ void quoted(const __grid_constant__ Tile tile, float* out, int how) {
    __shared__ Tile::Shared data;
    __shared__ SharedMemBarrier full;
    if (threadIdx.x == 0) {
        full.init(1);
        fence_barrier_init();
    }
    __syncthreads();
    switch (how) {
    case 0: full.wait(0); break;
    case 1: out[threadIdx.x + 1000] = 1; break;
    case 2: NamedBarrier<64>{1}.sync(); break;
    case 3:
        data.data()[threadIdx.x] = 2;
        __syncthreads();
        if (threadIdx.x == 0) tile.async_store(data, {0, 0});
        commit_group();
        wait_group<0>();
        break;
    case 4:
        while (out[0] < 1) out[1] += 1;
        break;
    case 5: if (threadIdx.x == 0) {    tile.async_copy(data, full, {0, 0}); } break;
    }
}
"""
# By kind of report: the lines that it names.
REPORTS = {
    0: ["case 0: full.wait(0); break;"],
    1: ["case 1: out[threadIdx.x + 1000] = 1; break;"],
    2: ["case 2: NamedBarrier<64>{1}.sync(); break;"],
    3: ["data.data()[threadIdx.x] = 2;", "if (threadIdx.x == 0) tile.async_store(data, {0, 0});"],
    4: ["__syncthreads();", "while (out[0] < 1) out[1] += 1;"],
    5: ["case 5: if (threadIdx.x == 0) {    tile.async_copy(data, full, {0, 0}); } break;"],
}


def reported(how: int, **given: Any) -> TMAError:
    tile = create_tma_tile(np.zeros((4, 8), np.float32), (4, 8))
    kernel = Kernel(given.pop("text", SOURCE), "quoted", types={"Tile": tile}, **given)
    arguments = (tile, np.zeros(64, np.float32), how)
    with scheduled(races=how != 4, budget_seconds=0.2), pytest.raises(TMAError) as caught:
        kernel(1, 32, arguments)
    return caught.value


@pytest.mark.parametrize("how", REPORTS)
def test_the_traceback_quotes_every_line_that_the_report_names(how: int) -> None:
    error = reported(how)

    numbered = [f"  kernel.cu:{number_of(line)}: {' '.join(line.split())}" for line in REPORTS[how]]
    assert "".join(traceback.format_exception_only(error)) == (
        f"tmaasync.errors.{type(error).__name__}: {error}\n" + "\n".join(numbered) + "\n"
    )
    assert re.findall(r"kernel\.cu:(\d+)", str(error)) == [
        str(number_of(line)) for line in REPORTS[how]
    ]


def number_of(line: str) -> int:
    return SOURCE[: SOURCE.index(line)].count("\n") + 1


@pytest.mark.parametrize("how", [0, 1, 3, 4])
def test_another_process_gets_the_quotes(how: int) -> None:
    error = reported(how)

    returned = pickle.loads(pickle.dumps(error))

    assert (str(returned), returned.__notes__) == (str(error), error.__notes__)


def test_the_users_line_is_quoted_and_then_his_header_s(tmp_path: Path) -> None:
    (tmp_path / "put.hpp").write_text(
        "#pragma once\n__device__ inline void put(float* out, int at) {\n    out[at] = 1;\n}\n"
    )
    text = '#include "put.hpp"\n' + SOURCE.replace(
        "out[threadIdx.x + 1000] = 1;", "put(out, 1000);"
    )

    error = reported(1, text=text, include_dirs=[tmp_path])

    (quoted,) = error.__notes__
    assert re.fullmatch(
        r"  kernel\.cu:\d+: case 1: put\(out, 1000\); break;\n  put\.hpp:3: out\[at\] = 1;", quoted
    )
    assert "(in put.hpp:3)" in str(error)


STORE = """.version 8.0
.target sm_90a
.address_size 64
.visible .entry store(.param .u64 out) {
    .reg .u64 %rd<3>;
    LOC
    ld.param.u64 %rd1, [out];
    cvta.to.global.u64 %rd2, %rd1;
    st.global.u32 [%rd2+64], 1;
    ret;
}
FILE
"""


def quoted_of_module(loc: str, file: str) -> tuple[str, str]:
    """Return the report of a store outside the array, and its note."""
    kernel = Kernel(STORE.replace("LOC", loc).replace("FILE", file), "store")
    with pytest.raises(TMAError) as caught:
        kernel(1, 1, (np.zeros(4, np.int32),))
    return str(caught.value), "".join(getattr(caught.value, "__notes__", []))


def test_a_module_s_report_quotes_the_source_of_its_lines(tmp_path: Path) -> None:
    source = tmp_path / "store.py"
    source.write_text("first\n    out[16] = 1\n")

    report, quoted = quoted_of_module(".loc 1 2 0", f'.file 1 "{source}"')

    assert "store.py:2" in report
    assert quoted == "  store.py:2: out[16] = 1"


def test_a_module_without_lines_quotes_its_own() -> None:
    report, quoted = quoted_of_module("", "")

    assert "kernel.ptx:9" in report
    assert quoted == "  kernel.ptx:9: st.global.u32 [%rd2+64], 1;"
