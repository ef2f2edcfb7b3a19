"""Every public function refuses arguments of a wrong kind with an error of the package."""

from __future__ import annotations

import functools
import inspect
import re
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np
import pytest

import tmaasync
from tmaasync import (
    ArgumentError,
    ArrayAccess,
    ArrayTypeError,
    BulkTile,
    Im2colSpec,
    Kernel,
    Pipeline,
    PipelineState,
    Pointer,
    RegisterSplit,
    SharedMemBarrier,
    TensorMapSpec,
    TMAError,
    TMATensorTileArray,
    emulate,
    ops,
    swizzle,
    trace,
    wgmma,
)
from tmaasync.pipeline import PipelineProtocol, find_fault
from tmaasync.registers import launch_registers
from tmaasync.tile import StridedTensor


class Other:
    """A value of no kind that any function takes; its text says where it came from."""

    def __repr__(self) -> str:
        return "<other>"


WRONG: tuple[Any, ...] = (
    None,
    True,
    False,
    0,
    1,
    3,
    -1,
    1 << 70,
    -(1 << 70),
    1.5,
    float("nan"),
    float("inf"),
    1j,
    "",
    "nothing",
    b"",
    b"ab",
    (),
    (0,),
    (-1, -1),
    (1 << 40, 1 << 40),
    (8, 8.5),
    ("a", "b"),
    (None, None),
    (8,) * 6,
    [],
    {},
    {"a": 1},
    slice(2),
    Other(),
    Other,
    len,
    np.float32,
    np.float64(2.5),
    np.int64(-5),
    np.zeros(0),
    np.zeros((0, 16), np.float16),
    np.zeros((3, 5, 7), np.complex128),
    np.array(["x"]),
    np.array([None]),
    np.zeros((2, 2), np.int32)[::2, ::2],
    range(3),
    iter(()),
    {1, 2},
    tmaasync.Swizzle.B64,
    tmaasync.L2Promotion.B128,
)


class Call(NamedTuple):
    function: Callable[..., Any]
    arguments: dict[str, Any]
    free: tuple[str, ...] = ()  # takes any object

    def run(self, **changed: Any) -> Any:
        """Call the function with some arguments changed."""
        arguments = {**self.arguments, **changed}
        # Collection compiles no kernel: a launch is traced when a test asks for it.
        launch = {name: launch_trace() for name, it in arguments.items() if it is launch_trace}
        return self.function(**{**arguments, **launch})


RULE_AND_REMEDY = re.compile(r"; .+\. .+\.$", re.DOTALL)
PUBLIC = {*tmaasync.__all__, *ops.__all__}


def zeros(*shape: int, dtype: Any = np.float16) -> Any:
    return np.zeros(shape, dtype)


A, IMAGES, HEADS = zeros(64, 64), zeros(2, 8, 8, 64), zeros(64, 4, 64)
MAP = {
    "address": 1 << 20,
    "dtype": tmaasync.DataType.FLOAT16,
    "shape": (64, 64),
    "strides_bytes": (128,),
    "box_shape": (8, 64),
}
COLUMNS = {
    **MAP,
    "shape": (2, 8, 8, 64),
    "strides_bytes": (8192, 1024, 128),
    "lower_corner": (-1, -1),
    "upper_corner": (-1, -1),
    "channels_per_pixel": 64,
    "pixels_per_column": 64,
}
del COLUMNS["box_shape"]
TILE = tmaasync.create_tma_tile(A, (8, 64))
RAGGED = tmaasync.create_ragged_tensor_map(A, (8, 64), max_length=16)
RAGGED_HEADS = tmaasync.create_ragged_tma_3d_tile(HEADS, 8, max_length=16)
COPIES = 'extern "C" __global__ void copies(const float* x) { __syncthreads(); }\n'
KERNEL = Kernel(COPIES, "copies")
PIPELINE = {"stages": 2, "tiles": {"a": TILE}}
BARRIER = SharedMemBarrier()


