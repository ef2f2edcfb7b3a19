"""Stand-ins for arrays of libraries and devices that a test machine may lack.

They answer what the real ones answer, from the same kind of memory, and nothing else: an attribute
that is asked for and not modelled here fails the test. DLPack structures are packed by hand from
``dlpack.h``, so that they check the structures of the package.
"""

from __future__ import annotations

import ctypes
import functools
import math
import struct
from contextlib import nullcontext
from dataclasses import dataclass, field
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np

_new_capsule = ctypes.pythonapi.PyCapsule_New
_new_capsule.argtypes = (ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p)
_new_capsule.restype = ctypes.py_object


class Named:
    """A torch dtype or layout: what matters of it is its text."""

    def __init__(self, text: str) -> None:
        self._text = text

    def __str__(self) -> str:
        return self._text


Named.__module__ = "torch"

_STRIDED = Named("torch.strided")
_dtype = functools.cache(Named)  # torch has one object of each


class Tensor:
    """A torch tensor over a NumPy array's memory."""

    is_nested = False

    def __init__(
        self,
        array: np.ndarray[Any, Any],
        *,
        dtype: str | None = None,
        device: str = "cpu",
        layout: Named = _STRIDED,
        is_negated: bool = False,
        requires_grad: bool = False,
    ) -> None:
        self.array = array
        self.requires_grad = requires_grad
        self.dtype = _dtype(f"torch.{dtype or array.dtype.name}")
        kind, _, index = device.partition(":")
        self.device = SimpleNamespace(type=kind, index=int(index) if index else None)
        self.layout = layout
        self._is_negated = is_negated
        self.is_freed = False

    @property
    def is_cuda(self) -> bool:
        return bool(self.device.type == "cuda")

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self.array.shape)

    def stride(self) -> tuple[int, ...]:
        return tuple(stride // self.array.itemsize for stride in self.array.strides)

    def element_size(self) -> int:
        return self.array.itemsize

    def is_inference(self) -> bool:
        return False

    def data_ptr(self) -> int:
        return 0 if self.is_freed or self.device.type == "meta" else self.array.ctypes.data

    def get_device(self) -> int:
        return -1 if self.device.index is None else self.device.index

    def is_contiguous(self) -> bool:
        return bool(self.array.flags.c_contiguous)

    def is_neg(self) -> bool:
        return self._is_negated

    def is_conj(self) -> bool:
        return False

    def __len__(self) -> int:
        return len(self.array)

    def __setitem__(self, key: Any, value: Tensor | int) -> None:
        self.array[key] = value.array if isinstance(value, Tensor) else value

    def pin_memory(self) -> Tensor:
        assert self.device.type == "cpu"
        return self

    def contiguous(self) -> Tensor:
        return self if self.is_contiguous() else self._like(np.ascontiguousarray(self.array))

    def cumsum(self, dimension: int, *, dtype: Named) -> Tensor:
        return self._like(np.cumsum(self.array, dimension)).to(dtype)

    def clip(self, least: int, most: int) -> Tensor:
        return self._like(self.array.clip(least, most))

    def _like(self, array: np.ndarray[Any, Any]) -> Tensor:
        return Tensor(array, device=f"{self.device.type}:{self.get_device()}")

    def to(self, where: Named | str, *, non_blocking: bool = False) -> Tensor:
        if where is self.dtype:
            return self
        if isinstance(where, Named):
            return self._like(self.array.astype(str(where).removeprefix("torch.")))
        assert non_blocking
        return Tensor(self.array.copy(), device=where)


Tensor.__module__ = "torch"


class TensorGuards:
    """What torch.compile tests tensors with: all but where they lie and what they hold."""

    def __init__(
        self, *tensors: Tensor, dynamic_dims_sizes: object, dynamic_dims_strides: object
    ) -> None:
        assert dynamic_dims_sizes is dynamic_dims_strides is None  # all sizes, all strides
        self._expected = [self._guarded(tensor) for tensor in tensors]

    def check(self, *tensors: Tensor) -> bool:
        if len(tensors) != len(self._expected):
            raise TypeError("wrong length")
        is_each_once = len(set(map(id, tensors))) == len(tensors)
        types = [type(tensor) for tensor in tensors]  # looked at first: there may be no tensor
        if not is_each_once or types != [kind for kind, *_ in self._expected]:
            return False
        return [self._guarded(tensor) for tensor in tensors] == self._expected

    @staticmethod
    def _guarded(tensor: Tensor) -> tuple[object, ...]:
        flags = (
            *(tensor.is_cuda, tensor.is_neg(), tensor.is_conj()),
            *(tensor.layout, tensor.requires_grad),
        )
        return type(tensor), flags, tensor.shape, tensor.stride(), tensor.dtype, tensor.get_device()


def _unpack_dual(tensor: Tensor) -> Any:
    return SimpleNamespace(primal=tensor, tangent=None)


class Torch(ModuleType):
    """As much of torch as a launch asks: its guards, unless it has none, its stream, its memory.

    ``uploads`` are the numbers that were brought to tensors.
    """

    Tensor = Tensor
    float16, float32 = _dtype("torch.float16"), _dtype("torch.float32")
    int32, uint8 = _dtype("torch.int32"), _dtype("torch.uint8")
    int64, uint32, uint64 = (_dtype(f"torch.{name}") for name in ("int64", "uint32", "uint64"))

    def __init__(self, *, has_guards: bool = True) -> None:
        super().__init__("torch")
        self.is_in_grad_mode = True
        self.stream = 5
        self.device = 0
        self.uploads: list[list[int]] = []
        self.cuda = SimpleNamespace(
            stream=lambda _: nullcontext(),
            ExternalStream=lambda handle, *, device: handle,
            default_stream=lambda device: 0,
        )
        self.autograd = SimpleNamespace(
            forward_ad=SimpleNamespace(_current_level=-1, unpack_dual=_unpack_dual)
        )
        self._C = SimpleNamespace(_cuda_getCurrentRawStream=lambda _: self.stream)
        if has_guards:
            guards = SimpleNamespace(
                TensorGuards=TensorGuards, _empty_strided_cuda=self._empty_strided_cuda
            )
            self._C._dynamo = SimpleNamespace(guards=guards)
            self._C._cuda_getDevice = lambda: self.device

    def is_grad_enabled(self) -> bool:
        return self.is_in_grad_mode

    def _empty_strided_cuda(
        self, shape: tuple[int, ...], strides: tuple[int, ...], dtype: Named
    ) -> Any:
        """Memory of the current device."""
        flat = np.empty(math.prod(shape), str(dtype).removeprefix("torch."))
        steps = [flat.itemsize * stride for stride in strides]
        array = np.lib.stride_tricks.as_strided(flat, shape, steps)
        return Tensor(array, device=f"cuda:{self.device}")

    def empty(self, shape: tuple[int, ...], *, dtype: Named, device: str) -> Any:
        kind = str(dtype).removeprefix("torch.")
        return Tensor(np.empty(shape, kind), device=device)

    def tensor(self, values: np.ndarray[Any, Any], *, dtype: Named) -> Any:
        self.uploads.append(values.tolist())
        return Tensor(values.astype(str(dtype).removeprefix("torch.")))

    def from_dlpack(self, array: CupyArray) -> Any:
        return Tensor(array.array, device="cuda:0")


@dataclass
class CudaInterface:
    """An object whose ``__cuda_array_interface__`` is the given dictionary."""

    interface: dict[str, object]

    @property
    def __cuda_array_interface__(self) -> dict[str, object]:
        return self.interface


@dataclass(kw_only=True)
class Exporter:
    """An object that exports the DLTensor its fields describe."""

    data: int
    shape: tuple[int, ...]
    strides: tuple[int, ...] | None = None
    code: int = 2
    bits: int = 32
    lanes: int = 1
    device: tuple[int, int] = (1, 0)
    byte_offset: int = 0
    version: tuple[int, int] | None = None
    flags: int = 0
    name: bytes | None = None
    ndim: int | None = None
    has_shape: bool = True
    capsule_device: tuple[int, int] | None = None
    asked: list[dict[str, object]] = field(default_factory=list)
    _kept: list[object] = field(default_factory=list)

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.device

    def __dlpack__(self, **keywords: object) -> object:
        if self.version is None and "max_version" in keywords:
            raise TypeError("unexpected keyword argument 'max_version'")
        self.asked.append(keywords)
        text = self._tensor()
        name = b"dltensor"
        if self.version is not None:
            text = struct.pack("=IIQQQ", *self.version, 0, 0, self.flags) + text
            name = b"dltensor_versioned"
        buffer = ctypes.create_string_buffer(text)
        self.name = name if self.name is None else self.name
        self._kept += [buffer, self.name]
        return _new_capsule(ctypes.addressof(buffer), self.name, None)

    def _tensor(self) -> bytes:
        return struct.pack(
            "=QiiiBBHQQQ",
            self.data,
            *(self.capsule_device or self.device),
            len(self.shape) if self.ndim is None else self.ndim,
            self.code,
            self.bits,
            self.lanes,
            self._integers(self.shape) if self.has_shape else 0,
            0 if self.strides is None else self._integers(self.strides),
            self.byte_offset,
        )

    def _integers(self, values: tuple[int, ...]) -> int:
        array = (ctypes.c_int64 * len(values))(*values)
        self._kept.append(array)
        return ctypes.addressof(array)


class CupyArray:
    """A CuPy array over a NumPy array's memory, said to be on a device."""

    def __init__(self, array: np.ndarray[Any, Any], device: int = 0) -> None:
        self.array = array
        self.data = SimpleNamespace(ptr=array.ctypes.data, device_id=device)

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self.array.shape)

    @property
    def strides(self) -> tuple[int, ...]:
        return tuple(self.array.strides)

    @property
    def dtype(self) -> Any:
        return self.array.dtype

    @property
    def flags(self) -> Any:
        return self.array.flags

    @property
    def _c_contiguous(self) -> bool:
        return bool(self.array.flags.c_contiguous)

    def astype(self, dtype: Any, *, copy: bool) -> CupyArray:
        return self if dtype == self.dtype and not copy else CupyArray(self.array.astype(dtype))

    def cumsum(self, axis: int, *, dtype: Any) -> CupyArray:
        return CupyArray(np.cumsum(self.array, axis, dtype))

    def clip(self, least: int, most: int) -> CupyArray:
        return CupyArray(self.array.clip(least, most))

    def __len__(self) -> int:
        return len(self.array)

    def __setitem__(self, key: Any, value: CupyArray | int) -> None:
        self.array[key] = value.array if isinstance(value, CupyArray) else value


