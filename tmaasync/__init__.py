"""Python for the Tensor Memory Accelerator of NVIDIA Hopper GPUs."""

from tmaasync import emulate, ops, trace
from tmaasync._sources import include_dir
from tmaasync.access import ArrayAccess
from tmaasync.barrier import SharedMemBarrier
from tmaasync.copy_plan import CopyPlan, plan_copy
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
    HangError,
    HungThreads,
    LaunchError,
    ProtocolError,
    StaleTileError,
    TensorMapError,
    TMAError,
    Violation,
    WaitingThreads,
)
from tmaasync.graph_tiles import GraphTiles
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
from tmaasync.registers import RegisterSplit
from tmaasync.tensormap import Im2colSpec, TensorMapSpec
from tmaasync.tile import (
    BulkTile,
    SplitLastDimTMATensorTile,
    TMATensorTile,
    TMATensorTileArray,
    TMATensorTileIm2col,
    TMATensorTileTemplate,
    create_split_tma,
    create_tensor_tile,
    create_tma_tile,
    create_tma_tile_gather4,
    create_tma_tile_im2col,
    create_tma_tile_template,
    gather4_tile_bytes,
)

__version__ = "0.1.0"

__all__ = [
    "ArgumentError",
    "ArrayAccess",
    "ArrayTypeError",
    "BackendError",
    "BulkTile",
    "CachePolicy",
    "CompileError",
    "CopyPlan",
    "DataType",
    "DriverError",
    "EmulatedAccess",
    "EmulatedDeadlock",
    "EmulatedFault",
    "EmulatedRace",
    "EmulatedTimeout",
    "GraphTiles",
    "HangError",
    "HungThreads",
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
    "RegisterSplit",
    "SharedMemBarrier",
    "SplitLastDimTMATensorTile",
    "StaleTileError",
    "Swizzle",
    "TMAError",
    "TMATensorTile",
    "TMATensorTileArray",
    "TMATensorTileIm2col",
    "TMATensorTileTemplate",
    "TensorMapError",
    "TensorMapSpec",
    "Violation",
    "WaitingThreads",
    "__version__",
    "create_ragged_tensor_map",
    "create_ragged_tma_3d_tile",
    "create_split_tma",
    "create_tensor_tile",
    "create_tma_tile",
    "create_tma_tile_gather4",
    "create_tma_tile_im2col",
    "create_tma_tile_template",
    "emulate",
    "gather4_tile_bytes",
    "include_dir",
    "ops",
    "plan_copy",
    "trace",
]