@functools.cache
def launch_trace() -> trace.Trace:
    with trace.record() as kept:
        KERNEL(1, 32, (zeros(8, dtype=np.float32),))
    return kept.launches[0]


PARAMS = wgmma.compute_a_descriptor_params((64, 64), "fp16", swizzle="128B")
BYTES = zeros(128, 128, dtype=np.uint8)
SCALES = zeros(128, 1, dtype=np.float32)
Q = zeros(1, 16, 1, 64)
PACKED = zeros(16, 1, 64)
STARTS = np.array([0, 16], np.int32)
PAGES = zeros(1, 64, 1, 64)

FACTORIES = {
    "access": Call(ArrayAccess.from_array, {"array": A, "mode": "r"}),
    "BulkTile": Call(BulkTile, {"array": A, "tile_bytes": 1024}),
    "Pointer": Call(Pointer, {"array": A, "dtype": "fp16"}),
    "StridedTensor": Call(StridedTensor, {"array": A}),
    "TMATensorTileArray": Call(TMATensorTileArray, {"tiles": [TILE]}),
    "tile": Call(
        tmaasync.create_tma_tile,
        {
            "array": A,
            "tile_shape": (8, 64),
            "swizzle": "none",
            "box_shape": (8, 64),
            "l2_promotion": "none",
            "oob_fill": "zero",
            "interleave": "none",
            "element_strides": (1, 1),
            "dtype": "fp16",
        },
    ),
    "template": Call(
        tmaasync.create_tma_tile_template,
        {
            "tile_shape": (8, 64),
            "dtype": "fp16",
            "swizzle": "none",
            "box_shape": (8, 64),
            "l2_promotion": "none",
            "oob_fill": "zero",
            "interleave": "none",
            "element_strides": (1, 1),
        },
    ),
    "bind": Call(tmaasync.create_tma_tile_template((8, 64), "fp16").bind, {"array": A}),
    "rebind": Call(TILE.rebind, {"array": A}),
    "operand": Call(
        tmaasync.create_tensor_tile,
        {
            "array": A,
            "tile_shape": (64, 64),
            "swizzle": "128B",
            "k_major_tma": True,
            "dtype": "fp16",
        },
    ),
    "gather4": Call(
        tmaasync.create_tma_tile_gather4,
        {
            "array": A,
            "tile_shape": (8, 64),
            "swizzle": "128B",
            "l2_promotion": "none",
            "oob_fill": "zero",
            "dtype": "fp16",
        },
    ),
    "gather4_tile_bytes": Call(
        tmaasync.gather4_tile_bytes, {"tile_shape": (8, 64), "dtype": "fp16", "swizzle": "128B"}
    ),
    "split": Call(
        tmaasync.create_split_tma,
        {
            "array": HEADS,
            "tile_shape": (8, 1, 64),
            "gmem_shape": (64, 4, 64),
            "swizzle": "64B",
            "fold_chunks": 2,
            "row_major": False,
            "l2_promotion": "none",
            "oob_fill": "zero",
            "dtype": "fp16",
        },
    ),
    "im2col": Call(
        tmaasync.create_tma_tile_im2col,
        {
            "array": IMAGES,
            "tile_shape": (64, 64),
            "filter_shape": (3, 3),
            "stride": 1,
            "dilation": 1,
            "padding": 1,
            "swizzle": "128B",
            "box_shape": (64, 64),
            "l2_promotion": "none",
            "oob_fill": "zero",
            "dtype": "fp16",
        },
    ),
    "im2col corners": Call(
        tmaasync.create_tma_tile_im2col,
        {
            "array": IMAGES,
            "tile_shape": (64, 64),
            "filter_shape": (3, 3),
            "lower_corner": (-1, -1),
            "upper_corner": (-1, -1),
        },
    ),
    "ragged": Call(
        tmaasync.create_ragged_tensor_map,
        {
            "array": A,
            "tile_shape": (8, 64),
            "max_length": 16,
            "ragged_dim": 0,
            "swizzle": "128B",
            "box_shape": (8, 64),
            "l2_promotion": "none",
            "oob_fill": "zero",
            "dtype": "fp16",
        },
    ),
    "ragged heads": Call(
        tmaasync.create_ragged_tma_3d_tile,
        {
            "array": HEADS,
            "rows": 8,
            "columns": 64,
            "chunk_columns": 64,
            "max_length": 16,
            "swizzle": "128B",
            "l2_promotion": "none",
            "oob_fill": "zero",
            "dtype": "fp16",
        },
    ),
    "plan_copy": Call(
        tmaasync.plan_copy,
        {
            "source": A,
            "destination": "shared",
            "tile_shape": (8, 64),
            "swizzle": "none",
            "starts": (8, 0),
            "shared_dtype": "fp16",
            "eviction_policy": tmaasync.CachePolicy.EVICT_FIRST,
            "coalesced_width": 8,
            "disable_tma": False,
            "prefer": "tma",
            "cluster_mask": 0,
        },
    ),
    "TensorMapSpec": Call(
        lambda **fields: TensorMapSpec(**fields).encode(),
        {
            **MAP,
            "element_strides": (1, 1),
            "interleave": "none",
            "swizzle": "none",
            "l2_promotion": "none",
            "oob_fill": "zero",
        },
    ),
    "Im2colSpec": Call(
        lambda **fields: Im2colSpec(**fields).encode(),
        {
            **COLUMNS,
            "element_strides": (1, 1, 1, 1),
            "interleave": "none",
            "swizzle": "none",
            "l2_promotion": "none",
            "oob_fill": "zero",
        },
    ),
    "explain": Call(
        lambda **fields: TensorMapSpec(**fields).explain(),
        {**MAP, "swizzle": "128B"},
        free=(*MAP, "swizzle"),
    ),
    "RegisterSplit": Call(
        RegisterSplit, {"producers": 1, "consumers": 2, "producer": 24, "consumer": 240}
    ),
    "RegisterSplit.fit": Call(RegisterSplit.fit, {"producers": 1, "consumers": 2, "producer": 24}),
    "launch_registers": Call(launch_registers, {"threads": 384}),
}

