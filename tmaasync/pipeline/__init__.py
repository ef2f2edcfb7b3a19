"""The ring of stages between a producer and its consumers: place, plan and protocol check."""

from tmaasync.pipeline.check import RingFault, check_protocol, find_fault
from tmaasync.pipeline.plan import Pipeline, SharedBuffer, StagedTile
from tmaasync.pipeline.protocol import RingProtocol
from tmaasync.pipeline.state import PipelineState

__all__ = [
    "Pipeline",
    "PipelineState",
    "RingFault",
    "RingProtocol",
    "SharedBuffer",
    "StagedTile",
    "check_protocol",
    "find_fault",
]
