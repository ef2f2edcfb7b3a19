"""Tracing of kernels on GPUs; `tmaasync._parts` registers it."""

from tmaasync._traced.launch import ChipTracer
from tmaasync._traced.ranks import rank_tracer

__all__ = ["launch_tracer", "rank_tracer"]

launch_tracer = ChipTracer