KERNELS = {
    "Kernel": Call(
        Kernel,
        {
            "source": COPIES,
            "name": "copies",
            "types": {"Tile": TILE},
            "constants": {"N": 1},
            "include_dirs": (),
            "options": (),
            "arch": "sm_90a",
            "debug": True,
            "trace": True,
            "budget_seconds": 1.0,
        },
    ),
    "types": Call(lambda types: Kernel(COPIES, "copies", types={"Tile": types}), {"types": TILE}),
    "constants": Call(
        lambda constants: Kernel(COPIES, "copies", constants={"N": constants}), {"constants": 1}
    ),
    "launch": Call(
        KERNEL,
        {
            "grid": 1,
            "block": 32,
            "args": (zeros(8, dtype=np.float32),),
            "cluster": 1,
            "shared_mem": 0,
            "pdl": False,
            "stream": None,
        },
        free=("stream",),
    ),
    "argument": Call(lambda args: KERNEL(1, 32, (args,)), {"args": zeros(8, dtype=np.float32)}),
    "scheduled": Call(
        lambda **schedule: emulate.scheduled(**schedule).__enter__(),
        {
            "policy": "random",
            "seed": 1,
            "workers": 1,
            "budget_seconds": 1.0,
            "max_threads": 1 << 20,
            "races": False,
        },
    ),
    "record": Call(lambda **options: trace.record(**options).__enter__(), {"notes_per_warp": 1024}),
    "compile": Call(KERNEL.compile, {"arch": None}),
    "plot": Call(
        trace.plot,
        {
            "trace": launch_trace,
            "path": None,
            "block": 0,
            "between": (0, 5),
            "dark": False,
            "width": 16,
        },
        free=("path",) if find_spec("matplotlib") is None else (),
    ),
    "find_lanes": Call(trace.find_lanes, {"trace": launch_trace, "block": 0, "alike": True}),
    "find_pipelines": Call(trace.find_pipelines, {"trace": launch_trace, "block": 0}),
    "to_json": Call(lambda blocks: launch_trace().to_json(blocks=blocks), {"blocks": 1}),
    "EventKind": Call(trace.EventKind.of, {"kind": "arrive"}),
}

