"""Calls whose launches are recorded: the calls of the benchmark results, and variants of them.

Arrays are uninitialised NumPy arrays, so that their pages are never touched.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np

from tmaasync import ops

BF16 = np.dtype(ml_dtypes.bfloat16)
FP16 = np.dtype(np.float16)
FP32 = np.dtype(np.float32)
E4M3 = np.dtype(ml_dtypes.float8_e4m3fn)
E5M2 = np.dtype(ml_dtypes.float8_e5m2)
INT8 = np.dtype(np.int8)


class Call(NamedTuple):
    """An operation and its arguments; ``arrays`` are the names by which a record knows them."""

    name: str
    run: Callable[..., Any]
    arrays: dict[str, Any]
    options: dict[str, Any]

    def __call__(self) -> Any:
        return self.run(**self.arrays, **self.options)


def call(name: str, run: Callable[..., Any], arrays: dict[str, Any], **options: Any) -> Call:
    given = {key: array for key, array in arrays.items() if array is not None}
    return Call(name, run, given, options)


def matrix(rows: int, columns: int, dtype: Any = BF16, stored: str = "n", batch: int = 0) -> Any:
    """Rows by columns; with ``stored="t"`` the transpose is what is contiguous."""
    outer = (batch,) if batch else ()
    if stored == "n":
        return np.empty((*outer, rows, columns), dtype)
    return np.empty((*outer, columns, rows), dtype).swapaxes(-1, -2)


def calls() -> Iterator[Call]:
    """Every call once."""
    seen: set[str] = set()
    for one in all_calls():
        if one.name not in seen:
            seen.add(one.name)
            yield one


def all_calls() -> Iterator[Call]:
    yield from matmuls()
    yield from epilogues()
    yield from batched()
    yield from grouped()
    yield from scaled()
    yield from convolutions()
    yield from attention()
    yield from varlen()
    yield from ragged()
    yield from copies()


# --- matmul -----------------------------------------------------------------------------------

CUBES = (1024, 2048, 3072, 4095, 4096, 5000, 6144, 8192, 12288, 16384)
WEIGHTS = ((4096, 4096), (14336, 4096), (4096, 14336), (7168, 16384), (24576, 1536), (7168, 2048))
ROWS = (1, 8, 16, 64, 128, 512, 2048, 4096, 8192)
SPLIT_K = (
    *((512, 512, 16384), (256, 256, 65536), (128, 1024, 7168), (256, 512, 8192)),
    *((1024, 1024, 8192), (1024, 1024, 2048), (512, 512, 4096), (512, 2048, 4096)),
    *((768, 768, 16384), (128, 4096, 7168), (384, 1536, 8192), (128, 512, 2048)),
    *((64, 1024, 16384), (64, 2048, 7168), (64, 4096, 4096), (16, 1024, 8192)),
    *((16, 2048, 7168), (16, 4096, 14336), (1, 4096, 4096), (32, 7168, 2048)),
)
EPILOGUE_SHAPES = (
    *((4096, 4096, 4096), (8192, 8192, 8192), (2048, 4096, 14336), (128, 14336, 4096)),
    *((3072, 3072, 3072), (5000, 5000, 5000), (512, 512, 16384), (16, 4096, 4096)),
)
ODD_SHAPES = (
    *((7, 9, 11), (129, 257, 65), (1000, 1016, 72), (3000, 2990, 1000), (64, 8, 24)),
    *((1, 1, 1), (200, 64, 4096), (8, 20000, 512), (4096, 32, 4096), (16, 16, 100000)),
)


def matmul(
    shape: tuple[int, int, int], layout: str, dtype: Any, out: Any = None, **options: Any
) -> Call:
    """Arguments of the output are its type and how it is stored."""
    m, n, k = shape
    arrays = {"a": matrix(m, k, dtype, layout[0]), "b": matrix(k, n, dtype, layout[1])}
    notes = "".join(f", {key}={value}" for key, value in options.items())
    if out is not None:
        arrays["out"] = matrix(m, n, *out)
        notes += f", out {out[0]} {out[1]}"
    return call(f"matmul {dtype} {layout} {m} x {n} x {k}{notes}", ops.matmul, arrays, **options)


def matmuls() -> Iterator[Call]:
    yield from sixteen_bit_matmuls()
    yield from matmuls_of_other_types()


def sixteen_bit_matmuls() -> Iterator[Call]:
    for side in CUBES:
        yield matmul((side,) * 3, "nt", BF16)
    for (n, k), m in itertools.product(WEIGHTS, ROWS):
        yield matmul((m, n, k), "nt", BF16)
    for shape in SPLIT_K:
        yield matmul(shape, "nt", BF16)
        yield matmul(shape, "tn", BF16)
    for side in (2048, 4096, 8192):
        yield matmul((side,) * 3, "nt", FP16)
    for shape, layout in itertools.product((*ODD_SHAPES, (4096,) * 3), ("nn", "nt", "tn", "tt")):
        yield matmul(shape, layout, BF16)
    for shape, out in itertools.product(
        ((4096, 4096, 4096), (129, 257, 64), (16, 4096, 4096), (300, 40, 512)),
        ((BF16, "t"), (FP32, "n"), (FP16, "n"), (FP32, "t")),
    ):
        yield matmul(shape, "nt", BF16, out=out)


def matmuls_of_other_types() -> Iterator[Call]:
    for shape in ((4096, 4096, 4096), (2048, 4096, 14336), (128, 14336, 4096), (33, 100, 500)):
        yield matmul(shape, "nt", INT8)
        yield matmul(shape, "nt", FP32, precision="tf32")
        yield matmul(shape, "tn", FP32, precision="tf32")
    for side in (2048, 4096, 8192, 16384):
        yield matmul((side,) * 3, "nt", E4M3)
    for (n, k), m in itertools.product(((7168, 16384), (24576, 1536)), (4096, 128, 16)):
        arrays = {"a": matrix(m, k, E4M3), "b": matrix(k, n, E4M3, "t")}
        arrays |= {"scale_a": np.ones((1, 1), np.float32), "scale_b": np.ones((1, 1), np.float32)}
        yield call(f"matmul float8 with scales {m} x {n} x {k}", ops.matmul, arrays)
    arrays = {"a": matrix(512, 512, E5M2), "b": matrix(512, 512, E4M3)}
    yield call("matmul of two float8 types to fp16", ops.matmul, arrays, dtype="float16")
    yield matmul((512, 512, 0), "nt", BF16)


def epilogues() -> Iterator[Call]:
    for (m, n, k), layout in itertools.product(EPILOGUE_SHAPES, ("nt", "nn")):
        for addend, activation in itertools.product(
            (False, True), (None, "relu", "gelu_tanh", "gelu", "silu")
        ):
            arrays = {"a": matrix(m, k, BF16, layout[0]), "b": matrix(k, n, BF16, layout[1])}
            arrays |= {"bias": np.empty(n, BF16), "out": matrix(m, n)}
            if addend:
                arrays["c"] = matrix(m, n)
            name = f"matmul with bias, {activation}, addend {addend}, {layout} {m} x {n} x {k}"
            yield call(name, ops.matmul, arrays, activation=activation)
        arrays = {"a": matrix(m, k, BF16, layout[0]), "b": matrix(k, n, BF16, layout[1])}
        out = matrix(m, n, FP32)
        yield call(
            f"matmul with the output as addend, alpha and beta, {layout} {m} x {n} x {k}",
            ops.matmul,
            arrays | {"c": out, "out": out},
            alpha=0.5,
            beta=2.0,
        )
        yield call(
            f"matmul with an fp32 bias and a transposed addend, {layout} {m} x {n} x {k}",
            ops.matmul,
            arrays | {"c": matrix(m, n, BF16, "t"), "bias": np.empty(n, FP32)},
        )


def batched() -> Iterator[Call]:
    shapes = (
        *((16, 1024, 1024, 1024), (32, 512, 512, 1024), (64, 256, 256, 256)),
        *((8, 2048, 2048, 2048), (4, 4096, 4096, 4096), (32, 2048, 128, 2048)),
        *((3, 100, 30, 70), (5, 16, 512, 512), (1, 300, 300, 300)),
    )
    for (batch, m, n, k), layout in itertools.product(shapes, ("nt", "nn", "tn")):
        a = matrix(m, k, BF16, layout[0], batch)
        name = f"batched matmul {layout} {batch} x {m} x {n} x {k}"
        for b, kind in (
            (matrix(k, n, BF16, layout[1], batch), "each"),
            (matrix(k, n, BF16, layout[1]), "one b"),
        ):
            yield call(f"{name}, {kind}", ops.matmul, {"a": a, "b": b})
        bias = np.empty(n, BF16)
        arrays = {"a": matrix(m, k), "b": matrix(k, n, BF16, layout[1], batch), "bias": bias}
        yield call(f"{name}, one a with bias", ops.matmul, arrays, activation="gelu")


# --- groups -----------------------------------------------------------------------------------

GROUPED = (
    *((4, 8192, 4096, 7168), (8, 4096, 4096, 7168), (4, 8192, 7168, 2048), (8, 4096, 7168, 2048)),
    *((16, 1024, 4096, 4096), (64, 16, 4096, 7168), (128, 4, 4096, 2048), (32, 64, 7168, 2048)),
    *((3, 100, 65, 40), (5, 3, 24, 512)),
)


def grouped() -> Iterator[Call]:
    for (groups, rows, n, k), stored, dtype in itertools.product(GROUPED, "tn", (BF16, FP16)):
        arrays = {
            "a": np.empty((groups * rows, k), dtype),
            "b": matrix(k, n, dtype, stored, groups),
            "offsets": np.arange(1, groups + 1, dtype=np.int32) * rows,
        }
        name = f"grouped matmul {dtype} {stored} {groups} x {rows} x {n} x {k}"
        yield call(name, ops.grouped_matmul, arrays)
        yield call(f"{name} in fp32", ops.grouped_matmul, arrays, dtype="float32")


def scaled() -> Iterator[Call]:
    shapes = ((7168, 16384), (24576, 1536), (7168, 2048), (4096, 7168), (520, 1000), (24, 256))
    for (n, k), m, dtype in itertools.product(shapes, (4096, 128, 1000, 20), ("bfloat16", FP32)):
        blocks_m, blocks_n, blocks_k = -(-m // 1), -(-n // 128), -(-k // 128)
        padded = -(-blocks_k // 4) * 4
        arrays = {
            "a": np.empty((m, k), E4M3),
            "b": np.empty((n, k), E4M3).T,
            "scale_a": np.empty((blocks_k, blocks_m), FP32).T,
            "scale_b": np.empty((blocks_n, padded), FP32)[:, :blocks_k].T,
        }
        name = f"scaled matmul {m} x {n} x {k} to {dtype}"
        yield call(name, ops.scaled_matmul, arrays, dtype=dtype)


# --- convolution ------------------------------------------------------------------------------

# Images, channels, filters, side, taps, stride, dilation.
CONVOLUTIONS = (
    *((128, 128, 128, 28, 3, 1, 1), (128, 256, 256, 14, 3, 1, 1), (32, 320, 320, 64, 3, 1, 1)),
    *((32, 640, 640, 32, 3, 1, 1), (32, 1280, 1280, 16, 3, 1, 1), (32, 256, 512, 56, 3, 2, 1)),
    *((128, 64, 64, 56, 3, 1, 1), (128, 512, 512, 7, 3, 1, 1), (128, 256, 64, 56, 1, 1, 1)),
    *((128, 64, 256, 56, 1, 1, 1), (16, 256, 256, 64, 3, 1, 2), (128, 8, 64, 224, 7, 2, 1)),
    *((128, 32, 64, 112, 3, 2, 1), (64, 96, 96, 56, 3, 1, 1), (3, 40, 20, 9, 3, 1, 1)),
)


def convolutions() -> Iterator[Call]:
    for (n, c, k, side, taps, stride, dilation), epilogue, dtype in itertools.product(
        CONVOLUTIONS, (False, True), (BF16, FP16)
    ):
        arrays = {
            "images": np.empty((n, side, side, c), dtype),
            "filters": np.empty((k, taps, taps, c), dtype),
            "bias": np.empty(k, FP32 if dtype is FP16 else dtype) if epilogue else None,
        }
        name = (
            f"conv2d {dtype} {n} x {side}^2, {c} -> {k}, {taps}x{taps}, stride {stride}, {epilogue}"
        )
        activation = "relu" if epilogue else None
        window = {"stride": stride, "padding": taps // 2 * dilation, "dilation": dilation}
        yield call(name, ops.conv2d, arrays, activation=activation, **window)


# --- attention --------------------------------------------------------------------------------

MASKS: tuple[dict[str, Any], ...] = (
    *({}, {"causal": True}, {"causal": "top_left"}, {"window": (128, 0)}, {"window": (100, 50)}),
    *({"softcap": 30.0}, {"causal": True, "softcap": 5.0}, {"window": (None, 3)}, {"scale": 0.2}),
)


def heads_of(sizes: tuple[int, int, int, int, int, int], dtype: Any) -> dict[str, Any]:
    batch, queries, keys, heads, kv_heads, head_dim = sizes
    q = np.empty((batch, queries, heads, head_dim), dtype)
    k, v = (np.empty((batch, keys, kv_heads, head_dim), dtype) for _ in range(2))
    return {"q": q, "k": k, "v": v}


def attention_sizes() -> Iterator[tuple[int, int, int, int, int, int]]:
    for head_dim, length in itertools.product(
        (128, 64, 256, 96), (512, 1024, 2048, 4096, 8192, 16384)
    ):
        yield 16384 // length, length, length, *(2048 // head_dim,) * 2, head_dim
    yield 1, 32768, 32768, 16, 16, 128
    for batch, queries, keys in ((2, 2048, 2048), (2, 8192, 8192)):
        yield batch, queries, keys, 64, 8, 128
    for (batch, keys), queries, head_dim in itertools.product(
        ((16, 8192), (1, 32768), (20, 8192)), (1, 16), (128, 64)
    ):
        yield batch, queries, keys, 64, 8, head_dim
    yield 3, 100, 77, 6, 3, 40
    yield 2, 65, 300, 12, 2, 72
    yield 20, 600, 2048, 16, 16, 128


def attention() -> Iterator[Call]:
    for sizes, mask, dtype in itertools.product(attention_sizes(), MASKS, (BF16, FP16)):
        if dtype is FP16 and mask not in ({}, {"causal": True}):
            continue
        name = f"attention {dtype} {sizes} {mask}"
        arrays = heads_of(sizes, dtype)
        yield call(name, ops.attention, arrays, **mask)
        if len(mask) == 1:
            yield call(f"{name} with lse", ops.attention, arrays, return_lse=True, **mask)
    for sizes, mask in itertools.product(attention_sizes(), MASKS[:6]):
        if sizes[-1] % 16:
            continue
        arrays = heads_of(sizes, E4M3)
        scales = tuple(np.ones(1, np.float32) for _ in range(3))
        name = f"attention float8 {sizes} {mask}"
        yield call(name, ops.attention, arrays, scales=scales, **mask)
        by_head = np.ones((sizes[0], sizes[4]), np.float32)
        yield call(
            f"{name} by head with lse",
            ops.attention,
            arrays,
            scales=(0.5, by_head, None),
            return_lse=True,
            dtype=E4M3,
            **mask,
        )


LENGTHS: dict[str, tuple[int, ...]] = {
    "16 of 1 to 4096": tuple(int(n) for n in np.random.default_rng(0).integers(1, 4097, 16)),
    "16384 and 64 of 256": (16384, *[256] * 64),
    "16384 / 1, 2, ... 16": tuple(16384 // i for i in range(1, 17)),
    "64 of 512": (512,) * 64,
    "8 of 1 to 8": tuple(range(1, 9)),
    "4 of 8192": (8192,) * 4,
}


def varlen() -> Iterator[Call]:
    for (kind, lengths), (heads, kv_heads, head_dim), mask in itertools.product(
        LENGTHS.items(), ((16, 16, 128), (64, 8, 128), (32, 32, 64), (8, 8, 256)), MASKS
    ):
        sums = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
        total, longest = int(sums[-1]), max(lengths)
        q = np.empty((total, heads, head_dim), BF16)
        k, v = (np.empty((total, kv_heads, head_dim), BF16) for _ in range(2))
        name = f"varlen attention {kind}, {heads}/{kv_heads} heads of {head_dim}, {mask}"
        arrays = {"q": q, "k": k, "v": v, "cu_seqlens_q": sums, "cu_seqlens_k": sums}
        yield call(name, ops.varlen_attention, arrays, return_lse=len(mask) == 2, **mask)
        few = np.arange(len(lengths) + 1, dtype=np.int32)
        arrays |= {"q": q[: len(lengths)], "cu_seqlens_q": few}
        yield call(f"{name}, one query each", ops.varlen_attention, arrays, **mask)
        for size in (16, 64):
            used = [-(-length // size) for length in lengths]
            pages = (sum(used), size, kv_heads, head_dim)
            table = np.zeros((len(lengths), max(used)), np.int32)
            arrays |= {"k": np.empty(pages, BF16), "v": np.empty(pages, BF16), "page_table": table}
            options = {"max_seqlen_q": 1, "max_seqlen_k": longest} | mask
            yield call(f"{name}, pages of {size}", ops.varlen_attention, arrays, **options)


# --- ragged rows and copies -------------------------------------------------------------------

RAGGED = (
    *(((16, 128), 64, 4096), ((1, 128), 512, 8192), ((8, 64), 4096, 256)),
    *(((32, 128), 16, 16384), ((16, 128), 1024, 512), ((3, 8), 5, 7)),
)


def ragged() -> Iterator[Call]:
    for row, batch, longest in RAGGED:
        lengths = np.random.default_rng(0).integers(1, longest + 1, batch)
        sums = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
        padded = np.empty((batch, longest, *row), np.uint16)
        packed = np.empty((int(sums[-1]), *row), np.uint16)
        name = f"{batch} x {longest} rows of {row}"
        store = {"padded": padded, "cu_seqlens": sums, "out": packed}
        yield call(f"ragged store {name}", ops.ragged_store, store)
        load = {"packed": packed, "cu_seqlens": sums, "out": padded}
        yield call(f"ragged load {name}", ops.ragged_load, load)
        by_lengths = {"padded": padded, "lengths": lengths.astype(np.int32)}
        yield call(f"ragged store by lengths {name}", ops.ragged_store, by_lengths)


def copies() -> Iterator[Call]:
    for mebibytes in (64, 256, 1024, 4096):
        source, target = (np.empty(mebibytes << 18, np.float32) for _ in range(2))
        arrays: dict[str, Any] = {"source": source, "target": target}
        yield call(f"copy {mebibytes} MiB", ops.copy, arrays)
    for rows, columns, pitch in ((8192, 8192, 16384), (4097, 2052, 2056), (16384, 8192, 8200)):
        source, target = (np.empty((rows, pitch), np.float32)[:, :columns] for _ in range(2))
        arrays = {"source": source, "target": target}
        yield call(f"copy {rows} x {columns} of {pitch}", ops.copy, arrays)
    whole = np.empty((40, 50, 60, 64), np.uint8)
    arrays = {"source": whole[::2, :, 4:9], "target": np.empty((20, 50, 5, 64), np.uint8)}
    yield call("copy of a slice of four dimensions", ops.copy, arrays)
    arrays = {"source": np.empty(1003, np.uint8), "target": np.empty(1003, np.uint8)}
    yield call("copy of 1003 bytes", ops.copy, arrays)
