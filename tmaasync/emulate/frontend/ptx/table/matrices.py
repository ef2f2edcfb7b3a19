"""ldmatrix, stmatrix, mma.sync and wgmma."""

from __future__ import annotations

from collections.abc import Iterator

from tmaasync.emulate.frontend.ptx.row import Row

__all__ = ["ROWS"]

_RUN = "::tmaasync_emulate"
_REGISTER = {"f32": "float", "f16": "unsigned", "s32": "int"}
_PER_REGISTER = {"f32": 2, "f16": 4, "s32": 2}  # columns that a register stands for


def _wgmma(
    depth: int, sums: tuple[str, ...], pairs: tuple[tuple[str, str], ...], more: str
) -> Iterator[Row]:
    """Yield the forms of some types, with A in shared memory and in registers."""
    scales = ", sa : imm, sb : imm" if more else ""
    for total in sums:
        for a, b in pairs:
            start = f"wgmma.mma_async.sync.aligned.m64n<n:[0-9]+>k{depth}.{total}.{a}.{b}"
            pattern = start + ("{.satfinite}" if total == "s32" else "")
            held = f"in_one_array<{_REGISTER[total]}, <n> / {_PER_REGISTER[total]}>(d)"
            types = f"::tmaasync::ptx::MmaType::{_TYPES[a]}, ::tmaasync::ptx::MmaType::{_TYPES[b]}"
            signs = "sa, sb" if more else "1, 1"
            ta, tb = ("ta", "tb") if more == "trans" else ("0", "0")
            transposes = ", ta : imm, tb : imm" if more == "trans" else ""
            function = f"::tmaasync::ptx::wgmma_mma_async_ss<{types}, {ta}, {tb}, {signs}>"
            yield Row(
                pattern,
                f"@d*, a : b64, b : b64, p : pred{scales}{transposes}",
                f"{function}({held}, a, b, p)",
            )
            transposes = ", tb : imm" if more == "trans" else ""
            yield Row(
                pattern,
                f"@d*, @a*, b : b64, p : pred{scales}{transposes}",
                f"multiply_registers<{types}, {tb}, {signs}>({held}, b, p, a)",
            )


_TYPES = {
    "f16": "kF16",
    "bf16": "kBF16",
    "tf32": "kTF32",
    "e4m3": "kE4M3",
    "e5m2": "kE5M2",
    "s8": "kS8",
    "u8": "kU8",
}
_FLOAT8 = tuple((a, b) for a in ("e4m3", "e5m2") for b in ("e4m3", "e5m2"))
_INT8 = tuple((a, b) for a in ("s8", "u8") for b in ("s8", "u8"))
_MULTIPLY = (
    "{ const ::std::uint32_t left[] = {a}, right[] = {b}, before[] = {c}; "
    "::std::uint32_t after[%d]; %s(after, left, right, before); spread(after, d); }"
)


def _mma(pairs: tuple[tuple[str, str], ...], depths: tuple[int, ...], total: str) -> Iterator[Row]:
    for a, b in pairs:
        for depth in depths:
            kinds = f"MmaType::{_TYPES[a]}, MmaType::{_TYPES[b]}, {depth}"
            call = {
                "f32": f"multiply<{kinds}, float>",
                "s32": f"multiply<{kinds}, ::std::int32_t, <is_sat>>",
                "f16": f"multiply_to_halves<{kinds}>",
            }[total]
            saturates = "{.<is_sat:satfinite>}" if total == "s32" else ""
            yield Row(
                f"mma.sync.aligned.m16n8k{depth}.row.col{saturates}.{total}.{a}.{b}.{total}",
                "&d* : b32, a* : b32, b* : b32, c* : b32",
                _MULTIPLY % (2 if total == "f16" else 4, call),
            )


def _with_kind(kind: str, more: str, shape: str, middle: str) -> str:
    """Return the pattern of mma.sync, whose kind stands before or after the shape."""
    both = (f".{kind}{more}.{shape}.row.col", f".{shape}.row.col.{kind}{more}")
    return f"mma.sync.aligned({both[0]}|{both[1]}).{middle}"