PROTOCOLS = {
    "Pipeline": Call(
        Pipeline,
        {
            **PIPELINE,
            "consumers": 2,
            "cluster_size": 1,
            "producer_threads": 1,
            "side": {},
            "extra_bytes": 0,
        },
    ),
    "StoreRing": Call(Pipeline, {**PIPELINE, "loads_ahead": 1}),
    "Pipeline.fit": Call(
        Pipeline.fit,
        {
            "max_stages": 3,
            "tiles": {"a": TILE},
            "consumers": 2,
            "cluster_size": 1,
            "extra_bytes": 0,
        },
    ),
    "PipelineState": Call(PipelineState, {"stages": 2, "index": 0, "phase": 0, "count": 0}),
    "for_producer": Call(PipelineState.for_producer, {"stages": 2}),
    "for_consumer": Call(PipelineState.for_consumer, {"stages": 2}),
    "advance": Call(PipelineState(2).advance, {"stages": 2}),
    "PipelineProtocol": Call(
        lambda **fields: find_fault(PipelineProtocol(**fields), 1000),
        {
            "stages": 2,
            "consumers": 1,
            "load_bytes": (8,),
            "expected_bytes": 8,
            "empty_arrivals": 1,
            "full_arrivals": 1,
            "producers": 1,
            "producer": ("wait", "expect_bytes", "load"),
            "consumer": ("wait", "read", "arrive"),
            "producer_phase": 1,
            "consumer_phase": 0,
            "consumers_pre_arrive": False,
            "reads_in_flight": 0,
            "release_lag": 0,
        },
    ),
    "standard": Call(PipelineProtocol.standard, {"stages": 2, "consumers": 1, "load_bytes": (8,)}),
    "find_fault": Call(
        find_fault,
        {
            "protocol": PipelineProtocol.standard(2, consumers=1, load_bytes=(8,)),
            "max_stage_states": 1000,
        },
    ),
    "SharedMemBarrier": Call(SharedMemBarrier, {"count": 1}),
    "init": Call(lambda count: SharedMemBarrier(None).init(count), {"count": 1}),
    "arrive": Call(lambda count: SharedMemBarrier(4).arrive(count), {"count": 1}),
    "expect_bytes": Call(lambda size: SharedMemBarrier(4).expect_bytes(size), {"size": 1}),
    "expect_tx": Call(lambda size: SharedMemBarrier(4).expect_tx(size), {"size": 1}),
    "complete_tx": Call(lambda size: SharedMemBarrier(4).complete_tx(size), {"size": 0}),
    "wait": Call(lambda phase: SharedMemBarrier(1).try_wait(phase), {"phase": 0}),
}

