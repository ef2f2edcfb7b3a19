"""mbarriers, cp.async, bulk and tensor copies and reductions, and edits of tensor maps."""

from __future__ import annotations

from tmaasync.emulate.frontend.ptx.row import Row

__all__ = ["ROWS"]

_RUN = "::tmaasync_emulate"
_NO_COMPLETE = f"{_RUN}::mbarrier_check_no_complete(a, b)"
_ORDER = "{.<order:release|relaxed>}{.(cta|cluster)}$SHARED"
_WAIT = "{.<order:acquire|relaxed>}{.(cta|cluster)}$SHARED"
_INTO = "cp.async.bulk.shared::(cluster|cta).global.mbarrier::complete_tx::bytes"
_CP_ASYNC = "cp.async.(ca|cg).shared{::cta}.global{.L2::cache_hint}{.L2::(64B|128B|256B)}"
_TENSOR = "cp.async.bulk.tensor.<n:1|2|3|4|5>d.shared::(cluster|cta).global"
_LANDED = ".mbarrier::complete_tx::bytes"
_MULTICAST = ".multicast::cluster"
_PAIR = "{.cta_group::<group:1|2>}"
_BOX = "box_of(map, At<<n>>{{map_at}})"
_ROWS = "box_of_rows(map, At<5>{{map_at}})"
_COLUMN = "box_with_offsets(map, At<<n>>{{map_at}, {o}}, <columns>)"
_IM2COL = ".im2col<columns:::w|::w::128>?"
_GATHERED = (
    "cp.async.bulk.tensor.2d.shared::(cluster|cta).global.tile::gather4"
    ".mbarrier::complete_tx::bytes"
)
_REDUCED = "u32|s32|u64|s64|f16|bf16|f32|f64|b32|b64"
_OPS = "add|min|max|inc|dec|and|or|xor"
_MAP = "tensormap.replace.tile"
_MAP_SPACE = "(.global|<space:.shared::cta>)?.b1024"


def _map_rows() -> tuple[Row, ...]:
    """Return the rows of tensormap.replace, for a map in global or shared memory."""
    rows = []
    for name, field, kind, bits in (
        ("global_address", "kGlobalAddress", "b64", 64),
        ("rank", "kRank", "b32", 32),
        ("elemtype", "kElementType", "imm", 32),
        ("interleave_layout", "kInterleave", "imm", 32),
        ("swizzle_mode", "kSwizzle", "imm", 32),
        ("swizzle_atomicity", "kSwizzleAtom", "imm", 32),
        ("fill_mode", "kFill", "imm", 32),
    ):
        code = f"{_RUN}::replace_in_map(a, {_RUN}::MapField::{field}, 0, v)"
        rows.append(Row(f"{_MAP}.{name}{_MAP_SPACE}.b{bits}", f"[a : map], v : {kind}", code))
    for name, field, bits in (
        ("global_dim", "kGlobalDim", 32),
        ("global_stride", "kGlobalStride", 64),
        ("box_dim", "kBoxDim", 32),
        ("element_stride", "kElementStride", 32),
    ):
        code = f"{_RUN}::replace_in_map(a, {_RUN}::MapField::{field}, n, v)"
        operands = f"[a : map], n : imm, v : b{bits}"
        rows.append(Row(f"{_MAP}.{name}{_MAP_SPACE}.b{bits}", operands, code))
    return tuple(rows)


