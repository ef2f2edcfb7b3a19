"""Names of element types: NumPy's, short ones such as bf16, the tensor map's and CUDA C++'s.

Every module asks this table; none keeps a second list of types.
"""

from __future__ import annotations

from dataclasses import dataclass

import ml_dtypes
import numpy as np

from tmaasync._kinds import shown
from tmaasync.errors import ArrayTypeError
from tmaasync.modes import DataType


# Compared and hashed by identity: there is one object per type, and every cached tile asks for it.
@dataclass(frozen=True, slots=True, eq=False)
class Element:
    """One element type under its four names.

    Args:
        name: NumPy's or ml_dtypes' name; for types only TMA has, the tensor map's in lower case.
        dtype: What NumPy stores it as; TF32 is stored as float32.
        data_type: How the tensor map reads it.
        cuda_type: How the kernel spells it in CUDA C++.

    Note:
        A tensor map knows no int8, int16, bool or float8: they travel as unsigned integers of their
        width, which loads, stores and zero fill do not distinguish. A *reduction* does: it follows
        ``data_type``, so that the minimum of two float8 would compare their bits. Where the map
        reads the element as what it is, ``is_exact`` holds.
    """

    name: str
    dtype: np.dtype[np.generic]
    data_type: DataType
    cuda_type: str

    @property
    def itemsize(self) -> int:
        """Bytes of one element."""
        return self.dtype.itemsize

    @property
    def shared_bits(self) -> int:
        """Bits of shared memory that one element takes, the gaps of packed types included.

        >>> element("float16").shared_bits, packed_element("e2m1").shared_bits
        (16, 4)
        """
        data_type = self.data_type
        return data_type.bits if data_type is DataType.PACKED_16U4_ALIGN8B else 8 * self.itemsize

    @property
    def is_exact(self) -> bool:
        """True if the tensor map's type is this very type, not a carrier of the same width.

        >>> element("bfloat16").is_exact, element("int8").is_exact
        (True, False)
        """
        return self.name == self.data_type.name.lower()

    def __str__(self) -> str:
        return self.name

    def __reduce__(self) -> tuple[object, tuple[str]]:
        """Pickle as the name, so that a copy is the same object."""
        return _of_name, (self.name,)


def _row(name: str, data_type: DataType, cuda_type: str, dtype: object = None) -> Element:
    return Element(name, np.dtype(dtype or name), data_type, cuda_type)  # type: ignore[call-overload]


_STORED = (
    _row("uint8", DataType.UINT8, "unsigned char"),
    _row("int8", DataType.UINT8, "signed char"),
    _row("bool", DataType.UINT8, "bool"),
    _row("float8_e4m3fn", DataType.UINT8, "tmaasync::float8_e4m3", ml_dtypes.float8_e4m3fn),
    _row("float8_e5m2", DataType.UINT8, "tmaasync::float8_e5m2", ml_dtypes.float8_e5m2),
    _row("uint16", DataType.UINT16, "unsigned short"),
    _row("int16", DataType.UINT16, "short"),
    _row("float16", DataType.FLOAT16, "tmaasync::float16"),
    _row("bfloat16", DataType.BFLOAT16, "tmaasync::bfloat16", ml_dtypes.bfloat16),
    _row("uint32", DataType.UINT32, "unsigned int"),
    _row("int32", DataType.INT32, "int"),
    _row("float32", DataType.FLOAT32, "float"),
    _row("uint64", DataType.UINT64, "unsigned long long"),
    _row("int64", DataType.INT64, "long long"),
    _row("float64", DataType.FLOAT64, "double"),
)
_OTHER_READINGS_OF_FLOAT32 = (
    _row("float32_ftz", DataType.FLOAT32_FTZ, "float", np.float32),
    _row("tfloat32", DataType.TFLOAT32, "tmaasync::tfloat32", np.float32),
    _row("tfloat32_ftz", DataType.TFLOAT32_FTZ, "tmaasync::tfloat32", np.float32),
)

