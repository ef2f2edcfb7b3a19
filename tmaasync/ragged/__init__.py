"""Packed sequences of different lengths: one tensor map that TMA clips at each sequence's end."""

from tmaasync.ragged.batch import running_sums
from tmaasync.ragged.maps import RaggedTensorMap, RaggedWork, create_ragged_tensor_map

__all__ = ["RaggedTensorMap", "RaggedWork", "create_ragged_tensor_map", "running_sums"]
