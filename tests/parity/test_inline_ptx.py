"""Instructions of inline PTX against Python's integers and fractions, on both back ends."""

from __future__ import annotations

import functools
import math
import operator
import re
from collections.abc import Callable, Mapping
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from parity.inline_ptx_oracle import BF16, E4M3, E5M2, F16, F32, TF32, Format, each, signed

from tmaasync import Kernel

THREADS = 64
RNG = np.random.default_rng(41)


def words(*first: int) -> Any:
    drawn = RNG.integers(0, 2**32, THREADS - len(first), np.uint64).astype(np.uint32)
    return np.concatenate([np.array(first, np.uint32), drawn])


def numbers(form: Format, *first: int) -> Any:
    """Return bits of numbers near one another, after those given."""
    drawn = RNG.normal(0, 4, THREADS - len(first))
    return np.array([*first, *(form.bits(float(x)) for x in drawn)], np.uint32)


def extended(word: int, bits: int) -> int:
    return signed(word, bits) if bits else 0


def pairs(form: Format, *first: int) -> Any:
    return numbers(form, *first) | numbers(form) << 16


SHIFTS = np.arange(THREADS, dtype=np.uint32)
INPUTS = {
    "a": words(0, 1, 2**31, 2**32 - 1, 0x80808080, 31),
    "b": words(0, 2**32 - 1, 1, 5, 40),
    "c": words(7, 2**31, 2**31 - 1),
    "s": SHIFTS,
    "x": numbers(F32, 0x80000000, 0x7F800000, 0xFF800000, 0x7FC00000, 1, 0x007FFFFF, 0x3F800000),
    "y": numbers(F32, 0, 0xFF800000, 0x3F800000, 0x40000000, 0x80000001, 0x7F7FFFFF, 0x33800000),
    "z": numbers(F32, 0x80000000, 0x3F800000, 0x7FC00000),
    "p": pairs(F16, 0x8000, 0x7BFF, 0x0001, 0x7C00, 0x7E00),
    "q": pairs(F16, 0x0000, 0x7BFF, 0x8001, 0xFC00, 0x3C00),
    "r": pairs(F16),
    "u": pairs(BF16, 0x8000, 0x7F7F, 0x0001, 0x7F80, 0x7FC0),
    "v": pairs(BF16, 0x0000, 0x7F7F, 0x8001, 0xFF80, 0x3F80),
    "w": pairs(BF16),
}
A, B, C, S, X, Y, Z = (INPUTS[name] for name in "abcsxyz")
P, Q, U, V = (INPUTS[name] for name in "pquv")
LONG = A.astype(np.uint64) << np.uint64(32) | B.astype(np.uint64)


def of_floats(
    compute: Callable[..., Any], *inputs: Any, form: Format = F32, mode: str = "rn"
) -> Any:
    """Round an exact result; of NaN and infinity let Python's floats decide."""

    def one(*bits: int) -> int:
        values = [form.value(word) for word in bits]
        is_exact = not any(isinstance(value, float) for value in values)
        try:
            result: Any = compute(*(values if is_exact else map(float, values)))
        except ZeroDivisionError:
            result = math.nan
        if result == 0:  # a float of 64 bits has its sign
            signs = (-1.0 if word & form.sign else 1.0 for word in bits)
            result = compute(*map(math.copysign, map(float, values), signs))
            return form.sign if math.copysign(1.0, result) < 0 else 0
        return form.bits(result, mode)

    return each(one, *inputs)


def by_halves(compute: Callable[..., int], *inputs: Any) -> Any:
    def both(*words: int) -> int:
        low = compute(*(word & 0xFFFF for word in words))
        return low | compute(*(word >> 16 for word in words)) << 16

    return each(both, *inputs)


def halves(compute: Callable[..., Any], *inputs: Any, form: Format) -> Any:
    def one(*bits: int) -> int:
        return int(of_floats(compute, *(np.array([word]) for word in bits), form=form)[0])

    return by_halves(one, *inputs)


