"""tcgen05: tensor memory and its asynchronous operations."""

from __future__ import annotations

from collections.abc import Iterator

from tmaasync.emulate.frontend.ptx.row import Row

__all__ = ["ROWS"]

_RUN = "::tmaasync_emulate"
_GROUP = "cta_group::<group:1|2>"
_SHAPE = f"{_RUN}::Tcgen05Shape::k<shape>"
_SHAPES = "<shape:32x32b|16x64b|16x128b|16x256b>"
_HALVES = "<shape:16x32bx2>"
_MOVED = f"<{_SHAPE}, <n>, <is_packed>>"


def _transfers() -> Iterator[Row]:
    """Yield ld and st; 16x32bx2 has an offset of its second half."""
    number = "x<n:1|2|4|8|16|32|64|128>"
    for shape, split, operand in ((_SHAPES, "0", ""), (_HALVES, "h", "h : imm, ")):
        ends = operand and f", {operand.rstrip(', ')}"
        yield Row(
            f"tcgen05.ld.sync.aligned.{shape}.{number}<is_packed:.pack::16b>?.b32",
            f"&d* : b32, [a : t]{ends}",
            f"load_tensor{_MOVED}(a, {split}, d)",
        )
        yield Row(
            f"tcgen05.st.sync.aligned.{shape}.{number}<is_packed:.unpack::16b>?.b32",
            f"[a : t], {operand}b* : b32",
            f"store_tensor{_MOVED}(a, {split}, b)",
        )


def _reductions() -> Iterator[Row]:
    """Yield ld.red, of 32 bits; f32 has .abs and .NaN."""
    start = "tcgen05.ld.red.sync.aligned"
    number = "x<n:2|4|8|16|32|64|128>.(min|<is_max:max>)"
    for shape, split, ends in (("<shape:32x32b>", "0", ""), (_HALVES, "h", ", h : imm")):
        for kind, more in (("u32", ""), ("s32", ""), ("f32", "<is_abs:.abs>?<is_nan:.NaN>?")):
            types = f"{_SHAPE}, <n>, {_RUN}::Tcgen05Reduced::k{kind.title()}, <is_max>"
            yield Row(
                f"{start}.{shape}.{number}{more}.{kind}",
                f"&d* : b32, &r : b32, [a : t]{ends}",
                f"reduce_tensor<{types}, <is_abs>, <is_nan>>(r, a, {split}, d)",
            )


ROWS = (
    Row(
        f"tcgen05.alloc.{_GROUP}.sync.aligned{{.shared::cta}}.b32",
        "[a : c], n : u32",
        f"{_RUN}::tcgen05_alloc(<group>, a, n)",
    ),
    Row(
        f"tcgen05.dealloc.{_GROUP}.sync.aligned.b32",
        "a : u32, n : u32",
        f"{_RUN}::tcgen05_dealloc(<group>, a, n)",
    ),
    Row(
        f"tcgen05.relinquish_alloc_permit.{_GROUP}.sync.aligned",
        "",
        f"{_RUN}::tcgen05_relinquish(<group>)",
    ),
    *_transfers(),
    *_reductions(),
    Row("tcgen05.wait::ld.sync.aligned", "", f"{_RUN}::tcgen05_wait_load()"),
    Row("tcgen05.wait::st.sync.aligned", "", f"{_RUN}::tcgen05_wait_store()"),
    Row("tcgen05.fence::before_thread_sync", "", f"{_RUN}::tcgen05_fence_before()"),
    Row("tcgen05.fence::after_thread_sync", "", f"{_RUN}::tcgen05_fence_after()"),
    Row(
        f"tcgen05.commit.{_GROUP}.mbarrier::arrive::one{{.shared::cluster}}.b64",
        "[a : c]",
        f"{_RUN}::tcgen05_commit(<group>, a, 0)",
    ),
    Row(
        f"tcgen05.commit.{_GROUP}.mbarrier::arrive::one{{.shared::cluster}}.multicast::cluster.b64",
        "[a : c], m : u16",
        f"{_RUN}::tcgen05_commit(<group>, a, m)",
    ),
)
