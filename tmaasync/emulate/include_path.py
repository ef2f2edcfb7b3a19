"""The folders of headers that come before a source's own: the emulator's, and CUDA's."""

from __future__ import annotations

import functools
from pathlib import Path

from tmaasync._source.compile import toolkit_include_dirs
from tmaasync._wheels import install_command
from tmaasync.errors import BackendError

EMULATOR_DIR = Path(__file__).resolve().parent
DEVICE_DIR = EMULATOR_DIR / "device"
_FOREIGN_DIR = EMULATOR_DIR / "foreign"
OWN_FOLDERS = (DEVICE_DIR, _FOREIGN_DIR, _FOREIGN_DIR / "cccl")
"""CUDA's built-ins and ``ptx/``; CUDA's libraries; and libcu++ where the CUDA toolkit has it too:
CUTLASS includes ``<cccl/cuda/std/tuple>``."""


@functools.cache
def toolkit_folders() -> tuple[Path, ...]:
    """Return the folders of CUDA's own headers.

    Raises:
        BackendError: They are missing.
    """
    folders = toolkit_include_dirs()
    if not any((folder / "cuda_bf16.h").is_file() for folder in folders):
        raise BackendError(
            "CUDA's headers for bfloat16, float16 and float8 are missing, which kernels use on the "
            f"CPU too. Install them with: {install_command('headers')}."
        )
    return folders