def _sparse(kind: str, more: str, shape: str, middle: str) -> str:
    """Return the pattern of the sparse form, which is a word of its own in one of two places."""
    word = ".sp::ordered_metadata"
    both = (f".{kind}{more}.{shape}.row.col", f".{shape}.row.col.{kind}{more}")
    late = (f".{kind}{word}{more}.{shape}.row.col", f".{shape}.row.col.{kind}{word}{more}")
    start = f"{word}.sync.aligned({both[0]}|{both[1]})|.sync.aligned({late[0]}|{late[1]})"
    return f"mma({start}).{middle}"


_SMALL = "e4m3|e5m2|e2m3|e3m2|e2m1"
_KIND = "::tmaasync_emulate::Tcgen05Kind::k"
_CODES = "SmallFloatCode::<a>, SmallFloatCode::<b>"
_OPERANDS = "&d* : b32, a* : b32, b* : b32, c* : b32"
_METADATA = ", e* : b32, f : imm"
_SCALES = ", m* : b32, p* : b16, q* : b32, r* : b16"
_MULTIPLY_KIND = (
    "{ const ::std::uint32_t left[] = {a}, right[] = {b}, before[] = {c}; "
    "::std::uint32_t after[%d]; "
    "multiply_kind<%s, %s>(kind_types(%s, %d), after, left, right, before, %s, %s); "
    "spread(after, d); }"
)


_SMALL_TYPES, _PACKED_TYPES = f"f32.<a:{_SMALL}>.<b:{_SMALL}>.f32", "f32.e2m1.e2m1.f32"
_SCALED_KINDS = (
    ("mxf8f6f4", "{.scale_vec::1X}", 32, _SMALL_TYPES, "ue8m0"),
    ("mxf4", "{.scale_vec::2X}", 64, _PACKED_TYPES, "ue8m0"),
    ("mxf4nvf4", ".scale_vec::2X", 64, _PACKED_TYPES, "ue8m0"),
    ("mxf4nvf4", ".scale_vec::4X", 64, _PACKED_TYPES, "ue8m0"),
    ("mxf4nvf4", ".scale_vec::4X", 64, _PACKED_TYPES, "ue4m3"),
)


def _mma_kinds() -> Iterator[Row]:
    for is_sparse in (False, True):
        pattern = _sparse if is_sparse else _with_kind
        operands = _OPERANDS + _METADATA * is_sparse
        metadata = "sparse_metadata<f>(e)" if is_sparse else "0"
        factor = 2 if is_sparse else 1
        for total, count in (("f32", 4), ("f16", 2)):
            middle = f"{total}.<a:{_SMALL}>.<b:{_SMALL}>.{total}"
            bits = (count == 4) << 4
            yield Row(
                pattern("kind::f8f6f4", "", f"m16n8k{32 * factor}", middle),
                operands,
                _MULTIPLY_KIND % (count, f"{_KIND}F8F6F4", 0, _CODES, bits, "{}", metadata),
            )
        for kind, vector, depth, types, scale in _SCALED_KINDS:
            codes = _CODES if types == _SMALL_TYPES else "1, 1"
            bits = 1 << 23 if scale == "ue8m0" else 0
            scales = next(digit for digit in vector if digit.isdigit())
            form = (f"kind::{kind}", f".block_scale{vector}", f"m16n8k{depth * factor}")
            given = "scale_operands(m, q, p, r)"
            yield Row(
                pattern(*form, f"{types}.{scale}"),
                operands + _SCALES,
                _MULTIPLY_KIND
                % (4, f"{_KIND}{kind.upper()}", scales, codes, bits, given, metadata),
            )


