"""Rebind the tiles and arrays of a captured CUDA graph between replays.

A capture freezes all kernel arguments, including tensor maps, into the nodes of the graph.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any, NamedTuple

from tmaasync import _arrays, _driver
from tmaasync._arrays import ArrayView
from tmaasync._driver.graphs import GraphNodes, graph_nodes
from tmaasync._elements import Element
from tmaasync._hardware import TMA_ALIGNMENT
from tmaasync._ragged.base import array_address
from tmaasync._tile.argument import MapArgument
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
    """The position of an argument: kernel in the graph, parameter index, byte offset."""

    kernel: int
    parameter: int
    offset: int


class GraphTiles:
    """The tiles and arrays among the kernel arguments of a captured CUDA graph.

    `rebind` replaces one array by another, in place in the executable graph, without a new capture
    or instantiation. Later launches of the graph use the new array; launches already in a stream
    use the old one. Grid, cluster, scalar arguments and node order do not change.

    Keep this object as long as the graph is launched: it keeps the graph and the new arrays alive.
    The caller keeps the captured arrays alive until they are rebound. Make only one `GraphTiles`
    per graph; a second one would not know the changes of the first.

    Args:
        graph: The result of CuPy's ``stream.end_capture()``, or a ``torch.cuda.CUDAGraph`` made
            with ``keep_graph=True`` and instantiated.

    Raises:
        ArgumentError: The graph has another type, or holds kernels whose parameters cannot be read.
    """

    def __init__(self, graph: object) -> None:
        """Read the parameters of every kernel, without changing them."""
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
        """Use another array in later launches of the graph.

        Args:
            captured: A tile or array that was an argument of a captured launch; a tile stays valid
                here after it was rebound. For an array, all tensor maps and pointers into any part
                of it are rebound; pass the array for operands of `ops`, whose tiles are internal.
            array: The new array. For a captured array: the same shape, strides, element type,
                device, and address modulo 16 bytes. For a captured tile: an array that the tile's
                own ``rebind`` accepts. For a tile of `create_tma_tile` shape and strides may
                differ, but the number of tiles may not, because the grid is fixed. Sizes that the
                kernel takes as numbers are fixed too.

        Raises:
            ArgumentError: No kernel of the graph holds ``captured``, or a memcpy or memset node
                uses it, or the array does not fit.
            TensorMapError: The array breaks rules of the tensor map.
            ArrayTypeError: Not an array, or of another type than the captured one.
            DriverError: The driver rejected the change.

        After any of these errors the graph is unchanged.
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

    # --- parameters that hold the captured tile or array --------------------------------------

    def _holding(self, tile: KernelArgument, new: KernelArgument) -> Iterator[tuple[_Slot, bytes]]:
        """Yield the parameters that hold this tile, with their new bytes."""
        forms = {tile.argument: new.argument}
        if isinstance(tile, MapArgument) and isinstance(new, MapArgument):
            forms[tile.descriptor] = new.descriptor  # parameters that are the tensor map alone
        for kernel, parameters in enumerate(self._captured):
            for index, data in enumerate(parameters):
                if data in forms:
                    yield _Slot(kernel, index, 0), forms[data]

    def _pointing_into(self, old: ArrayView, shift: int) -> Iterator[tuple[_Slot, bytes]]:
        """Yield the addresses within the array among the parameters, with their new bytes."""
        low, high = old.byte_bounds
        if any(start < high and low < end for start, end in self._copied):
            raise ArgumentError.broken(
                "captured",
                f"an array at {old.address:#x}",
                "the graph also has the driver copy or fill it, which stays",
                "Capture kernels alone, or capture again",
            )
        for kernel, parameters in enumerate(self._captured):
            for index, data in enumerate(parameters):
                for offset, base in _addresses(data):
                    if low <= base < high:
                        yield _Slot(kernel, index, offset), _shifted(data, offset, shift)

    # --- the change ---------------------------------------------------------------------------

    def _patch(self, changes: Mapping[_Slot, bytes]) -> None:
        """Apply all changes to the executable graph, or none if the driver rejects one."""
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
        raise ArgumentError.broken(
            "graph",
            f"a {type(graph).__name__}",
            "it must be what CuPy's stream.end_capture() returned, or a "
            "torch.cuda.CUDAGraph of torch 2.9 or later",
            "Pass one",
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
    """Yield the offsets of possible addresses in a parameter, with the array address at each.

    Other numbers are rarely as large as an array's address.
    """
    ragged = array_address(data)
    if ragged is not None:
        yield 0, ragged
    elif _map_in(data) is not None:
        yield 0, _word(data, 0)  # the other words of a tensor map are not addresses
    else:
        for offset in range(0, len(data) - _WORD_BYTES + 1, _WORD_BYTES):
            yield offset, _word(data, offset)


def _word(data: bytes, offset: int) -> int:
    return int.from_bytes(data[offset : offset + _WORD_BYTES], "little")


def _map_in(data: bytes) -> TensorMapSpec | Im2colSpec | None:
    """Return the tensor map at the start of a parameter, or None."""
    if len(data) < TENSOR_MAP_BYTES:
        return None
    try:
        return TensorMapSpec.decode(data[:TENSOR_MAP_BYTES])
    except TensorMapError:
        return None


def _shifted(data: bytes, offset: int, shift: int) -> bytes:
    """Return the address at ``offset`` plus ``shift``; check it if it is a tensor map's."""
    address = _word(data, offset) + shift
    map_ = _map_in(data)
    if map_ is not None:
        replace(map_, address=address).check()
    return address.to_bytes(_WORD_BYTES, "little")


# --- the new tile or array --------------------------------------------------------------------


def _moved(tile: KernelArgument, array: object) -> KernelArgument:
    """Return the tile over another array, if the captured launch supports it."""
    _check_element(tile, array)
    if isinstance(tile, TMATensorTileArray):
        raise ArgumentError.broken(
            "captured",
            "an array of tiles",
            "its maps lie in memory, not in the graph",
            "Assign to it between replays: tiles[index] = tile",
        )
    if isinstance(tile, BulkTile):
        moved = BulkTile(array, tile.tile_bytes, allow_tail=tile.allow_tail)
        return _of_as_many_tiles(tile, moved)
    if type(tile) is TMATensorTile and not _looks_like(tile, array):
        return _of_as_many_tiles(tile, _tile_like(tile, array))
    if not hasattr(tile, "rebind"):
        raise ArgumentError.broken(
            "captured",
            f"a {type(tile).__name__}",
            "it has no rebind",
            "Pass the array that it was made for, which moves everything that the "
            "graph knows of it",
        )
    return tile.rebind(array)  # type: ignore[no-any-return]


def _check_writable(captured: object, array: object) -> None:
    """Reject a read-only array for a captured writable one, which a kernel may write."""
    owner = captured.array if isinstance(captured, KernelArgument) else captured
    old = _arrays.view(owner, argument="captured")
    if _arrays.view(array, argument="array").read_only and not old.read_only:
        rule = "the captured array is writable, and a kernel of the graph may write to it"
        remedy = "Pass a writable array, or capture the launch with a read-only one"
        raise ArgumentError.broken("array", "read only", rule, remedy)


def _check_element(tile: KernelArgument, array: object) -> None:
    """Reject another element type, even of the same size; FP8 in bytes counts as FP8."""
    own = _arrays.view(array, argument="array").element
    wanted = _arrays.view(tile.array, argument="captured.array").element
    if own not in (wanted, getattr(tile, "element", wanted)):
        raise _other_elements(own, f"the kernel was compiled for {wanted}")


def _other_elements(own: Element, rule: str) -> ArrayTypeError:
    remedy = "Convert it, or capture a launch for its type"
    return ArrayTypeError.broken("array.dtype", own, rule, remedy)


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
    """Return the tiles per side, or the total for contiguous memory."""
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
