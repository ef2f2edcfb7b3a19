"""Operations on arrays with ready-made kernels: GEMM, attention, convolution, copies."""

from tmaasync._torch_internals import refuse_tracing as _refuse_tracing
from tmaasync.ops._all_gather import all_gather
from tmaasync.ops._all_gather_matmul import all_gather_matmul
from tmaasync.ops._all_gather_scaled_matmul import all_gather_scaled_matmul
from tmaasync.ops._all_to_all import all_to_all
from tmaasync.ops._attention import attention
from tmaasync.ops._attention_backward import attention_backward
from tmaasync.ops._conv2d import conv2d
from tmaasync.ops._copy import copy
from tmaasync.ops._grouped_matmul import grouped_matmul
from tmaasync.ops._k_grouped_matmul import k_grouped_matmul
from tmaasync.ops._matmul import matmul
from tmaasync.ops._matmul_reduce import matmul_all_reduce, matmul_reduce_scatter
from tmaasync.ops._ragged import ragged_load, ragged_store
from tmaasync.ops._reduce_add import reduce_add
from tmaasync.ops._reduce_ranks import all_reduce, reduce_scatter
from tmaasync.ops._ring_attention import ring_attention
from tmaasync.ops._ring_attention_backward import ring_attention_backward
from tmaasync.ops._scaled_grouped_matmul import scaled_grouped_matmul
from tmaasync.ops._scaled_matmul import scaled_matmul
from tmaasync.ops._scaled_matmul_reduce import scaled_matmul_reduce_scatter
from tmaasync.ops._varlen_attention import varlen_attention
from tmaasync.ops._varlen_attention_backward import varlen_attention_backward

__all__ = [
    "all_gather",
    "all_gather_matmul",
    "all_gather_scaled_matmul",
    "all_reduce",
    "all_to_all",
    "attention",
    "attention_backward",
    "conv2d",
    "copy",
    "grouped_matmul",
    "k_grouped_matmul",
    "matmul",
    "matmul_all_reduce",
    "matmul_reduce_scatter",
    "ragged_load",
    "ragged_store",
    "reduce_add",
    "reduce_scatter",
    "ring_attention",
    "ring_attention_backward",
    "scaled_grouped_matmul",
    "scaled_matmul",
    "scaled_matmul_reduce_scatter",
    "varlen_attention",
    "varlen_attention_backward",
]

_refuse_tracing(scaled_grouped_matmul, "no operator: it runs outside compiled code")
for _function in (
    *(attention, attention_backward, conv2d, copy, grouped_matmul, matmul),
    *(k_grouped_matmul, ragged_load, ragged_store, reduce_add, scaled_matmul),
    *(varlen_attention, varlen_attention_backward),
):
    _refuse_tracing(_function, f"torch.ops.tmaasync.{_function.__name__} (import tmaasync.torch)")

_NO_OPERATOR = "no operator: operations of several GPUs take lists, and run outside compiled code"
for _collective in (
    *(all_gather, all_gather_matmul, all_gather_scaled_matmul, all_reduce, all_to_all),
    *(matmul_all_reduce, matmul_reduce_scatter, reduce_scatter),
    *(ring_attention, ring_attention_backward, scaled_matmul_reduce_scatter),
):
    _refuse_tracing(_collective, _NO_OPERATOR)
