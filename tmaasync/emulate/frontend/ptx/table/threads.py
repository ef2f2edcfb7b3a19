"""Special registers, lanes, barriers of threads, and control."""

from __future__ import annotations

from tmaasync.emulate.frontend.ptx.row import Row

__all__ = ["ROWS", "SPECIAL_REGISTERS"]

_THREAD = "::tmaasync_emulate::current_thread()"
_SIDES = {"tid": "thread", "ntid": "block_dim", "ctaid": "block", "nctaid": "grid_dim"}
_LANE = f"{_THREAD}.lane"

# The C++ and the bits of each.
SPECIAL_REGISTERS: dict[str, tuple[str, int]] = {
    **{
        f"{name}.{side}": (f"{_THREAD}.{member}.{side}", 32)
        for name, member in _SIDES.items()
        for side in "xyz"
    },
    **{
        f"{name}.{side}": (f"::tmaasync_ptx::{function}().{side}", 32)
        for name, function in {
            "cluster_ctaid": "block_in_cluster",
            "cluster_nctaid": "cluster_sides",
            "clusterid": "cluster_in_grid",
            "nclusterid": "clusters_of_grid",
        }.items()
        for side in "xyz"
    },
    "cluster_ctarank": (f"{_THREAD}.rank", 32),
    "cluster_nctarank": (f"{_THREAD}.ctas", 32),
    "is_explicit_cluster": (f"({_THREAD}.ctas > 1)", 1),
    "laneid": (_LANE, 32),
    "warpid": ("::tmaasync_ptx::thread_in_block() / 32", 32),
    "nwarpid": ("::tmaasync_ptx::kWarpsOfMultiprocessor", 32),
    "smid": ("::tmaasync_ptx::sm_of_block()", 32),
    "nsmid": ("::tmaasync_emulate::launch_shape().sms", 32),
    "gridid": ("::std::uint64_t{1}", 64),
    "lanemask_eq": (f"1u << {_LANE}", 32),
    "lanemask_lt": (f"(1u << {_LANE}) - 1", 32),
    "lanemask_le": (f"(2u << {_LANE}) - 1", 32),
    "lanemask_gt": (f"~((2u << {_LANE}) - 1)", 32),
    "lanemask_ge": (f"~((1u << {_LANE}) - 1)", 32),
    "clock": ("static_cast<::std::uint32_t>(::clock64())", 32),
    "clock_hi": ("static_cast<::std::uint32_t>(::clock64() >> 32)", 32),
    "clock64": ("static_cast<::std::uint64_t>(::clock64())", 64),
    "globaltimer": ("::tmaasync_ptx::nanoseconds()", 64),
    "globaltimer_lo": ("static_cast<::std::uint32_t>(::tmaasync_ptx::nanoseconds())", 32),
    "globaltimer_hi": ("static_cast<::std::uint32_t>(::tmaasync_ptx::nanoseconds() >> 32)", 32),
    "dynamic_smem_size": ("::tmaasync_emulate::launch_shape().dynamic_shared_bytes", 32),
    "total_smem_size": ("::tmaasync_emulate::launch_shape().shared_bytes", 32),
}

_RUN = "::tmaasync_emulate"
_NUMBER = "barrier{.cta}"

