"""Every name of tilelang's pages has a row, and every row names what exists."""

from __future__ import annotations

import re

import pytest
from mapping_tables import Row, check_names, check_test, rows

ROWS = rows("from_tilelang.md")

# tilelang.contrib.cutedsl.cpasync, tilelang.language.builtin, tilelang.language.copy_op
PAGES = re.findall(
    r"\w+",
    """
cp_async_gs cp_async_gs_conditional extract_tensormap_ptr tma_load tma_store tma_reduce
tma_store_arrive tma_store_wait cp_async_shared_global prefetch_tma_descriptor mbarrier_wait
mbarrier_cp_async_arrive fence_proxy_async fence_barrier_init

access_ptr create_tma_descriptor set_max_nreg inc_max_nreg dec_max_nreg
annotate_producer_reg_dealloc annotate_consumer_reg_alloc no_set_max_nreg
disable_warp_group_reg_alloc ptx_arrive_cluster_barrier mbarrier_wait_parity mbarrier_arrive
mbarrier_expect_tx warpgroup_arrive warpgroup_commit_batch warpgroup_wait get_lane_idx
get_warp_idx_sync get_warp_idx get_warp_group_idx shuffle_elect wait_wgmma barrier_wait
barrier_arrive shfl_xor shfl_down shfl_up sync_threads sync_warp shfl_sync sync_global
sync_grid initialize_tcgen05_descriptor loop_break cp_async_barrier_noinc tcgen05_mma_arrive ptx_mma_sm70 ldg32 ldg64 ldg128 ldg256 stg32
stg64 stg128 stg256

copy async_copy tma_copy c2d_im2col coalesced_width disable_tma eviction_policy loop_layout
""",
)


def test_every_name_of_the_pages_has_a_row() -> None:
    told = {name for row in ROWS for name in row.names}

    assert set(PAGES) - told == set()


@pytest.mark.parametrize("row", ROWS, ids=str)
def test_a_row_names_what_exists(row: Row) -> None:
    check_names(row)


@pytest.mark.parametrize("row", [row for row in ROWS if row.is_offered], ids=str)
def test_a_row_names_a_test_that_exists(row: Row) -> None:
    check_test(row)


@pytest.mark.parametrize("row", [row for row in ROWS if not row.is_offered], ids=str)
def test_what_is_not_offered_is_in_cuda_or_cannot_be_on_hopper(row: Row) -> None:
    reasons = ("CUDA C++:", "needs sm_100", "not Hopper")

    assert any(reason in row.difference for reason in reasons)
    assert row.test == ""
