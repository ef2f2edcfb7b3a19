"""The rules of ``tcgen05.mma``: its forms, its two descriptors, and its layouts in tensor memory.

For sm_100a and sm_103a; emulated and compiled, not run on a chip. Source: PTX ISA, "Tensor Core 5th
Generation Family Instructions". ``tcgen05_descriptor.cuh`` computes the same for kernels.
"""

from __future__ import annotations

from tmaasync.modes import Tcgen05SwizzleMode
from tmaasync.tcgen05.forms import MmaForm, mma_form
from tmaasync.tcgen05.instruction import InstructionDescriptor
from tmaasync.tcgen05.layouts import (
    accumulator_layout,
    scale_factor_layout,
    scale_factor_offsets,
    sparse_metadata_layout,
)
from tmaasync.tcgen05.operand import (
    MatrixDescriptor,
    Tcgen05DescriptorParams,
    compute_descriptor_params,
)

__all__ = [
    "InstructionDescriptor",
    "MatrixDescriptor",
    "MmaForm",
    "Tcgen05DescriptorParams",
    "Tcgen05SwizzleMode",
    "accumulator_layout",
    "compute_descriptor_params",
    "mma_form",
    "scale_factor_layout",
    "scale_factor_offsets",
    "sparse_metadata_layout",
]