def converted(form: Format, mode: str = "rn", **how: bool) -> Callable[[int], int]:
    def convert(bits: int) -> int:
        number = F32.value(bits)
        if how.get("relu") and number < 0:
            number = 0.0
        zero = form.sign if bits >> 31 and not how.get("relu") else 0
        return form.bits(number, mode, saturates=how.get("saturates", False), zero=zero)

    return convert


def packed(form: Format, mode: str = "rn", inputs: tuple[Any, Any] = (X, Y), **how: bool) -> Any:
    convert = converted(form, mode, **how)
    width = form.sign.bit_length()
    return each(lambda high, low: convert(high) << width | convert(low), *inputs)


def whole(mode: Callable[[Any], int], low: int, high: int) -> Any:
    def one(bits: int) -> int:
        number = F32.value(bits)
        if isinstance(number, float):
            return 0 if math.isnan(number) else (high if number > 0 else low)
        return max(low, min(high, mode(number)))

    return each(one, X)


def whole_halves(mode: Callable[[Any], int], inputs: Any, form: Format) -> Any:
    """Make the lower half of each word a whole number."""

    def one(word: int) -> int:
        number = form.value(word & 0xFFFF)
        result = number if isinstance(number, float) else Fraction(mode(number))
        return form.bits(result, zero=word & form.sign)

    return each(one, inputs)


def distances(parts: int, adds: bool, a: int, b: int, c: int) -> int:
    size = 4 // parts
    words = [np.array([one], np.uint32).view(f"u{size}").astype(int) for one in (a, b)]
    apart = abs(words[0] - words[1])
    return c + int(apart.sum()) if adds else int(apart.astype(f"u{size}").view(np.uint32)[0])


def lop3(a: int, b: int, c: int) -> int:
    return (a & b) ^ c


def prmt(a: int, b: int, selector: int) -> int:
    source = (b << 32 | a).to_bytes(8, "little")
    chosen = []
    for i in range(4):
        digit = selector >> 4 * i & 15
        byte = source[digit & 7]
        chosen.append((0xFF if byte & 0x80 else 0) if digit & 8 else byte)
    return int.from_bytes(bytes(chosen), "little")


def nth_set(mask: int, first: int, count: int) -> int:
    places = range(first, 32) if count > 0 else range(first, -1, -1)
    found = [i for i in places if mask >> i & 1]
    return found[abs(count) - 1] if len(found) >= abs(count) else -1


def wide(*words: int) -> int:
    """Return the number of words of 32 bits, the highest first."""
    return functools.reduce(lambda number, word: number << 32 | word, words)


def field(a: int, start: int, *, is_signed: bool) -> int:
    length = 9
    value: int = signed(a) if is_signed else a
    part: int = (value >> min(start, 63)) & (2**length - 1)
    if not is_signed:
        return part
    last = min(start + length - 1, 31)
    if start + length > 32:
        part = (a >> start if start < 32 else 0) & (2**length - 1)
    kept = max(0, min(length, 32 - start))
    return part | (-(1 << kept) if a >> last & 1 else 0)


