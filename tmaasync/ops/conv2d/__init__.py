"""Convolutions of images on the tensor cores, whose patches TMA gathers."""

from tmaasync.ops.conv2d.kernel import choose_blocking, conv2d_kernel, conv2d_tiles
from tmaasync.ops.conv2d.operation import conv2d

__all__ = ["choose_blocking", "conv2d", "conv2d_kernel", "conv2d_tiles"]
