"""Blackwell of data centers: a B200 (sm_100a) and a B300 (sm_103a).

Max active clusters are uncertain: nobody here has measured them. The default, SMs / size, is the
most that can be.
"""

from __future__ import annotations

from dataclasses import replace

from tmaasync.emulate.chips.description import Chip, TensorMemory, device_of

SM_100A = Chip(
    arch="sm_100a",
    gpu="B200",
    device=device_of((10, 0), sms=148),
    # CUDA Programming Guide, "Compute Capabilities", 10.0 and 10.3.
    sm_blocks=32,
    sm_warps=64,
    sm_shared_bytes=228 * 1024,
    tensor_cores="tcgen05",
    # PTX ISA, "Tensor Memory": 256 KiB per SM.
    tensor_memory=TensorMemory(lanes=128, columns=512),
)

# The number of SMs is uncertain: a full chip has 160, and a B300 is sold with 148 as far as known.
SM_103A = replace(SM_100A, arch="sm_103a", gpu="B300", device=device_of((10, 3), sms=148))
