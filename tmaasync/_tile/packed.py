"""Arrays whose bytes hold elements of 4 or 6 bits, for tiles of chips that have these types."""

from __future__ import annotations

from tmaasync import _arrays
from tmaasync._arrays import ArrayView
from tmaasync._elements import Element, element, packed_element
from tmaasync.errors import ArrayTypeError

_BYTE = element("uint8")


def view_and_element(array: object, dtype: object) -> tuple[ArrayView, Element]:
    """Return an array's view, and the element type of a tile over it.

    They differ for packed types alone: the view is of bytes.

    Raises:
        ArrayTypeError: The array holds one packed element in a byte, or is of no type of TMA's.
        ArgumentError: ``dtype`` has another width than the array's elements.
    """
    kind = packed_element(dtype)
    if kind is None:
        view = _arrays.view(array, dtype=dtype)
        return view, view.element
    own = str(getattr(array, "dtype", "")).removeprefix("torch.")
    if packed_element(own) is not None:
        rule = "it holds one element in a byte, and a tensor map reads bytes without padding"
        remedy = f'Pack the elements, low bits first, and pass the bytes with dtype="{kind}"'
        raise ArrayTypeError.broken("array.dtype", own, rule, remedy)
    return _arrays.view(array, dtype=_BYTE), kind


def extents(view: ArrayView, kind: Element) -> tuple[int, ...]:
    """Return the elements along each side of an array that is read as this type."""
    if view.element is kind or not view.shape:
        return view.shape
    return (*view.shape[:-1], view.shape[-1] * 8 // kind.data_type.bits)
