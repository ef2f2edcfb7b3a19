"""Kernel arguments that hold an array: the base of tiles and ragged maps."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, ClassVar

from tmaasync._arrays import (
    AddressReader,
    ArrayView,
    current_address,
    fingerprint,
    require_current,
    view,
)
from tmaasync._elements import Element
from tmaasync._tile.cut import Cut
from tmaasync.errors import TensorMapError
from tmaasync.tensormap import Im2colSpec, TensorMapSpec


class KernelArgument:
    """A kernel argument over an array: its bytes, its C++ type, and the array itself."""

    __slots__ = ()

    _kind: ClassVar[str] = "tile"

    @property
    def argument(self) -> bytes:
        """The bytes of the kernel parameter."""
        raise NotImplementedError

    @property
    def cuda_type(self) -> str:
        """The type in CUDA C++; ``Kernel(types={"ATile": tile})`` gives it a name."""
        raise NotImplementedError

    @property
    def _view(self) -> ArrayView:
        """The array as it was when the argument was made."""
        raise NotImplementedError

    @property
    def address(self) -> int:
        """The parameter's first word; of a ragged map it lies below the array."""
        return int.from_bytes(self.argument[:8], "little")

    @property
    def array(self) -> object:
        """The array, which stays alive as long as this argument."""
        return self._view.owner

    @property
    def array_view(self) -> ArrayView | None:
        """The array's address and layout as they were when the argument was made."""
        return self._view

    @property
    def byte_bounds(self) -> tuple[int, int]:
        """The lowest address of the array, and the one after its highest."""
        return self._view.byte_bounds

    @property
    def device(self) -> int | None:
        """Ordinal of the CUDA device the array is on; None for host memory."""
        return self._view.device

    def home(self) -> Iterable[KernelArgument | ArrayView]:
        """Return the members whose device a launch takes, if all are on one."""
        return self.members()

    @property
    def framework(self) -> str:
        """Library of the array: numpy, cupy, torch, jax or other."""
        return self._view.framework

    def argument_on(self, device: int | None) -> bytes:
        """Return the bytes of the kernel parameter for a launch on this device."""
        del device
        return self.argument

    def members(self) -> Iterable[KernelArgument | ArrayView]:
        """Return what the argument is made of, as far as it has memory of its own."""
        return (self,)

    @property
    def is_current(self) -> bool:
        """True if the array is still at the address that the argument was made for."""
        return current_address(self._view) == self._view.address

    def check_alive(self, argument: str | None = None) -> None:
        """Check that the array is still at the address that the argument was made for.

        Args:
            argument: The name of the argument in the error.

        Raises:
            StaleTileError: The array was freed, resized or moved since.
        """
        require_current(self._view, argument or self._kind)

    def _address_reader(self) -> AddressReader | None:
        """Return a function that reads the addresses of arguments like this one.

        Like it are current arguments that pass the same checks and differ in their first word
        alone; for all others the function returns None. None for arrays of a library whose arrays
        may be read only.
        """
        kind, device, framework = type(self), self.device, self.framework
        if framework not in ("cupy", "torch"):
            return None
        rest, cuda_type = self.argument[8:], self.cuda_type

        def read(other: Any) -> int | None:
            if other.__class__ is not kind or not other.is_current:
                return None
            packed = other.argument
            is_like = (packed[8:], other.cuda_type) == (rest, cuda_type)
            is_there = (other.device, other.framework) == (device, framework)
            return int.from_bytes(packed[:8], "little") if is_like and is_there else None

        return read


def view_in_place(
    array: object, replaced: object, element: Element, kind: str = "tile"
) -> ArrayView:
    """Return a view of an array in place of another one, read as the same element type.

    Raises:
        TensorMapError: Its own type differs, so that its bits would mean something else.
    """
    own = getattr(array, "dtype", None)  # a view or a DLPack object has none
    if own == getattr(replaced, "dtype", None):
        return view(array, dtype=element)
    seen = view(array)
    if seen.element is not element:
        rule = f"the {kind} was made for {element}"
        remedy = "Convert the array, or make a tile of its own for it"
        raise TensorMapError.broken("array.dtype", seen.element, rule, remedy)
    return seen


