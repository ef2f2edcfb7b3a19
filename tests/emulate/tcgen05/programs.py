"""Kernels of these tests for sm_100a, built once each, with the defects that can be chosen."""

from __future__ import annotations

import functools

from planted import Defect
from planted_choices import Choices

from tmaasync import Kernel

__all__ = ["kernel_with"]


@functools.cache
def _built(text: str, name: str, arch: str) -> Kernel:
    return Kernel(text, name, arch=arch)


def kernel_with(
    choices: Choices, defect: Defect | None, name: str, arch: str = "sm_100a"
) -> Kernel:
    """Return the kernel of this name that runs with a defect."""
    kernel = _built(choices.text_with(defect), name, arch)
    choices.choose(kernel, defect)
    return kernel
