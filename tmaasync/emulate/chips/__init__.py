"""The chips that the emulator knows: one description per architecture, which is data.

Max active clusters of chips other than Hopper are uncertain: nobody here has measured them. The
default, SMs / size, is the most that can be. Sizes of an SM are from the CUDA Programming Guide,
"Compute Capabilities".
"""

from collections.abc import Mapping
from dataclasses import replace

from tmaasync._hardware import HOPPER
from tmaasync.emulate.chips.description import Chip, TensorMemory, device_of

__all__ = ["CHIPS", "SM_90A", "SM_100A", "SM_103A", "SM_120A", "Chip", "TensorMemory"]

SM_90A = Chip(
    arch="sm_90a",
    gpu="H200",
    device=device_of(HOPPER, sms=132),
    sm_blocks=32,
    sm_warps=64,
    sm_shared_bytes=228 * 1024,
    tensor_cores="wgmma",
    # cuOccupancyMaxActiveClusters of an H200 (benchmarks/bench_split.py prints it).
    active_clusters={3: 39, 4: 30, 5: 20, 6: 16, 7: 14, 8: 14},
)
SM_100A = Chip(
    arch="sm_100a",
    gpu="B200",
    device=device_of((10, 0), sms=148),
    sm_blocks=32,
    sm_warps=64,
    sm_shared_bytes=228 * 1024,
    tensor_cores="tcgen05",
    # PTX ISA, "Tensor Memory": 256 KiB per SM.
    tensor_memory=TensorMemory(lanes=128, columns=512),
)
# The number of SMs is uncertain: a full chip has 160, and a B300 is sold with 148 as far as known.
SM_103A = replace(SM_100A, arch="sm_103a", gpu="B300", device=device_of((10, 3), sms=148))
SM_120A = Chip(
    arch="sm_120a",
    gpu="RTX PRO 6000 Blackwell",
    device=device_of((12, 0), sms=188),
    sm_blocks=24,
    sm_warps=48,
    sm_shared_bytes=100 * 1024,
    tensor_cores="mma.sync",
)

CHIPS: Mapping[str, Chip] = {
    "sm_90": SM_90A,
    **{chip.arch: chip for chip in (SM_90A, SM_100A, SM_103A, SM_120A)},
}
"""The chips by the architectures that run on them."""
