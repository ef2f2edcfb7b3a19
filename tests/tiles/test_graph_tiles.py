"""Tiles of captured graphs, with a stand-in for the driver that keeps two graphs' parameters."""

from __future__ import annotations

import contextlib
import ctypes
import struct
import weakref
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import arrays_in_memory
import numpy as np
import pytest

from tmaasync import (
    ArgumentError,
    ArrayTypeError,
    BulkTile,
    DriverError,
    GraphTiles,
    Swizzle,
    TensorMapError,
    TMATensorTileArray,
    create_ragged_tensor_map,
    create_ragged_tma_3d_tile,
    create_tma_tile,
    create_tma_tile_im2col,
)

bindings = pytest.importorskip("cuda.bindings.driver")

KINDS = bindings.CUgraphNodeType
KERNEL = KINDS.CU_GRAPH_NODE_TYPE_KERNEL
COUNT = struct.pack("<i", 7)


class Result(int):
    name = "CUDA_ERROR_INVALID_VALUE"


class Node:
    """A node as the graph holds it: of a kernel the parameters, where the driver wrote them."""

    def __init__(self, kind: Any = KERNEL, parameters: Sequence[bytes] = (), **facts: Any) -> None:
        self.kind, self.facts = kind, facts
        self.sizes = [len(data) for data in parameters]
        self.places = [ctypes.create_string_buffer(data, len(data)) for data in parameters]
        self.table = (ctypes.c_void_p * len(parameters))(*map(ctypes.addressof, self.places))


class Driver:
    """One captured graph; `passed` is what the executable one passes, `refusals` how it answers."""

    def __init__(self, nodes: Sequence[Node]) -> None:
        self.nodes = list(nodes)
        self.passed: dict[int, list[bytes]] = {}
        self.grids: list[int] = []
        self.refusals: list[int] = []
        self.bindings = SimpleNamespace(
            CUfunction=bindings.CUfunction,
            CUkernel=bindings.CUkernel,
            cuGraphGetNodes=lambda graph, count=0: (0, self.nodes[:count], len(self.nodes)),
            cuGraphNodeGetType=lambda node: (0, node.kind),
            cuGraphKernelNodeGetParams=self.get,
            cuGraphMemcpyNodeGetParams=lambda node: (0, SimpleNamespace(**node.facts)),
            cuGraphMemsetNodeGetParams=lambda node: (0, SimpleNamespace(**node.facts)),
            cuFuncGetParamInfo=self.info,
            cuKernelGetParamInfo=self.info,
            cuGraphExecKernelNodeSetParams=self.set,
            cuGetErrorString=lambda _: (0, b"words"),
        )

    def get(self, node: Node) -> tuple[int, Any]:
        native = bindings.CUDA_KERNEL_NODE_PARAMS()
        number = 1 + self.nodes.index(node)
        if number % 2:
            native.func = bindings.CUfunction(number)
        else:
            native.kern = bindings.CUkernel(number)
        native.gridDimX = 12
        if not node.facts.get("in_one_buffer"):
            native.kernelParams = ctypes.addressof(node.table)
        return 0, native

    def info(self, function: Any, index: int) -> tuple[int, int, int]:
        sizes = self.nodes[int(function) - 1].sizes
        return (0, 0, sizes[index]) if index < len(sizes) else (1, 0, 0)

    def set(self, executable: int, node: Node, native: Any) -> tuple[Result]:
        assert executable == 2
        status = Result(self.refusals.pop(0) if self.refusals else 0)
        if not status:
            table = (ctypes.c_void_p * len(node.sizes)).from_address(int(native.kernelParams))
            passed = [ctypes.string_at(at or 0, n) for at, n in zip(table, node.sizes, strict=True)]
            self.passed[self.nodes.index(node)] = passed
            self.grids.append(native.gridDimX)
        return (status,)


GRAPH = SimpleNamespace(graph=1, graphExec=2)


@pytest.fixture
def captured(use_driver: Callable[[object], None]) -> Any:
    """Makes the driver of a graph whose kernels have these parameters."""

    def make(*nodes: Node | list[bytes]) -> Driver:
        made = (node if isinstance(node, Node) else Node(parameters=node) for node in nodes)
        driver = Driver(list(made))
        use_driver(driver.bindings)
        return driver

    return make


def aligned(shape: tuple[int, ...], dtype: Any = np.float16) -> Any:
    return arrays_in_memory.aligned(shape, dtype)


def pointer(array: Any, offset: int = 0) -> bytes:
    return struct.pack("<Q", array.ctypes.data + offset)


