"""Tiles and arrays of a captured CUDA graph, exchanged between replays.

A capture freezes the arguments of its launches, tensor maps included, into the nodes of the graph.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any, NamedTuple

from tmaasync import _arrays, _driver
from tmaasync._arrays import ArrayView
from tmaasync._elements import Element
from tmaasync._graph_nodes import GraphNodes, graph_nodes
from tmaasync._hardware import TMA_ALIGNMENT
from tmaasync._ragged.base import RaggedMap, array_address
from tmaasync._tile.argument import MapTile
from tmaasync.errors import (
    ArgumentError,
    ArrayTypeError,
    DriverError,
    TensorMapError,
    Violation,
)
from tmaasync.tensormap import TENSOR_MAP_BYTES, Im2colSpec, TensorMapSpec
from tmaasync.tile import (
    BulkTile,
    KernelArgument,
    TMATensorTile,
    TMATensorTileArray,
    create_tma_tile,
)

__all__ = ["GraphTiles"]

_WORD_BYTES = 8


class _Slot(NamedTuple):
    """The position of bytes: kernel of the graph, parameter of the kernel, offset in it."""

    kernel: int
    parameter: int
    offset: int


class GraphTiles:
    """The tiles and arrays that the kernels of a captured CUDA graph were given.

    `rebind` moves one of them to another array, in place in the executable graph: nothing is
    captured or instantiated again. Launches of the graph from then on use the new array, launches
    already in a stream the old one. Grid, cluster, numbers and the order of the nodes stay.

    Keep this object as long as the graph is launched: it keeps the graph and the new arrays alive.
    The caller keeps the arrays of the capture until they are moved. One `GraphTiles` serves one
    graph; a second one of the same graph would not know what the first has changed.

    Args:
        graph: What CuPy's ``stream.end_capture()`` returned, or a ``torch.cuda.CUDAGraph`` made
            with ``keep_graph=True`` and instantiated.

    Raises:
        ArgumentError: It is neither of them, or it holds kernels that cannot be looked into.
    """

    def __init__(self, graph: object) -> None:
        """Read the parameters of every kernel; nothing is changed."""
        captured, self._executable = _handles(graph)
        nodes = graph_nodes(captured)
        ArgumentError.raise_for(_unreadable(nodes))
        self._graph = graph
        self._nodes = nodes.kernels
        self._copied = nodes.copied
        self._captured: list[tuple[bytes, ...]] = [node.parameters or () for node in nodes.kernels]
        self._now = list(self._captured)
        self._held: dict[_Slot, object] = {}
        self._lock = threading.Lock()

    def rebind(self, captured: object, array: object) -> None:
        """Have launches of the graph from now on use another array.

        Args:
            captured: The tile or array that a launch in the capture was given; a tile also after it
                was moved. For an array, all tensor maps and pointers into any part of it move. Name
                the operands of `ops` in this way: the caller never sees their tiles.
            array: The array to use instead. For a captured array: one of the same shape, strides,
                element type, device, and distance from a multiple of 16 bytes. For a captured tile:
                one that the tile's own ``rebind`` takes. For a tile of `create_tma_tile` shape and
                strides may differ, but the number of tiles may not, because the grid stays. Sizes
                that the kernel was given as numbers stay too.

        Raises:
            ArgumentError: No kernel of the graph holds it, or the driver copies it, or the array
                does not fit.
            TensorMapError: The array breaks rules of the tensor map.
            ArrayTypeError: It is no array, or of another type than the one that was captured.
            DriverError: The driver refused.

        After any of these the graph is as before.
        """
        _check_writable(captured, array)
        if isinstance(captured, KernelArgument):
            device = captured.device
            new = _moved(captured, array)
            found = dict(self._holding(captured, new))
            keep: object = new
        else:
            old, now = _same_layout(captured, array)
            device, keep = now.device, now
            found = dict(self._pointing_into(old, now.address - old.address))
        if not found:
            raise _not_held(captured)
        with self._lock, _driver.on_device(device):
            self._patch(found)
            self._held.update(dict.fromkeys(found, keep))

    # --- the parameters that hold it ----------------------------------------------------------

    def _holding(self, tile: KernelArgument, new: KernelArgument) -> Iterator[tuple[_Slot, bytes]]:
        """Parameters that are this tile, and what they become."""
        forms = {tile.argument: new.argument}
        if isinstance(tile, MapTile | RaggedMap) and isinstance(new, MapTile | RaggedMap):
            forms[tile.descriptor] = new.descriptor  # for parameters of a bare map
        for kernel, parameters in enumerate(self._captured):
            for index, data in enumerate(parameters):
                if data in forms:
                    yield _Slot(kernel, index, 0), forms[data]

    def _pointing_into(self, old: ArrayView, shift: int) -> Iterator[tuple[_Slot, bytes]]:
        """Addresses in the array among the parameters, and what they become."""
        low, high = old.byte_bounds
        if any(start < high and low < end for start, end in self._copied):
            raise ArgumentError(
                f"captured is an array at {old.address:#x}; the graph also has the driver copy or "
                "fill it, which stays. Capture kernels alone, or capture again."
            )
        for kernel, parameters in enumerate(self._captured):
            for index, data in enumerate(parameters):
                for offset, base in _addresses(data):
                    if low <= base < high:
                        yield _Slot(kernel, index, offset), _shifted(data, offset, shift)

    # --- the change ---------------------------------------------------------------------------

    def _patch(self, changes: Mapping[_Slot, bytes]) -> None:
        """Change all of it in the executable graph, or, where the driver refuses, nothing."""
        after: dict[int, list[bytes]] = {}
        for slot, data in changes.items():
            parameters = after.setdefault(slot.kernel, list(self._now[slot.kernel]))
            whole = parameters[slot.parameter]
            end = slot.offset + len(data)
            parameters[slot.parameter] = whole[: slot.offset] + data + whole[end:]
        changed: list[int] = []
        try:
            for kernel, parameters in after.items():
                self._nodes[kernel].set_parameters(self._executable, parameters)
                changed.append(kernel)
        except DriverError:
            for kernel in changed:
                self._nodes[kernel].set_parameters(self._executable, self._now[kernel])
            raise
        for kernel, parameters in after.items():
            self._now[kernel] = tuple(parameters)


# --- the graph --------------------------------------------------------------------------------


def _handles(graph: Any) -> tuple[int, int]:
    """Return the captured and the executable graph."""
    if hasattr(graph, "raw_cuda_graph_exec"):
        try:
            return int(graph.raw_cuda_graph()), int(graph.raw_cuda_graph_exec())
        except RuntimeError as error:
            raise ArgumentError(
                f"graph is a torch.cuda.CUDAGraph that does not show its nodes ({error}). Make it "
                "with torch.cuda.CUDAGraph(keep_graph=True), and call its instantiate() after the "
                "capture."
            ) from error
    try:
        return int(graph.graph), int(graph.graphExec)
    except AttributeError:
        raise ArgumentError(
            f"graph is a {type(graph).__name__}; it must be what CuPy's stream.end_capture() "
            "returned, or a torch.cuda.CUDAGraph of torch 2.9 or later. Pass one."
        ) from None


def _unreadable(nodes: GraphNodes) -> Iterator[Violation]:
    if nodes.nested:
        yield Violation(
            "graph",
            f"one of which {nodes.nested} nodes are graphs themselves",
            "kernels in nested graphs cannot be changed from outside",
            "Capture the launches, not launches of graphs",
        )
    closed = sum(node.parameters is None for node in nodes.kernels)
    if closed:
        yield Violation(
            "graph",
            f"one with {closed} kernels that take all parameters in one buffer",
            "tiles and arrays are not found in there",
            "Capture those kernels in a graph of their own",
        )


def _addresses(data: bytes) -> Iterator[tuple[int, int]]:
    """Yield the offsets in a parameter that may be addresses, and the array's address then.

    Other numbers are hardly ever as large as the address of an array.
    """
    ragged = array_address(data)
    if ragged is not None:
        yield 0, ragged
    elif _map_in(data) is not None:
        yield 0, _word(data, 0)  # the other words of a map are no addresses
    else:
        for offset in range(0, len(data) - _WORD_BYTES + 1, _WORD_BYTES):
            yield offset, _word(data, offset)


def _word(data: bytes, offset: int) -> int:
    return int.from_bytes(data[offset : offset + _WORD_BYTES], "little")


def _map_in(data: bytes) -> TensorMapSpec | Im2colSpec | None:
    """Return the tensor map with which a parameter begins."""
    if len(data) < TENSOR_MAP_BYTES:
        return None
    try:
        return TensorMapSpec.decode(data[:TENSOR_MAP_BYTES])
    except TensorMapError:
        return None


def _shifted(data: bytes, offset: int, shift: int) -> bytes:
    """Return the address at the offset, moved by ``shift``; a tensor map's address has rules."""
    address = _word(data, offset) + shift
    map_ = _map_in(data)
    if map_ is not None:
        replace(map_, address=address).check()
    return address.to_bytes(_WORD_BYTES, "little")