LAYOUTS = {
    "load_coordinates": Call(RAGGED.load_coordinates, {"start": 8, "length": 8, "at": (0, 0)}),
    "store_coordinates": Call(RAGGED.store_coordinates, {"start": 8, "length": 8, "at": (0, 0)}),
    "work_list": Call(RAGGED.work_list, {"lengths": (3, 5)}),
    "work_list of cu_seqlens": Call(RAGGED.work_list, {"cu_seqlens": (0, 3, 5)}),
    "load of heads": Call(
        RAGGED_HEADS.load_coordinates, {"start": 0, "length": 8, "row": 0, "head": 1, "column": 0}
    ),
    "im2col coordinates": Call(
        tmaasync.create_tma_tile_im2col(
            IMAGES, (64, 64), filter_shape=(3, 3), padding=1
        ).load_coordinates,
        {"row": 0, "column": 0},
    ),
    "bank_conflicts": Call(
        swizzle.bank_conflicts, {"addresses_bytes": range(0, 128, 4), "access_bytes": 4}
    ),
    "bank_words": Call(
        swizzle.bank_words, {"addresses_bytes": range(0, 128, 4), "access_bytes": 4}
    ),
    "linear_offset": Call(swizzle.linear_offset, {"shared_offset_bytes": 16, "swizzle": "128B"}),
    "shared_offset": Call(swizzle.shared_offset, {"offset_bytes": 16, "swizzle": "128B"}),
    "tile_offset": Call(
        swizzle.tile_offset,
        {
            "index": (1, 2),
            "tile_shape": (8, 64),
            "box_shape": (8, 64),
            "itemsize": 2,
            "swizzle": "128B",
        },
    ),
    "render": Call(
        swizzle.render,
        {"tile_shape": (8, 64), "box_shape": (8, 64), "itemsize": 2, "swizzle": "128B", "lines": 2},
    ),
    "MatrixDescriptor": Call(
        lambda **fields: wgmma.MatrixDescriptor(**fields).encode(),
        {"address": 1024, "leading_bytes": 16, "stride_bytes": 1024, "swizzle": "128B"},
    ),
    "SwizzleMode": Call(wgmma.SwizzleMode.from_swizzle, {"swizzle": "128B"}),
    "start_bytes": Call(PARAMS.start_bytes, {"step": 0, "first": 0}),
    "descriptor": Call(PARAMS.descriptor, {"address": 1024, "step": 0, "first": 0}),
    "WgmmaPlan": Call(
        wgmma.WgmmaPlan,
        {
            "m": 64,
            "n": 64,
            "k": 64,
            "form": wgmma.mma_form("bf16"),
            "warpgroups_m": 1,
            "warpgroups_n": 1,
            "a_in_registers": False,
            "a_is_k_major": True,
            "b_is_k_major": True,
        },
    ),
    "a_fragment": Call(wgmma.a_fragment, {"dtype": "bf16"}),
    "accumulator_fragment": Call(wgmma.accumulator_fragment, {"columns": 64}),
    "a_descriptor": Call(
        wgmma.compute_a_descriptor_params,
        {
            "shape": (64, 64),
            "dtype": "fp16",
            "swizzle": "128B",
            "is_k_major": True,
            "m": slice(None),
            "k": slice(None),
        },
    ),
    "b_descriptor": Call(
        wgmma.compute_b_descriptor_params,
        {
            "shape": (64, 64),
            "dtype": "fp16",
            "swizzle": "128B",
            "is_k_major": True,
            "n": slice(None),
            "k": slice(None),
            "columns": 64,
        },
    ),
    "increase_descriptor_offset": Call(
        wgmma.increase_descriptor_offset, {"descriptor": 1 << 62, "offset_bytes": 16}
    ),
    "instruction_n": Call(
        wgmma.instruction_n, {"columns": 64, "form": wgmma.mma_form("bf16"), "panel": 8}
    ),
    "mma_form": Call(wgmma.mma_form, {"a": "bf16", "b": "bf16", "accumulator": "fp32"}),
    "registers": Call(wgmma.mma_form("bf16").registers, {"n": 64}),
    "instruction": Call(wgmma.mma_form("bf16").instruction, {"n": 64}),
}

