"""tcgen05: tensor memory and its asynchronous operations."""

from __future__ import annotations

from collections.abc import Iterator

from tmaasync.emulate.frontend.ptx.row import Row

__all__ = ["ROWS"]

_RUN = "::tmaasync_emulate"
_GROUP = "cta_group::<group:1|2>"
_SHAPE = f"{_RUN}::Tcgen05Shape::k<shape>"
_REPEATS = "1|2|4|8|16|32"
_SHAPES = (
    f"<shape:32x32b|16x64b>.x<n:{_REPEATS}|64|128>",
    f"<shape:16x128b>.x<n:{_REPEATS}|64>",
    f"<shape:16x256b>.x<n:{_REPEATS}>",
)
_HALVES = "<shape:16x32bx2>"
_MOVED = f"<{_SHAPE}, <n>, <is_packed>>"


def _transfers() -> Iterator[Row]:
    """Yield ld and st; 16x32bx2 has an offset of its second half."""
    halves = f"{_HALVES}.x<n:{_REPEATS}|64|128>"
    for shape, split, operand in (
        *((shape, "0", "") for shape in _SHAPES),
        (halves, "h", "h : imm, "),
    ):
        ends = operand and f", {operand.rstrip(', ')}"
        yield Row(
            f"tcgen05.ld.sync.aligned.{shape}<is_packed:.pack::16b>?.b32",
            f"&d* : b32, [a : t]{ends}",
            f"load_tensor{_MOVED}(a, {split}, d)",
        )
        yield Row(
            f"tcgen05.st.sync.aligned.{shape}<is_packed:.unpack::16b>?.b32",
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


_PLAIN_KINDS = "kind::<kind:f16|tf32|f8f6f4|i8>"
_SCALED_KINDS = (
    "kind::<kind:mxf8f6f4>.block_scale{.(scale_vec::1X|block32)}",
    "kind::<kind:mxf4>.block_scale{.(scale_vec::2X|block32)}",
    "kind::<kind:mxf4nvf4>.block_scale.(<is_4x:scale_vec::4X|block16>|scale_vec::2X|block32)",
)
_COLLECTOR = "{.collector::a::(fill|use|lastuse|discard)}"
_LAST_USE = "{.collector::a::(lastuse|discard)}"
_COLLECTOR_B = "{.collector::b(0|1|2|3)::(fill|use|lastuse|discard)}"


def _multiplications() -> Iterator[Row]:
    """Yield mma with A in shared and in tensor memory, dense and sparse."""
    for a, source in (("a : b64", "shared_a(a)"), ("[a : t]", "tensor_a(a)")):
        for metadata, meta in (("", "0"), (", [m : t]", "m")):
            form = "mma_form(<group>, TensorKindName::<kind>, d, b, i, p)"
            form += f".{source}.sparse({'true' if metadata else 'false'}, {meta})"
            sparse = ".sp" if metadata else ""
            operands = f"[d : t], {a}, b : b64{metadata}, i : b32"
            start = f"tcgen05.mma{sparse}.{_GROUP}.{_PLAIN_KINDS}"
            yield from _plain(f"{start}{_COLLECTOR}", operands, form)
            if source.startswith("tensor"):
                form_shifted = f"{form}.shifted(true)"
                yield from _plain(f"{start}.ashift{_LAST_USE}", operands, form_shifted)
            for scaled in _SCALED_KINDS:
                yield Row(
                    f"tcgen05.mma{sparse}.{_GROUP}.{scaled}{_COLLECTOR}",
                    f"{operands}, [e : t], [f : t], p : pred",
                    f"{form}.scaled(e, f, <is_4x>).issue()",
                )
            yield Row(
                f"tcgen05.mma.ws{sparse}.{_GROUP}.{_PLAIN_KINDS}{_COLLECTOR_B}",
                f"{operands}, p : pred, ?z : b64",
                f"{form}.ws(z).issue()",
            )


def _plain(pattern: str, operands: str, form: str) -> Iterator[Row]:
    """Yield mma without block scales: with and without lanes whose output is disabled."""
    scaled = f"{form}.scale_d(s)"
    yield Row(pattern, f"{operands}, p : pred, ?s : imm", f"{scaled}.issue()")
    yield Row(
        pattern,
        f"{operands}, l* : b32, p : pred, ?s : imm",
        f"{scaled}.without_lanes(l).issue()",
    )


def _copies() -> Iterator[Row]:
    """Yield cp: a shape, its multicast, and the format that it decompresses."""
    for shapes, cast, name in (
        ("<shape:128x256b|128x128b|4x256b>", "", "kNone"),
        ("<shape:64x128b>", ".warpx2::02_13", "kX2_02_13"),
        ("<shape:64x128b>", ".warpx2::01_23", "kX2_01_23"),
        ("<shape:32x128b>", ".warpx4", "kX4"),
    ):
        for format_, kind in (
            ("", "kWords"),
            (".b8x16.b6x16_p32", "kB6x16P32"),
            (".b8x16.b4x16_p64", "kB4x16P64"),
        ):
            yield Row(
                f"tcgen05.cp.{_GROUP}.{shapes}{cast}{format_}",
                "[a : t], m : b64",
                f"copy_to_tensor(<group>, {_RUN}::Tcgen05CopyShape::k<shape>, "
                f"{_RUN}::Tcgen05Multicast::{name}, {_RUN}::Tcgen05Source::{kind}, a, m)",
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
    *_multiplications(),
    *_copies(),
    Row(f"tcgen05.shift.{_GROUP}.down", "[a : t]", f"{_RUN}::tcgen05_shift(<group>, a)"),
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