CupyArray.__module__, CupyArray.__name__ = "cupy", "ndarray"


class Cupy(ModuleType):
    """As much of CuPy as brings numbers to a device, and loads compiled modules.

    Attributes:
        uploads: The numbers that were brought to the device.
        modules: The paths of the modules that were loaded.
    """

    def __init__(self) -> None:
        super().__init__("cupy")
        self.uploads: list[list[int]] = []
        self.modules: list[str] = []
        stream = SimpleNamespace(ptr=7)
        self.cuda = SimpleNamespace(
            Device=lambda _: nullcontext(),
            Stream=object,
            ExternalStream=lambda _: nullcontext(),
            get_current_stream=lambda *_: stream,
        )

    def RawModule(self, *, path: str) -> SimpleNamespace:  # noqa: N802
        self.modules.append(path)
        function = SimpleNamespace(kernel=SimpleNamespace(ptr=len(self.modules)))
        return SimpleNamespace(get_function=lambda name: function)

    def asarray(self, values: np.ndarray[Any, Any], dtype: Any) -> CupyArray:
        self.uploads.append(values.tolist())
        return CupyArray(values.astype(dtype))

    def from_dlpack(self, array: CupyArray | Tensor) -> CupyArray:
        return array if isinstance(array, CupyArray) else CupyArray(array.array)

    def ascontiguousarray(self, array: CupyArray) -> CupyArray:
        return CupyArray(np.ascontiguousarray(array.array))

    def empty(self, shape: tuple[int, ...], dtype: Any) -> CupyArray:
        return CupyArray(np.empty(shape, dtype))


class ByDlpack:
    """An array, on a device or the host, that offers DLPack only."""

    def __init__(self, array: Any) -> None:
        self._array = array

    def __dlpack__(self, **options: Any) -> Any:
        return self._array.__dlpack__(**options)

    def __dlpack_device__(self) -> Any:
        return self._array.__dlpack_device__()
