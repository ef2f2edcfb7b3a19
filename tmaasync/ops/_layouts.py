"""Layouts: an array as an operation sees it, without its owner and exact address."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple, TypeVar

from tmaasync import _arrays
from tmaasync._arrays import ArrayView, is_contiguous, may_overlap
from tmaasync._elements import Element, element
from tmaasync._hardware import TMA_ALIGNMENT
from tmaasync.errors import ArgumentError, ArrayTypeError
from tmaasync.kernel import backend_of
from tmaasync.ops._extents import MAX_EXTENT


class Layout(NamedTuple):
    """Shape and strides (outermost first), element type and device of an array.

    As a matrix its last two dimensions are rows and columns; a batch has a third before them.

    Attributes:
        is_aligned: Whether it starts at a multiple of 16 bytes.
        owns_padding: Whether nobody else has the bytes after its rows, up to a multiple of 16.
        memory: Identifies the emulated device whose memory holds it; None outside of a world.
    """

    shape: tuple[int, ...]
    strides_bytes: tuple[int, ...]
    element: Element
    device: int | None
    is_aligned: bool = True
    owns_padding: bool = False
    memory: object = None

    @classmethod
    def of(cls, view: ArrayView) -> Layout:
        memory = backend_of(view.device).memory_of(view).identity
        return cls(*view[1:5], view.address % TMA_ALIGNMENT == 0, memory=memory)

    def over(self, view: ArrayView) -> ArrayView:
        """Return the view with this shape and these strides."""
        return view._replace(shape=self.shape, strides_bytes=self.strides_bytes)

    @property
    def span_bytes(self) -> int:
        """Bytes from the first element to the end of the last, for strides of 0 or more."""
        pairs = zip(self.shape, self.strides_bytes, strict=True)
        return sum((size - 1) * stride for size, stride in pairs) + self.element.itemsize

    @property
    def is_packed(self) -> bool:
        """Whether the elements are contiguous from a multiple of 16 bytes on."""
        return self.is_aligned and is_contiguous(self)

    @property
    def transposed(self) -> Layout:
        (*outer, rows, columns), (*steps, row_bytes, item_bytes) = self.shape, self.strides_bytes
        return self._replace(
            shape=(*outer, columns, rows), strides_bytes=(*steps, item_bytes, row_bytes)
        )

    @property
    def without_batch(self) -> Layout:
        """One matrix, where a batch holds one or repeats one; else the layout itself."""
        if len(self.shape) == 3 and (self.shape[0] == 1 or self.strides_bytes[0] == 0):
            return self._replace(shape=self.shape[1:], strides_bytes=self.strides_bytes[1:])
        return self

    def merged_batch(self) -> Layout | None:
        """Return all rows of a batch as one matrix, if each matrix starts where the last ends."""
        (batch, rows, columns), (step, row_bytes, item_bytes) = self.shape, self.strides_bytes
        if step != rows * row_bytes or batch * rows > MAX_EXTENT:
            return None
        shape, strides = (batch * rows, columns), (row_bytes, item_bytes)
        return self._replace(shape=shape, strides_bytes=strides)

    def in_rows(self) -> Layout | None:
        """Return the matrix as rows that TMA can load, if it can; one row may have any stride."""
        (*outer, rows, columns), (*steps, row_bytes, item_bytes) = self.shape, self.strides_bytes
        if rows == 1:
            row_bytes = padded_row_bytes(columns, self.element)
        if columns == 1:
            item_bytes = self.element.itemsize
        is_dense = item_bytes == self.element.itemsize and self.is_aligned
        if not is_dense or row_bytes <= 0 or row_bytes % TMA_ALIGNMENT:
            return None
        # A batch of one may have any stride too.
        steps = [
            rows * row_bytes if size == 1 else step for size, step in zip(outer, steps, strict=True)
        ]
        if any(step <= 0 or step % TMA_ALIGNMENT for step in steps):
            return None
        return self._replace(strides_bytes=(*steps, row_bytes, item_bytes))

    def in_stored_rows(self) -> Layout | None:
        """Return the matrix as rows that TMA can store: it writes whole 16-byte sectors."""
        ends_aligned = self.shape[-1] * self.element.itemsize % TMA_ALIGNMENT == 0
        return self.in_rows() if ends_aligned or self.owns_padding else None

    def padded(self) -> Layout:
        """Return the layout of a staging copy whose rows are a multiple of 16 bytes apart."""
        row_bytes = padded_row_bytes(self.shape[-1], self.element)
        strides = (self.shape[-2] * row_bytes, row_bytes, self.element.itemsize)
        return self._replace(strides_bytes=strides[-len(self.shape) :], is_aligned=True)


def padded_row_bytes(columns: int, element: Element) -> int:
    """Return the row pitch in bytes of rows that TMA can reach."""
    return -(-columns * element.itemsize // TMA_ALIGNMENT) * TMA_ALIGNMENT


@dataclass(frozen=True, slots=True)
class Operand:
    """A matrix as a kernel accesses it: directly, transposed, or through a staging copy.

    Attributes:
        rows: The matrix, or its transpose, or the staging copy, as rows that TMA can move.
        transposed: Whether ``rows`` are rows of the transpose.
        is_staged: Whether ``rows`` are rows of a staging copy.
    """

    rows: Layout
    transposed: bool = False
    is_staged: bool = False

    @classmethod
    def of(cls, matrix: Layout) -> Operand:
        """Return the first of the three that TMA can do."""
        for transposed in (False, True):
            rows = (matrix.transposed if transposed else matrix).in_rows()
            if rows is not None:
                return cls(rows, transposed)
        return cls(matrix.padded(), is_staged=True)

    @classmethod
    def of_rows(cls, matrix: Layout) -> Operand:
        """Return the first that TMA can do, for a kernel that reads no transpose."""
        rows = matrix.in_rows()
        return cls(matrix.padded(), is_staged=True) if rows is None else cls(rows)

    @classmethod
    def of_k_rows(cls, matrix: Layout, *, k_is_last: bool) -> Operand:
        """Return the first that TMA can do, for a kernel that reads rows along K."""
        if k_is_last:
            return cls.of_rows(matrix)
        return replace(cls.of_rows(matrix.transposed), transposed=True)

    @classmethod
    def of_output(cls, matrix: Layout) -> Operand:
        """Return how TMA stores the rows of an output."""
        rows = matrix.in_stored_rows()
        return cls(matrix.padded(), is_staged=True) if rows is None else cls(rows)


_Strided = TypeVar("_Strided", ArrayView, Layout)


def with_merged_dims(*views: _Strided) -> tuple[_Strided, ...]:
    """Return the views without dimensions of one element, neighbours merged where all allow it.

    A merged dimension has at most `MAX_EXTENT` elements.
    """
    shape: list[int] = []
    strides: list[list[int]] = [[] for _ in views]
    for dim, extent in enumerate(views[0].shape):
        if extent == 1:
            continue
        steps = [view.strides_bytes[dim] for view in views]
        can_merge = shape and shape[-1] * extent <= MAX_EXTENT
        if can_merge and all(s[-1] == n * extent for s, n in zip(strides, steps, strict=True)):
            shape[-1] *= extent
            for s, step in zip(strides, steps, strict=True):
                s[-1] = step
        else:
            shape.append(extent)
            for s, step in zip(strides, steps, strict=True):
                s.append(step)
    return tuple(
        view._replace(shape=tuple(shape), strides_bytes=tuple(s))
        for view, s in zip(views, strides, strict=True)
    )


def is_apart(index: int, addresses: Sequence[int], spans: Sequence[int]) -> bool:
    """Whether one of the arrays, which is not empty, overlaps none of the others with a span."""
    start = addresses[index]
    end = start + spans[index]
    met = 0  # itself, too
    for address, span in zip(addresses, spans, strict=False):
        if address < end and start < address + span:
            met += 1
    return met == 1


def check_output(
    out: ArrayView | Layout,
    shape: tuple[int, ...],
    device: int | None,
    types: Collection[str],
    dtype: object,
    *,
    what: str = "result",
) -> None:
    """Check the shape, device and type of an output."""
    if out.shape != shape or out.device != device:
        raise ArgumentError.broken(
            "out",
            f"{out.shape} {_arrays.where(out.device)}",
            f"the {what} has shape {shape} {_arrays.where(device)}",
            "Pass an array of that shape, or leave out= out",
            verb="has shape",
        )
    wanted = None if dtype is None else element(dtype)
    if out.element.name not in types or wanted not in {None, out.element}:
        raise ArrayTypeError.broken(
            "out",
            out.element,
            f"it must hold {wanted or ' or '.join(types)}",
            "Leave out dtype= or out=" if wanted else "Convert it, or leave out out=",
            verb="holds",
        )


def check_type(
    name: str, held: Element, types: Collection[str], remedy: str = "Convert it with astype"
) -> None:
    """Check that the tensor cores multiply operands of this type."""
    if held.name not in types:
        raise ArrayTypeError.broken(
            name, held, f"the kernel multiplies {' and '.join(types)}", remedy, verb="holds"
        )


def check_alike(a: ArrayView, b: ArrayView) -> None:
    """Check that operands a and b have one type and one device."""
    if a.element is not b.element or a.device != b.device:
        raise ArgumentError.broken(
            "b",
            f"{b.element} {_arrays.where(b.device)}",
            f"a holds {a.element} {_arrays.where(a.device)}",
            "Convert or move one of them",
            verb="holds",
        )


def refuse_overlap(
    name: str,
    out: ArrayView,
    given: Mapping[str, ArrayView],
    *,
    may_share_rows: bool = False,
    remedy: str = "Pass an array of its own",
) -> None:
    """Check that an output shares memory with none of the inputs, by the names of their arguments.

    Disjoint columns of the same rows are allowed if it ``may_share_rows``.
    """
    for other, view in given.items():
        if not may_overlap(out, view) or (may_share_rows and _lie_side_by_side(out, view)):
            continue
        raise ArgumentError.broken(
            name,
            f"{other} (at {out.address:#x} and {view.address:#x})",
            "the order of tiles is not defined",
            remedy,
            verb="overlaps",
        )


def _lie_side_by_side(out: ArrayView, view: ArrayView) -> bool:
    """Whether both are parts of equally long rows, and of disjoint columns."""
    for pitch in out.strides_bytes:
        if pitch > 0:
            gap = (view.address - out.address) % pitch
            if _bytes_of_row(out, pitch) <= gap <= pitch - _bytes_of_row(view, pitch):
                return True
    return False


def _bytes_of_row(view: ArrayView, pitch: int) -> int:
    """Return the bytes that an array takes of each row; more than the pitch if rows overlap."""
    pairs = zip(view.shape, view.strides_bytes, strict=True)
    inner = [(size, stride) for size, stride in pairs if stride % pitch]
    if any(stride < 0 for _, stride in inner):
        return pitch + 1
    return sum((size - 1) * stride for size, stride in inner) + view.element.itemsize
