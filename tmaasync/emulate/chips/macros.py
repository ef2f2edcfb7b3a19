"""A chip in the macros that the device headers read (tmaasync_emulate/cuda.hpp)."""

from __future__ import annotations

import json
from collections.abc import Mapping

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
    values: Mapping[str, object] = {
        "ARCH": major * 100 + minor * 10,
        "SMS": chip.device.sms,
        "SM_WARPS": chip.sm_warps,
        **{
            f"WITHOUT_{name}": json.dumps(why_missing(chip, family).removesuffix("."))
            for name, family in _FAMILIES.items()
            if chip.arch not in family.archs
        },
    }
    return tuple(f"-DTMAASYNC_EMULATE_{name}={value}" for name, value in values.items())
