"""Facts about the hardware that several modules need: PTX ISA, cuda.h, measurements on an H200.

What differs between compute capabilities is in `CHIP_LIMITS`; everything else holds for sm_90.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

# --- compute capabilities ---------------------------------------------------------------------

HOPPER = (9, 0)
"""The compute capability of H100 and H200, the only one with wgmma."""

WITH_TENSOR_MEMORY = ((10, 0), (10, 3))
"""The compute capabilities with tcgen05 and tensor memory for which there are kernels."""

CONVERTS_FP8 = (*WITH_TENSOR_MEMORY, (11, 0))
"""The compute capabilities whose mma.sync of FP8 is compiled to conversions and fp16."""

WITH_SCALED_MMA_SYNC = ((12, 0), (12, 1))
"""The compute capabilities whose mma.sync takes scale factors."""

MAP_ARCHS = ("sm_90a", "sm_100a", "sm_103a", "sm_120a")
"""Architectures whose rules of tensor maps are known."""

WIDE_MAP_ARCHS = ("sm_100a", "sm_103a")
"""Architectures whose tensor maps have packed types, swizzles of larger atoms and wide im2col
(PTX ISA, "Tensors")."""

PORTABLE_CLUSTER_BLOCKS = 8
"""Thread blocks of a cluster on every device that has clusters; more need the kernel's opt-in."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChipLimits:
    """Limits of a compute capability on one thread block and on one cluster.

    Attributes:
        shared_bytes: Shared memory of a thread block, with the opt-in.
        registers: 32-bit registers of a thread block.
        cluster_blocks: Thread blocks of a cluster, with the opt-in.
    """

    shared_bytes: int
    registers: int
    cluster_blocks: int


def _limits(shared_kib: int, cluster_blocks: int = PORTABLE_CLUSTER_BLOCKS) -> ChipLimits:
    return ChipLimits(
        shared_bytes=shared_kib * 1024, registers=64 * 1024, cluster_blocks=cluster_blocks
    )


# Shared memory and registers: CUDA Programming Guide, "Compute Capabilities"; libcu++ has the same
# in cuda/__device/arch_traits.h. Clusters: Hopper and Blackwell Tuning Guide, "Thread Block
# Clusters": 8 blocks on all, 16 on H100 and B200 with the opt-in. No manual has more than 8 for
# 11.0, 12.0 and 12.1.
CHIP_LIMITS: Mapping[tuple[int, int], ChipLimits] = {
    HOPPER: _limits(227, 16),  # H100, H200
    (10, 0): _limits(227, 16),  # B200, GB200
    (10, 3): _limits(227, 16),  # B300, GB300
    (11, 0): _limits(227),  # Jetson Thor
    (12, 0): _limits(99),  # GeForce RTX 50, RTX PRO Blackwell
    (12, 1): _limits(99),  # GB10 (DGX Spark)
}

ARCH_LIMITS: Mapping[str, ChipLimits] = {
    f"sm_{major}{minor}a": limits for (major, minor), limits in CHIP_LIMITS.items()
}
"""The same by the name of the architecture."""

_EVERYWHERE = _limits(99)


def chip_limits(capability: tuple[int, int]) -> ChipLimits:
    """Return the limits of a compute capability.

    An unknown one gets what every known one allows.
    """
    return CHIP_LIMITS.get(capability, _EVERYWHERE)


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

WIDE_PIXELS = {"w": MAX_IM2COL_PIXELS, "w128": 128}
"""Pixels that one load of im2col::w takes at most, and that one of im2col::w::128 takes."""

INT32_LIMIT = 1 << 31
"""Coordinates of a tensor map, and counts that a kernel keeps in 32 bits, stay below."""

# --- shared memory ----------------------------------------------------------------------------

MAX_SHARED_BYTES = CHIP_LIMITS[HOPPER].shared_bytes
"""Dynamic shared memory that one thread block may have on Hopper."""

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

REGISTER_GRANULE = 8
"""Registers of a thread are allocated in these."""

# --- wgmma ------------------------------------------------------------------------------------

MATRIX_DESCRIPTOR_UNIT = 16
"""Bytes: the matrix descriptor counts addresses and offsets in these."""
