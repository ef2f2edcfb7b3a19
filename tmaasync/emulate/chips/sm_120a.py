"""Blackwell of workstations: an RTX PRO 6000."""

from __future__ import annotations

from tmaasync.emulate.chips.description import Chip, device_of

# Max active clusters are uncertain, as in sm_100a.py.
SM_120A = Chip(
    arch="sm_120a",
    gpu="RTX PRO 6000 Blackwell",
    device=device_of((12, 0), sms=188),
    # CUDA Programming Guide, "Compute Capabilities", 12.0.
    sm_blocks=24,
    sm_warps=48,
    sm_shared_bytes=100 * 1024,
    tensor_cores="mma.sync",
)
