"""Integers, floats, comparisons and bits."""

from __future__ import annotations

from tmaasync.emulate.frontend.ptx.row import Row

__all__ = ["ROWS"]

_FLOAT = "<<round>, <is_ftz>, <is_sat>>"
_COMPARISON = "eq|ne|lt|le|gt|ge|lo|ls|hi|hs|equ|neu|ltu|leu|gtu|geu|num|nan"
_OF_INTEGERS = "eq|ne|lt|le|gt|ge|lo|ls|hi|hs"
_COMPARED = "b16|u16|s16|b32|u32|s32|b64|u64|s64|f16|bf16|f32|f64"
_HOLDS = "holds<Compare::<cmp>, <is_ftz>>(a, b)"

ROWS = (
    # --- integers ---
    Row("add.sat.s32", "d = s32, a : s32, b : s32", "kept_within(::std::int64_t(a) + b)"),
    Row("sub.sat.s32", "d = s32, a : s32, b : s32", "kept_within(::std::int64_t(a) - b)"),
    Row("add.cc.<t:$CARRIED>", "d = <t>, a : <t>, b : <t>", "with_carry<false, true>(a, b)"),
    Row("sub.cc.<t:$CARRIED>", "d = <t>, a : <t>, b : <t>", "with_borrow<false, true>(a, b)"),
    Row(
        "addc<is_out:.cc>?.<t:$CARRIED>",
        "d = <t>, a : <t>, b : <t>",
        "with_carry<true, <is_out>>(a, b)",
    ),
    Row(
        "subc<is_out:.cc>?.<t:$CARRIED>",
        "d = <t>, a : <t>, b : <t>",
        "with_borrow<true, <is_out>>(a, b)",
    ),
    Row(
        "mad.lo.cc.<t:$CARRIED>",
        "d = <t>, a : <t>, b : <t>, c : <t>",
        "with_carry<false, true>(low_product(a, b), c)",
    ),
    Row(
        "mad.hi.cc.<t:$CARRIED>",
        "d = <t>, a : <t>, b : <t>, c : <t>",
        "with_carry<false, true>(high_product(a, b), c)",
    ),
    Row(
        "madc.lo<is_out:.cc>?.<t:$CARRIED>",
        "d = <t>, a : <t>, b : <t>, c : <t>",
        "with_carry<true, <is_out>>(low_product(a, b), c)",
    ),
    Row(
        "madc.hi<is_out:.cc>?.<t:$CARRIED>",
        "d = <t>, a : <t>, b : <t>, c : <t>",
        "with_carry<true, <is_out>>(high_product(a, b), c)",
    ),
    Row("add.(u16x2|s16x2)", "d = b32, a : b32, b : b32", "::__vadd2(a, b)"),
    Row("min.u16x2", "d = b32, a : b32, b : b32", "::__vminu2(a, b)"),
    Row("min.s16x2", "d = b32, a : b32, b : b32", "::__vmins2(a, b)"),
    Row("max.u16x2", "d = b32, a : b32, b : b32", "::__vmaxu2(a, b)"),
    Row("max.s16x2", "d = b32, a : b32, b : b32", "::__vmaxs2(a, b)"),
    Row("min.relu.s16x2", "d = b32, a : b32, b : b32", "::__vimin_s16x2_relu(a, b)"),
    Row("max.relu.s16x2", "d = b32, a : b32, b : b32", "::__vimax_s16x2_relu(a, b)"),
    Row("add.<t:$INT>", "d = <bits>, a : <bits>, b : <bits>", "a + b"),
    Row("sub.<t:$INT>", "d = <bits>, a : <bits>, b : <bits>", "a - b"),
    Row("mul.lo.<t:$INT>", "d = <bits>, a : <bits>, b : <bits>", "1u * a * b"),
    Row("mul.hi.<t:$INT>", "d = <t>, a : <t>, b : <t>", "high_product(a, b)"),
    Row("mul.wide.<t:u16|s16|u32|s32>", "d = <wide>, a : <t>, b : <t>", "<wide>(a) * b"),
    Row("mul24.lo.u32", "d = u32, a : u32, b : u32", "::__umul24(a, b)"),
    Row("mul24.lo.s32", "d = s32, a : s32, b : s32", "::__mul24(a, b)"),
    Row("mad24.lo.u32", "d = u32, a : u32, b : u32, c : u32", "whole_sum(::__umul24(a, b), c)"),
    Row("mad24.lo.s32", "d = s32, a : s32, b : s32, c : s32", "whole_sum(::__mul24(a, b), c)"),
    Row(
        "mad.lo.<t:$INT>",
        "d = <bits>, a : <bits>, b : <bits>, c : <bits>",
        "1u * a * b + c",
    ),
    Row(
        "mad.hi.<t:$INT>",
        "d = <t>, a : <t>, b : <t>, c : <t>",
        "whole_sum(high_product(a, b), c)",
    ),
    Row(
        "mad.wide.<t:u16|s16|u32|s32>",
        "d = <wide>, a : <t>, b : <t>, c : <wide>",
        "whole_sum(<wide>(a) * b, c)",
    ),
    Row("sad.<t:$INT>", "d = <t>, a : <t>, b : <t>, c : <t>", "distance_sum(a, b, c)"),
    *(
        Row(
            f"vabsdiff{parts}.u32.u32.u32<is_sum:.add>?",
            "d = u32, a : u32, b : u32, c : u32",
            f"part_distances<{parts}, <is_sum>>(a, b, c)",
        )
        for parts in (2, 4)
    ),
    Row("div.<t:$INT>", "d = <t>, a : <t>, b : <t>", "whole_quotient(a, b)"),
    Row("rem.<t:$INT>", "d = <t>, a : <t>, b : <t>", "remainder_of(a, b)"),
    Row("abs.<t:s16|s32|s64>", "d = <t>, a : <t>", "whole_magnitude(a)"),
    Row("neg.<t:s16|s32|s64>", "d = <t>, a : <t>", "whole_difference(<t>(0), a)"),
    Row("min.<t:$INT>", "d = <t>, a : <t>, b : <t>", "(b < a ? b : a)"),
    Row("min.relu.s32", "d = s32, a : s32, b : s32", "whole_relu(b < a ? b : a)"),
    Row("max.relu.s32", "d = s32, a : s32, b : s32", "whole_relu(a < b ? b : a)"),
    Row("max.<t:$INT>", "d = <t>, a : <t>, b : <t>", "(a < b ? b : a)"),
    Row(
        "dp4a.<t1:u32|s32>.<t:u32|s32>",
        "d = b32, a : <t1>, b : <t>, c : b32",
        "dot_product<4, 0, <t1>, <t>>(a, b, c)",
    ),
    Row(
        "dp2a.lo.<t1:u32|s32>.<t:u32|s32>",
        "d = b32, a : <t1>, b : <t>, c : b32",
        "dot_product<2, 0, <t1>, <t>>(a, b, c)",
    ),
    Row(
        "dp2a.hi.<t1:u32|s32>.<t:u32|s32>",
        "d = b32, a : <t1>, b : <t>, c : b32",
        "dot_product<2, 2, <t1>, <t>>(a, b, c)",
    ),
    # --- bits ---
    Row("and.pred", "d = pred, a : pred, b : pred", "(a && b)"),
    Row("or.pred", "d = pred, a : pred, b : pred", "(a || b)"),
    Row("xor.pred", "d = pred, a : pred, b : pred", "(a != b)"),
    Row("not.pred", "d = pred, a : pred", "!a"),
    Row("and.<t:$BITS>", "d = <t>, a : <t>, b : <t>", "(a & b)"),
    Row("or.<t:$BITS>", "d = <t>, a : <t>, b : <t>", "(a | b)"),
    Row("xor.<t:$BITS>", "d = <t>, a : <t>, b : <t>", "(a ^ b)"),
    Row("not.<t:$BITS>", "d = <t>, a : <t>", "~a"),
    Row("cnot.<t:$BITS>", "d = <t>, a : <t>", "(a == 0)"),
    Row("shl.<t:$BITS>", "d = <t>, a : <t>, b : u32", "left_shift(a, b)"),
    Row("shr.<t:$BITS|$INT>", "d = <t>, a : <t>, b : u32", "right_shift(a, b)"),
    Row(
        "shf.l.clamp.b32",
        "d = b32, a : b32, b : b32, c : u32",
        "(c < 32 ? ::__funnelshift_l(a, b, c) : a)",
    ),
    Row(
        "shf.r.clamp.b32",
        "d = b32, a : b32, b : b32, c : u32",
        "(c < 32 ? ::__funnelshift_r(a, b, c) : b)",
    ),
    Row("shf.l.wrap.b32", "d = b32, a : b32, b : b32, c : u32", "::__funnelshift_l(a, b, c)"),
    Row("shf.r.wrap.b32", "d = b32, a : b32, b : b32, c : u32", "::__funnelshift_r(a, b, c)"),
    Row("lop3.b32", "d = b32, a : b32, b : b32, c : b32, n : imm", "any_of_three(a, b, c, n)"),
    Row(
        "lop3.<bool:or|and>.b32",
        "&d|p : pred, a : b32, b : b32, c : b32, n : imm, q : pred",
        "{ const bool other = q; const ::std::uint32_t word = any_of_three(a, b, c, n); "
        "d = word; p = joined(BoolOp::<bool>, word != 0, other); }",
    ),
    Row("fns.b32", "d = b32, a : b32, b : u32, c : s32", "nth_set_bit(a, b, c)"),
    Row(
        "prmt.b32{.<mode:f4e|b4e|rc8|ecl|ecr|rc16>}",
        "d = b32, a : b32, b : b32, c : b32",
        "permuted<PermuteMode::<mode>>(a, b, c)",
    ),
    Row("bfe.<t:u32|s32|u64|s64>", "d = <t>, a : <t>, b : u32, c : u32", "extracted_bits(a, b, c)"),
    Row(
        "bfi.<t:b32|b64>",
        "d = <t>, a : <t>, b : <t>, c : u32, e : u32",
        "inserted_bits(a, b, c, e)",
    ),
    Row(
        "bfind<is_shift:.shiftamt>?.<t:u32|s32|u64|s64>",
        "d = u32, a : <t>",
        "highest_bit<<is_shift>>(a)",
    ),
    *(
        row
        for mode, clamps in (("clamp", "true"), ("wrap", "false"))
        for row in (
            Row(f"bmsk.{mode}.b32", "d = b32, a : b32, b : u32", f"masked_bits<{clamps}>(a, b)"),
            Row(
                f"szext.{mode}.<t:u32|s32>",
                "d = <t>, a : <t>, b : u32",
                f"extended_from<{clamps}>(a, b)",
            ),
        )
    ),
    Row("brev.b32", "d = b32, a : b32", "::__brev(a)"),
    Row("brev.b64", "d = b64, a : b64", "::__brevll(a)"),
    Row("clz.<t:b32|b64>", "d = u32, a : <t>", "std::countl_zero(a)"),
    Row("popc.<t:b32|b64>", "d = u32, a : <t>", "std::popcount(a)"),
    # --- floats ---
    Row(
        "add{.<round:$ROUND>}<is_ftz:.ftz>?<is_sat:.sat>?.<t:$FLOAT|$HALF>",
        "d = <t>, a : <t>, b : <t>",
        f"sum{_FLOAT}(a, b)",
    ),
    Row(
        "sub{.<round:$ROUND>}<is_ftz:.ftz>?<is_sat:.sat>?.<t:$FLOAT|$HALF>",
        "d = <t>, a : <t>, b : <t>",
        f"difference{_FLOAT}(a, b)",
    ),
    Row(
        "mul{.<round:$ROUND>}<is_ftz:.ftz>?<is_sat:.sat>?.<t:$FLOAT|$HALF>",
        "d = <t>, a : <t>, b : <t>",
        f"multiplied{_FLOAT}(a, b)",
    ),
    # --- a half and floats ---
    *(
        Row(
            f"{name}{{.<round:$ROUND>}}<is_sat:.sat>?.f32.<t:f16|bf16>",
            "d = f32, a : <t>, b : f32",
            f"{function}<<round>, false, <is_sat>>(static_cast<float>(a), b)",
        )
        for name, function in (("add", "sum"), ("sub", "difference"))
    ),
    Row(
        "fma.<round:$ROUND><is_sat:.sat>?.f32.<t:f16|bf16>",
        "d = f32, a : <t>, b : <t>, c : f32",
        "fused<<round>, false, <is_sat>, false>(static_cast<float>(a), static_cast<float>(b), c)",
    ),
    # --- pairs of floats ---
    *(
        Row(
            f"{name}{{.<round:$ROUND>}}<is_ftz:.ftz>?.<t:f32x2>",
            "d = <t>, a : <t>, b : <t>",
            f"{function}{_FLOAT}(a, b)",
        )
        for name, function in (("add", "sum"), ("sub", "difference"), ("mul", "multiplied"))
    ),
    Row(
        "fma.<round:$ROUND><is_ftz:.ftz>?.<t:f32x2>",
        "d = <t>, a : <t>, b : <t>, c : <t>",
        "fused<<round>, <is_ftz>, false, false>(a, b, c)",
    ),
    Row(
        "(fma|mad).<round:$ROUND><is_ftz:.ftz>?<is_sat:.sat>?<is_relu:.relu>?.<t:$FLOAT|$HALF>",
        "d = <t>, a : <t>, b : <t>, c : <t>",
        "fused<<round>, <is_ftz>, <is_sat>, <is_relu>>(a, b, c)",
    ),
    Row(
        "div.approx<is_ftz:.ftz>?.f32",
        "d = f32, a : f32, b : f32",
        "approximate_quotient<false, <is_ftz>>(a, b)",
    ),
    Row(
        "div.full<is_ftz:.ftz>?.f32",
        "d = f32, a : f32, b : f32",
        "approximate_quotient<true, <is_ftz>>(a, b)",
    ),
    Row(
        "div.<round:$ROUND><is_ftz:.ftz>?.<t:$FLOAT>",
        "d = <t>, a : <t>, b : <t>",
        "quotient<<round>, <is_ftz>>(a, b)",
    ),
    Row("abs<is_ftz:.ftz>?.<t:$FLOAT|$HALF>", "d = <t>, a : <t>", "magnitude<<is_ftz>>(a)"),
    Row("neg<is_ftz:.ftz>?.<t:$FLOAT|$HALF>", "d = <t>, a : <t>", "opposite<<is_ftz>>(a)"),
    Row(
        "min<is_ftz:.ftz>?<is_nan:.NaN>?<is_xor:.xorsign.abs>?.<t:$FLOAT|$HALF>",
        "d = <t>, a : <t>, b : <t>",
        "extreme<false, <is_ftz>, <is_nan>, <is_xor>>(a, b)",
    ),
    Row(
        "max<is_ftz:.ftz>?<is_nan:.NaN>?<is_xor:.xorsign.abs>?.<t:$FLOAT|$HALF>",
        "d = <t>, a : <t>, b : <t>",
        "extreme<true, <is_ftz>, <is_nan>, <is_xor>>(a, b)",
    ),
    *(
        Row(
            f"{name}<is_ftz:.ftz>?<is_nan:.NaN>?<is_abs:.abs>?.f32",
            "d = f32, a : f32, b : f32, c : f32",
            f"extreme_of_three<{is_max}, <is_ftz>, <is_nan>, <is_abs>>(a, b, c)",
        )
        for name, is_max in (("min", "false"), ("max", "true"))
    ),
    Row(
        "rcp.(approx|<round:$ROUND>)<is_ftz:.ftz>?.<t:$FLOAT>",
        "d = <t>, a : <t>",
        "reciprocal<<round>, <is_ftz>>(a)",
    ),
    Row(
        "sqrt.(approx|<round:$ROUND>)<is_ftz:.ftz>?.<t:$FLOAT>",
        "d = <t>, a : <t>",
        "root<<round>, <is_ftz>>(a)",
    ),
    Row(
        "rsqrt.approx<is_ftz:.ftz>?.<t:$FLOAT>", "d = <t>, a : <t>", "reciprocal_root<<is_ftz>>(a)"
    ),
    Row("sin.approx<is_ftz:.ftz>?.f32", "d = f32, a : f32", "sine<<is_ftz>>(a)"),
    Row("cos.approx<is_ftz:.ftz>?.f32", "d = f32, a : f32", "cosine<<is_ftz>>(a)"),
    Row("lg2.approx<is_ftz:.ftz>?.f32", "d = f32, a : f32", "log_of_two<<is_ftz>>(a)"),
    Row("ex2.approx<is_ftz:.ftz>?.<t:f32|$HALF>", "d = <t>, a : <t>", "power_of_two<<is_ftz>>(a)"),
    Row("tanh.approx.<t:f32|$HALF>", "d = <t>, a : <t>", "hyperbolic_tangent<false>(a)"),
    Row("copysign.<t:$FLOAT>", "d = <t>, a : <t>, b : <t>", "std::copysign(b, a)"),
    Row(
        "testp.<class:finite|infinite|number|notanumber|normal|subnormal>.<t:$FLOAT>",
        "d = pred, a : <t>",
        "is_of<FloatClass::<class>>(a)",
    ),
    # --- comparisons and choices ---
    Row(
        f"setp.<operator:{_OF_INTEGERS}>.<t:$BITS|$INT>",
        "&d|e : pred, a : <t>, b : <t>",
        "{ const bool is_true = a <operator> b; d = is_true, e = !is_true; }",
    ),
    Row(
        f"setp.<cmp:{_COMPARISON}><is_ftz:.ftz>?.<t:{_COMPARED}>",
        "&d|e : pred, a : <t>, b : <t>",
        f"{{ const bool is_true = {_HOLDS}; d = is_true, e = !is_true; }}",
    ),
    Row(
        f"setp.<cmp:{_COMPARISON}>.<bool:and|or|xor><is_ftz:.ftz>?.<t:{_COMPARED}>",
        "&d|e : pred, a : <t>, b : <t>, c : pred",
        f"{{ const bool is_true = {_HOLDS}, other = c; "
        "d = joined(BoolOp::<bool>, is_true, other); "
        "e = joined(BoolOp::<bool>, !is_true, other); }",
    ),
    Row(
        f"setp.<cmp:{_COMPARISON}><is_ftz:.ftz>?.<t:f16x2|bf16x2>",
        "&d|e : pred, a : <t>, b : <t>",
        "{ const auto left = a; const auto right = b; "
        "d = first_holds<Compare::<cmp>, <is_ftz>>(left, right); "
        "e = second_holds<Compare::<cmp>, <is_ftz>>(left, right); }",
    ),
    *(
        Row(
            f"set.<cmp:{_COMPARISON}>{joined}<is_ftz:.ftz>?.<t1:{result}>.<t:{compared}>",
            f"d = <t1>, a : <t>, b : <t>{other}",
            f"truth<<t1>>({truth})",
        )
        for result, compared in (("u32|s32|f32|f16|bf16", _COMPARED), ("u16|s16", "f16|bf16"))
        for joined, other, truth in (
            ("", "", _HOLDS),
            (".<bool:and|or|xor>", ", c : pred", f"joined(BoolOp::<bool>, {_HOLDS}, c)"),
        )
    ),
    *(
        Row(
            f"set.<cmp:{_COMPARISON}><is_ftz:.ftz>?.{result}.<t:{pair}>",
            "&d : b32, a : <t>, b : <t>",
            "{ const auto left = a; const auto right = b; "
            "d = (first_holds<Compare::<cmp>, <is_ftz>>(left, right) ? TRUTH : 0) | "
            "(second_holds<Compare::<cmp>, <is_ftz>>(left, right) ? TRUTH << 16 : 0); }".replace(
                "TRUTH", truth
            ),
        )
        for pair, one in (("f16x2", "0x3c00u"), ("bf16x2", "0x3f80u"))
        for result, truth in ((pair, one), ("(u32|s32)", "0xffffu"))
    ),
    Row("selp.<t:$ANY>", "d = <t>, a : <t>, b : <t>, c : pred", "(c ? a : b)"),
    Row("slct.<t:$ANY>.s32", "d = <t>, a : <t>, b : <t>, c : s32", "(c >= 0 ? a : b)"),
    Row("slct{.ftz}.<t:$ANY>.f32", "d = <t>, a : <t>, b : <t>, c : f32", "(c >= 0 ? a : b)"),
)