ROWS = (
    # --- mbarriers ---
    Row("mbarrier.init$SHARED.b64", "[a : s], b : u32", f"{_RUN}::mbarrier_init(a, b)"),
    Row("mbarrier.inval$SHARED.b64", "[a : s]", f"{_RUN}::mbarrier_inval(a)"),
    Row(
        f"mbarrier.arrive{_ORDER}.b64",
        "d = b64, [a : s], ?b : u32 ~ 1",
        f"{_RUN}::mbarrier_arrive(a, b, 0, arrival(<order>))",
    ),
    Row(
        f"mbarrier.arrive.noComplete{_ORDER}.b64",
        "d = b64, [a : s], b : u32",
        f"({_NO_COMPLETE}, {_RUN}::mbarrier_arrive(a, b, 0, arrival(<order>)))",
    ),
    Row(
        f"mbarrier.arrive.expect_tx{_ORDER}.b64",
        "d = b64, [a : s], b : u32",
        f"{_RUN}::mbarrier_arrive(a, 1, b, arrival(<order>))",
    ),
    Row(
        f"mbarrier.arrive_drop{_ORDER}.b64",
        "d = b64, [a : s], ?b : u32 ~ 1",
        f"{_RUN}::mbarrier_arrive_drop(a, b, arrival(<order>))",
    ),
    Row(
        f"mbarrier.arrive_drop.noComplete{_ORDER}.b64",
        "d = b64, [a : s], b : u32",
        f"({_NO_COMPLETE}, {_RUN}::mbarrier_arrive_drop(a, b, arrival(<order>)))",
    ),
    Row(
        f"mbarrier.arrive_drop.expect_tx{_ORDER}.b64",
        "d = b64, [a : s], b : u32",
        f"({_RUN}::mbarrier_expect_tx(a, b), {_RUN}::mbarrier_arrive_drop(a, 1, arrival(<order>)))",
    ),
    Row(
        "mbarrier.expect_tx{.relaxed}{.(cta|cluster)}$SHARED.b64",
        "[a : s], b : u32",
        f"{_RUN}::mbarrier_expect_tx(a, b)",
    ),
    Row(
        "mbarrier.complete_tx{.relaxed}{.(cta|cluster)}$SHARED.b64",
        "[a : s], b : u32",
        f"{_RUN}::mbarrier_complete_tx(a, b)",
    ),
    Row(
        f"mbarrier.try_wait.parity{_WAIT}.b64",
        "d = pred, [a : s], b : u32, ?h : u32",
        f"{_RUN}::mbarrier_try_wait(a, b, arrival(<order>))",
    ),
    Row(
        f"mbarrier.test_wait.parity{_WAIT}.b64",
        "d = pred, [a : s], b : u32",
        f"{_RUN}::mbarrier_test_wait(a, b, arrival(<order>))",
    ),
    Row(
        f"mbarrier.(try|test)_wait{_WAIT}.b64",
        "d = pred, [a : s], b : b64, ?h : u32",
        f"{_RUN}::mbarrier_test_state(a, b)",
    ),
    # --- cp.async ---
    Row(
        _CP_ASYNC,
        "[a : s], [b : m], n : imm, ?c : u32 ~ n, ?policy : u64",
        f"{_RUN}::thread_copy(a, b, n, c)",
    ),
    Row(
        _CP_ASYNC,
        "[a : s], [b : m], n : imm, is_ignored : pred, ?policy : u64",
        f"{_RUN}::thread_copy(a, b, n, is_ignored ? 0 : n)",
    ),
    Row(
        _CP_ASYNC,
        "[a : s], [b : m], n : imm, policy : u64",
        f"{_RUN}::thread_copy(a, b, n, n)",
    ),
    Row("cp.async.commit_group", "", f"{_RUN}::thread_copies_commit()"),
    Row("cp.async.wait_group", "n : imm", f"{_RUN}::thread_copies_wait(n)"),
    Row(
        "cp.async.wait_all",
        "",
        f"({_RUN}::thread_copies_commit(), {_RUN}::thread_copies_wait(0))",
    ),
    Row(
        "cp.async.mbarrier.arrive<is_noinc:.noinc>?.shared{::cta}.b64",
        "[a : s]",
        f"{_RUN}::thread_copies_arrive(a, !<is_noinc>)",
    ),
    Row(
        "cp.async.mbarrier.arrive<is_noinc:.noinc>?.b64",
        "[a : s]",
        f"{_RUN}::thread_copies_arrive(a, !<is_noinc>)",
    ),
    # --- bulk copies ---
    Row(
        f"{_INTO}$HINT",
        "[a : s], [b : m], n : u32, [c : s], ?policy : u64",
        f"{_RUN}::bulk_load(a, b, n, c)",
    ),
    Row(
        f"{_INTO}{_MULTICAST}$HINT",
        "[a : s], [b : m], n : u32, [c : s], m : b16, ?policy : u64",
        f"{_RUN}::bulk_load_multicast(a, b, n, c, m)",
    ),
    Row(
        f"cp.async.bulk.shared::cluster.shared::cta{_LANDED}",
        "[a : s], [b : s], n : u32, [c : s]",
        f"{_RUN}::bulk_push(a, b, n, c, nullptr)",
    ),
    Row(
        "cp.async.bulk.global.shared::cta.bulk_group$HINT",
        "[a : w], [b : s], n : u32, ?policy : u64",
        f"{_RUN}::bulk_store(a, b, n)",
    ),
    Row(
        "cp.async.bulk.global.shared::cta.bulk_group.L2::cache_hint.cp_mask",
        "[a : w], [b : s], n : u32, policy : u64, mask : b16",
        f"{_RUN}::bulk_store(a, b, n, mask)",
    ),
    Row(
        "cp.async.bulk.global.shared::cta.bulk_group.cp_mask",
        "[a : w], [b : s], n : u32, mask : b16",
        f"{_RUN}::bulk_store(a, b, n, mask)",
    ),
    Row(
        "cp.async.bulk.prefetch.L2.global$HINT",
        "[a : m], n : u32, ?policy : u64",
        f"{_RUN}::bulk_prefetch(a, n)",
    ),
    Row("cp.async.bulk.commit_group", "", f"{_RUN}::bulk_commit()"),
    Row("cp.async.bulk.wait_group", "n : imm", f"{_RUN}::bulk_wait(n)"),
    Row("cp.async.bulk.wait_group.read", "n : imm", f"{_RUN}::bulk_wait_read(n)"),
    Row(
        f"cp.reduce.async.bulk.global.shared::cta.bulk_group$HINT.<op:{_OPS}>{{.noftz}}"
        f".<element:{_REDUCED}>",
        "[a : w], [b : s], n : u32, ?policy : u64",
        "reduce_in_global<<reduction>, <element>>(a, b, n)",
    ),
    Row(
        f"cp.reduce.async.bulk.shared::cluster.shared::cta{_LANDED}.<op:{_OPS}>"
        f".<element:{_REDUCED}>",
        "[a : s], [b : s], n : u32, [c : s]",
        "reduce_in_cluster<<reduction>, <element>>(a, b, n, c)",
    ),
    # --- tensor copies ---
    Row(
        f"{_TENSOR}{{.tile}}{_LANDED}{_PAIR}$HINT",
        "[a : s], [map : tensor], [c : s], ?policy : u64",
        f"{_RUN}::tensor_load(a, {_BOX}, c, <group>)",
    ),
    Row(
        f"{_TENSOR}{{.tile}}{_LANDED}{_MULTICAST}{_PAIR}$HINT",
        "[a : s], [map : tensor], [c : s], m : b16, ?policy : u64",
        f"{_RUN}::tensor_load_multicast(a, {_BOX}, c, m, <group>)",
    ),
    Row(
        f"{_GATHERED}{_PAIR}$HINT",
        "[a : s], [map : tensor_rows], [c : s], ?policy : u64",
        f"{_RUN}::tensor_load(a, {_ROWS}, c, <group>)",
    ),
    Row(
        f"{_GATHERED}{_MULTICAST}{_PAIR}$HINT",
        "[a : s], [map : tensor_rows], [c : s], m : b16, ?policy : u64",
        f"{_RUN}::tensor_load_multicast(a, {_ROWS}, c, m, <group>)",
    ),
    Row(
        f"{_TENSOR}{_IM2COL}{_LANDED}{_PAIR}$HINT",
        "[a : s], [map : tensor], [c : s], o* : b16, ?policy : u64",
        f"{_RUN}::tensor_load(a, {_COLUMN}, c, <group>)",
    ),
    Row(
        f"{_TENSOR}{_IM2COL}{_LANDED}{_MULTICAST}{_PAIR}$HINT",
        "[a : s], [map : tensor], [c : s], o* : b16, m : b16, ?policy : u64",
        f"{_RUN}::tensor_load_multicast(a, {_COLUMN}, c, m, <group>)",
    ),
    Row(
        "cp.async.bulk.tensor.<n:1|2|3|4|5>d.global.shared::cta{.tile|.im2col_no_offs}"
        ".bulk_group$HINT",
        "[map : tensor], [a : s], ?policy : u64",
        f"{_RUN}::tensor_store({_BOX}, a)",
    ),
    Row(
        "cp.async.bulk.tensor.2d.global.shared::cta.tile::scatter4.bulk_group$HINT",
        "[map : tensor_rows], [a : s], ?policy : u64",
        f"{_RUN}::tensor_store({_ROWS}, a)",
    ),
    Row(
        f"cp.reduce.async.bulk.tensor.<n:1|2|3|4|5>d.global.shared::cta.<op:{_OPS}>"
        "{.tile|.im2col_no_offs}.bulk_group$HINT",
        "[map : tensor], [a : s], ?policy : u64",
        f"{_RUN}::tensor_reduce(static_cast<int>(<reduction>), {_BOX}, a)",
    ),
    Row(
        f"cp.reduce.async.bulk.tensor.2d.global.shared::cta.<op:{_OPS}>"
        ".tile::scatter4.bulk_group$HINT",
        "[map : tensor_rows], [a : s], ?policy : u64",
        f"{_RUN}::tensor_reduce(static_cast<int>(<reduction>), {_ROWS}, a)",
    ),
    Row(
        "cp.async.bulk.prefetch.tensor.<n:1|2|3|4|5>d.L2.global{.tile}$HINT",
        "[map : tensor], ?policy : u64",
        f"{_RUN}::tensor_prefetch({_BOX})",
    ),
    Row(
        "cp.async.bulk.prefetch.tensor.2d.L2.global.tile::gather4$HINT",
        "[map : tensor_rows], ?policy : u64",
        f"{_RUN}::tensor_prefetch({_ROWS})",
    ),
    Row(
        f"cp.async.bulk.prefetch.tensor.<n:3|4|5>d.L2.global{_IM2COL}$HINT",
        "[map : tensor], o* : b16, ?policy : u64",
        f"{_RUN}::tensor_prefetch({_COLUMN})",
    ),
    # --- cluster launch control ---
    Row(
        f"clusterlaunchcontrol.try_cancel.async{{.shared::cta}}{_LANDED}"
        "<is_for_all:.multicast::cluster::all>?.b128",
        "[a : s], [b : s]",
        f"{_RUN}::try_cancel(a, b, <is_for_all>)",
    ),
    Row(
        "clusterlaunchcontrol.query_cancel.is_canceled.pred.b128",
        "d = pred, a : b128",
        f"{_RUN}::is_canceled(Response(a).words)",
    ),
    Row(
        "clusterlaunchcontrol.query_cancel.get_first_ctaid::<side:x|y|z>.b32.b128",
        "d = b32, a : b128",
        f"{_RUN}::first_ctaid(Response(a).words).<side>",
    ),
    Row(
        "clusterlaunchcontrol.query_cancel.get_first_ctaid.v4.b32.b128",
        "&d* : b32, a : b128",
        "first_ctaid_of(Response(a), d)",
    ),
    # --- edits of tensor maps ---
    *_map_rows(),
    Row(
        "tensormap.cp_fenceproxy.global.shared::cta.tensormap::generic.release.(gpu|sys|cluster|cta)"
        ".sync.aligned",
        "[a : w], [b : s], n : imm",
        f"(check_map_bytes<n>(), {_RUN}::copy_map_and_release(a, b))",
    ),
)
