"""All spellings of tcgen05 in the PTX ISA for sm_100a, with operands that fit."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

__all__ = ["spellings"]

COLLECTORS = ("", *(f".collector::a::{use}" for use in ("fill", "use", "lastuse", "discard")))
COLLECTORS_OF_B = (
    "",
    *(
        f".collector::b{buffer}::{use}"
        for buffer in range(4)
        for use in ("fill", "use", "lastuse", "discard")
    ),
)
KINDS = ("f16", "tf32", "f8f6f4", "i8")
VECTORS = {
    "mxf8f6f4": ("", ".scale_vec::1X", ".block32"),
    "mxf4": ("", ".scale_vec::2X", ".block32"),
    "mxf4nvf4": (".scale_vec::2X", ".block32", ".scale_vec::4X", ".block16"),
}
MOST = {"32x32b": 128, "16x64b": 128, "16x128b": 64, "16x256b": 32, "16x32bx2": 128}
REGISTERS = {"16x128b": 2, "16x256b": 4}
COPIES = (
    *("128x256b", "4x256b", "128x128b", "64x128b.warpx2::02_13", "64x128b.warpx2::01_23"),
    "32x128b.warpx4",
)


def _words(count: int) -> str:
    return "{" + ", ".join(f"%r{index}" for index in range(count)) + "}"


def _transfers() -> Iterator[str]:
    for shape, most in MOST.items():
        split = ", 16" if shape == "16x32bx2" else ""
        for repeats in (2**power for power in range(8) if 2**power <= most):
            held = _words(repeats * REGISTERS.get(shape, 1))
            form = f"sync.aligned.{shape}.x{repeats}"
            for pack in ("", ".pack::16b"):
                yield f"tcgen05.ld.{form}{pack}.b32 {held}, [%r0]{split};"
            for unpack in ("", ".unpack::16b"):
                yield f"tcgen05.st.{form}{unpack}.b32 [%r0]{split}, {held};"


def _reductions() -> Iterator[str]:
    for shape, split in (("32x32b", ""), ("16x32bx2", ", 16")):
        for power, name in itertools.product(range(1, 8), ("min", "max")):
            held = _words(2**power)
            for kind in ("u32", "s32", "f32", "abs.f32", "NaN.f32", "abs.NaN.f32"):
                value = "%f0" if "f32" in kind else "%r200"
                registers = held.replace("%r", "%f") if "f32" in kind else held
                start = f"tcgen05.ld.red.sync.aligned.{shape}.x{2**power}.{name}.{kind}"
                yield f"{start} {registers}, {value}, [%r0]{split};"


def _multiplications(group: int) -> Iterator[str]:
    for sparse, a in itertools.product(("", ".sp"), ("%rd0", "[%r1]")):
        operands = f"[%r0], {a}, %rd1{', [%r2]' if sparse else ''}, %r3"
        start = f"tcgen05.mma{sparse}.cta_group::{group}"
        yield from _plain(start, operands, group)
        yield from _scaled(start, operands)
        if a != "%rd0":
            for kind, use in itertools.product(KINDS, ("", ".collector::a::lastuse")):
                yield f"{start}.kind::{kind}.ashift{use} {operands}, %p0;"
        if group == 1:
            yield from _weight_stationary(f"tcgen05.mma.ws{sparse}.cta_group::1", operands)


def _plain(start: str, operands: str, group: int) -> Iterator[str]:
    for kind, collector in itertools.product(KINDS, COLLECTORS):
        opcode = f"{start}.kind::{kind}{collector}"
        yield f"{opcode} {operands}, %p0;"
        yield f"{opcode} {operands}, {_words(4 * group)}, %p0;"
        if kind in ("f16", "tf32"):
            yield f"{opcode} {operands}, %p0, 3;"


def _scaled(start: str, operands: str) -> Iterator[str]:
    for kind, vectors in VECTORS.items():
        for vector, collector in itertools.product(vectors, COLLECTORS):
            opcode = f"{start}.kind::{kind}.block_scale{vector}{collector}"
            yield f"{opcode} {operands}, [%r4], [%r5], %p0;"


def _weight_stationary(start: str, operands: str) -> Iterator[str]:
    for kind, collector in itertools.product(KINDS, COLLECTORS_OF_B):
        yield f"{start}.kind::{kind}{collector} {operands}, %p0;"
        yield f"{start}.kind::{kind}{collector} {operands}, %p0, %rd2;"


def _others(group: int) -> Iterator[str]:
    of = f"cta_group::{group}"
    for space in ("", ".shared::cta"):
        address = "%r1" if space else "%rd0"
        yield f"tcgen05.alloc.{of}.sync.aligned{space}.b32 [{address}], %r2;"
    yield f"tcgen05.dealloc.{of}.sync.aligned.b32 %r0, %r2;"
    yield f"tcgen05.relinquish_alloc_permit.{of}.sync.aligned;"
    yield f"tcgen05.shift.{of}.down [%r0];"
    for space in ("", ".shared::cluster"):
        start = f"tcgen05.commit.{of}.mbarrier::arrive::one{space}"
        address = "%r1" if space else "%rd0"
        yield f"{start}.b64 [{address}];"
        yield f"{start}.multicast::cluster.b64 [{address}], %h0;"
    for shape, source in itertools.product(COPIES, ("", ".b8x16.b6x16_p32", ".b8x16.b4x16_p64")):
        yield f"tcgen05.cp.{of}.{shape}{source} [%r0], %rd0;"


def spellings(group: int) -> dict[str, tuple[str, ...]]:
    """Return the instructions by family, with a cta_group; those without one with group 1."""
    found = {"mma": tuple(_multiplications(group)), "others": tuple(_others(group))}
    if group == 2:
        return found
    orders = ("wait::ld.sync.aligned", "wait::st.sync.aligned")
    fences = ("fence::before_thread_sync", "fence::after_thread_sync")
    return {
        **found,
        "ld and st": tuple(_transfers()),
        "order": tuple(f"tcgen05.{name};" for name in (*orders, *fences)),
        "ld.red": tuple(_reductions()),
    }
