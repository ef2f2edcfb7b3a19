"""Batches of sequences of different lengths: packed one after the other, or spread out again."""

from tmaasync.ops.ragged.operations import ragged_load, ragged_store
from tmaasync.ops.ragged.tiles import RAGGED_RING, ragged_kernel, ragged_tiles

__all__ = ["RAGGED_RING", "ragged_kernel", "ragged_load", "ragged_store", "ragged_tiles"]
