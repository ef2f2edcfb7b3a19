"""Facts of sm_90 that several modules need: PTX ISA, cuda.h, measurements on an H200."""

from __future__ import annotations

__all__ = [
    "BOX_START_ALIGNMENT",
    "INT32_LIMIT",
    "INTERLEAVED_ALIGNMENT",
    "MATRIX_DESCRIPTOR_UNIT",
    "MAX_BLOCK_THREADS",
    "MAX_BOX_SIDE",
    "MAX_CLUSTER_CTAS",
    "MAX_IM2COL_PIXELS",
    "MAX_SHARED_BYTES",
    "SHARED_LINE_BYTES",
    "STORE_SECTOR_BYTES",
    "SWIZZLE_CHUNK_BYTES",
    "TMA_ALIGNMENT",
    "WARPGROUP_THREADS",
    "WARPGROUP_WARPS",
    "WARP_THREADS",
]

# --- TMA --------------------------------------------------------------------------------------

TMA_ALIGNMENT = 16
"""Bytes: global addresses, strides, box rows and sizes of bulk copies are multiples of it."""

INTERLEAVED_ALIGNMENT = 32
"""The same under ``Interleave.B32``, of addresses and strides."""

STORE_SECTOR_BYTES = 16
"""A tensor store writes whole sectors of global memory (docs/hardware.md)."""

BOX_START_ALIGNMENT = 128
"""Bytes: where a box starts in shared memory."""

MAX_BOX_SIDE = 256
"""Elements of one side of a box."""

MAX_IM2COL_PIXELS = 1024
"""Pixels that one im2col load takes."""

INT32_LIMIT = 1 << 31
"""Coordinates of a tensor map, and counts that a kernel keeps in 32 bits, stay below."""

# --- shared memory ----------------------------------------------------------------------------

MAX_SHARED_BYTES = 227 * 1024
"""Dynamic shared memory that one thread block may have."""

SHARED_LINE_BYTES = 128
"""One access to every bank: 32 banks of 4 bytes."""

SWIZZLE_CHUNK_BYTES = 16
"""What a swizzle moves as a whole; its pattern permutes the eight chunks of a line."""

# --- threads ----------------------------------------------------------------------------------

WARP_THREADS = 32

WARPGROUP_THREADS = 128
"""Threads that issue a wgmma together."""

WARPGROUP_WARPS = WARPGROUP_THREADS // WARP_THREADS

MAX_BLOCK_THREADS = 1024

MAX_CLUSTER_CTAS = 16
"""CTAs of one cluster: 8 are portable, 16 need the kernel's opt-in."""

# --- wgmma ------------------------------------------------------------------------------------

MATRIX_DESCRIPTOR_UNIT = 16
"""Bytes: the matrix descriptor counts addresses and offsets in these."""
