"""The nodes of a captured CUDA graph, and the parameters of its kernels."""

from __future__ import annotations

import ctypes
from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from tmaasync._driver.bindings import results
from tmaasync._driver.launches import parameter_sizes


class KernelNode:
    """A kernel of a captured graph, and the bytes of its parameters as they were captured.

    Attributes:
        parameters: One per parameter; None where the launch passed all in one buffer.
    """

    __slots__ = ("_native", "_node", "parameters")

    def __init__(self, node: Any) -> None:
        self._node = node
        (self._native,) = results("cuGraphKernelNodeGetParams", node)
        self.parameters = _parameters_of(self._native)

    def set_parameters(self, executable: int, parameters: Sequence[bytes]) -> None:
        """Have launches of the executable graph from now on pass these, and nothing else change.

        Raises:
            DriverError: The driver refuses.
        """
        # The driver copies them during the call.
        buffers = [ctypes.create_string_buffer(data, len(data)) for data in parameters]
        table = array("Q", map(ctypes.addressof, buffers))
        self._native.kernelParams, _ = table.buffer_info()
        results("cuGraphExecKernelNodeSetParams", executable, self._node, self._native)


def _parameters_of(native: Any) -> tuple[bytes, ...] | None:
    function = int(native.func)
    sizes = parameter_sizes(function or int(native.kern), is_kernel=not function)
    if not sizes:
        return ()
    if not native.kernelParams:
        return None
    table = (ctypes.c_uint64 * len(sizes)).from_address(int(native.kernelParams))
    return tuple(ctypes.string_at(at, size) for at, size in zip(table, sizes, strict=True))


@dataclass(slots=True)
class GraphNodes:
    """The nodes of a captured graph.

    Attributes:
        kernels: Its kernels.
        copied: Device memory that the driver copies or fills: first address and end.
        nested: How many nodes are graphs themselves.
    """

    kernels: list[KernelNode] = field(default_factory=list)
    copied: list[tuple[int, int]] = field(default_factory=list)
    nested: int = 0


def graph_nodes(graph: int) -> GraphNodes:
    """Look at every node of a captured graph.

    Raises:
        DriverError: It is no graph.
    """
    found = GraphNodes()
    _, count = results("cuGraphGetNodes", graph)
    nodes, _ = results("cuGraphGetNodes", graph, count)
    for node in nodes[:count]:
        (kind,) = results("cuGraphNodeGetType", node)
        match kind.name.removeprefix("CU_GRAPH_NODE_TYPE_"):
            case "KERNEL":
                found.kernels.append(KernelNode(node))
            case "MEMCPY":
                (copy,) = results("cuGraphMemcpyNodeGetParams", node)
                found.copied += [
                    _span(end, copy.WidthInBytes, pitch, copy.Height * copy.Depth)
                    for end, pitch in (
                        (copy.srcDevice, copy.srcPitch),
                        (copy.dstDevice, copy.dstPitch),
                    )
                ]
            case "MEMSET":
                (fill,) = results("cuGraphMemsetNodeGetParams", node)
                row_bytes = fill.width * fill.elementSize
                found.copied.append(_span(fill.dst, row_bytes, fill.pitch, fill.height))
            case "GRAPH" | "CONDITIONAL":
                found.nested += 1
    return found


def _span(address: Any, row_bytes: int, pitch: int, rows: int) -> tuple[int, int]:
    start = int(address)
    return start, start + row_bytes + pitch * (max(rows, 1) - 1)