# Elements of 4 and 6 bits, low bits first in bytes without padding, which an array holds. Those
# called unpacked get a byte each in shared memory, as CUTLASS's ``float_e2m1_unpacksmem_t`` does.
_PACKED = (
    _row("float4_e2m1fn", DataType.PACKED_16U4_ALIGN8B, "tmaasync::float4_e2m1", np.uint8),
    _row(
        "float4_e2m1fn_unpacked", DataType.PACKED_16U4_ALIGN16B, "tmaasync::float4_e2m1_unpacked",
        np.uint8,
    ),
    _row("float6_e2m3fn", DataType.PACKED_16U6_ALIGN16B, "tmaasync::float6_e2m3", np.uint8),
    _row("float6_e3m2fn", DataType.PACKED_16U6_ALIGN16B, "tmaasync::float6_e3m2", np.uint8),
)  # fmt: skip

ELEMENTS = _STORED + _OTHER_READINGS_OF_FLOAT32
"""Every element type TMA can move on Hopper."""

BY_DTYPE = {row.dtype: row for row in _STORED}
"""What a NumPy dtype is read as."""

SHORT_NAMES = {
    "bf16": "bfloat16",
    "fp16": "float16",
    "half": "float16",
    "fp32": "float32",
    "float": "float32",
    "fp64": "float64",
    "double": "float64",
    "tf32": "tfloat32",
    "fp8": "float8_e4m3fn",
    "e4m3": "float8_e4m3fn",
    "e5m2": "float8_e5m2",
    "f32_ftz": "float32_ftz",
    "tf32_ftz": "tfloat32_ftz",
}
"""Short names of element types. ``"float"`` is C++'s and PyTorch's, of 32 bits, not NumPy's."""

_SHORT_PACKED_NAMES = {
    "e2m1": "float4_e2m1fn",
    "e2m3": "float6_e2m3fn",
    "e3m2": "float6_e3m2fn",
}

_NAMED = {row.name: row for row in ELEMENTS}
_BY_NAME = _NAMED | {short: _NAMED[name] for short, name in SHORT_NAMES.items()}
_NAMES_SHOWN = (
    "bf16, fp16, fp32, fp64, tf32, e4m3, e5m2, bool, int8 to int64, uint8 to uint64, or a NumPy "
    "dtype"
)
_BY_DATA_TYPE = {row.data_type: row for row in ELEMENTS if row.is_exact}

_PACKED_BY_NAME = {row.name: row for row in _PACKED}
_PACKED_BY_TYPE = {row.data_type: row for row in reversed(_PACKED)}

_SM_100_PREFIXES = ("float4_", "float6_")
_LIKELY = {1: ("float8_e4m3fn", "float8_e5m2"), 2: ("bfloat16",)}
_CARRIER = {1: "uint8", 2: "uint16", 4: "uint32", 8: "uint64"}


def element(dtype: object, *, argument: str = "dtype") -> Element:
    """Look up the element type that ``dtype`` means.

    Args:
        dtype: A NumPy dtype or scalar type, an ml_dtypes type, a torch dtype, a name (NumPy's or
            ml_dtypes', or a short one of `SHORT_NAMES`), a ``DataType``, or an ``Element``.
        argument: What to call it in an error.

    Raises:
        ArrayTypeError: TMA on Hopper cannot move these elements.

    >>> element(np.float32).cuda_type, element("tf32").cuda_type
    ('float', 'tmaasync::tfloat32')
    """
    if isinstance(dtype, np.dtype):
        found = BY_DTYPE.get(dtype)
        if found is None:
            raise _unsupported(dtype, argument)
        return found
    if isinstance(dtype, Element):
        return dtype
    if isinstance(dtype, DataType):
        return _of_data_type(dtype, argument)
    name = str(dtype).removeprefix("torch.") if type(dtype).__module__ == "torch" else dtype
    if isinstance(name, str) and name in _BY_NAME:
        return _BY_NAME[name]
    return element(_numpy_dtype(name, argument), argument=argument)