def tile_of(array: Any) -> Any:
    return create_tma_tile(array, (32, 64), swizzle=Swizzle.B128)


def test_a_tile_moves_in_every_kernel_that_holds_it_and_nothing_else_changes(captured: Any) -> None:
    first, second, new = (aligned((256, 128)) for _ in range(3))
    tile, other = tile_of(first), tile_of(second)
    driver = captured(
        [tile.argument, other.argument, COUNT],
        Node(KINDS.CU_GRAPH_NODE_TYPE_EMPTY),
        [other.argument],
        [COUNT, pointer(first), tile.argument],
    )
    GraphTiles(GRAPH).rebind(tile, new)

    assert driver.passed == {
        0: [tile_of(new).argument, other.argument, COUNT],
        3: [COUNT, pointer(first), tile_of(new).argument],
    }
    assert driver.grids == [12, 12]


def test_the_captured_tile_names_its_places_however_often_it_was_moved(captured: Any) -> None:
    arrays = [aligned((256, 128)) for _ in range(4)]
    tile, other = tile_of(arrays[0]), tile_of(arrays[1])
    driver = captured([tile.argument, other.argument])
    graph_tiles = GraphTiles(GRAPH)

    graph_tiles.rebind(tile, arrays[1])  # both now hold the same array
    graph_tiles.rebind(other, arrays[2])
    graph_tiles.rebind(tile, arrays[3])

    assert driver.passed[0] == [tile_of(arrays[3]).argument, tile_of(arrays[2]).argument]


def test_new_arrays_live_as_long_as_the_graph_has_them(captured: Any) -> None:
    class Array(np.ndarray[Any, Any]):
        """One that can be watched."""

    tile = tile_of(aligned((256, 128)))
    captured([tile.argument])
    graph_tiles = GraphTiles(GRAPH)
    first, second = (aligned((256, 128)).view(Array) for _ in range(2))
    seen = weakref.ref(first), weakref.ref(second)

    graph_tiles.rebind(tile, first)
    del first
    assert seen[0]() is not None
    graph_tiles.rebind(tile, second)
    del second
    assert (seen[0]() is None, seen[1]() is None) == (True, False)


@pytest.mark.parametrize("rows", [250, 225, 256])
def test_shape_and_strides_may_differ_where_as_many_tiles_cover_them(
    captured: Any, rows: int
) -> None:
    tile = tile_of(aligned((256, 128)))
    driver = captured([tile.argument])
    wide = aligned((rows, 192))[:, :128]

    GraphTiles(GRAPH).rebind(tile, wide)

    assert driver.passed[0] == [tile_of(wide).argument]
    assert tile_of(wide).spec.strides_bytes == (384,)


@pytest.mark.parametrize("is_bare", [False, True], ids=["whole", "bare map"])
@pytest.mark.parametrize("kind", ["im2col", "ragged", "bulk"])
def test_tiles_of_every_kind_move(captured: Any, kind: str, is_bare: bool) -> None:
    def make(array: Any) -> Any:
        if kind == "im2col":
            return create_tma_tile_im2col(array, (16, 32), filter_shape=(3, 3))
        if kind == "ragged":
            return create_ragged_tensor_map(array[0], (8, 8, 32), max_length=16)
        return BulkTile(array, 1024)

    tile, new = make(aligned((2, 8, 8, 32))), make(aligned((2, 8, 8, 32)))
    data = (tile.descriptor, new.descriptor) if is_bare else (tile.argument, new.argument)
    driver = captured([data[0]])

    GraphTiles(GRAPH).rebind(tile, new.array)

    assert driver.passed[0] == [data[1]]


def test_an_array_moves_wherever_kernels_point_into_it(captured: Any) -> None:
    old, new, apart = (aligned((64, 4, 32)) for _ in range(3))
    step = old.strides[0]

    def parameters(array: Any) -> list[bytes]:
        rows = array.reshape(64, 128)
        return [
            create_tma_tile(rows, (32, 64)).argument,
            create_tma_tile(rows[8:], (8, 64)).argument,
            create_ragged_tensor_map(array, (8, 4, 32), max_length=16).argument,
            create_ragged_tma_3d_tile(array, 8, max_length=24).argument,
            BulkTile(array, 1024).argument,
            COUNT + COUNT + pointer(array, 3 * step) + pointer(apart),
            pointer(array, old.nbytes - 1),
            # Not into it: its end, a word before it, maps and sequences of an array further on.
            pointer(old, old.nbytes) + pointer(old, -1),
            create_tma_tile(apart.reshape(64, 128), (32, 64)).argument,
        ]

    driver = captured([COUNT], parameters(old))

    GraphTiles(GRAPH).rebind(old, new)

    assert driver.passed == {1: parameters(new)}