OPERATIONS = {
    "copy": Call(
        ops.copy, {"source": A, "target": zeros(64, 64), "stream": None}, free=("stream",)
    ),
    "matmul": Call(
        ops.matmul,
        {
            "a": A,
            "b": A,
            "alpha": 1.0,
            "c": A,
            "beta": 1.0,
            "bias": zeros(64),
            "activation": "relu",
            "scale_a": None,
            "scale_b": None,
            "out": zeros(64, 64),
            "dtype": "fp16",
            "precision": None,
            "a_dtype": "fp16",
            "b_dtype": "fp16",
            "stream": None,
        },
        free=("stream",),
    ),
    "grouped_matmul": Call(
        ops.grouped_matmul,
        {
            "a": A,
            "b": zeros(2, 64, 64),
            "offsets": np.array([8, 64]),
            "out": zeros(64, 64),
            "dtype": "fp16",
        },
    ),
    "k_grouped_matmul": Call(
        ops.k_grouped_matmul,
        {
            "a": A,
            "b": A,
            "offsets": np.array([8, 64]),
            "out": zeros(2, 64, 64),
            "dtype": "fp16",
        },
    ),
    "all_gather": Call(
        ops.all_gather,
        {"arrays": [zeros(64, 64)], "out": [zeros(64, 64)], "streams": [None]},
    ),
    "reduce_scatter": Call(
        ops.reduce_scatter,
        {"arrays": [zeros(64, 64)], "out": [zeros(64, 64)], "streams": [None]},
    ),
    "all_reduce": Call(
        ops.all_reduce,
        {"arrays": [zeros(64, 64)], "out": [zeros(64, 64)], "streams": [None]},
    ),
    "all_gather_matmul": Call(
        ops.all_gather_matmul,
        {
            "a": [zeros(64, 64)],
            "b": [zeros(64, 64)],
            "out": [zeros(64, 64)],
            "streams": [None],
        },
    ),
    "matmul_all_reduce": Call(
        ops.matmul_all_reduce,
        {
            "a": [zeros(64, 64)],
            "b": [zeros(64, 64)],
            "out": [zeros(64, 64)],
            "streams": [None],
        },
    ),
    "matmul_reduce_scatter": Call(
        ops.matmul_reduce_scatter,
        {
            "a": [zeros(64, 64)],
            "b": [zeros(64, 64)],
            "out": [zeros(64, 64)],
            "streams": [None],
        },
    ),
    "scaled_matmul": Call(
        ops.scaled_matmul,
        {
            "a": BYTES,
            "b": BYTES,
            "scale_a": SCALES,
            "scale_b": np.zeros((1, 1), np.float32),
            "out": zeros(128, 128, dtype=ml_dtypes.bfloat16),
            "dtype": "bf16",
            "a_dtype": "e4m3",
            "b_dtype": "e4m3",
        },
    ),
    "conv2d": Call(
        ops.conv2d,
        {
            "images": IMAGES,
            "filters": zeros(64, 3, 3, 64),
            "bias": zeros(64),
            "stride": 1,
            "padding": 1,
            "dilation": 1,
            "activation": "relu",
            "out": zeros(2, 8, 8, 64),
            "dtype": "fp16",
        },
    ),
    "attention": Call(
        ops.attention,
        {
            "q": Q,
            "k": Q,
            "v": Q,
            "causal": True,
            "scale": 0.5,
            "window": (3, 3),
            "softcap": 5.0,
            "return_lse": True,
            "scales": None,
            "dtype": "fp16",
            "out": zeros(1, 16, 1, 64),
        },
    ),
    "varlen_attention": Call(
        ops.varlen_attention,
        {
            "q": PACKED,
            "k": PACKED,
            "v": PACKED,
            "cu_seqlens_q": STARTS,
            "cu_seqlens_k": STARTS,
            "max_seqlen_q": 16,
            "max_seqlen_k": 16,
            "causal": True,
            "scale": 0.5,
            "window": None,
            "softcap": 5.0,
            "return_lse": True,
            "out": zeros(16, 1, 64),
            "check": True,
        },
    ),
    "attention_backward": Call(
        ops.attention_backward,
        {
            **dict.fromkeys(("dout", "q", "k", "v", "out"), Q),
            "lse": np.zeros((1, 1, 16), np.float32),
            "causal": True,
            "scale": 0.5,
            "window": (3, 3),
            "softcap": 5.0,
            "deterministic": True,
            **{name: zeros(1, 16, 1, 64) for name in ("dq", "dk", "dv")},
        },
    ),
    "varlen_attention_backward": Call(
        ops.varlen_attention_backward,
        {
            **dict.fromkeys(("dout", "q", "k", "v", "out"), PACKED),
            "lse": np.zeros((1, 16), np.float32),
            "cu_seqlens_q": STARTS,
            "cu_seqlens_k": STARTS,
            "max_seqlen_q": 16,
            "max_seqlen_k": 16,
            "causal": True,
            "scale": 0.5,
            "window": None,
            "softcap": 5.0,
            "deterministic": True,
            "check": True,
            **{name: zeros(16, 1, 64) for name in ("dq", "dk", "dv")},
        },
    ),
    "page_table": Call(
        lambda page_table: ops.varlen_attention(
            PACKED, PAGES, PAGES, STARTS, STARTS, 16, 16, page_table=page_table, check=True
        ),
        {"page_table": np.zeros((1, 1), np.int32)},
    ),
    "ragged_store": Call(
        ops.ragged_store,
        {
            "padded": zeros(2, 8, 64),
            "lengths": (3, 5),
            "out": zeros(8, 64),
            "check": True,
            "stream": None,
        },
        free=("stream",),
    ),
    "reduce_add": Call(
        ops.reduce_add,
        {"target": zeros(8, 64), "source": zeros(8, 64), "stream": None},
        ("stream",),
    ),
    "ragged_load": Call(
        ops.ragged_load,
        {
            "packed": zeros(8, 64),
            "lengths": (3, 5),
            "out": zeros(2, 8, 64),
            "max_length": 8,
            "check": True,
        },
    ),
}

