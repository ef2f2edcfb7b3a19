"""Packed sequences of different lengths: one tensor map that TMA clips at each sequence's end."""

from tmaasync.ragged.base import RaggedMap
from tmaasync.ragged.batch import running_sums
from tmaasync.ragged.heads import RaggedTMA3DTile, create_ragged_tma_3d_tile
from tmaasync.ragged.maps import RaggedTensorMap, RaggedWork, create_ragged_tensor_map

__all__ = [
    "RaggedMap",
    "RaggedTMA3DTile",
    "RaggedTensorMap",
    "RaggedWork",
    "create_ragged_tensor_map",
    "create_ragged_tma_3d_tile",
    "running_sums",
]
