"""Loads, stores, atomic operations, reductions, fences, and cache hints."""

from __future__ import annotations

from collections.abc import Iterator

from tmaasync.emulate.frontend.ptx.row import Row

__all__ = ["ROWS"]

_STRONG = "{.<order:weak|volatile>|.<order1:relaxed|acquire>.<scope:$SCOPE>}"
_STRONG_STORE = "{.<order:weak|volatile>|.<order1:relaxed|release>.<scope:$SCOPE>}"
_SPACE = (
    "{.<space:global|shared::cta|shared::cluster|shared|local|const"
    "|param::entry|param::func|param>}"
)
_GLOBAL = "{.<space:global>}"
_ATOMIC_SPACE = "{.<space:global|shared::cta|shared::cluster|shared>}"
_CACHE = "{.(ca|cg|cs|lu|cv|wb|wt)}"
_HINTS = (
    "{.L1::(evict_normal|evict_unchanged|evict_first|evict_last|no_allocate)}"
    "{.L2::(evict_normal|evict_first|evict_last)}{.L2::cache_hint}{.L2::(64B|128B|256B)}"
)
_ATOMIC = "{.<order:relaxed|acquire|release|acq_rel>}{.<scope:$SCOPE>}" + _ATOMIC_SPACE
_WHOLE_OP = "add|min|max|inc|dec"
_BIT_OP = "and|or|xor"
_VALUES = "AtomicOp::<op>, <order>, <scope>, <t>"

# Vectors of up to 128 bits, and of 256 bits in global memory.
_VECTORS = (
    (_SPACE, "{.v2}.<t:$ANY>"),
    (_SPACE, ".v4.<t:b8|u8|s8|b16|u16|s16|b32|u32|s32|f16|f16x2|bf16|bf16x2|f32>"),
    (_GLOBAL, ".v8.<t:b32|u32|s32|f32>"),
    (_GLOBAL, ".v4.<t:b64|u64|s64|f64>"),
)


def _loads_and_stores(space: str, vector: str) -> Iterator[Row]:
    """Yield the instructions for vectors of some types."""
    yield Row(
        f"ld{{.weak}}.global.nc{_CACHE}{_HINTS}{vector}",
        "&d* : <t>+, [a : g], ?policy : u64",
        "load_only_read<<t>>(a, d)",
    )
    yield Row(
        f"ld{{.mmio}}{_STRONG}{space}{_CACHE}{_HINTS}{vector}",
        "&d* : <t>+, [a : g], ?policy : u64",
        "load<<order>, <scope>, <t>>(a, d)",
    )
    yield Row(
        f"st{{.mmio}}{_STRONG_STORE}{space}{_CACHE}{_HINTS}{vector}",
        "[a : g], b* : <t>+, ?policy : u64",
        "store<<order>, <scope>, <t>>(a, b)",
    )