def _mma_quads() -> Iterator[Row]:
    for total, count in (("f32", 8), ("f16", 4)):
        sides = "(.row|<is_col:.col>)(.col|<is_row:.row>)"
        yield Row(
            f"mma.sync.aligned.m8n8k4{sides}.{total}.f16.f16.{total}",
            "&d* : b32, a* : b32, b* : b32, c* : b32",
            _MULTIPLY % (count, f"multiply_quads<<is_col>, <is_row>, {str(count == 4).lower()}>"),
        )


def _mma_f64(m: int, depth: int) -> Row:
    counts = m * 8 // 32, m * depth // 32, 8 * depth // 32
    return Row(
        f"mma.sync.aligned.m{m}n8k{depth}.row.col.f64.f64.f64.f64",
        "&d* : f64, a* : f64, b* : f64, c* : f64",
        "{ const double left[] = {a}, right[] = {b}; double sums[] = {c}; "
        f"multiply_doubles<{', '.join(map(str, counts))}>(sums, left, right); spread(sums, d); }}",
    )


ROWS = (
    Row(
        "ldmatrix.sync.aligned.m8n8.x<n:1|2|4><is_trans:.trans>?{.shared{::cta}}.b16",
        "&d* : b32, [a : s]",
        "load_matrices<<is_trans>, <n>>(a, d)",
    ),
    Row(
        "stmatrix.sync.aligned{.m8n8}.x<n:1|2|4><is_trans:.trans>?{.shared{::cta}}.b16",
        "[a : s], b* : b32",
        "store_matrices<<is_trans>, <n>>(a, b)",
    ),
    Row(
        "ldmatrix.sync.aligned.m16n16.x<n:1|2>.trans{.shared{::cta}}.b8",
        "&d* : b32, [a : s]",
        f"load_byte_matrices<{_RUN}::ByteMatrix::kTransposed, <n>>(a, d)",
    ),
    *(
        Row(
            f"ldmatrix.sync.aligned.{shape}{{.shared{{::cta}}}}.b8x16.b{bits}x16_p{gap}",
            "&d* : b32, [a : s]",
            f"load_byte_matrices<{_RUN}::ByteMatrix::k{kind}From{bits}Bits, <n>>(a, d)",
        )
        for shape, kind in (("m8n16.x<n:1|2|4>", ""), ("m16n16.x<n:1|2>.trans", "Transposed"))
        for bits, gap in ((4, 64), (6, 32))
    ),
    Row(
        "stmatrix.sync.aligned.m16n8.x<n:1|2|4>.trans{.shared{::cta}}.b8",
        "[a : s], b* : b32",
        "store_byte_matrices<<n>>(a, b)",
    ),
    Row("movmatrix.sync.aligned.m8n8.trans.b16", "d = b32, a : b32", "transposed_matrix(a)"),
    Row("wgmma.fence.sync.aligned", "", f"{_RUN}::mma_fence()"),
    Row("wgmma.commit_group.sync.aligned", "", f"{_RUN}::mma_commit()"),
    Row("wgmma.wait_group.sync.aligned", "n : imm", f"{_RUN}::mma_wait(n)"),
    *_wgmma(16, ("f32", "f16"), (("f16", "f16"),), "trans"),
    *_wgmma(16, ("f32",), (("bf16", "bf16"),), "trans"),
    *_wgmma(8, ("f32",), (("tf32", "tf32"),), "scale"),
    *_wgmma(32, ("f32", "f16"), _FLOAT8, "scale"),
    *_wgmma(32, ("s32",), _INT8, ""),
    *_mma((("f16", "f16"),), (8, 16), "f32"),
    *_mma((("f16", "f16"),), (8, 16), "f16"),
    *_mma((("bf16", "bf16"),), (8, 16), "f32"),
    *_mma((("tf32", "tf32"),), (4, 8), "f32"),
    *_mma(_FLOAT8, (16, 32), "f32"),
    *_mma(_FLOAT8, (16, 32), "f16"),
    *_mma(_INT8, (16, 32), "s32"),
    *_mma_kinds(),
    *_mma_quads(),
    _mma_f64(8, 4),
    *(_mma_f64(16, depth) for depth in (4, 8, 16)),
)
