"""Misuses of tensor memory's allocation, lanes and columns are reported with a remedy."""

from __future__ import annotations

import logging

import numpy as np
import pytest
from emulate.tcgen05.programs import kernel_with
from planted import FAULT, RACE, Defect, Edit, after, before, defects, without
from planted_choices import choices
from planted_runs import check_reported, in_orders

SOURCE = """
#include <tmaasync/ptx/tcgen05_alloc.cuh>
#include <tmaasync/ptx/tcgen05_ld_st.cuh>
#include <tmaasync/ptx/tcgen05_order.cuh>
using namespace tmaasync;
using namespace tmaasync::ptx;

extern "C" __global__ void pass_on(const u32* in, u32* out) {
    __shared__ u32 base;
    const u32 warp = threadIdx.x / 32, place = static_cast<u32>(__cvta_generic_to_shared(&base));
    u32 columns = 32, lane = warp * 32;
    if (warp == 0) {
        tcgen05_alloc(place, columns);
        tcgen05_relinquish_alloc_permit();
    }
    __syncthreads();
    u32 address = base;
    u32 held[4];
    for (int i = 0; i < 4; ++i) held[i] = in[threadIdx.x * 4 + i];
    tcgen05_st<Tcgen05Shape::k32x32b>(address + (lane << 16), held);
    tcgen05_wait_st();
    u32 loaded[4];
    tcgen05_ld<Tcgen05Shape::k32x32b>(loaded, address + (lane << 16));
    tcgen05_wait_ld();
    for (int i = 0; i < 4; ++i) out[threadIdx.x * 4 + i] = loaded[i];
    __syncthreads();
    if (warp == 0) {
        tcgen05_dealloc(address, columns);
    }
}
"""
ALLOC = "tcgen05_alloc(place, columns);"
STORE = "tcgen05_st<Tcgen05Shape::k32x32b>(address + (lane << 16), held);"
LOAD = "tcgen05_ld<Tcgen05Shape::k32x32b>(loaded, address + (lane << 16));"
DEALLOC = "tcgen05_dealloc(address, columns);"
DEFECTS = defects(
    "pass_on",
    ("columns are used without an allocation", without(ALLOC), FAULT,
     "nothing has written|not allocated"),
    ("the address is guessed", (Edit(ALLOC, ""), Edit("address = base;", "address = 0;")), FAULT,
     r"tcgen05\.st uses columns 0 to 3.*not allocated.*unallocated_columns_access"),
    ("columns beyond the allocation",
     Edit("u32 address = base;", "u32 address = base + 30;"), FAULT,
     r"tcgen05\.st uses columns 30 to 33 .*column 32 is not allocated; 32 columns from column 0"),
    ("columns beyond the last", Edit("u32 address = base;", "u32 address = base + 510;"), FAULT,
     r"columns 510 to 513 .*access_out_of_physical_bounds"),
    ("no deallocation", without(DEALLOC), FAULT,
     r"ends while 32 columns of tensor memory, from column 0 on.*tcgen05\.dealloc"),
    ("fewer columns are deallocated", Edit(DEALLOC, "tcgen05_dealloc(address, 16);"), FAULT,
     "dealloc of 16 columns from column 0 on, an allocation of 32"),
    ("the shared address is deallocated", Edit(DEALLOC, "tcgen05_dealloc(place, columns);"), FAULT,
     "(?s)did not return.*not its address.*col_being_dealloced_not_returned_by_alloc"),
    ("a deallocation twice", after(DEALLOC, "tcgen05_dealloc(address, columns);"), FAULT,
     "did not return"),
    ("no power of two", before(ALLOC, "columns = 48;"), FAULT,
     "alloc of 48 columns.*Ask for 64.*allocation_granularity_invalid"),
    ("an allocation after relinquishing",
     after("tcgen05_relinquish_alloc_permit();", "tcgen05_alloc(place, columns);"), FAULT,
     "gave up its right.*phase_invalid_during_alloc"),
    ("a second allocation that never fits",
     before(ALLOC, "columns = 256; tcgen05_alloc(place, 512);"), FAULT,
     r"waits for ever in tcgen05\.alloc: 0 of 512 columns"),
    ("one lane allocates", Edit(ALLOC, "if (threadIdx.x == 0) tcgen05_alloc(place, columns);"),
     FAULT, r"lanes of one warp are at .*tcgen05\.alloc .*all lanes .* execute the same one"),
    ("one lane loads", Edit(LOAD, "if (threadIdx.x % 32 == 0) @@"), FAULT,
     r"lanes of one warp are at .*all lanes .* execute the same one"),
    ("lanes of another warp",
     Edit(LOAD, "lane = (warp + 1) % 4 * 32; @@"), FAULT,
     r"(?s)tcgen05\.ld by warp \d names lane.*reaches lanes.*current_warp_owner_invalid"),
    ("a lane in the middle", Edit(LOAD, "lane += 8; @@"), FAULT,
     r"begins at lane \d+ .*multiple of 32.*invalid_datapath_alignment"),
    ("lanes give other addresses", Edit(LOAD, "lane += threadIdx.x % 2 << 4; @@"), FAULT,
     r"give tcgen05\.ld different operands: lane 1"),
    ("nothing is stored", without(STORE), FAULT,
     r"tcgen05\.ld reads words of lane \d+ from column 0 .*nothing has written.*tcgen05\.st"),
    ("no wait for the store", without("tcgen05_wait_st();"), RACE,
     r"(?s)lane \d+, column 0 of tensor memory.*tcgen05\.st.*tcgen05\.ld.*tcgen05\.wait::st"),
    ("no barrier after the allocation", without("__syncthreads();", nth=1), FAULT + RACE,
     r"race on base|nothing has written"),
    ("no barrier before the deallocation", without("__syncthreads();", nth=2), RACE + FAULT,
     r"(?s)tcgen05\.dealloc.*synchronise with the (one|warp) that deallocates|not allocated"),
)  # fmt: skip
TEXTS = choices(SOURCE, DEFECTS)


def run(defect: Defect | None) -> None:
    words = np.arange(512, dtype=np.uint32)
    out = np.zeros_like(words)
    kernel_with(TEXTS, defect, "pass_on")(1, 128, (words, out))
    np.testing.assert_array_equal(out, words)


@pytest.mark.parametrize("defect", DEFECTS, ids=lambda one: one.name)
def test_a_misuse_is_reported_with_a_remedy(defect: Defect) -> None:
    check_reported(defect, lambda: run(defect))


def test_the_correct_form_is_silent(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "tmaasync"):
        in_orders(50, lambda: run(None))
    assert not [one for one in caplog.messages if "[rule:" in one]


LANE_0 = Defect("pass_on", "lane 0 in all warps", (Edit("lane = warp * 32;", "lane = 0;"),))


def test_lane_0_in_all_warps_works_as_on_the_chip_and_is_noted_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with caplog.at_level(logging.WARNING, "tmaasync"):
        in_orders(2, lambda: run(LANE_0))

    (note,) = [one for one in caplog.messages if "[rule:" in one]
    assert "names lanes other than its warp's" in note
    assert note.endswith("[rule: tensor-memory-lanes]")
