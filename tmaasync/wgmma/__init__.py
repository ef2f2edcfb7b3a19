"""The rules of ``wgmma``: its forms, the layout of operands and accumulators, a tile's needs.

Source: PTX ISA, "Asynchronous Warpgroup Level Matrix Instructions". The device header
``ptx/wgmma_mma.cuh`` is written from `forms` by ``tools/generate_wgmma_mma.py``; what the headers
``wgmma_operand.cuh`` and ``fragment.cuh`` compute, `operand` and `fragments` compute too.
"""

from __future__ import annotations

from tmaasync.modes import SwizzleMode
from tmaasync.wgmma.descriptor import MatrixDescriptor, increase_descriptor_offset
from tmaasync.wgmma.forms import INSTRUCTION_M, MMA_FORMS, MmaForm, instruction_n, mma_form
from tmaasync.wgmma.fragments import a_fragment, accumulator_fragment
from tmaasync.wgmma.operand import (
    WGMMADescriptorParams,
    compute_a_descriptor_params,
    compute_b_descriptor_params,
)
from tmaasync.wgmma.plan import WgmmaPlan

__all__ = [
    "INSTRUCTION_M",
    "MMA_FORMS",
    "MatrixDescriptor",
    "MmaForm",
    "SwizzleMode",
    "WGMMADescriptorParams",
    "WgmmaPlan",
    "a_fragment",
    "accumulator_fragment",
    "compute_a_descriptor_params",
    "compute_b_descriptor_params",
    "increase_descriptor_offset",
    "instruction_n",
    "mma_form",
]