class CutSizes:
    """Shapes and sizes of a tile and of its boxes."""

    __slots__ = ()

    @property
    def _cut(self) -> Cut:
        raise NotImplementedError

    @property
    def element(self) -> Element:
        """The element type, as NumPy, the tensor map and the kernel name it."""
        return self._cut.element

    @property
    def tile_shape(self) -> tuple[int, ...]:
        """Elements of the tile in shared memory, outermost side first."""
        return self._cut.tile_shape

    @property
    def box_shape(self) -> tuple[int, ...]:
        """Elements that one TMA instruction moves, outermost side first."""
        return self._cut.box_shape

    @property
    def boxes_per_tile(self) -> int:
        """TMA instructions that one call issues."""
        return self._cut.boxes

    @property
    def tile_bytes(self) -> int:
        """Bytes of the tile in shared memory, which a barrier must expect for a load.

        Elements out of bounds are included: TMA fills and credits them. The gaps of packed types
        are in shared memory too, and are not counted.
        """
        return self._cut.tile_bytes

    @property
    def smem_alignment(self) -> int:
        """Alignment in bytes that the tile needs in shared memory."""
        return self._cut.swizzle.alignment


@dataclass(frozen=True, slots=True, eq=False)
class MapForm:
    """Everything but the address, shared by tiles over arrays of one layout."""

    cut: Cut
    view: ArrayView  # of the first of these arrays, without its owner
    descriptor: bytes


class UnboundTile(CutSizes):
    """A tile without an array: it gives a kernel a type, and is no argument."""

    __slots__ = ()

    @property
    def cuda_type(self) -> str:
        """The tile's type in CUDA C++."""
        raise NotImplementedError


class MapArgument(KernelArgument):
    """A kernel argument with a tensor map."""

    __slots__ = ()

    @property
    def descriptor(self) -> bytes:
        """The 128 bytes of the ``CUtensorMap``."""
        raise NotImplementedError


class MapTile(MapArgument, CutSizes):
    """A tile with a tensor map."""

    __slots__ = ("_address", "_form", "_lease", "_owner")

    _form: MapForm

    def __init__(self, form: MapForm, address: int, owner: object, lease: object = None) -> None:
        self._form = form
        self._address = address
        self._owner = owner
        self._lease = lease

    @property
    def _cut(self) -> Cut:
        return self._form.cut

    @property
    def _view(self) -> ArrayView:
        return self._form.view._replace(address=self._address, owner=self._owner, lease=self._lease)

    @property
    def spec(self) -> TensorMapSpec | Im2colSpec:
        """The fields of the tensor map."""
        raise NotImplementedError

    @property
    def descriptor(self) -> bytes:
        """The 128 bytes of the ``CUtensorMap``; the first eight are the array's address."""
        return self._address.to_bytes(8, "little") + self._form.descriptor[8:]

    @property
    def argument(self) -> bytes:
        """The bytes of the kernel parameter: the tensor map."""
        return self.descriptor

    # A launch asks for these of every tile: without making a view.

    @property
    def address(self) -> int:
        """The array's address, as in the map."""
        return self._address

    @property
    def array(self) -> object:
        """The array, which stays alive as long as the tile."""
        return self._owner

    @property
    def device(self) -> int | None:
        """Ordinal of the CUDA device the array is on; None for host memory."""
        return self._form.view.device

    @property
    def framework(self) -> str:
        """Library of the array: numpy, cupy, torch, jax or other."""
        return self._form.view.framework

    @property
    def is_current(self) -> bool:
        """True if the array is still at the map's address."""
        seen = fingerprint(self._owner)
        if seen is not None:
            return seen[0] == self._address
        return super().is_current
