"""Every public function refuses arguments of a wrong kind with an error of the package."""

from __future__ import annotations

import dataclasses
import functools
import inspect
import re
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from typing import Any, NamedTuple

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
from tmaasync.trace import find_lanes


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
    """A legal call: what it needs, next to which every option is varied."""

    function: Callable[..., Any]
    arguments: dict[str, Any]
    free: tuple[str, ...] = ()  # takes any object

    def run(self, **changed: Any) -> Any:
        """Call the function with some arguments changed."""
        arguments = {**self.arguments, **changed}
        # Collection compiles no kernel: a launch is traced when a test asks for it.
        launch = {name: launch_trace() for name, it in arguments.items() if it is launch_trace}
        return self.function(**{**arguments, **launch})

    @property
    def names(self) -> list[str]:
        """The arguments that are varied: those given, and all with a default."""
        kinds = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
        known = inspect.signature(self.function).parameters.values()
        return [*dict.fromkeys([*self.arguments, *(it.name for it in known if it.kind in kinds)])]


def call(function: Callable[..., Any], /, *free: str, **arguments: Any) -> Call:
    return Call(function, arguments, ("stream", *free))


def method_of(made: Callable[..., Any], name: str) -> Callable[..., Any]:
    """Return a function that calls a method, without arguments, of what these make."""

    @functools.wraps(made)
    def run(**fields: Any) -> Any:
        return getattr(made(**fields), name)()

    return run


