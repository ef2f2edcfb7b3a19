"""Facts of sm_90 that several modules need (CUDA C++ Programming Guide, PTX ISA, cuda.h)."""

from __future__ import annotations

__all__ = ["INT32_LIMIT", "MAX_SHARED_BYTES", "TMA_ALIGNMENT", "WARPGROUP_THREADS"]

TMA_ALIGNMENT = 16
"""Bytes: what addresses, strides and starts of boxes are multiples of; also the sector that a
tensor store writes as a whole (measured on an H200 by benchmarks/probe_hardware.py)."""

MAX_SHARED_BYTES = 227 * 1024
"""Dynamic shared memory that one thread block may have."""

WARPGROUP_THREADS = 128
"""Threads that issue a wgmma together."""

INT32_LIMIT = 1 << 31
"""Coordinates of a tensor map, and counts that a kernel keeps in 32 bits, stay below."""
