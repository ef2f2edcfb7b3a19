"""A chip in the macros that the device headers read (tmaasync_emulate/cuda.hpp)."""

from __future__ import annotations

import json

from tmaasync.emulate.chips.description import Chip
from tmaasync.emulate.chips.instructions import (
    BYTE_MASK,
    BYTE_MATRICES,
    CLUSTER_LAUNCH_CONTROL,
    F32X2,
    MMA_KINDS,
    REDUX_F32,
    SMALL_FLOATS,
    STOCHASTIC,
    TCGEN05,
    TENSOR_COPIES,
    WGMMA,
    WIDE_ACCESS,
    why_missing,
)

# Functions of headers that stand for instructions of these families do not compile elsewhere.
_FAMILIES = {
    "WGMMA": WGMMA,
    "TCGEN05": TCGEN05,
    "F32X2": F32X2,
    "CLUSTER_LAUNCH_CONTROL": CLUSTER_LAUNCH_CONTROL,
    "TENSOR_COPIES": TENSOR_COPIES,
    "BYTE_MASK": BYTE_MASK,
    "BYTE_MATRICES": BYTE_MATRICES,
    "MMA_KINDS": MMA_KINDS,
    "REDUX_F32": REDUX_F32,
    "SMALL_FLOATS": SMALL_FLOATS,
    "STOCHASTIC": STOCHASTIC,
    "WIDE_ACCESS": WIDE_ACCESS,
}


def macros_of(chip: Chip) -> tuple[str, ...]:
    """Return the compiler's options that define the macros."""
    major, minor = chip.device.compute_capability
    values: dict[str, object] = {
        "ARCH": major * 100 + minor * 10,
        "SM_WARPS": chip.sm_warps,
    }
    for name, family in _FAMILIES.items():
        is_missing = chip.arch not in family.archs
        reason = why_missing(chip, family).removesuffix(".") if is_missing else ""
        values[f"WHY_NOT_{name}"] = json.dumps(reason)
        if is_missing:
            values[f"WITHOUT_{name}"] = 1
    return tuple(f"-DTMAASYNC_EMULATE_{name}={value}" for name, value in values.items())