def test_a_ragged_map_of_another_array_stays_though_it_starts_in_this_one(captured: Any) -> None:
    both = aligned((128, 64))
    first, second = both[:64], both[64:]
    driver = captured(
        [create_ragged_tensor_map(second, (8, 64), max_length=16).argument, pointer(first)]
    )
    new = aligned((64, 64))

    GraphTiles(GRAPH).rebind(first, new)

    assert driver.passed[0][0] == create_ragged_tensor_map(second, (8, 64), max_length=16).argument
    assert driver.passed[0][1] == pointer(new)


def test_what_the_driver_refuses_leaves_the_graph_as_it_was(captured: Any) -> None:
    tile, new = tile_of(aligned((256, 128))), aligned((256, 128))
    driver = captured([tile.argument], [tile.argument])
    graph_tiles = GraphTiles(GRAPH)
    driver.refusals = [0, 1]

    with pytest.raises(DriverError, match="cuGraphExecKernelNodeSetParams failed"):
        graph_tiles.rebind(tile, new)

    assert driver.passed == {0: [tile.argument]}
    graph_tiles.rebind(tile, new)
    assert driver.passed == {0: [tile_of(new).argument], 1: [tile_of(new).argument]}


WIDE = aligned((256, 128))


@pytest.mark.parametrize(
    ("array", "error", "sentence"),
    [
        (aligned((256, 128), np.int16), ArrayTypeError, "array.dtype is int16; the kernel was"),
        (aligned((256, 128), np.float32), ArrayTypeError, "array.dtype is float32"),
        (aligned((288, 128)), TensorMapError, r"tiles is \(9, 2\); the captured launch has \(8, 2"),
        (aligned((256, 192)), TensorMapError, r"array's tiles is \(8, 3\)"),
        (aligned((256 * 128,)), TensorMapError, "tile_shape"),
        (aligned((256, 129))[:, 1:], TensorMapError, "multiple of 16"),
        (7, ArrayTypeError, "array is a int"),
    ],
)
def test_an_array_that_does_not_fit_the_tile_is_refused(
    captured: Any, array: Any, error: type[Exception], sentence: str
) -> None:
    tile = tile_of(WIDE)
    driver = captured([tile.argument])

    with pytest.raises(error, match=sentence):
        GraphTiles(GRAPH).rebind(tile, array)

    assert driver.passed == {}


@pytest.mark.parametrize(
    ("array", "error", "sentence"),
    [
        (aligned((256, 128), np.int16), ArrayTypeError, "array.dtype is int16; the captured"),
        (aligned((128, 128)), ArgumentError, r"shape is \(128, 128\); the captured array has"),
        (aligned((256, 192))[:, :128], ArgumentError, r"array.strides is \(384, 2\)"),
        (aligned((256 * 129,))[4 : 4 + 256 * 128].reshape(256, 128), ArgumentError, "modulo 16 is"),
        (7, ArrayTypeError, "array is a int"),
    ],
)
def test_an_array_that_does_not_fit_the_other_is_refused(
    captured: Any, array: Any, error: type[Exception], sentence: str
) -> None:
    driver = captured([tile_of(WIDE).argument])

    with pytest.raises(error, match=sentence):
        GraphTiles(GRAPH).rebind(WIDE, array)

    assert driver.passed == {}


def test_a_read_only_array_takes_the_place_of_a_read_only_one_alone(captured: Any) -> None:
    writable, constant = aligned((256, 128)), aligned((256, 128))
    constant.flags.writeable = False
    tile = tile_of(writable)
    driver = captured([tile.argument])
    for given in (tile, writable):
        with pytest.raises(ArgumentError, match=r"^array is read only; the captured array is writ"):
            GraphTiles(GRAPH).rebind(given, constant)
    assert driver.passed == {}

    captured([tile_of(constant).argument])
    other = aligned((256, 128))
    other.flags.writeable = False
    GraphTiles(GRAPH).rebind(constant, other)


