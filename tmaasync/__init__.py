"""Python for the Tensor Memory Accelerator of NVIDIA Hopper GPUs."""

from tmaasync import emulate, ops
from tmaasync.barrier import SharedMemBarrier
from tmaasync.errors import (
    ArgumentError,
    ArrayTypeError,
    BackendError,
    CompileError,
    DriverError,
    EmulatedAccess,
    EmulatedDeadlock,
    EmulatedFault,
    EmulatedRace,
    EmulatedTimeout,
    LaunchError,
    ProtocolError,
    StaleTileError,
    TensorMapError,
    TMAError,
    Violation,
    WaitingThreads,
)
from tmaasync.kernel import Kernel
from tmaasync.modes import (
    CachePolicy,
    DataType,
    Interleave,
    L2Promotion,
    OOBFill,
    ReduceOp,
    Swizzle,
)
from tmaasync.pipeline import Pipeline, PipelineState
from tmaasync.ragged import (
    RaggedTensorMap,
    RaggedTMA3DTile,
    RaggedWork,
    create_ragged_tensor_map,
    create_ragged_tma_3d_tile,
)
from tmaasync.tensormap import Im2colSpec, TensorMapSpec
from tmaasync.tile import BulkTile, TMATensorTile, create_tma_tile

__version__ = "0.1.0"

__all__ = [
    "ArgumentError",
    "ArrayTypeError",
    "BackendError",
    "BulkTile",
    "CachePolicy",
    "CompileError",
    "DataType",
    "DriverError",
    "EmulatedAccess",
    "EmulatedDeadlock",
    "EmulatedFault",
    "EmulatedRace",
    "EmulatedTimeout",
    "Im2colSpec",
    "Interleave",
    "Kernel",
    "L2Promotion",
    "LaunchError",
    "OOBFill",
    "Pipeline",
    "PipelineState",
    "ProtocolError",
    "RaggedTMA3DTile",
    "RaggedTensorMap",
    "RaggedWork",
    "ReduceOp",
    "SharedMemBarrier",
    "StaleTileError",
    "Swizzle",
    "TMAError",
    "TMATensorTile",
    "TensorMapError",
    "TensorMapSpec",
    "Violation",
    "WaitingThreads",
    "__version__",
    "create_ragged_tensor_map",
    "create_ragged_tma_3d_tile",
    "create_tma_tile",
    "emulate",
    "ops",
]