CALLS = {**FACTORIES, **KERNELS, **PROTOCOLS, **LAYOUTS, **OPERATIONS}


def refusals(call: Call, parameter: str) -> Iterator[tuple[Any, TMAError | None]]:
    """Yield each wrong value with the error that it raises, or None if it is taken."""
    # An operation accepts these values, and another kernel would be compiled for each.
    right = (None, True, False) if call in OPERATIONS.values() else ()
    for value in WRONG:
        if any(value is one for one in right):
            continue
        try:
            call.run(**{parameter: value})
        except TMAError as error:
            yield value, error
        else:
            yield value, None


@pytest.mark.sampled(12)
@pytest.mark.parametrize("name", CALLS)
def test_the_call_that_is_varied_is_legal(name: str) -> None:
    CALLS[name].run()


@pytest.mark.sampled(25)
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", CALLS)
def test_a_wrong_argument_raises_an_error_of_the_package_and_no_other(name: str) -> None:
    call = CALLS[name]
    for parameter in call.arguments:
        for value, error in refusals(call, parameter):
            if isinstance(error, ArgumentError | ArrayTypeError):
                assert RULE_AND_REMEDY.search(str(error)), f"{parameter}={value!r}: {error}"


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", CALLS)
def test_an_object_of_no_kind_is_refused_under_the_name_of_its_argument(name: str) -> None:
    call = CALLS[name]
    for parameter in {*call.arguments} - {*call.free}:
        with pytest.raises(TMAError) as caught:
            call.run(**{parameter: Other()})
        assert parameter in str(caught.value)


def test_every_public_function_is_varied() -> None:
    varied = {call.function for call in CALLS.values()}
    public = (*vars(tmaasync).items(), *vars(ops).items())
    functions = {name: it for name, it in public if name.islower() and inspect.isfunction(it)}

    missing = {name for name, it in functions.items() if it not in varied and name in PUBLIC}
    # It takes no arguments; and what needs several GPUs is in test_peers.py.
    assert missing == {"include_dir", "enable_peer_access"}