def packed_element(dtype: object) -> Element | None:
    """Return the type of 4 or 6 bits that ``dtype`` means, which sm_100a has; None for others.

    >>> packed_element("e2m1").name, packed_element("float16")
    ('float4_e2m1fn', None)
    """
    if isinstance(dtype, DataType):
        return _PACKED_BY_TYPE.get(dtype)
    name = dtype
    if isinstance(dtype, Element):
        name = dtype.name
    elif not isinstance(dtype, str):
        name = getattr(dtype, "name", getattr(dtype, "__name__", None))
    return (
        _PACKED_BY_NAME.get(_SHORT_PACKED_NAMES.get(name, name)) if isinstance(name, str) else None
    )


def _of_name(name: str) -> Element:
    return _PACKED_BY_NAME.get(name) or _NAMED[name]


def _of_data_type(data_type: DataType, argument: str) -> Element:
    if data_type.needs_sm_100:
        raise _needs_sm_100(str(data_type), argument)
    return _BY_DATA_TYPE[data_type]


def _numpy_dtype(dtype: object, argument: str) -> np.dtype[np.generic]:
    if isinstance(dtype, str):
        if dtype.startswith(_SM_100_PREFIXES):
            raise _needs_sm_100(dtype, argument)
        dtype = getattr(ml_dtypes, dtype, dtype)
    try:
        # NumPy would take None for float64, and a list for a structure.
        if isinstance(dtype, type | str):
            return np.dtype(dtype)
    except (TypeError, ValueError):
        pass
    raise ArrayTypeError.broken(
        argument, shown(dtype), "it names no element type", f"Pass {_NAMES_SHOWN}"
    )


def _unsupported(dtype: np.dtype[np.generic], argument: str) -> ArrayTypeError:
    if dtype.name.startswith(_SM_100_PREFIXES):
        return _needs_sm_100(dtype.name, argument)
    rule, remedy = _why_not(dtype)
    return ArrayTypeError.broken(argument, dtype, rule, remedy)


def _why_not(dtype: np.dtype[np.generic]) -> tuple[str, str]:
    if dtype.newbyteorder("=") in BY_DTYPE:
        return (
            "its bytes are in the other order than the GPU's",
            'Convert it: array.astype(array.dtype.newbyteorder("="))',
        )
    if dtype.kind == "c":
        return (
            "TMA has no complex numbers",
            f'View them as reals with a last dimension of 2: array.view("f{dtype.itemsize // 2}")',
        )
    if dtype.name in ("int1", "int2", "int4", "uint1", "uint2", "uint4"):
        return (
            "TMA has no integers below 8 bits",
            'Pack them into bytes yourself and pass dtype="uint8"',
        )
    if dtype.hasobject:
        return "its elements are Python objects", "Convert them: array.astype(numpy.float32)"
    return _no_map_type(dtype)


def _no_map_type(dtype: np.dtype[np.generic]) -> tuple[str, str]:
    if dtype.itemsize not in _CARRIER:
        return (
            f"no type of a tensor map has {dtype.itemsize} bytes (1, 2, 4 and 8 exist)",
            "Convert the array, or view it as smaller elements with one more dimension",
        )
    if dtype.type is np.void and dtype.fields is None and dtype.itemsize in _LIKELY:
        likely = " or ".join(f'dtype="{name}"' for name in _LIKELY[dtype.itemsize])
        return "the array does not say what its elements are", f"Pass {likely}"
    return (
        "tensor maps do not have this element type",
        f'To move the bits as they are, pass dtype="{_CARRIER[dtype.itemsize]}"',
    )


def _needs_sm_100(name: str, argument: str) -> ArrayTypeError:
    return ArrayTypeError.broken(
        argument,
        name,
        "the packed 4-bit and 6-bit types need sm_100 (Blackwell), and a function that takes them",
        'Pack them into bytes yourself and pass dtype="uint8", or use "float8_e4m3fn". Tiles of '
        'packed bytes take dtype="float4_e2m1fn" with arch="sm_100a"; ops.scaled_matmul multiplies '
        "them",
    )
