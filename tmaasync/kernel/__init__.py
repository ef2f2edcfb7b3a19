"""A kernel: CUDA source and typed tiles in, a launch on the caller's arrays out."""

from tmaasync.kernel.backend import ArrayMemory, Backend, BoundCall, Launch
from tmaasync.kernel.backends import backend_of
from tmaasync.kernel.kernel import Kernel

__all__ = ["ArrayMemory", "Backend", "BoundCall", "Kernel", "Launch", "backend_of"]
