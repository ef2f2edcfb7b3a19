"""The operations of `tmaasync.ops` as PyTorch operators.

Importing this module imports torch and registers ``torch.ops.tmaasync.*``. Its functions call these
operators. They take the arguments of `tmaasync.ops`, except that

* none has ``stream``, ``check``, ``a_dtype`` or ``b_dtype``, and attention has no ``dtype``;
* ``copy(source, *, out=None)`` takes the destination by keyword;
* ``ragged_load`` and ``ragged_store`` have ``cu_seqlens`` as second argument in place of
  ``lengths``, and then require ``max_length`` or ``total_rows``.
"""

from tmaasync.torch import _flops as _flops
from tmaasync.torch._attention import attention, varlen_attention
from tmaasync.torch._conv2d import conv2d
from tmaasync.torch._copies import copy, ragged_load, ragged_store, reduce_add
from tmaasync.torch._flash_attn import flash_attn_func, flash_attn_varlen_func
from tmaasync.torch._flash_attn_kvcache import flash_attn_with_kvcache
from tmaasync.torch._flash_attn_packed import (
    flash_attn_kvpacked_func,
    flash_attn_qkvpacked_func,
    flash_attn_varlen_kvpacked_func,
    flash_attn_varlen_qkvpacked_func,
)
from tmaasync.torch._group_all_to_all import all_to_all
from tmaasync.torch._group_attention import ring_attention
from tmaasync.torch._group_collectives import all_gather, all_reduce, reduce_scatter
from tmaasync.torch._group_matmuls import (
    all_gather_matmul,
    matmul_all_reduce,
    matmul_reduce_scatter,
)
from tmaasync.torch._group_scaled import all_gather_scaled_matmul, scaled_matmul_reduce_scatter
from tmaasync.torch._grouped_matmul import grouped_matmul, k_grouped_matmul
from tmaasync.torch._matmul import matmul
from tmaasync.torch._scaled_matmul import scaled_grouped_matmul, scaled_matmul
from tmaasync.torch._sdpa import scaled_dot_product_attention
from tmaasync.torch._symmetric import symmetric_buffers, symmetric_tiles
from tmaasync.torch._transformers import register_with_transformers

__all__ = [
    "all_gather",
    "all_gather_matmul",
    "all_gather_scaled_matmul",
    "all_reduce",
    "all_to_all",
    "attention",
    "conv2d",
    "copy",
    "flash_attn_func",
    "flash_attn_kvpacked_func",
    "flash_attn_qkvpacked_func",
    "flash_attn_varlen_func",
    "flash_attn_varlen_kvpacked_func",
    "flash_attn_varlen_qkvpacked_func",
    "flash_attn_with_kvcache",
    "grouped_matmul",
    "k_grouped_matmul",
    "matmul",
    "matmul_all_reduce",
    "matmul_reduce_scatter",
    "ragged_load",
    "ragged_store",
    "reduce_add",
    "reduce_scatter",
    "register_with_transformers",
    "ring_attention",
    "scaled_dot_product_attention",
    "scaled_grouped_matmul",
    "scaled_matmul",
    "scaled_matmul_reduce_scatter",
    "symmetric_buffers",
    "symmetric_tiles",
    "varlen_attention",
]