def on_b200(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return the function, called inside an emulated B200."""

    @functools.wraps(function)
    def run(**arguments: Any) -> Any:
        with emulate.chip("sm_100a"):
            return function(**arguments)

    return run


RULE_AND_REMEDY = re.compile(r"; .+\. .+\.$", re.DOTALL)
PUBLIC = {*tmaasync.__all__, *ops.__all__}


def zeros(*shape: int, dtype: Any = np.float16) -> Any:
    return np.zeros(shape, dtype)


A, IMAGES, HEADS = zeros(64, 64), zeros(2, 8, 8, 64), zeros(64, 4, 64)
PLACE = {"address": 1 << 20, "dtype": tmaasync.DataType.FLOAT16}
MAP = {**PLACE, "shape": (64, 64), "strides_bytes": (128,), "box_shape": (8, 64)}
IMAGE_MAP = {**PLACE, "shape": (2, 8, 8, 64), "strides_bytes": (8192, 1024, 128)}
CORNERS = {"lower_corner": (-1, -1), "upper_corner": (-1, -1)}
COLUMNS = {**IMAGE_MAP, **CORNERS, "channels_per_pixel": 64, "pixels_per_column": 64}
TILE = tmaasync.create_tma_tile(A, (8, 64))
RAGGED = tmaasync.create_ragged_tensor_map(A, (8, 64), max_length=16)
RAGGED_HEADS = tmaasync.create_ragged_tma_3d_tile(HEADS, 8, max_length=16)
PATCHES = tmaasync.create_tma_tile_im2col(IMAGES, (64, 64), filter_shape=(3, 3), padding=1)
COPIES = 'extern "C" __global__ void copies(const float* x) { __syncthreads(); }\n'
KERNEL = Kernel(COPIES, "copies")
LINE = zeros(8, dtype=np.float32)


@functools.cache
def launch_trace() -> trace.Trace:
    with trace.record() as kept:
        KERNEL(1, 32, (LINE,))
    return kept.launches[0]


PARAMS = wgmma.compute_a_descriptor_params((64, 64), "fp16", swizzle="128B")
BYTES = zeros(128, 128, dtype=np.uint8)
Q, PACKED, PAGES = zeros(1, 16, 1, 64), zeros(16, 1, 64), zeros(1, 64, 1, 64)
STARTS = np.array([0, 16], np.int32)
OFFSETS = np.array([8, 64])
OPTIONS = {
    "swizzle": "none",
    "box_shape": (8, 64),
    "l2_promotion": "none",
    "oob_fill": "zero",
    "interleave": "none",
    "element_strides": (1, 1),
}
ADDRESSES = range(0, 128, 4)
PROTOCOL = PipelineProtocol.standard(2, consumers=1, load_bytes=(8,))

FACTORIES = {
    "access": call(ArrayAccess.from_array, "argument", array=A, mode="r"),
    "BulkTile": call(BulkTile, "allow_tail", array=A, tile_bytes=1024),
    "Pointer": call(Pointer, array=A, dtype="fp16"),
    "StridedTensor": call(StridedTensor, array=A),
    "TMATensorTileArray": call(TMATensorTileArray, tiles=[TILE]),
    "tile": call(tmaasync.create_tma_tile, array=A, tile_shape=(8, 64), dtype="fp16", **OPTIONS),
    "template": call(
        tmaasync.create_tma_tile_template, tile_shape=(8, 64), dtype="fp16", **OPTIONS
    ),
    "bind": call(tmaasync.create_tma_tile_template((8, 64), "fp16").bind, array=A),
    "rebind": call(TILE.rebind, array=A),
    "operand": call(tmaasync.create_tensor_tile, array=A, tile_shape=(64, 64), swizzle="128B"),
    "gather4": call(
        tmaasync.create_tma_tile_gather4, array=A, tile_shape=(8, 64), swizzle="128B"
    ),
    "gather4_tile_bytes": call(
        tmaasync.gather4_tile_bytes, tile_shape=(8, 64), dtype="fp16", swizzle="128B"
    ),
    "split": call(
        tmaasync.create_split_tma, array=HEADS, tile_shape=(8, 1, 64), swizzle="64B", fold_chunks=2
    ),
    "im2col": call(
        tmaasync.create_tma_tile_im2col, array=IMAGES, tile_shape=(64, 64), filter_shape=(3, 3),
        padding=1,
    ),
    "im2col corners": call(
        tmaasync.create_tma_tile_im2col, array=IMAGES, tile_shape=(64, 64), filter_shape=(3, 3),
        **CORNERS,
    ),
    "im2col w": call(
        tmaasync.create_tma_tile_im2col_w, array=IMAGES, tile_shape=(64, 64), halo=2,
    ),
    "ragged": call(
        tmaasync.create_ragged_tensor_map, array=A, tile_shape=(8, 64), max_length=16
    ),
    "ragged heads": call(
        tmaasync.create_ragged_tma_3d_tile, array=HEADS, rows=8, columns=64, max_length=16
    ),
    "plan_copy": call(
        tmaasync.plan_copy, source=A, destination="shared", tile_shape=(8, 64), starts=(8, 0),
        prefer="tma",
    ),
    "TensorMapSpec": call(method_of(TensorMapSpec, "encode"), **MAP),
    "Im2colSpec": call(method_of(Im2colSpec, "encode"), **COLUMNS),
    "explain": call(
        lambda **fields: TensorMapSpec(**fields).explain(), *MAP, "swizzle", **MAP, swizzle="128B"
    ),
    "RegisterSplit": call(RegisterSplit, producers=1, consumers=2, producer=24, consumer=240),
    "RegisterSplit.fit": call(RegisterSplit.fit, producers=1, consumers=2, producer=24),
    "launch_registers": call(launch_registers, threads=384),
}  # fmt: skip

KERNELS = {
    "Kernel": call(
        Kernel, source=COPIES, name="copies", types={"Tile": TILE}, constants={"N": 1},
        arch="sm_90a",
    ),
    "types": call(lambda types: Kernel(COPIES, "copies", types={"Tile": types}), types=TILE),
    "constants": call(
        lambda constants: Kernel(COPIES, "copies", constants={"N": constants}), constants=1
    ),
    "launch": call(KERNEL, grid=1, block=32, args=(LINE,)),
    "argument": call(lambda args: KERNEL(1, 32, (args,)), args=LINE),
    "scheduled": call(method_of(emulate.scheduled, "__enter__"), policy="random", seed=1),
    "record": call(method_of(trace.record, "__enter__"), notes_per_warp=1024),
    "compile": call(KERNEL.compile, arch=None),
    "plot": call(
        trace.plot, *(["path"] if find_spec("matplotlib") is None else []), trace=launch_trace
    ),
    "find_lanes": call(
        lambda trace, block, alike: find_lanes(trace, block=block, alike=alike),
        trace=launch_trace, block=0, alike=True,
    ),
    "find_pipelines": call(trace.find_pipelines, trace=launch_trace, block=0),
    "to_json": call(lambda blocks: launch_trace().to_json(blocks=blocks), blocks=1),
    "EventKind": call(trace.EventKind.of, kind="arrive"),
}  # fmt: skip

PROTOCOLS = {
    "Pipeline": call(Pipeline, stages=2, tiles={"a": TILE}, consumers=2),
    "StoreRing": call(Pipeline, stages=2, tiles={"a": TILE}, loads_ahead=1),
    "Pipeline.fit": call(Pipeline.fit, max_stages=3, tiles={"a": TILE}),
    "PipelineState": call(PipelineState, stages=2),
    "for_producer": call(PipelineState.for_producer, stages=2),
    "for_consumer": call(PipelineState.for_consumer, stages=2),
    "advance": call(PipelineState(2).advance, stages=2),
    "PipelineProtocol": call(
        lambda **fields: find_fault(PipelineProtocol(**fields), 1000),
        **dataclasses.asdict(PROTOCOL),
    ),
    "standard": call(PipelineProtocol.standard, stages=2, consumers=1, load_bytes=(8,)),
    "find_fault": call(find_fault, protocol=PROTOCOL, max_stage_states=1000),
    "SharedMemBarrier": call(SharedMemBarrier, "name", count=1),
    "init": call(lambda count: SharedMemBarrier(None).init(count), count=1),
    "arrive": call(lambda count: SharedMemBarrier(4).arrive(count), count=1),
    "expect_bytes": call(lambda size: SharedMemBarrier(4).expect_bytes(size), size=1),
    "expect_tx": call(lambda size: SharedMemBarrier(4).expect_tx(size), size=1),
    "complete_tx": call(lambda size: SharedMemBarrier(4).complete_tx(size), size=0),
    "wait": call(lambda phase: SharedMemBarrier(1).try_wait(phase), phase=0),
}

LAYOUTS = {
    "load_coordinates": call(RAGGED.load_coordinates, start=8, length=8, at=(0, 0)),
    "store_coordinates": call(RAGGED.store_coordinates, start=8, length=8, at=(0, 0)),
    "work_list": call(lambda lengths: RAGGED.work_list(lengths), lengths=(3, 5)),
    "work_list of cu_seqlens": call(
        lambda cu_seqlens: RAGGED.work_list(cu_seqlens=cu_seqlens), cu_seqlens=(0, 3, 5)
    ),
    "load of heads": call(
        RAGGED_HEADS.load_coordinates, start=0, length=8, row=0, head=1, column=0
    ),
    "im2col coordinates": call(PATCHES.load_coordinates, row=0, column=0),
    "bank_conflicts": call(swizzle.bank_conflicts, addresses_bytes=ADDRESSES, access_bytes=4),
    "bank_words": call(swizzle.bank_words, addresses_bytes=ADDRESSES, access_bytes=4),
    "linear_offset": call(swizzle.linear_offset, shared_offset_bytes=16, swizzle="128B"),
    "shared_offset": call(swizzle.shared_offset, offset_bytes=16, swizzle="128B"),
    "tile_offset": call(
        swizzle.tile_offset, index=(1, 2), tile_shape=(8, 64), box_shape=(8, 64), itemsize=2,
        swizzle="128B",
    ),
    "render": call(
        swizzle.render, tile_shape=(8, 64), box_shape=(8, 64), itemsize=2, swizzle="128B"
    ),
    "MatrixDescriptor": call(
        method_of(wgmma.MatrixDescriptor, "encode"), address=1024, leading_bytes=16,
        stride_bytes=1024, swizzle="128B",
    ),
    "SwizzleMode": call(wgmma.SwizzleMode.from_swizzle, swizzle="128B"),
    "start_bytes": call(PARAMS.start_bytes, step=0, first=0),
    "descriptor": call(PARAMS.descriptor, address=1024, step=0, first=0),
    "WgmmaPlan": call(wgmma.WgmmaPlan, m=64, n=64, k=64, form=wgmma.mma_form("bf16")),
    "a_fragment": call(wgmma.a_fragment, dtype="bf16"),
    "accumulator_fragment": call(wgmma.accumulator_fragment, columns=64),
    "a_descriptor": call(
        wgmma.compute_a_descriptor_params, shape=(64, 64), dtype="fp16", swizzle="128B"
    ),
    "b_descriptor": call(
        wgmma.compute_b_descriptor_params, shape=(64, 64), dtype="fp16", swizzle="128B"
    ),
    "increase_descriptor_offset": call(
        wgmma.increase_descriptor_offset, descriptor=1 << 62, offset_bytes=16
    ),
    "instruction_n": call(
        wgmma.instruction_n, columns=64, form=wgmma.mma_form("bf16"), panel=8
    ),
    "mma_form": call(wgmma.mma_form, a="bf16"),
    "registers": call(wgmma.mma_form("bf16").registers, n=64),
    "instruction": call(wgmma.mma_form("bf16").instruction, n=64),
}  # fmt: skip

LISTS: Any = {name: [zeros(64, 64)] for name in ("arrays", "a", "b", "out")}
REDUCED: Any = {"arrays": LISTS["arrays"], "out": LISTS["out"]}
MULTIPLIED: Any = {name: LISTS[name] for name in ("a", "b", "out")}
SCALED_LISTS: Any = {
    **{name: [BYTES] for name in ("a", "b")},
    "scale_a": [zeros(128, 1, dtype=np.float32)],
    "scale_b": [zeros(1, 1, dtype=np.float32)],
    "a_dtype": "e4m3",
    "b_dtype": "e4m3",
}
SEQUENCES: Any = {
    "cu_seqlens_q": STARTS,
    "cu_seqlens_k": STARTS,
    "max_seqlen_q": 16,
    "max_seqlen_k": 16,
    "check": True,
}
OPERATIONS = {
    "copy": call(ops.copy, source=A, target=zeros(64, 64)),
    "matmul": call(
        ops.matmul, a=A, b=A, c=A, alpha=1.0, beta=1.0, bias=zeros(64), activation="relu",
        out=zeros(64, 64),
    ),
    "grouped_matmul": call(ops.grouped_matmul, a=A, b=zeros(2, 64, 64), offsets=OFFSETS),
    "k_grouped_matmul": call(ops.k_grouped_matmul, a=A, b=A, offsets=OFFSETS),
    "all_gather": call(ops.all_gather, **REDUCED),
    "reduce_scatter": call(ops.reduce_scatter, **REDUCED),
    "all_reduce": call(ops.all_reduce, **REDUCED),
    "all_gather_matmul": call(ops.all_gather_matmul, **MULTIPLIED),
    "matmul_all_reduce": call(ops.matmul_all_reduce, **MULTIPLIED),
    "matmul_reduce_scatter": call(ops.matmul_reduce_scatter, **MULTIPLIED),
    "all_gather_scaled_matmul": call(ops.all_gather_scaled_matmul, **SCALED_LISTS),
    "scaled_matmul_reduce_scatter": call(ops.scaled_matmul_reduce_scatter, **SCALED_LISTS),
    "scaled_matmul": call(
        ops.scaled_matmul, a=BYTES, b=BYTES, scale_a=zeros(128, 1, dtype=np.float32),
        scale_b=zeros(1, 1, dtype=np.float32), a_dtype="e4m3", b_dtype="e4m3",
    ),
    "scaled_grouped_matmul": call(
        on_b200(ops.scaled_grouped_matmul), a=BYTES, b=zeros(2, 128, 64, dtype=np.uint8),
        scale_a=zeros(128, 4, dtype=np.uint8), scale_b=zeros(2, 4, 64, dtype=np.uint8),
        offsets=OFFSETS, a_dtype="e4m3", b_dtype="e4m3", scale_dtype="e8m0", scale_layout="rows",
    ),
    "scaled_grouped_matmul of float32 scales": call(
        on_b200(ops.scaled_grouped_matmul), a=BYTES, b=zeros(2, 128, 64, dtype=np.uint8),
        scale_a=zeros(128, 1, dtype=np.float32), scale_b=zeros(2, 1, 1, dtype=np.float32),
        offsets=OFFSETS, a_dtype="e4m3", b_dtype="e4m3",
    ),
    "conv2d": call(ops.conv2d, images=IMAGES, filters=zeros(64, 3, 3, 64), padding=1),
    "attention": call(ops.attention, q=Q, k=Q, v=Q, return_lse=True, out=zeros(1, 16, 1, 64)),
    "varlen_attention": call(
        ops.varlen_attention, "page_table", q=PACKED, k=PACKED, v=PACKED, out=zeros(16, 1, 64),
        **SEQUENCES,
    ),
    "attention_backward": call(
        ops.attention_backward, **dict.fromkeys(("dout", "q", "k", "v", "out"), Q),
        lse=zeros(1, 1, 16, dtype=np.float32),
    ),
    "varlen_attention_backward": call(
        ops.varlen_attention_backward, **dict.fromkeys(("dout", "q", "k", "v", "out"), PACKED),
        lse=zeros(1, 16, dtype=np.float32), **SEQUENCES,
    ),
    "page_table": call(
        lambda page_table: ops.varlen_attention(
            PACKED, PAGES, PAGES, STARTS, STARTS, 16, 16,
            page_table=page_table, return_lse=True, check=True,
        ),
        page_table=np.zeros((1, 1), np.int32),
    ),
    "ragged_store": call(
        ops.ragged_store, padded=zeros(2, 8, 64), lengths=(3, 5), out=zeros(8, 64)
    ),
    "reduce_add": call(ops.reduce_add, target=zeros(8, 64), source=zeros(8, 64)),
    "ragged_load": call(
        ops.ragged_load, packed=zeros(8, 64), lengths=(3, 5), out=zeros(2, 8, 64), max_length=8
    ),
}  # fmt: skip

CALLS = {**FACTORIES, **KERNELS, **PROTOCOLS, **LAYOUTS, **OPERATIONS}


def refusals(legal: Call, parameter: str) -> Iterator[tuple[Any, TMAError | None]]:
    """Yield each wrong value with the error that it raises, or None if it is taken."""
    # An operation accepts these values, and another kernel would be compiled for each.
    right = (None, True, False) if legal in OPERATIONS.values() else ()
    for value in WRONG:
        if any(value is one for one in right):
            continue
        try:
            legal.run(**{parameter: value})
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
    legal = CALLS[name]
    for parameter in legal.names:
        for value, error in refusals(legal, parameter):
            if isinstance(error, ArgumentError | ArrayTypeError):
                assert RULE_AND_REMEDY.search(str(error)), f"{parameter}={value!r}: {error}"


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", CALLS)
def test_an_object_of_no_kind_is_refused_under_the_name_of_its_argument(name: str) -> None:
    legal = CALLS[name]
    for parameter in {*legal.names} - {*legal.free}:
        with pytest.raises(TMAError) as caught:
            legal.run(**{parameter: Other()})
        assert parameter in str(caught.value)


def test_every_public_function_is_varied() -> None:
    varied = {inspect.unwrap(it.function) for it in CALLS.values()}
    public = (*vars(tmaasync).items(), *vars(ops).items())
    functions = {name: it for name, it in public if name.islower() and inspect.isfunction(it)}

    missing = {name for name, it in functions.items() if it not in varied and name in PUBLIC}
    # It takes no arguments; what needs several GPUs is in test_peers.py, and in the tests of each.
    of_ranks = {"all_to_all", "ring_attention", "ring_attention_backward"}
    assert missing == {"include_dir", "enable_peer_access"} | of_ranks