def test_what_no_kernel_holds_is_refused(captured: Any) -> None:
    tile, array = tile_of(aligned((256, 128))), aligned((256, 128))
    captured([tile_of(array).argument])
    graph_tiles = GraphTiles(GRAPH)

    with pytest.raises(ArgumentError, match="no kernel of the graph was given that tile"):
        graph_tiles.rebind(tile, array)
    with pytest.raises(ArgumentError, match="an array that no kernel of the graph points into"):
        graph_tiles.rebind(tile.array, array)
    with pytest.raises(ArrayTypeError, match="captured is a NoneType"):
        graph_tiles.rebind(None, array)


def copy_node(source: int, target: int, width: int, rows: int = 1) -> Node:
    return Node(
        KINDS.CU_GRAPH_NODE_TYPE_MEMCPY,
        srcDevice=source,
        srcPitch=2 * width,
        dstDevice=target,
        dstPitch=0,
        WidthInBytes=width,
        Height=rows,
        Depth=1,
    )


def fill_node(target: int, width: int) -> Node:
    return Node(
        KINDS.CU_GRAPH_NODE_TYPE_MEMSET,
        dst=target,
        elementSize=4,
        width=width // 4,
        height=1,
        pitch=0,
    )


START, END = WIDE.ctypes.data, WIDE.ctypes.data + WIDE.nbytes


@pytest.mark.parametrize(
    ("node", "meets"),
    [
        (copy_node(START, 0, 16), True),
        (copy_node(0, END - 1, 16), True),
        (copy_node(START - 16, 0, 17), True),
        (copy_node(START - 64, 0, 16, rows=3), True),
        (copy_node(START - 16, END, 16), False),
        (copy_node(START - 64, 0, 16, rows=2), False),
        (fill_node(START - 8, 12), True),
        (fill_node(START - 8, 8), False),
    ],
)
def test_what_the_driver_copies_or_fills_too_is_refused(
    captured: Any, node: Node, meets: bool
) -> None:
    new = aligned((256, 128))
    driver = captured([tile_of(WIDE).argument], node)
    refused = pytest.raises(ArgumentError, match="the graph also has the driver copy or fill it")

    with refused if meets else contextlib.nullcontext():
        GraphTiles(GRAPH).rebind(WIDE, new)

    assert driver.passed == ({} if meets else {0: [tile_of(new).argument]})


def test_tiles_whose_maps_lie_in_memory_are_not_the_graphs(captured: Any) -> None:
    tiles = TMATensorTileArray([tile_of(WIDE)])
    captured([tiles.argument])

    with pytest.raises(ArgumentError, match=r"Assign to it between replays: tiles\[index\] = tile"):
        GraphTiles(GRAPH).rebind(tiles, WIDE)


def test_a_tile_that_cannot_be_made_again_says_what_to_pass(captured: Any) -> None:
    array = aligned((64, 4, 32))
    tile = create_ragged_tma_3d_tile(array, 8)
    captured([tile.argument])

    with pytest.raises(ArgumentError, match="RaggedTMA3DTile; it has no rebind"):
        GraphTiles(GRAPH).rebind(tile, aligned((64, 4, 32)))


@pytest.mark.parametrize(
    ("node", "sentence"),
    [
        (Node(KINDS.CU_GRAPH_NODE_TYPE_GRAPH), "1 nodes are graphs themselves"),
        (Node(KINDS.CU_GRAPH_NODE_TYPE_CONDITIONAL), "1 nodes are graphs themselves"),
        (Node(parameters=[COUNT], in_one_buffer=True), "1 kernels that take all parameters in one"),
    ],
)
def test_a_graph_that_cannot_be_looked_into_is_refused(
    captured: Any, node: Node, sentence: str
) -> None:
    captured([COUNT], node)

    with pytest.raises(ArgumentError, match=sentence):
        GraphTiles(GRAPH)


def test_graphs_of_torch_are_taken_once_they_show_their_nodes(captured: Any) -> None:
    def refuse() -> int:
        raise RuntimeError("keep_graph=true")

    tile, new = tile_of(aligned((256, 128))), aligned((256, 128))
    driver = captured([tile.argument])
    hidden = SimpleNamespace(raw_cuda_graph=refuse, raw_cuda_graph_exec=refuse)
    shown = SimpleNamespace(raw_cuda_graph=lambda: 1, raw_cuda_graph_exec=lambda: 2)

    with pytest.raises(ArgumentError, match=r"Make it with torch.cuda.CUDAGraph\(keep_graph=True"):
        GraphTiles(hidden)
    with pytest.raises(ArgumentError, match="graph is a list; it must be what CuPy's"):
        GraphTiles([])
    GraphTiles(shown).rebind(tile, new)
    assert driver.passed[0] == [tile_of(new).argument]
