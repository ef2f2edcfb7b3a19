"""Attention: softmax of scaled scores, times values, head by head."""

from tmaasync.ops.attention.kernel import Blocking, Variant, attention_kernel, attention_tiles
from tmaasync.ops.attention.operation import attention
from tmaasync.ops.attention.varlen import varlen_attention

__all__ = [
    "Blocking",
    "Variant",
    "attention",
    "attention_kernel",
    "attention_tiles",
    "varlen_attention",
]
