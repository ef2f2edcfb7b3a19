"""mov, cvt, cvta and isspacep."""

from __future__ import annotations

from tmaasync.emulate.frontend.ptx.row import Row

__all__ = ["ROWS"]

_WHOLE_ROUND = "rni|rzi|rmi|rpi"
_NUMBER = "u8|s8|u16|s16|u32|s32|u64|s64|f16|bf16|f32|f64"
_NARROW = "narrow_bits<<narrow>, <round>, <is_relu>, <is_satfinite>>"
_PACKED = "packed<<narrow>, <round>, <is_relu>, <is_satfinite>>"
_STOCHASTIC = "packed_stochastically<<narrow>, <is_relu>, <is_satfinite>>"

# Floats of 4 and 6 bits, and the register of two: each of 6 bits is in a byte.
_SMALL = (("e2m1x2", "b8"), ("e2m3x2|e3m2x2", "b16"))

ROWS = (
    Row("mov.pred", "d = pred, a : pred", "a"),
    Row("mov.<t:$ANY>", "d = <t>, a : <t>", "a"),
    # --- narrow floats ---
    Row(
        "cvt.rs{<is_satfinite:.satfinite>}{<is_relu:.relu>}.<narrow:f16x2|bf16x2>.f32",
        "d = b32, a : f32, b : f32, r : b32",
        f"{_STOCHASTIC}(r, a, b)",
    ),
    *(
        Row(
            f"cvt.rs.<is_satfinite:satfinite>{{<is_relu:.relu>}}.<narrow:{kinds}>.f32",
            f"d = {register}, a* : f32, r : b32",
            f"{_STOCHASTIC}(r, a)",
        )
        for kinds, register in (("e4m3x4|e5m2x4|e2m3x4|e3m2x4", "b32"), ("e2m1x4", "b16"))
    ),
    Row(
        "cvt.<round:rn|rz>{<is_relu:.relu>}{<is_satfinite:.satfinite>}.<narrow:f16x2|bf16x2>.f32",
        "d = b32, a : f32, b : f32",
        f"{_PACKED}(a, b)",
    ),
    Row(
        "cvt.<round:rn>{<is_satfinite:.satfinite>}{<is_relu:.relu>}.<narrow:e4m3x2|e5m2x2>.f32",
        "d = b16, a : f32, b : f32",
        f"{_PACKED}(a, b)",
    ),
    Row(
        "cvt.rn{.satfinite}{<is_relu:.relu>}.<narrow:e4m3x2|e5m2x2>.f16x2",
        "d = b16, a : f16x2",
        "packed_halves<<narrow>, <is_relu>>(a)",
    ),
    Row(
        "cvt.rn{<is_relu:.relu>}.f16x2.<narrow:e4m3x2|e5m2x2>",
        "d = f16x2, a : b16",
        "unpacked_halves<<narrow>, <is_relu>>(a)",
    ),
    *(
        Row(
            f"cvt.<round:rn>.<is_satfinite:satfinite>{{<is_relu:.relu>}}.<narrow:{kinds}>.f32",
            f"d = {register}, a : f32, b : f32",
            f"{_PACKED}(a, b)",
        )
        for kinds, register in _SMALL
    ),
    Row(
        "cvt.rn.satfinite{<is_relu:.relu>}.<narrow:e2m1x2>.f16x2",
        "d = b8, a : f16x2",
        "packed_halves<<narrow>, <is_relu>>(a)",
    ),
    *(
        Row(
            f"cvt.rn{{<is_relu:.relu>}}.f16x2.<narrow:{kinds}>",
            f"d = f16x2, a : {register}",
            "unpacked_halves<<narrow>, <is_relu>>(a)",
        )
        for kinds, register in _SMALL
    ),
    Row(
        "cvt.<round:rz|rp>{<is_satfinite:.satfinite>}.<narrow:ue8m0x2>.f32",
        "d = b16, a : f32, b : f32",
        f"{_PACKED}(a, b)",
    ),
    Row(
        "cvt.<round:rz|rp>{<is_satfinite:.satfinite>}.ue8m0x2.bf16x2",
        "d = b16, a : bf16x2",
        "packed_scales(a, <round>, <is_satfinite>)",
    ),
    Row("cvt.rn.bf16x2.ue8m0x2", "d = bf16x2, a : b16", "unpacked_scales(a)"),
    Row(
        "cvt.<round:rna|rn|rz>{<is_relu:.relu>}{<is_satfinite:.satfinite>}.tf32.f32",
        "d = b32, a : f32",
        "tfloat_of<<round>, <is_relu>, <is_satfinite>>(a)",
    ),
    Row(
        "cvt.<round:rn|rz><is_relu:.relu>{<is_satfinite:.satfinite>}.<narrow:f16|bf16>.f32",
        "d = b16, a : f32",
        f"{_NARROW}(a)",
    ),
    Row(
        "cvt.<round:rn|rz><is_satfinite:.satfinite>.<narrow:f16|bf16>.f32",
        "d = b16, a : f32",
        f"{_NARROW}(a)",
    ),
    # --- any number to any other ---
    Row(
        f"cvt{{.<round:$ROUND|{_WHOLE_ROUND}>}}<is_ftz:.ftz>?<is_sat:.sat>?.<t1:{_NUMBER}>.<t:{_NUMBER}>",
        "d = <t1>+, a : <t>+",
        "converted<<round>, <is_ftz>, <is_sat>, false, <t1>>(a)",
    ),
    Row("cvt.pack.sat.<t1:u16|s16>.s32", "d = b32, a : s32, b : s32", "two_packed<<t1>>(a, b)"),
    Row(
        "cvt.pack.sat.<t1:u8|s8>.s32.b32",
        "d = b32, a : s32, b : s32, c : b32",
        "four_packed<<t1>>(a, b, c)",
    ),
    # --- addresses ---
    Row("cvta.to.shared{::cta|::cluster}.u64", "d = u64, a : u64", "converted_to_shared(a)"),
    Row("cvta.to.shared{::cta|::cluster}.u32", "d = u32, a : u32", "a"),
    Row("cvta.shared{::cta|::cluster}.u64", "d = u64, a : u64", "generic_of_shared(a)"),
    Row("cvta.{to.}(global|const).u64", "d = u64, a : u64", "a"),
    Row("cvta.{to.}(local|param{::entry|::func}).u64", "d = u64, a : u64", "on_stack(a)"),
    Row("isspacep.shared{::cta}", "d = pred, a : u64", "is_in_cluster(a, true)"),
    Row("isspacep.shared::cluster", "d = pred, a : u64", "is_in_cluster(a, false)"),
    Row("isspacep.local", "d = pred, a : u64", "is_on_stack(a)"),
    Row("isspacep.global", "d = pred, a : u64", "(!is_in_cluster(a, false) && !is_on_stack(a))"),
    Row("mapa.shared::cluster.u32", "d = u32, a : u32, b : u32", "::tmaasync::ptx::mapa(a, b)"),
    Row("mapa{.shared::cluster}.u64", "d = u64, a : u64, b : u32", "mapped(a, b)"),
    Row(
        "getctarank.shared::cluster.u32",
        "d = u32, a : u32",
        "::tmaasync::ptx::getctarank(a)",
    ),
    Row("getctarank.u64", "d = u32, a : u64", "::tmaasync::ptx::getctarank(shared_of_generic(a))"),
)