INTEGERS: dict[str, Any] = {
    "add.u32 %0, {a}, {b};": each(operator.add, A, B),
    "add.sat.s32 %0, {a}, {b};": each(
        lambda a, b: max(-(2**31), min(2**31 - 1, signed(a) + signed(b))), A, B
    ),
    "sub.s32 %0, {a}, {b};": each(operator.sub, A, B),
    "mul.lo.u32 %0, {a}, {b};": each(operator.mul, A, B),
    "mul.hi.s32 %0, {a}, {b};": each(lambda a, b: signed(a) * signed(b) >> 32, A, B),
    "mad.lo.s32 %0, {a}, {b}, {c};": each(lambda a, b, c: a * b + c, A, B, C),
    "mad.hi.u32 %0, {a}, {b}, {c};": each(lambda a, b, c: (a * b >> 32) + c, A, B, C),
    "sad.u32 %0, {a}, {b}, {c};": each(lambda a, b, c: abs(a - b) + c, A, B, C),
    **{
        f"vabsdiff{parts}.u32.u32.u32{end} %0, {{a}}, {{b}}, {{c}};": each(
            functools.partial(distances, parts, bool(end)), A, B, C
        )
        for parts in (2, 4)
        for end in ("", ".add")
    },
    "rem.u32 %0, {a}, {c};": each(lambda a, c: a % c, A, C),
    "div.s32 %0, {a}, {c};": each(
        lambda a, c: (
            int(abs(signed(a)) // abs(signed(c))) * (1 if signed(a) * signed(c) > 0 else -1)
        ),
        A,
        C,
    ),
    "min.s32 %0, {a}, {b};": each(lambda a, b: min(signed(a), signed(b)), A, B),
    "max.u32 %0, {a}, {b};": each(max, A, B),
    "abs.s32 %0, {a};": each(lambda a: abs(signed(a)), A),
    "neg.s32 %0, {a};": each(operator.neg, A),
    "and.b32 %0, {a}, 0xff00ff;": A & np.uint32(0xFF00FF),
    "xor.b32 %0, {a}, -2;": A ^ np.uint32(0xFFFFFFFE),
    "not.b32 %0, {a};": ~A,
    "shl.b32 %0, {a}, {s};": each(lambda a, s: a << s, A, S),
    "shr.s32 %0, {a}, {s};": each(lambda a, s: signed(a) >> s, A, S),
    "shr.u32 %0, {a}, {s};": each(lambda a, s: a >> s, A, S),
    "shf.l.wrap.b32 %0, {a}, {b}, {s};": each(
        lambda a, b, s: (b << 32 | a) << (s & 31) >> 32, A, B, S
    ),
    "shf.r.clamp.b32 %0, {a}, {b}, {s};": each(
        lambda a, b, s: (b << 32 | a) >> min(s, 32), A, B, S
    ),
    "lop3.b32 %0, {a}, {b}, {c}, 0x6a;": each(lop3, A, B, C),
    "prmt.b32 %0, {a}, {b}, {c};": each(prmt, A, B, C),
    "prmt.b32.f4e %0, {a}, {b}, {s};": each(
        lambda a, b, s: prmt(a, b, sum(((s & 3) + i & 7) << 4 * i for i in range(4))), A, B, S
    ),
    "prmt.b32.rc16 %0, {a}, {b}, {s};": each(
        lambda a, b, s: prmt(a, b, 0x3232 if s & 1 else 0x1010), A, B, S
    ),
    "mad24.lo.u32 %0, {a}, {b}, {c};": each(
        lambda a, b, c: (a & 0xFFFFFF) * (b & 0xFFFFFF) + c, A, B, C
    ),
    "bfe.u32 %0, {a}, {s}, 9;": each(functools.partial(field, is_signed=False), A, S),
    "bfe.s32 %0, {a}, {s}, 9;": each(functools.partial(field, is_signed=True), A, S),
    "bfi.b32 %0, {a}, {b}, {s}, 5;": each(lambda a, b, s: b & ~(31 << s) | (a & 31) << s, A, B, S),
    "brev.b32 %0, {a};": each(lambda a: int(f"{a:032b}"[::-1], 2), A),
    "clz.b32 %0, {a};": each(lambda a: 32 - a.bit_length(), A),
    "popc.b32 %0, {a};": each(lambda a: a.bit_count(), A),
    "bfind.u32 %0, {a};": each(lambda a: a.bit_length() - 1, A),
    "bfind.shiftamt.s32 %0, {a};": each(
        lambda a: 31 - (k.bit_length() - 1) if (k := a if a < 2**31 else ~a & 2**32 - 1) else -1, A
    ),
    "dp4a.s32.s32 %0, {a}, {b}, {c};": each(
        lambda a, b, c: sum(signed(a >> 8 * i, 8) * signed(b >> 8 * i, 8) for i in range(4)) + c,
        A,
        B,
        C,
    ),
    "{ .reg .b64 t; mul.wide.s32 t, {a}, {b}; shr.u64 t, t, 20; cvt.u32.u64 %0, t; }": each(
        lambda a, b: (signed(a) * signed(b) & 2**64 - 1) >> 20, A, B
    ),
    "{ .reg .b32 lo, hi; .reg .b64 t; mov.b64 t, {{a}, {b}}; mov.b64 {lo, hi}, t;\n"
    " sub.u32 %0, hi, lo; }": each(lambda a, b: b - a, A, B),
    "{ .reg .b16 t<4>; mov.b32 {t0, t1}, {a}; mov.b32 %0, {t1, t0}; }": each(
        lambda a: a >> 16 | a << 16, A
    ),
    "{ .reg .pred p, q; setp.lt.and.s32 p|q, {a}, {b}, 1; selp.u32 %0, 5, 6, q; }": each(
        lambda a, b: 6 if signed(a) < signed(b) else 5, A, B
    ),
    "{ .reg .pred p; setp.hi.u32 p, {a}, {b}; not.pred p, p; selp.b32 %0, {a}, {c}, !p; }": each(
        lambda a, b, c: a if a > b else c, A, B, C
    ),
    "set.ge.u32.s32 %0, {a}, {b};": each(lambda a, b: -(signed(a) >= signed(b)), A, B),
    "slct.b32.s32 %0, {a}, {b}, {c};": each(lambda a, b, c: a if c < 2**31 else b, A, B, C),
    "cvt.sat.u8.s32 %0, {a};": each(lambda a: max(0, min(255, signed(a))), A),
    "cvt.s32.s16 %0, {a};": each(lambda a: signed(a, 16), A),
    "cvt.pack.sat.u8.s32.b32 %0, {a}, 77, {b};": each(
        lambda a, b: b << 16 | max(0, min(255, signed(a))) << 8 | 77, A, B
    ),
    "dp4a.u32.s32 %0, {a}, {b}, {c};": each(
        lambda a, b, c: sum((a >> 8 * i & 255) * signed(b >> 8 * i, 8) for i in range(4)) + c,
        *(A, B, C),
    ),
    "dp2a.hi.s32.u32 %0, {a}, {b}, {c};": each(
        lambda a, b, c: sum(signed(a >> 16 * i, 16) * (b >> 16 + 8 * i & 255) for i in (0, 1)) + c,
        *(A, B, C),
    ),
    "bmsk.clamp.b32 %0, {s}, {b};": each(
        lambda s, b: ((1 << min(b, 32)) - 1 << s) if s < 32 else 0, S, B
    ),
    "bmsk.wrap.b32 %0, {s}, {a};": each(lambda s, a: (1 << (a & 31)) - 1 << (s & 31), S, A),
    "szext.clamp.s32 %0, {a}, {s};": each(lambda a, s: extended(a, min(s, 32)), A, S),
    "szext.wrap.s32 %0, {a}, {s};": each(lambda a, s: extended(a, s & 31), A, S),
    "szext.wrap.u32 %0, {a}, {s};": each(lambda a, s: a & (1 << (s & 31)) - 1, A, S),
    "fns.b32 %0, {a}, 9, 3;": each(lambda a: nth_set(a, 9, 3), A),
    "fns.b32 %0, {a}, 20, -4;": each(lambda a: nth_set(a, 20, -4), A),
    "max.s16x2 %0, {a}, {b};": by_halves(
        lambda a, b: max(signed(a, 16), signed(b, 16)) & 0xFFFF, A, B
    ),
    "add.u16x2 %0, {a}, {b};": by_halves(lambda a, b: (a + b) & 0xFFFF, A, B),
    "{ .reg .pred p; setp.eq.u32 p, {b}, 1; lop3.and.b32 %0|p, {a}, {b}, {c}, 0x6a, !p; }": each(
        lop3, A, B, C
    ),
    "{ .reg .pred p; setp.gt.u32 p, {b}, {c}; set.lt.or.u32.s32 %0, {a}, {b}, p; }": each(
        lambda a, b, c: -(signed(a) < signed(b) or b > c), A, B, C
    ),
    # 96 bits of {c}{b}{a} plus {a}{c}{b}, minus {b}{a}{c}, and their upper word; with the words of
    # the condition code in between.
    "{ .reg .b32 l, m, h; add.cc.u32 l, {a}, {b}; addc.cc.u32 m, {b}, {c}; addc.u32 h, {c}, {a};\n"
    " sub.cc.u32 l, l, {c}; subc.cc.u32 m, m, {a}; subc.u32 %0, h, {b}; }": each(
        lambda a, b, c: (wide(c, b, a) + wide(a, c, b) - wide(b, a, c)) >> 64, *(A, B, C)
    ),
    "{ .reg .b32 l, m; mad.lo.cc.u32 l, {a}, {b}, {c}; madc.hi.cc.u32 m, {a}, {b}, {c};\n"
    " addc.u32 %0, m, 0; }": each(
        lambda a, b, c: ((t := a * b + wide(0, c, c)) >> 32) + (t >> 64), A, B, C
    ),
    "{ .reg .b64 x, y; mov.b64 x, {{a}, {b}}; mov.b64 y, {{b}, {c}}; add.cc.u64 x, x, y;\n"
    " addc.u32 %0, {a}, 0; }": each(
        lambda a, b, c: a + (wide(0, b, a) + wide(0, c, b) >> 64), A, B, C
    ),
    # Modifiers in orders other than the ISA's.
    "shfl.idx.sync.b32 %0, {a}, 0, 0, -1;": np.repeat(A[::32], 32),
    "{ .reg .pred p; setp.s32.lt p, {a}, {b}; selp.u32 %0, 1, 0, p; }": each(
        lambda a, b: signed(a) < signed(b), A, B
    ),
}

WHOLE: dict[str, Callable[[Any], int]] = {
    "rni": round,
    "rzi": math.trunc,
    "rmi": math.floor,
    "rpi": math.ceil,
}
FLOATS: dict[str, Any] = {
    "set.gt.u32.f16x2 %0, {p}, {q};": by_halves(
        lambda p, q: 0xFFFF if F16.value(p) > F16.value(q) else 0, P, Q
    ),
    "set.lt.f16x2.f16x2 %0, {p}, {q};": by_halves(
        lambda p, q: 0x3C00 if F16.value(p) < F16.value(q) else 0, P, Q
    ),
    "set.neu.bf16x2.bf16x2 %0, {u}, {v};": by_halves(
        lambda u, v: 0x3F80 if BF16.value(u) != BF16.value(v) else 0, U, V
    ),
    "{ .reg.b16 a, b, t; cvt.u16.u32 a, {p}; cvt.u16.u32 b, {q}; set.lt.f16.f16 t, a, b;\n"
    " cvt.u32.u16 %0, t; }": each(
        lambda p, q: 0x3C00 if F16.value(p & 0xFFFF) < F16.value(q & 0xFFFF) else 0, P, Q
    ),
    "{ .reg .b16 t; set.geu.bf16.f32 t, {x}, {y}; cvt.u32.u16 %0, t; }": each(
        lambda x, y: 0 if F32.value(x) < F32.value(y) else 0x3F80, X, Y
    ),
    "{ .reg .b16 a, b; .reg .s16 t; cvt.u16.u32 a, {u}; cvt.u16.u32 b, {v};\n"
    " set.eq.s16.bf16 t, a, b; cvt.s32.s16 %0, t; }": each(
        lambda u, v: 2**32 - 1 if BF16.value(u & 0xFFFF) == BF16.value(v & 0xFFFF) else 0, U, V
    ),
    "add.f32 %0, {x}, {y};": of_floats(operator.add, X, Y),
    "add.rz.f32 %0, {x}, {y};": of_floats(operator.add, X, Y, mode="rz"),
    "sub.rp.f32 %0, {z}, {y};": of_floats(operator.sub, Z, Y, mode="rp"),
    "mul.rm.f32 %0, {z}, {y};": of_floats(operator.mul, Z, Y, mode="rm"),
    "fma.rn.f32 %0, {y}, {y}, {x};": of_floats(lambda y, x: y * y + x, Y, X),
    "div.rn.f32 %0, {z}, {y};": of_floats(operator.truediv, Z, Y),
    "neg.f32 %0, {z};": Z ^ np.uint32(2**31),
    "abs.f32 %0, {z};": Z & np.uint32(2**31 - 1),
    "{ .reg .pred p; setp.geu.f32 p, {x}, {y}; selp.b32 %0, 1, 0, p; }": each(
        lambda x, y: not F32.value(x) < F32.value(y), X, Y
    ),
    "{ .reg .pred p; setp.lt.f32 p, {x}, {y}; selp.b32 %0, 1, 0, p; }": each(
        lambda x, y: F32.value(x) < F32.value(y), X, Y
    ),
    "{ .reg .pred p; testp.finite.f32 p, {x}; selp.b32 %0, 1, 0, p; }": each(
        lambda x: not isinstance(F32.value(x), float), X
    ),
    "cvt.rzi.s32.f32 %0, {x};": whole(math.trunc, -(2**31), 2**31 - 1),
    "cvt.rni.s32.f32 %0, {x};": whole(round, -(2**31), 2**31 - 1),
    "cvt.rmi.u32.f32 %0, {x};": whole(math.floor, 0, 2**32 - 1),
    **{
        f"{{ .reg .b16 t; cvt.u16.u32 t, {{{name}}}; cvt.{mode}.{kind}.{kind} t, t;\n"
        " cvt.u32.u16 %0, t; }": whole_halves(number, INPUTS[name], form)
        for mode, number in WHOLE.items()
        for kind, form, name in (("f16", F16, "p"), ("bf16", BF16, "u"))
    },
    "cvt.rn.f32.s32 %0, {a};": each(lambda a: F32.bits(float(signed(a))), A),
    "cvt.rz.f32.u32 %0, {a};": each(lambda a: F32.bits(float(a), "rz"), A),
    "cvt.rn.f16x2.f32 %0, {x}, {y};": packed(F16),
    **{
        f"{{ .reg .b16 t; cvt.{mode}.f16.f32 t, {{y}}; cvt.u32.u16 %0, t; }}": each(
            converted(F16, mode), Y
        )
        for mode in ("rm", "rp")
    },
    "cvt.f16x2.rn.f32 %0, {y}, {x};": packed(F16, inputs=(Y, X)),
    "cvt.rn.relu.bf16x2.f32 %0, {x}, {y};": packed(BF16, relu=True),
    "cvt.rz.bf16x2.f32 %0, {x}, {y};": packed(BF16, "rz"),
    "cvt.rna.tf32.f32 %0, {z};": each(
        lambda z: (
            TF32.bits(F32.value(z), "rna", zero=z >> 31 << 18) << 13
            if not math.isnan(F32.value(z))
            else 0x7FFFFFFF
        ),
        Z,
    ),
    "{ .reg .b16 t; cvt.rn.satfinite.e4m3x2.f32 t, {x}, {y}; cvt.u32.u16 %0, t; }": packed(
        E4M3, saturates=True
    ),
    "{ .reg .b16 t; cvt.rn.satfinite.e5m2x2.f32 t, {x}, {y}; cvt.u32.u16 %0, t; }": packed(
        E5M2, saturates=True
    ),
    "{ .reg .b16 t; cvt.u16.u32 t, {a}; and.b16 t, t, 0x7777; cvt.rn.f16x2.e4m3x2 %0, t; }": each(
        lambda a: F16.bits(E4M3.value(a & 0x77)) | F16.bits(E4M3.value(a >> 8 & 0x77)) << 16, A
    ),
    "{ .reg .b16 t; cvt.rn.f16.f32 t, {y}; cvt.f32.f16 %0, t; }": each(
        lambda y: F32.bits(F16.value(converted(F16)(y)), zero=y & 2**31), Y
    ),
    "fma.rn.f16x2 %0, {p}, {q}, {r};": halves(
        lambda p, q, r: p * q + r, *(INPUTS[name] for name in "pqr"), form=F16
    ),
    "add.rn.f16x2 %0, {p}, {q};": halves(operator.add, INPUTS["p"], INPUTS["q"], form=F16),
    "mul.rn.f16x2 %0, {q}, {r};": halves(operator.mul, INPUTS["q"], INPUTS["r"], form=F16),
    "fma.rn.bf16x2 %0, {u}, {v}, {w};": halves(
        lambda u, v, w: u * v + w, *(INPUTS[name] for name in "uvw"), form=BF16
    ),
    "neg.bf16x2 %0, {u};": INPUTS["u"] ^ np.uint32(0x80008000),
}

# Approximate instructions, and the functions that they approximate.
APPROXIMATIONS: dict[str, Callable[[Any], Any]] = {
    "ex2.approx.ftz.f32 %0, {z};": np.exp2,
    "tanh.approx.f32 %0, {z};": np.tanh,
    "{ .reg .f32 t; abs.f32 t, {z}; lg2.approx.f32 %0, t; }": lambda z: np.log2(np.abs(z)),
    "{ .reg .f32 t; abs.f32 t, {z}; rsqrt.approx.f32 %0, t; }": lambda z: 1 / np.sqrt(np.abs(z)),
    "{ .reg .f32 t; abs.f32 t, {z}; sqrt.approx.ftz.f32 %0, t; }": lambda z: np.sqrt(np.abs(z)),
    "rcp.approx.ftz.f32 %0, {z};": lambda z: 1 / z,
    "sin.approx.f32 %0, {z};": np.sin,
    "cos.approx.f32 %0, {z};": np.cos,
}
TABLE: Mapping[str, Any] = {**INTEGERS, **FLOATS, **dict.fromkeys(APPROXIMATIONS)}


def statement(index: int, text: str) -> str:
    used = list(dict.fromkeys(re.findall(r"\{([a-z])\}", text)))
    for number, name in enumerate(used, 1):
        text = text.replace(f"{{{name}}}", f"%{number}")
    shown = text.replace("\n", '\\n"\n        "')
    inputs = ", ".join(f'"r"({name})' for name in used)
    return (
        f'    {{ unsigned d; asm volatile("{shown}" : "=r"(d) : {inputs}); '
        f"out[{index} * {THREADS} + t] = d; }}\n"
    )


@functools.cache
def table_kernel() -> Kernel:
    loads = "".join(
        f"    const unsigned {name} = in[{i} * {THREADS} + t];\n" for i, name in enumerate(INPUTS)
    )
    body = "".join(statement(index, text) for index, text in enumerate(TABLE))
    return Kernel(
        'extern "C" __global__ void table(const unsigned* in, unsigned* out) {\n'
        f"    const int t = threadIdx.x;\n{loads}{body}}}\n",
        "table",
    )


_RESULTS: dict[str, Any] = {}


def results(backend: Any) -> Any:
    """Return what one launch gives of every instruction."""
    name = type(backend).__name__
    if name not in _RESULTS:
        out = backend.array(np.full((len(TABLE), THREADS), 0xA5A5A5A5, np.uint32))
        table_kernel()(1, THREADS, (backend.array(np.stack(list(INPUTS.values()))), out))
        _RESULTS[name] = dict(zip(TABLE, backend.host(out), strict=True))
    return _RESULTS[name]


@pytest.mark.parametrize("text", [*INTEGERS, *FLOATS])
def test_an_instruction_gives_the_bits_of_the_oracle(backend: Any, text: str) -> None:
    wanted = np.asarray(TABLE[text], np.uint32)
    got = results(backend)[text]
    form = (
        F16 if "f16x2 %0" in text and "bf16" not in text else BF16 if "bf16x2 %0" in text else F32
    )
    if text in FLOATS and "setp" not in text and "t, " not in text:
        wanted, got = plain_nans(wanted, form), plain_nans(got, form)

    different = np.flatnonzero(wanted != got)

    assert not different.size, [(hex(int(wanted[i])), hex(int(got[i])), i) for i in different[:3]]


def plain_nans(values: Any, form: Format) -> Any:
    """Make one NaN of all, whose bits the manual leaves open."""

    def one(bits: int) -> int:
        return form.nan if bits & (form.sign - 1) > form.infinity else bits

    return each(one, values) if form is F32 else by_halves(one, values)


@pytest.mark.parametrize("text", APPROXIMATIONS)
def test_an_approximation_is_close(backend: Any, text: str) -> None:
    z = Z.view(np.float32)
    with np.errstate(all="ignore"):
        wanted = APPROXIMATIONS[text](z.astype(np.float64))
    got = results(backend)[text].view(np.float32)
    normal = np.isfinite(wanted) & (np.abs(z) > 1e-30)

    assert np.allclose(got[normal], wanted[normal], rtol=2**-10, atol=2**-18)