ROWS = (
    # --- lanes ---
    *(
        Row(
            f"shfl.sync.{mode}.b32",
            "&d|p : pred, a : b32, b : u32, c : u32, m : u32",
            f"d = shuffled<::tmaasync_emulate::ShuffleKind::k{kind}>(a, b, c, m, p)",
        )
        for mode, kind in (("idx", "Index"), ("up", "Up"), ("down", "Down"), ("bfly", "Xor"))
    ),
    Row("vote.sync.ballot.b32", "d = b32, a : pred, m : u32", f"{_RUN}::ballot(m, a)"),
    Row("vote.sync.any.pred", "d = pred, a : pred, m : u32", f"({_RUN}::ballot(m, a) != 0)"),
    Row("vote.sync.all.pred", "d = pred, a : pred, m : u32", f"({_RUN}::ballot(m, !(a)) == 0)"),
    Row("vote.sync.uni.pred", "d = pred, a : pred, m : u32", "is_uniform(a, m)"),
    Row("activemask.b32", "d = b32", "::__activemask()"),
    Row("match.any.sync.<t:b32|b64>", "d = b32, a : <t>, m : u32", "::__match_any_sync(m, a)"),
    Row(
        "match.all.sync.<t:b32|b64>",
        "&d|p : pred, a : <t>, m : u32",
        "{ int all; d = ::__match_all_sync(m, a, &all); p = all; }",
    ),
    Row(
        "redux.sync.<name:add|min|max>.<t:u32|s32>",
        "d = <t>, a : <t>, m : u32",
        "::__reduce_<name>_sync(m, a)",
    ),
    Row(
        "redux.sync.<name:and|or|xor>.<t:b32>",
        "d = b32, a : b32, m : u32",
        "::__reduce_<name>_sync(m, a)",
    ),
    *(
        Row(
            f"redux.sync.{name}<is_abs:.abs>?<is_nan:.NaN>?.f32",
            "d = f32, a : f32, m : u32",
            f"reduced_floats<{is_max}, <is_abs>, <is_nan>>(a, m)",
        )
        for name, is_max in (("min", "false"), ("max", "true"))
    ),
    Row("elect.sync", "&d|p : pred, m : u32", "elect_one(d, p, m)"),
    Row("bar.warp.sync", "m : u32", f"{_RUN}::sync_warp(m)"),
    # --- barriers ---
    Row(
        f"(bar{{.cta}}|{_NUMBER}).sync{{.aligned}}",
        "a : u32, ?b : u32",
        f"{_RUN}::named_barrier_sync(a, b)",
    ),
    Row(
        f"(bar{{.cta}}|{_NUMBER}).arrive{{.aligned}}",
        "a : u32, b : u32",
        f"{_RUN}::named_barrier_arrive(a, b)",
    ),
    Row(
        f"(bar{{.cta}}|{_NUMBER}).red.popc{{.aligned}}.u32",
        "d = u32, a : u32, p : pred",
        "reduced_at_barrier(Vote::kPopc, a, 0, p)",
    ),
    Row(
        f"(bar{{.cta}}|{_NUMBER}).red.popc{{.aligned}}.u32",
        "d = u32, a : u32, b : u32, p : pred",
        "reduced_at_barrier(Vote::kPopc, a, b, p)",
    ),
    Row(
        f"(bar{{.cta}}|{_NUMBER}).red.<vote:and|or>{{.aligned}}.pred",
        "d = pred, a : u32, b : u32, p : pred",
        "reduced_at_barrier(Vote::<vote>, a, b, p)",
    ),
    Row(
        f"(bar{{.cta}}|{_NUMBER}).red.<vote:and|or>{{.aligned}}.pred",
        "d = pred, a : u32, p : pred",
        "reduced_at_barrier(Vote::<vote>, a, 0, p)",
    ),
    Row(
        "barrier.cluster.arrive{.aligned}<is_relaxed:.relaxed>?{.release}{.aligned}",
        "",
        f"{_RUN}::cluster_barrier_arrive(!<is_relaxed>)",
    ),
    Row(
        "barrier.cluster.wait{.aligned}{.acquire}{.aligned}", "", f"{_RUN}::cluster_barrier_wait()"
    ),
    # --- control ---
    Row("griddepcontrol.wait", "", f"{_RUN}::wait_for_grids()"),
    Row("griddepcontrol.launch_dependents", "", "void()"),
    Row("setmaxnreg.inc.sync.aligned.u32", "n : imm", "set_registers(true, n)"),
    Row("setmaxnreg.dec.sync.aligned.u32", "n : imm", "set_registers(false, n)"),
    Row("nanosleep.u32", "a : u32", "::__nanosleep(a)"),
    Row("trap", "", "::__trap()"),
    Row("brkpt", "", "::__brkpt()"),
    Row("exit", "", f"{_RUN}::end_thread()"),
    Row("pmevent{.mask}", "n : imm", "void()"),
)
