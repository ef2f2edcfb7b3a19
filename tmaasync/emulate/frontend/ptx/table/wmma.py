"""wmma, as nvcc writes it for ``<mma.h>``."""

from __future__ import annotations

from collections.abc import Iterator

from tmaasync.emulate.frontend.ptx.row import Row

__all__ = ["ROWS"]

_TYPES = {
    "f16": "__half",
    "bf16": "__nv_bfloat16",
    "s8": "signed char",
    "u8": "unsigned char",
    "tf32": "wmma::precision::tf32",
    "f32": "float",
    "s32": "int",
    "f64": "double",
}
_OF_16 = ((16, 16, 16), (32, 8, 16), (8, 32, 16))
# The types of both factors, the shapes, and the types of the accumulators.
_FORMS = (
    ("f16", _OF_16, ("f16", "f32")),
    ("bf16", _OF_16, ("f32",)),
    *((kind, _OF_16, ("s32",)) for kind in ("s8", "u8")),
    ("tf32", ((16, 16, 8),), ("f32",)),
    ("f64", ((8, 8, 4),), ("f64",)),
)
_SPACE = "{.<space:global|shared{::cta|::cluster}>}"

_Shape = tuple[int, int, int]


def _fragment(use: str, shape: _Shape, kind: str, layout: str = "") -> str:
    sides = ", ".join(map(str, shape))
    return f"wmma::fragment<wmma::{use}, {sides}, {_TYPES[kind]}{layout}>"


def _rows(kind: str, shape: _Shape, totals: tuple[str, ...]) -> Iterator[Row]:
    name = "m{}n{}k{}".format(*shape)
    register, word = ("f64", "double") if kind == "f64" else ("b32", "::std::uint32_t")
    for use in "ab":
        held = _fragment(f"matrix_{use}", shape, kind, ", wmma::<layout>_major")
        yield Row(
            f"wmma.load.{use}.sync.aligned.<layout:row|col>.{name}{_SPACE}.{kind}",
            f"&d* : {register}, [a : g], s : u32",
            f"spread_fragment(loaded_fragment<{held}>(a, s), d)",
        )
    for total in totals:
        held, of_memory = _fragment("accumulator", shape, total), "wmma::mem_<layout>_major"
        yield Row(
            f"wmma.load.c.sync.aligned.<layout:row|col>.{name}{_SPACE}.{total}",
            f"&d* : {register}, [a : g], s : u32",
            f"spread_fragment(loaded_fragment<{held}>(a, s, {of_memory}), d)",
        )
        yield Row(
            f"wmma.store.d.sync.aligned.<layout:row|col>.{name}{_SPACE}.{total}",
            f"[a : g], b* : {register}, s : u32",
            f"store_fragment<{held}>(a, s, {of_memory}, b)",
        )
        for before in totals:
            types = f"{total}.{before}" if kind == "f16" else f"{total}.{kind}.{kind}.{before}"
            held_a = _fragment("matrix_a", shape, kind, ", wmma::<left>_major")
            held_b = _fragment("matrix_b", shape, kind, ", wmma::<right>_major")
            held_c = _fragment("accumulator", shape, before)
            yield Row(
                f"wmma.mma.sync.aligned.<left:row|col>.<right:row|col>.{name}{{.rn}}.{types}"
                "<is_sat:.satfinite>?",
                f"&d* : {register}, a* : {register}, b* : {register}, c* : {register}",
                f"{{ const {word} left[] = {{a}}, right[] = {{b}}, before[] = {{c}}; "
                f"spread_fragment(multiplied_fragments<{held}, {held_a}, {held_b}, {held_c}, "
                "<is_sat>>(left, right, before), d); }",
            )


ROWS = tuple(
    row for kind, shapes, totals in _FORMS for shape in shapes for row in _rows(kind, shape, totals)
)
