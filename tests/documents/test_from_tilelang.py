"""Every name of tilelang's four pages has a row, and every row names what exists."""

from __future__ import annotations

import pytest
from mapping_tables import Row, check_names, check_test, rows

ROWS = rows("from_tilelang.md")

PAGES = {
    "tilelang.contrib.cutedsl.cpasync": """
cp_async_gs cp_async_gs_conditional extract_tensormap_ptr tma_load tma_store tma_reduce
tma_store_arrive tma_store_wait cp_async_shared_global prefetch_tma_descriptor mbarrier_wait
mbarrier_cp_async_arrive fence_proxy_async fence_barrier_init
""",
    "tilelang.language.builtin": """
access_ptr create_tma_descriptor tma_load fence_proxy_async tma_store_arrive tma_store_wait
set_max_nreg inc_max_nreg dec_max_nreg annotate_producer_reg_dealloc annotate_consumer_reg_alloc
no_set_max_nreg disable_warp_group_reg_alloc ptx_arrive_cluster_barrier mbarrier_wait_parity
mbarrier_arrive mbarrier_expect_tx warpgroup_arrive warpgroup_commit_batch warpgroup_wait
get_lane_idx get_warp_idx_sync get_warp_idx get_warp_group_idx shuffle_elect warpgroup_fence_operand
wait_wgmma barrier_wait barrier_arrive shfl_xor shfl_down shfl_up sync_threads sync_warp shfl_sync
sync_global sync_grid initialize_wgmma_descriptor initialize_tcgen05_descriptor
increase_descriptor_offset loop_break cp_async_barrier_noinc tcgen05_mma_arrive ptx_mma_sm70 ldg32
ldg64 ldg128 ldg256 stg32 stg64 stg128 stg256
""",
    "tilelang.language.copy_op": """
copy coalesced_width disable_tma eviction_policy annotations loop_layout async_copy tma_copy
c2d_im2col
""",
    "tilelang.cuda.intrinsics.macro.wgmma_macro_generator": """
lift WGMMADescriptorParams swizzle_mode leading_byte_offset stride_byte_offset swizzle_atom_elems
k_atom_size elems_in_bytes SwizzleMode swizzle_byte_size swizzle_atom_size TensorCoreIntrinEmitter
wgmma_prefix wgmma_inst_m wgmma_inst_n wgmma wgmma_rs wgmma_num_inst_m wgmma_num_inst_n
wgmma_num_k_atoms wgmma_a_regs wgmma_accum_regs compute_wgmma_b_desc_params
compute_wgmma_a_desc_params init_wgmma_b_desc init_wgmma_a_desc wgmma_fence_a wgmma_fence_c
wgmma_arrive wgmma_commit wgmma_wait wgmma_rs_atom wgmma_ss_atom make_mma_load_layout
make_mma_store_layout
""",
}


@pytest.mark.parametrize("page", PAGES)
def test_every_name_of_a_page_has_a_row(page: str) -> None:
    listed = {name for row in ROWS for name in row.names}

    assert set(PAGES[page].split()) - listed == set()


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
