"""What the matmuls of several GPUs share: checks of their arrays, and how ranks read operands."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from tmaasync import _arrays
from tmaasync._arrays import ArrayView, may_overlap
from tmaasync.errors import ArgumentError, Violation
from tmaasync.kernel import Kernel, Launch, backend_of
from tmaasync.ops._allocation import fill, in_order, indexable
from tmaasync.ops._gemm.config import LINE_BYTES, Occupancy, TileConfig
from tmaasync.ops._gemm.legal_tiles import Problem
from tmaasync.ops._layouts import Layout, Operand
from tmaasync.ops._ranks import Ranks, array_on, views_of

_TYPES = ("bfloat16", "float16")
OUTPUTS = (*_TYPES, "float32")

_Views = Sequence[ArrayView]


# --- checks -----------------------------------------------------------------------------------


def unfit_operands(
    ranks: Ranks,
    left: _Views,
    right: _Views,
    unequal: Callable[[_Views, _Views], Iterable[Violation]],
) -> Iterator[Violation]:
    """Yield the rules that operands break by themselves, and next to each other: ``unequal``."""

    def unlike(_: str, view: ArrayView) -> tuple[str, str] | None:
        if view.element.name in _TYPES and view.element is left[0].element:
            return None
        rule = f"all operands hold one type, {' or '.join(_TYPES)}; a[0] {left[0].element}"
        return rule, "Convert it with astype"

    yield from unfit_matrices(ranks, {"a": left, "b": right}, unlike)
    if all(view.ndim == 2 for view in (*left, *right)):
        yield from unequal(left, right)


def unfit_matrices(
    ranks: Ranks,
    operands: Mapping[str, _Views],
    unlike: Callable[[str, ArrayView], tuple[str, str] | None],
) -> Iterator[Violation]:
    """Yield operands on another device, not of two dimensions, or of a wrong type.

    ``unlike`` returns the rule and the remedy for an argument of a wrong type.
    """
    for name, views in operands.items():
        yield from ranks.misplaced(name, views, "a")
    for name, views in operands.items():
        for rank, view in enumerate(views):
            one = f"{name}[{rank}]"
            if view.ndim != 2:
                rule, remedy = "a rank has one matrix of each operand", "Reshape it"
                yield Violation(one, f"of shape {view.shape}", rule, f"{remedy} to two dimensions")
            if wrong := unlike(name, view):
                yield Violation(one, f"an array of {view.element}", *wrong)


def outputs_of(
    ranks: Ranks,
    left: _Views,
    shapes: Sequence[tuple[int, int]],
    out: Any,
    kind: str | None = None,
) -> list[Any]:
    """Return the caller's outputs, or new ones of these shapes, of the operands' type or a kind."""
    if out is not None:
        views_of("out", out, len(left))
        return list(out)
    new = zip(ranks.memories, left, shapes, strict=True)
    return [array_on(memory, view, shape, kind) for memory, view, shape in new]


def unfit_outputs(
    ranks: Ranks,
    targets: _Views,
    shapes: Sequence[tuple[int, int]],
    operands: Sequence[_Views],
) -> Iterator[Violation]:
    yield from ranks.misplaced("out", targets, "a")
    for rank, (view, shape) in enumerate(zip(targets, shapes, strict=True)):
        name = f"out[{rank}]"
        if view.shape != shape or view.element.name not in OUTPUTS:
            rule = f"the output has shape {shape} and holds {', '.join(OUTPUTS[:-1])} or float32"
            given = f"{view.element} of shape {view.shape}"
            yield Violation(name, given, rule, "Pass an array like that, or leave out=")
            continue
        if view.element is not targets[0].element:
            rule = f"out[0] holds {targets[0].element}, and all outputs hold one type"
            yield Violation(name, f"an array of {view.element}", rule, "Pass outputs of one type")
        if view.read_only:
            yield Violation(name, "a read-only array", "it is written", "Pass a writable array")
        yield from _overlaps(name, view, [views[rank] for views in operands])


def _overlaps(name: str, out: ArrayView, operands: _Views) -> Iterator[Violation]:
    if any(may_overlap(out, view) for view in operands):
        rule = "it overlaps an operand, and the order of tiles is not defined"
        yield Violation(name, f"at {out.address:#x}", rule, "Pass an array of its own")


def unstorable(outs: Sequence[Layout]) -> Iterator[Violation]:
    for rank, out in enumerate(outs):
        if 0 not in out.shape and out.in_stored_rows() is None:
            rule = "TMA stores rows of contiguous elements that start and end at multiples of 16"
            given = f"of shape {out.shape}, strides {out.strides_bytes} bytes"
            remedy = "Leave out=, or pass a contiguous array of a multiple of 8 columns"
            yield Violation(f"out[{rank}]", given, f"{rule} bytes", remedy)


def fill_with_zeros(targets: _Views, ranks: Ranks) -> None:
    for view, stream in zip(targets, ranks.streams, strict=True):
        with in_order(view.framework, view.device, stream or 0):
            fill(view, 0)


# --- operands ---------------------------------------------------------------------------------


class RankLayouts(NamedTuple):
    """What one rank multiplies: layouts as the kernel reads and writes them.

    Attributes:
        operands: A, B, and what else the kernel reads.
        out: The output.
    """

    operands: tuple[Operand, ...]
    out: Layout

    @property
    def a(self) -> Operand:
        return self.operands[0]

    @property
    def b(self) -> Operand:
        return self.operands[1]


def unscaled_operands(a: Layout, b: Layout) -> tuple[Operand, ...]:
    """Return how a kernel without scales reads A and B."""
    return Operand.of_rows(a), Operand.of(b)


class RankedOperands:
    """The layouts of all ranks.

    Attributes:
        ranks: Devices and streams.
        of: The layouts of each rank.
        needs_staging: Whether an operand is read from a staging copy.
    """

    def __init__(
        self,
        ranks: Ranks,
        layouts: Sequence[Layout],
        reads: Callable[..., tuple[Operand, ...]] = unscaled_operands,
    ) -> None:
        """Choose how each rank reads its operands; reject an output that TMA cannot store.

        Args:
            ranks: Devices and streams.
            layouts: Of the operands and the output: first of all A, and so on.
            reads: Returns how the kernel reads the operands of a rank.
        """
        self.ranks = ranks
        count = len(ranks)
        *operands, outs = (layouts[at : at + count] for at in range(0, len(layouts), count))
        ArgumentError.raise_for(unstorable(outs))
        self.of = [
            RankLayouts(reads(*each), out.in_stored_rows() or out)
            for *each, out in zip(*operands, outs, strict=True)
        ]
        self.needs_staging = any(one.is_staged for of in self.of for one in of.operands)
        for device in {layout.device for layout in outs}:
            backend_of(device).require_shared_memory("a matmul of several ranks")

    def reached(
        self, operands: Sequence[_Views], targets: _Views
    ) -> tuple[list[list[ArrayView]], list[ArrayView]]:
        """Return what the kernel of each rank reads, in staging copies where TMA needs them.

        Also return what it writes.
        """
        read = [
            [self._reached(rank, *pair) for pair in zip(of.operands, views, strict=True)]
            for rank, (of, *views) in enumerate(zip(self.of, *operands, strict=True))
        ]
        return read, [one.out.over(view) for one, view in zip(self.of, targets, strict=True)]

    def _reached(self, rank: int, operand: Operand, view: ArrayView) -> ArrayView:
        memory, stream = self.ranks.memories[rank], self.ranks.streams[rank]
        backend_of(view.device).wait_for_producers((view,), stream)
        if not operand.is_staged or view.is_empty:
            return operand.rows.over(view)
        owner = indexable(view)
        # Bytes that the caller reads as another type are copied as bytes.
        held = _arrays.view(owner).element.name
        with in_order(view.framework, view.device, stream or 0):
            part = array_on(memory, view, operand.rows.shape, held)
            part[...] = owner.T if operand.transposed else owner
        return operand.rows.over(_arrays.view(part, dtype=view.element))

    def problem(self, m: int, n: int, k: int, of: Sequence[RankLayouts]) -> Problem:
        """Return the GEMM that these ranks compute with one tile config."""
        pitches = [one.rows.strides_bytes[-2] for rank in of for one in (rank.a, rank.b)]
        return Problem(
            m,
            n,
            k,
            batches=1,
            operands=of[0].a.rows.element.name,
            output=of[0].out.element.name,
            layout="n" + ("t" if all(rank.b.transposed for rank in of) else "n"),
            m_major=False,
            on_lines=all(pitch % LINE_BYTES == 0 for pitch in pitches),
        )


def resident_launch(
    kernel: Kernel,
    arguments: Sequence[Any],
    config: TileConfig,
    clusters: int,
    occupancy: Occupancy,
    ranks: Ranks,
    rank: int,
) -> Launch:
    """Prepare at most ``clusters``, all resident at once, since they wait for other ranks."""
    size = config.cluster_size
    resident = max(1, occupancy.max_active_clusters(size) // ranks.sharing(rank))
    return kernel.prepare(
        min(resident, clusters) * size,
        config.threads,
        arguments,
        cluster=size if size > 1 else None,
        device=ranks.memories[rank].ordinal,
        stream=ranks.streams[rank],
    )