# --- the new tile or array --------------------------------------------------------------------


def _moved(tile: KernelArgument, array: object) -> KernelArgument:
    """Return the tile over another array, if the captured launch can serve it."""
    _check_element(tile, array)
    if isinstance(tile, TMATensorTileArray):
        raise ArgumentError(
            "captured is an array of tiles; its maps lie in memory, not in the graph. Assign to it "
            "between replays: tiles[index] = tile."
        )
    if isinstance(tile, BulkTile):
        return _of_as_many_tiles(tile, BulkTile(array, tile.tile_bytes))
    if type(tile) is TMATensorTile and not _looks_like(tile, array):
        return _of_as_many_tiles(tile, _tile_like(tile, array))
    if not hasattr(tile, "rebind"):
        raise ArgumentError(
            f"captured is a {type(tile).__name__}; it has no rebind. Pass the array that it was "
            "made for, which moves everything that the graph knows of it."
        )
    return tile.rebind(array)  # type: ignore[no-any-return]


def _check_writable(captured: object, array: object) -> None:
    """Refuse a read-only array in place of a writable one, to which a kernel may write."""
    owner = captured.array if isinstance(captured, KernelArgument) else captured
    old = _arrays.view(owner, argument="captured")
    if _arrays.view(array, argument="array").read_only and not old.read_only:
        rule = "the captured array is writable, and a kernel of the graph may write to it"
        remedy = "Pass a writable array, or capture the launch with a read-only one"
        raise ArgumentError.of([Violation("array", "read only", rule, remedy)])