ROWS = (
    # --- ld and st ---
    *(row for vector in _VECTORS for row in _loads_and_stores(*vector)),
    Row(
        "ldu{.global}{.v(2|4)}.<t:$ANY>", "&d* : <t>+, [a : g]", "load<<order>, <scope>, <t>>(a, d)"
    ),
    # --- atom ---
    Row(
        f"atom{_ATOMIC}.<op:{_WHOLE_OP}>$HINT.<t:u32|s32|u64|s64>",
        "d = <t>, [a : g], b : <t>, ?policy : u64",
        f"atomic<{_VALUES}>(a, b)",
    ),
    Row(
        f"atom{_ATOMIC}.<op:add|min|max>{{.noftz}}$HINT.<t:f32|f64|$HALF>",
        "d = <t>, [a : g], b : <t>, ?policy : u64",
        f"atomic<{_VALUES}>(a, b)",
    ),
    Row(
        f"atom{_ATOMIC}.<op:{_BIT_OP}|exch>$HINT.<t:b32|b64|b128>",
        "d = <t>, [a : g], b : <t>, ?policy : u64",
        f"atomic<{_VALUES}>(a, b)",
    ),
    Row(
        f"atom{_ATOMIC}.cas$HINT.<t:b16|b32|b64|b128>",
        "d = <t>, [a : g], b : <t>, c : <t>, ?policy : u64",
        "compare_and_swap<<order>, <scope>, <t>>(a, b, c)",
    ),
    Row(
        f"atom{_ATOMIC}.<op:add>{{.noftz}}$HINT.v(2|4|8).<t:f32|$HALF>",
        "&d* : <t>, [a : g], b* : <t>, ?policy : u64",
        f"atomic_vector<{_VALUES}>(a, ::tmaasync_ptx::listed<<t>>(b), d)",
    ),
    # --- red ---
    Row(
        f"red{_ATOMIC}.<op:{_WHOLE_OP}>$HINT.<t:u32|s32|u64|s64>",
        "[a : g], b : <t>, ?policy : u64",
        f"reduce<{_VALUES}>(a, b)",
    ),
    Row(
        f"red{_ATOMIC}.<op:{_BIT_OP}>$HINT.<t:b32|b64>",
        "[a : g], b : <t>, ?policy : u64",
        f"reduce<{_VALUES}>(a, b)",
    ),
    Row(
        f"red{_ATOMIC}.<op:add|min|max>{{.noftz}}$HINT{{.v(2|4|8)}}.<t:f32|f64|$HALF>",
        "[a : g], b* : <t>, ?policy : u64",
        f"reduce<{_VALUES}>(a, b)",
    ),
    Row("st.bulk{.weak}.<space:shared::cta>", "[a : g], n : u64, v : imm", "store_bulk<v>(a, n)"),
    Row("st.bulk{.weak}", "[a : w], n : u64, v : imm", "store_bulk<v>(a, n)"),
    # --- st.async and red.async ---
    Row(
        "st.async{.weak}.shared::cluster.mbarrier::complete_tx::bytes{.v(2|4)}"
        ".<t:b32|b64|u32|u64|s32|s64|f32|f64>",
        "[a : s], b* : <t>, [c : s]",
        "store_async<<t>>(a, c, b)",
    ),
    Row(
        f"red.async.relaxed.cluster{{.shared::cluster}}.mbarrier::complete_tx::bytes"
        f".<op:{_WHOLE_OP}|{_BIT_OP}>.<t:u32|s32|u64|b32>",
        "[a : s], b : <t>, [c : s]",
        "reduce_async<AtomicOp::<op>, <t>>(a, c, b)",
    ),
    # --- fences ---
    Row("fence{.(sc|acq_rel|acquire|release)}.<scope:$SCOPE>", "", "fence_of<<scope>>()"),
    Row(
        "fence.(acquire|release).sync_restrict::shared::(cta|cluster).cluster",
        "",
        "fence_of<Reach::kCluster>()",
    ),
    Row("membar.cta", "", "fence_of<Reach::kCta>()"),
    Row("membar.gl", "", "fence_of<Reach::kGpu>()"),
    Row("membar.sys", "", "fence_of<Reach::kSys>()"),
    Row("fence.proxy.alias", "", "void()"),
    Row(
        "fence.proxy.async",
        "",
        "(::tmaasync_emulate::fence_proxy_async_shared(), "
        "::tmaasync_emulate::fence_proxy_async_global())",
    ),
    Row("fence.proxy.async.global", "", "::tmaasync_emulate::fence_proxy_async_global()"),
    Row(
        "fence.proxy.async.shared::(cta|cluster)",
        "",
        "::tmaasync_emulate::fence_proxy_async_shared()",
    ),
    # Fences in one direction, restricted to shared memory.
    Row(
        "fence.proxy.async::generic.(acquire.sync_restrict::shared::cluster"
        "|release.sync_restrict::shared::cta).cluster",
        "",
        "::tmaasync_emulate::fence_proxy_async_shared()",
    ),
    Row("fence.mbarrier_init.release.cluster", "", "::tmaasync_emulate::fence_mbarrier_init()"),
    Row(
        "fence.proxy.tensormap::generic.release.<scope:$SCOPE>",
        "",
        "::tmaasync_emulate::fence_maps_release()",
    ),
    Row(
        "fence.proxy.tensormap::generic.acquire.<scope:$SCOPE>",
        "[a : m], n : imm",
        "(check_map_bytes<n>(), ::tmaasync_emulate::fence_map_acquire(a))",
    ),
    # --- hints ---
    Row("prefetch{.const|.param}.tensormap", "[a : m]", "::tmaasync_emulate::check_map(a)"),
    Row("prefetch{.global|.local}.(L1|L2{::evict_last|::evict_normal})", "[a : m]", "unused(a)"),
    Row("prefetchu.L1", "[a : m]", "unused(a)"),
    Row("applypriority{.global}.L2::evict_normal", "[a : m], n : imm", "unused(a)"),
    Row("discard{.global}.L2", "[a : m], n : imm", "unused(a)"),
    Row(
        "createpolicy.fractional.L2::<policy:evict_first|evict_last|evict_normal|evict_unchanged>"
        "{.L2::(evict_first|evict_unchanged)}.b64",
        "d = b64, ?f : f32",
        'policy_of("<policy>")',
    ),
    Row(
        "createpolicy.range{.global}.L2::<policy:evict_first|evict_last|evict_normal|"
        "evict_unchanged>{.L2::(evict_first|evict_unchanged)}.b64",
        "d = b64, [a : m], b : u32, c : u32",
        'policy_of("<policy>")',
    ),
    Row("createpolicy.cvt.L2.b64", "d = b64, a : b64", "a"),
)
