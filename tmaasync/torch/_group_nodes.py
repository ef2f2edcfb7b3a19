"""Operations of a group that spans nodes: NCCL between nodes, the kernels of a group within each.

A `DeviceMesh` of two dimensions says which ranks share a node. Every rank exchanges with the ranks
of its own place on the other nodes, and its node works on what has arrived, its own shards first or
last. Autograd and `torch.compile` see the operators of a group, and all-to-alls.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import torch
import torch.distributed as dist

from tmaasync.errors import ArgumentError, BackendError, Violation
from tmaasync.torch._group import Facts, Group, Members, check, name_of
from tmaasync.torch._group_rows import Kind, rows_of, unfit_counts


class Local(NamedTuple):
    """An operator of one node.

    Attributes:
        kind: The operation.
        argument: The name of the operand whose rows are gathered or scattered.
        columns: What all ranks have in common of the shapes, next to the rows.
        call: Takes that operand, the group's name, and the rows of its ranks.
        unfit: Takes that operand, the members of the group, and the rows; yields broken rules.
    """

    kind: Kind
    argument: str
    columns: tuple[int, ...]
    call: Callable[[Any, str, Sequence[int]], Any]
    unfit: Callable[[Any, Members, Sequence[int]], Iterable[Violation]]


class Nodes(NamedTuple):
    """The place of this process in a mesh of nodes.

    Attributes:
        across: The name of the group of ranks with this place on all nodes.
        within: The name of the group of this node.
        node: This rank's.
        place: This rank's on its node.
        shape: The numbers of nodes and of ranks on each.
    """

    across: str
    within: str
    node: int
    place: int
    shape: tuple[int, int]

    @classmethod
    def of(cls, group: Any) -> Nodes | None:
        """Return the nodes of a mesh; None for a process group.

        Raises:
            ArgumentError: The mesh has not two dimensions.
        """
        if not dist.is_available() or not isinstance(group, dist.DeviceMesh):
            return None
        if group.ndim != 2:
            raise ArgumentError.broken(
                "group",
                f"a DeviceMesh of {group.ndim} dimensions",
                "it has two: nodes, and the GPUs of each",
                "Pass init_device_mesh('cuda', (nodes, gpus)), or a process group of one node",
            )
        across, within = (name_of(group.get_group(dimension)) for dimension in range(2))
        node, place = (group.get_local_rank(dimension) for dimension in range(2))
        nodes, size = group.shape
        return cls(across, within, node, place, (nodes, size))

    def gather(self, local: Local, shard: Any, rows: Sequence[int] | None) -> Any:
        """Return the concatenation of ``local`` of each node's shards.

        The first kernel, of this node's shards, runs while other nodes' shards arrive.
        """
        counts = self._agreed(local, shard, rows)
        sources = [(self.node - shift) % self.shape[0] for shift in range(self.shape[0])]
        arrive = [
            self._exchanged(shard, shift, counts[source][self.place])
            for shift, source in enumerate(sources[1:], 1)
        ]
        parts = {
            source: local.call(one, self.within, counts[source])
            for source, one in zip(sources, (shard, *arrive), strict=True)
        }
        return torch.cat([parts[source] for source in range(self.shape[0])])

    def scatter(self, local: Local, whole: Any, rows: Sequence[int] | None) -> Any:
        """Return the sum over nodes of ``local`` of this rank's rows, in float32, rounded once.

        A node's partial sums for another one travel while the next kernel runs.
        """
        counts = self._agreed(local, whole, rows)
        blocks = whole.split([sum(each) for each in counts])
        arrive = []
        for shift in range(1, self.shape[0]):
            to = (self.node + shift) % self.shape[0]
            part = local.call(blocks[to], self.within, counts[to])
            arrive.append(self._exchanged(part, shift, counts[self.node][self.place]))
        total = local.call(blocks[self.node], self.within, counts[self.node])
        dtype, total = total.dtype, total.float()
        for one in arrive:
            total = total + one.float()
        return total.to(dtype)

    def _agreed(self, local: Local, tensor: Any, rows: Sequence[int] | None) -> list[list[int]]:
        """Check the call of this rank, the first time of all, and return the rows by node."""
        nodes, size = self.shape
        members, gathers = Members(self.node * size + self.place, nodes * size), local.kind.gathers
        every = rows_of(rows, tensor, members, gathers=gathers)
        counts = [every[first : first + size] for first in range(0, len(every), size)]
        broken = tuple(unfit_counts(local.argument, tensor, members, every, gathers=gathers))
        if not broken:
            is_whole = gathers or not tensor.ndim
            own = tensor if is_whole else tensor.split([sum(each) for each in counts])[self.node]
            place = Members(self.place, size)
            broken = tuple(local.unfit(own, place, counts[self.node]))
        if torch.compiler.is_compiling():  # the store cannot be traced
            ArgumentError.raise_for(broken)
        else:
            call = f"{local.kind.name} of {tensor.dtype}, rows {every}, columns {local.columns}"
            self._compare(f"{call}, on {nodes} nodes of {size}", tuple(tensor.shape), broken)
        return counts

    def _compare(self, call: str, shape: tuple[int, ...], broken: tuple[Violation, ...]) -> None:
        """Raise what the arguments of any rank of the mesh break, or that calls are different.

        Calls of which all ranks have made one with equal shapes are not compared again.
        """
        within, across = Group.of(self.within), Group.of(self.across)
        key = Nodes, call, shape
        if key in within.kept and not broken:
            return
        try:
            node = within.collect(Facts(call, None, broken))
            every = across.collect(Facts(call, node))
        except BackendError:
            ArgumentError.raise_for(broken)
            raise
        check([one for each in every for one in each.own])
        within.kept[key] = True

    def _exchanged(self, tensor: Any, shift: int, rows: int) -> Any:
        """Send rows to the node ``shift`` further; return the rows of the node as far back."""
        from torch.distributed import _functional_collectives  # noqa: PLC0415 - on demand

        sent, received = [0] * self.shape[0], [0] * self.shape[0]
        sent[(self.node + shift) % self.shape[0]] = tensor.shape[0]
        received[(self.node - shift) % self.shape[0]] = rows
        return _functional_collectives.all_to_all_single_autograd(
            tensor.contiguous(), received, sent, self.across
        )