def _check_element(tile: KernelArgument, array: object) -> None:
    """Refuse another type, even of the same size: a tile of bytes that hold FP8 is one of FP8."""
    own = _arrays.view(array, argument="array").element
    wanted = _arrays.view(tile.array, argument="captured.array").element
    if own not in (wanted, getattr(tile, "element", wanted)):
        raise _other_elements(own, f"the kernel was compiled for {wanted}")


def _other_elements(own: Element, rule: str) -> ArrayTypeError:
    remedy = "Convert it, or capture a launch for its type"
    return ArrayTypeError.of([Violation("array.dtype", own, rule, remedy)])


def _looks_like(tile: TMATensorTile, array: object) -> bool:
    view = _arrays.view(array, dtype=tile.element)
    spec = tile.spec
    return (view.shape, view.strides_bytes[:-1]) == (spec.shape, spec.strides_bytes)


def _tile_like(tile: TMATensorTile, array: object) -> TMATensorTile:
    spec = tile.spec
    return create_tma_tile(
        array,
        tile.tile_shape,
        swizzle=spec.swizzle,
        box_shape=tile.box_shape,
        l2_promotion=spec.l2_promotion,
        oob_fill=spec.oob_fill,
        interleave=spec.interleave,
        element_strides=spec.element_strides,
        dtype=tile.element,
    )


def _of_as_many_tiles(tile: KernelArgument, new: KernelArgument) -> KernelArgument:
    found = [
        Violation(
            f"array's {what}",
            now,
            f"the captured launch has {before}, and its code and grid stay",
            "Capture a launch for this array",
        )
        for what, before, now in (
            ("device", tile.device, new.device),
            ("tiles", _tile_count(tile), _tile_count(new)),
        )
        if before != now
    ]
    TensorMapError.raise_for(found)
    return new


def _tile_count(tile: Any) -> object:
    """Count the tiles: along each side, or all of contiguous memory."""
    if isinstance(tile, BulkTile):
        return -(-tile.size_bytes // tile.tile_bytes)
    return tile.tiles_per_side


def _same_layout(captured: object, array: object) -> tuple[ArrayView, ArrayView]:
    """Return views of both arrays; only the address may differ."""
    old = _arrays.view(captured, argument="captured")
    new = _arrays.view(array, argument="array")
    if old.element != new.element:
        raise _other_elements(new.element, f"the captured array's is {old.element}")
    facts = {
        "array.shape": (old.shape, new.shape),
        "array.strides": (old.strides_bytes, new.strides_bytes),
        "array's device": (old.device, new.device),
        "array's address modulo 16": tuple(it.address % TMA_ALIGNMENT for it in (old, new)),
    }
    found = [
        Violation(what, now, f"the captured array has {before}", "Copy it into an array that fits")
        for what, (before, now) in facts.items()
        if before != now
    ]
    ArgumentError.raise_for(found)
    return old, new


def _not_held(captured: object) -> ArgumentError:
    if isinstance(captured, KernelArgument):
        return ArgumentError(
            f"captured is {captured!r}; no kernel of the graph was given that tile. Pass the tile "
            "of the captured launch, or the array that the captured operation was given."
        )
    return ArgumentError(
        "captured is an array that no kernel of the graph points into. Pass one that the captured "
        "launch was given."
    )
