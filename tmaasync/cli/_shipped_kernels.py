"""Kernels that the operations build from the shipped sources, with their types and constants."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

import ml_dtypes
import numpy as np

from tmaasync import emulate, ops
from tmaasync._source.paths import find_kernel, shipped_kernels
from tmaasync.errors import ArgumentError
from tmaasync.kernel.observed import SeenKernel, observe
from tmaasync.ops._operation import tile_configs

_BF16, _FP8 = ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn
_E8M0 = ml_dtypes.float8_e8m0fnu
_OFFSETS = np.array([0, 300, 512], np.int32)


def is_shipped(file: str) -> bool:
    """True for the bare name or the path of a shipped source."""
    try:
        return find_kernel(file) in shipped_kernels()
    except ArgumentError:
        return False


def kernels_of(file: str) -> tuple[SeenKernel, ...]:
    """Return the kernels that operations build from a shipped source, each tile config once.

    The operations run on uninitialised NumPy arrays and launch nothing.
    """
    name = find_kernel(file).name
    with tile_configs(lambda config: config), observe(launches=False) as observer:
        for call in _CALLS.get(name, ()):
            call()
    return tuple(one for one in observer.kernels if one.source.name == name)


def _matmul(m: int, n: int, k: int, dtype: Any = _BF16, layout: str = "nt") -> None:
    a, b = _stored(m, k, layout[0], dtype), _stored(k, n, layout[1], dtype)
    ops.matmul(a, b)


def _on_b200(call: Callable[[], None]) -> None:
    with emulate.chip("sm_100a"):
        call()


def _on_rtx_50(call: Callable[[], None]) -> None:
    with emulate.chip("sm_120a"):
        call()


def _matmul_over_grid() -> None:
    _matmul(256, 256, 16384)


def _stored(rows: int, columns: int, letter: str, dtype: Any) -> Any:
    if letter == "n":
        return np.empty((rows, columns), dtype)
    return np.empty((columns, rows), dtype).T


def _matmul_with_epilogue(m: int) -> None:
    a, b = np.empty((m, 1024), _BF16), np.empty((2048, 1024), _BF16).T
    ops.matmul(a, b, bias=np.empty(2048, _BF16), activation="gelu", c=np.empty((m, 2048), _BF16))


def _grouped_matmul() -> None:
    b = np.empty((2, 512, 256), _BF16).swapaxes(1, 2)
    ops.grouped_matmul(np.empty((512, 256), _BF16), b, _OFFSETS[1:])


def _k_grouped_matmul() -> None:
    a, b = np.empty((512, 256), _BF16), np.empty((512, 512), _BF16)
    ops.k_grouped_matmul(a.T, b, _OFFSETS[1:])


def _scaled_matmul() -> None:
    scales_a, scales_b = np.empty((8, 512), np.float32), np.empty((16, 8), np.float32)
    ops.scaled_matmul(
        np.empty((512, 1024), _FP8), np.empty((2048, 1024), _FP8).T, scales_a.T, scales_b.T
    )


def _scaled_matmul_of_ranks(call: Callable[..., Any], m: int) -> None:
    scales_a, scales_b = np.empty((8, m), np.float32), np.empty((16, 8), np.float32)
    a, b = np.empty((m, 1024), _FP8), np.empty((2048, 1024), _FP8)
    call([a], [b.T], [scales_a.T], [scales_b.T])


def _block_scaled_matmul(packs: int, block: int, factor: Any) -> None:
    a, b = (np.empty((rows, 1024 // packs), np.uint8) for rows in (512, 2048))
    factors = (np.empty((rows, 1024 // block), factor) for rows in (512, 2048))
    scale_a, scale_b = factors
    dtype = "float4_e2m1fn" if packs == 2 else "float8_e4m3fn"
    ops.scaled_matmul(a, b.T, scale_a, scale_b.T, a_dtype=dtype, b_dtype=dtype)


def _scaled_grouped_matmul(packs: int, block: int, factor: Any) -> None:
    a, b = np.empty((512, 1024 // packs), np.uint8), np.empty((2, 512, 1024 // packs), np.uint8)
    scale_a, scale_b = (np.empty((*one.shape[:-1], 1024 // block), factor) for one in (a, b))
    dtype = "float4_e2m1fn" if packs == 2 else "float8_e4m3fn"
    ops.scaled_grouped_matmul(
        *(a, b.swapaxes(1, 2), scale_a, scale_b.swapaxes(1, 2), _OFFSETS[1:]),
        a_dtype=dtype,
        b_dtype=dtype,
    )


def _promoted_grouped_matmul() -> None:
    b = np.empty((2, 512, 1024), _FP8).swapaxes(1, 2)
    scale_a, scale_b = np.empty((8, 512), np.float32).T, np.empty((2, 8, 4), np.float32)
    ops.scaled_grouped_matmul(np.empty((512, 1024), _FP8), b, scale_a, scale_b, _OFFSETS[1:])


def _conv2d(channels: int = 128) -> None:
    images, filters = (8, 28, 28, channels), (128, 3, 3, channels)
    ops.conv2d(np.empty(images, _BF16), np.empty(filters, _BF16), padding=1)


def _attention(queries: int, keys: int, head_dim: int, dtype: Any = _BF16) -> None:
    q, k, v = (
        np.empty((1, rows, heads, head_dim), dtype)
        for rows, heads in ((queries, 16), (keys, 2), (keys, 2))
    )
    ops.attention(q, k, v, causal=True)


def _varlen_attention() -> None:
    q, k, v = (np.empty((512, heads, 128), _BF16) for heads in (16, 2, 2))
    ops.varlen_attention(q, k, v, _OFFSETS, _OFFSETS, causal=True)


def _paged_attention() -> None:
    q = np.empty((2, 16, 128), _BF16)
    k, v = (np.empty((64, 16, 2, 128), _BF16) for _ in range(2))
    ends = np.arange(3, dtype=np.int32)
    ops.varlen_attention(
        *(q, k, v, ends, _OFFSETS),
        page_table=np.zeros((2, 20), np.int32),
        max_seqlen_q=1,
        max_seqlen_k=300,
    )


def _attention_backward() -> None:
    q, k, v = (np.empty((1, 512, heads, 128), _BF16) for heads in (16, 2, 2))
    ops.attention_backward(q, q, k, v, q, np.empty((1, 16, 512), np.float32), causal=True)


def _ring_attention(causal: bool, head_dim: int) -> None:
    q, k, v = ([np.empty((1, 512, heads, head_dim), _BF16)] for heads in (16, 2, 2))
    ops.ring_attention(q, k, v, causal=causal)


def _ring_attention_backward() -> None:
    q, k, v = ([np.empty((1, 512, heads, 128), _BF16)] for heads in (16, 2, 2))
    lse = [np.empty((1, 16, 512), np.float32)]
    ops.ring_attention_backward(q, q, k, v, [np.empty_like(q[0])], lse, causal=True)


def _ragged() -> None:
    padded, packed = np.empty((2, 300, 16, 128), _BF16), np.empty((512, 16, 128), _BF16)
    ops.ragged_store(padded, cu_seqlens=_OFFSETS, out=packed)
    ops.ragged_load(packed, cu_seqlens=_OFFSETS, out=padded)


def _copy() -> None:
    ops.copy(np.empty(1 << 20, np.float32), np.empty(1 << 20, np.float32))
    ops.copy(*(np.empty((512, 512), np.float32)[:, :256] for _ in range(2)))
    ops.reduce_add(np.empty(1 << 20, np.float32), np.empty(1 << 20, np.float32))


def _all_gather() -> None:
    ops.all_gather([np.empty((512, 512), _BF16)])


def _all_to_all() -> None:
    rows, counts = np.empty((512, 512), _BF16), np.empty(8, np.int32)
    ops.all_to_all([rows], [counts], [np.empty_like(rows)])


def _all_gather_matmul(m: int, dtype: Any = _BF16) -> None:
    ops.all_gather_matmul([np.empty((m, 4096), dtype)], [np.empty((4096, 4096), dtype).T])


def _matmul_reduce_scatter(m: int, dtype: Any = _BF16) -> None:
    ops.matmul_reduce_scatter([np.empty((m, 4096), dtype)], [np.empty((4096, 4096), dtype).T])


def _matmul_all_reduce(m: int, dtype: Any = _BF16) -> None:
    ops.matmul_all_reduce([np.empty((m, 4096), dtype)], [np.empty((4096, 4096), dtype).T])


def _reduce_ranks() -> None:
    ops.all_reduce([np.empty((4096, 4096), _BF16)])


def _reduce_stack() -> None:
    ops.reduce_add(np.empty(1 << 20, np.float32), np.empty((2, 1 << 20), np.float32))


_ATTENTION: tuple[Callable[[], None], ...] = (
    lambda: _attention(4096, 4096, 128),
    lambda: _attention(4096, 4096, 128, _FP8),
    lambda: _attention(1, 32768, 128),
    _varlen_attention,
    _paged_attention,
)
_CALLS: Mapping[str, tuple[Callable[[], None], ...]] = MappingProxyType(
    {
        "copy.cu": (_copy,),
        "reduce_stack.cu": (_reduce_stack,),
        "all_gather.cu": (_all_gather,),
        "all_to_all.cu": (_all_to_all,),
        "all_gather_gemm.cu": (
            lambda: _all_gather_matmul(4096),
            lambda: _all_gather_matmul(600),
        ),
        "gemm_reduce_scatter.cu": (
            lambda: _matmul_reduce_scatter(4096),
            lambda: _matmul_reduce_scatter(600),
        ),
        "all_gather_scaled_gemm.cu": (
            lambda: _scaled_matmul_of_ranks(ops.all_gather_scaled_matmul, 4096),
            lambda: _scaled_matmul_of_ranks(ops.all_gather_scaled_matmul, 64),
        ),
        "scaled_gemm_reduce_scatter.cu": (
            lambda: _scaled_matmul_of_ranks(ops.scaled_matmul_reduce_scatter, 4096),
            lambda: _scaled_matmul_of_ranks(ops.scaled_matmul_reduce_scatter, 64),
        ),
        "gemm_all_reduce.cu": (
            lambda: _matmul_all_reduce(4096),
            lambda: _matmul_all_reduce(600),
        ),
        "reduce_ranks.cu": (_reduce_ranks,),
        "ring_attention.cu": (
            lambda: _ring_attention(True, 128),
            lambda: _ring_attention(False, 64),
        ),
        "ragged.cu": (_ragged,),
        "gemm.cu": (
            lambda: _matmul(4096, 4096, 4096),
            lambda: _matmul(5120, 5120, 5120, layout="nn"),
            lambda: _matmul(16, 4096, 4096),
            lambda: _matmul(64, 256, 16384),
            _matmul_over_grid,
            lambda: _matmul(4096, 4096, 4096, _FP8),
            lambda: _matmul(4096, 4096, 4096, np.int8),
        ),
        "split_k_combine.cu": (_matmul_over_grid,),
        "gemm_epilogue.cu": (
            lambda: _matmul_with_epilogue(4096),
            lambda: _matmul_with_epilogue(16),
        ),
        "gemm_tensor_memory.cu": (
            lambda: _on_b200(lambda: _matmul(4096, 4096, 4096)),
            lambda: _on_b200(lambda: _matmul(100, 4096, 4096, layout="nn")),
            lambda: _on_b200(lambda: _matmul(4096, 4096, 4096, np.int8)),
            lambda: _on_b200(_matmul_over_grid),
        ),
        "gemm_tensor_memory_epilogue.cu": (lambda: _on_b200(lambda: _matmul_with_epilogue(4096)),),
        "grouped_gemm.cu": (_grouped_matmul,),
        "grouped_gemm_tensor_memory.cu": (lambda: _on_b200(_grouped_matmul),),
        "k_grouped_gemm.cu": (_k_grouped_matmul,),
        "k_grouped_gemm_tensor_memory.cu": (lambda: _on_b200(_k_grouped_matmul),),
        "scaled_gemm.cu": (_scaled_matmul,),
        "promoted_gemm_tensor_memory.cu": (lambda: _on_b200(_scaled_matmul),),
        "promoted_grouped_gemm_tensor_memory.cu": (lambda: _on_b200(_promoted_grouped_matmul),),
        "scaled_gemm_tensor_memory.cu": (
            lambda: _on_b200(lambda: _block_scaled_matmul(1, 32, _E8M0)),
            lambda: _on_b200(lambda: _block_scaled_matmul(2, 32, _E8M0)),
            lambda: _on_b200(lambda: _block_scaled_matmul(2, 16, _FP8)),
        ),
        "scaled_grouped_gemm_tensor_memory.cu": (
            lambda: _on_b200(lambda: _scaled_grouped_matmul(1, 32, _E8M0)),
            lambda: _on_b200(lambda: _scaled_grouped_matmul(2, 32, _E8M0)),
            lambda: _on_b200(lambda: _scaled_grouped_matmul(2, 16, _FP8)),
        ),
        "swizzle_group_factors.cu": (
            lambda: _on_b200(lambda: _scaled_grouped_matmul(1, 32, _E8M0)),
        ),
        "scaled_grouped_gemm_warps.cu": (
            lambda: _on_rtx_50(lambda: _scaled_grouped_matmul(1, 32, _E8M0)),
            lambda: _on_rtx_50(lambda: _scaled_grouped_matmul(2, 32, _E8M0)),
            lambda: _on_rtx_50(lambda: _scaled_grouped_matmul(2, 16, _FP8)),
        ),
        "scaled_gemm_warps.cu": (
            lambda: _on_rtx_50(lambda: _block_scaled_matmul(1, 32, _E8M0)),
            lambda: _on_rtx_50(lambda: _block_scaled_matmul(2, 32, _E8M0)),
            lambda: _on_rtx_50(lambda: _block_scaled_matmul(2, 16, _FP8)),
        ),
        "conv2d.cu": (_conv2d,),
        "conv2d_tensor_memory.cu": (
            lambda: _on_b200(_conv2d),
            lambda: _on_b200(lambda: _conv2d(8)),
        ),
        "attention.cu": _ATTENTION,
        "attention_tensor_memory.cu": (
            lambda: _on_b200(lambda: _attention(4096, 4096, 128)),
            lambda: _on_b200(lambda: _attention(100, 4096, 64)),
            lambda: _on_b200(lambda: _attention(4096, 4096, 256)),
            lambda: _on_b200(lambda: _attention(1, 32768, 128)),
            lambda: _on_b200(lambda: _attention(1, 32768, 256)),
            lambda: _on_b200(_varlen_attention),
            lambda: _on_b200(_paged_attention),
        ),
        "attention_combine.cu": _ATTENTION,
        "attention_values.cu": _ATTENTION,
        "attention_work.cu": _ATTENTION,
        "attention_backward.cu": (_attention_backward, _ring_attention_backward),
        "attention_backward_dq.cu": (_attention_backward,),
        "attention_backward_rows.cu": (_attention_backward,),
    }
)
