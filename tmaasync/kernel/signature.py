"""The parameters that a kernel's source declares, and the arguments that do not fit their types."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from tmaasync import _arrays
from tmaasync._arrays import ArrayView, is_contiguous
from tmaasync._compile import Source
from tmaasync._elements import ELEMENTS
from tmaasync._ragged.base import RaggedMap
from tmaasync._tile.argument import MapTile
from tmaasync.errors import LaunchError, Violation
from tmaasync.kernel.arguments import View
from tmaasync.tile import KernelArgument, Pointer

__all__ = ["Signature", "signature_of"]

_MAX_LAYOUTS = 256

# --- what a parameter takes -------------------------------------------------------------------


class _PointerParameter(NamedTuple):
    """A parameter such as ``const float* x``; ``elements`` is None for void and unknown types."""

    text: str
    pointee: str
    is_const: bool
    elements: tuple[str, ...] | None

    def violations(self, argument: str, view: View) -> Iterator[Violation]:
        """Yield what makes an array unfit for this pointer."""
        if not isinstance(view, ArrayView):
            return
        if self.elements is not None and view.element.name not in self.elements:
            yield self._wrong_element(argument, view, self.elements[0])
        if view.read_only and not self.is_const:
            yield Violation(
                argument,
                "a read-only array",
                f"the kernel declares `{self.text}`, through which it may write",
                f"Declare const {self.pointee}* if it only reads. {_WRITABLE[view.framework]}",
            )
        if not is_contiguous(view):
            yield Violation(
                argument,
                f"an array of shape {view.shape} with strides of {view.strides_bytes} bytes",
                f"it is not contiguous, and `{self.text}` is an address without strides",
                f"Pass a contiguous {self._array(view)}, a tile, or "
                "tmaasync.tile.StridedTensor(array). If the kernel gets the strides in another "
                "argument, pass tmaasync.Pointer(array), which is not checked",
            )

    def _array(self, view: ArrayView) -> str:
        return f"copy ({_CONTIGUOUS[view.framework]})" if self.is_const else "array"

    def _wrong_element(self, argument: str, view: ArrayView, wanted: str) -> Violation:
        is_torch = view.framework == "torch"
        convert = f"array.to(torch.{wanted})" if is_torch else f"array.astype({wanted!r})"
        const = "const " if self.is_const else ""
        return Violation(
            argument,
            f"an array of {view.element}",
            f"the kernel declares `{self.text}`, whose elements are {wanted}",
            f"Convert it, {convert}, or declare {const}{view.element.cuda_type}*. To read the same "
            "bytes as another type on purpose, pass array.view(dtype) or tmaasync.Pointer(array)",
        )


_WRITABLE = dict.fromkeys(
    ("numpy", "cupy", "torch", "other"), "Otherwise pass a writable array, such as a copy"
) | {"jax": "JAX arrays are immutable: write into a CuPy array, and pass it to JAX by DLPack"}
_ALWAYS_WRITABLE = ("cupy", "torch")
_CONTIGUOUS = {
    "numpy": "numpy.ascontiguousarray(array)",
    "cupy": "cupy.ascontiguousarray(array)",
    "torch": "array.contiguous()",
    "jax": "array.copy()",
    "other": "a copy made by its library",
}


class _ValueParameter(NamedTuple):
    """A parameter such as ``const __grid_constant__ Tile tile``.

    ``type_name`` and ``cuda_type`` are None where the host supplied no type of a tile.
    ``is_stored`` holds where the entry itself calls a store or a reduction of the parameter.
    """

    text: str
    is_grid_constant: bool
    is_stored: bool
    type_name: str | None
    cuda_type: str | None

    def violations(self, argument: str, view: View) -> Iterator[Violation]:
        """Yield what makes a tile unfit: its type, or where its tensor map would lie."""
        if not isinstance(view, KernelArgument) or isinstance(view, Pointer):
            return
        if isinstance(view, MapTile | RaggedMap) and not self.is_grid_constant:
            yield Violation(
                argument,
                f"a {type(view).__name__}",
                f"the kernel declares `{self.text}`, a copy of the tensor map in local memory, "
                "where TMA cannot read it",
                f"Declare const __grid_constant__ {_without_const(self.text)}",
            )
        if self.cuda_type is not None and _compared(view.cuda_type) != _compared(self.cuda_type):
            yield self._other_type(argument, view)

    def read_only(self, argument: str, view: View) -> Iterator[Violation]:
        """Yield a tile of a read-only array, to which the kernel stores."""
        if not isinstance(view, MapTile | RaggedMap):
            return
        if view.framework in _ALWAYS_WRITABLE or not _arrays.view(view.array).read_only:
            return
        yield Violation(
            argument,
            "a tile of a read-only array",
            f"the kernel stores to `{self.text}`",
            _WRITABLE[view.framework],
        )

    def _other_type(self, argument: str, view: KernelArgument) -> Violation:
        return Violation(
            argument,
            f"a {type(view).__name__} of type {view.cuda_type}",
            f"the kernel declares `{self.text}` and was built with "
            f"{self.type_name} = {self.cuda_type}",
            "Pass a tile of that type (the same tile shape, box, swizzle and element type; the "
            f"array may differ), or build a Kernel with types={{{self.type_name!r}: tile}} for "
            "this one",
        )


def _compared(cuda_type: str) -> str:
    """Return a type in one spelling; a kernel may read a `BulkTile` as elements of any type."""
    plain = _SPACE.sub(r"\1", cuda_type)
    return _BULK_ELEMENT.sub("BulkTile<", plain)


_SPACE = re.compile(r"\s*([<>,])\s*")
_BULK_ELEMENT = re.compile(r"BulkTile<[^,]*,")


# --- the check --------------------------------------------------------------------------------


class _Checked(NamedTuple):
    position: int
    parameter: _PointerParameter | _ValueParameter
    fitting: set[object]


class Signature:
    """The types of a kernel's parameters, compared with the arguments of every launch.

    A layout that fitted before is not compared again: a launch costs one look-up an argument.
    """

    def __init__(self, parameters: Sequence[_PointerParameter | _ValueParameter | None]) -> None:
        self._count = len(parameters)
        self._checked = [
            _Checked(position, parameter, set())
            for position, parameter in enumerate(parameters)
            if parameter is not None
        ]

    def check(self, seen: Sequence[View]) -> None:
        """Compare the views of the arguments with the declared types.

        Raises:
            LaunchError: A tile or array has another type, or an array must not be written or is
                not contiguous; every argument that does not fit is reported.
        """
        if len(seen) != self._count:  # reported with the compiled parameters
            return
        found: list[Violation] = []
        for position, parameter, fitting in self._checked:
            view = seen[position]
            if view is None:
                continue
            key = view[1:7] if isinstance(view, ArrayView) else view.cuda_type
            if key not in fitting:
                wrong = list(parameter.violations(f"args[{position}]", view))
                found += wrong
                if not wrong:
                    _remember(fitting, key)
            if isinstance(parameter, _ValueParameter) and parameter.is_stored:
                found += parameter.read_only(f"args[{position}]", view)
        LaunchError.raise_for(found)


def _remember(fitting: set[object], key: object) -> None:
    if len(fitting) >= _MAX_LAYOUTS:
        fitting.clear()
    fitting.add(key)


# --- the declaration --------------------------------------------------------------------------

_COMMENT = re.compile(r"//[^\n]*|/\*.*?\*/", re.DOTALL)
_ATTRIBUTE = re.compile(
    r"__grid_constant__|__restrict__|__restrict|\bvolatile\b|\bstruct\b|\[\[[^\]]*\]\]"
)
_USING = re.compile(r"^using (\w+) = (.*);$", re.MULTILINE)
_DEFINED = re.compile(
    r"\b(?:using\s+(\w+)\s*=|(?:struct|enum\s+class|class|union|enum|namespace)\s+(\w+)"
    r"|typename\s+(\w+)\s*[,>=]|typedef\b[^;]*?(\w+)\s*;)|^\s*#\s*define\s+(\w+)",
    re.MULTILINE,
)
_NAME_AT_END = re.compile(r"^(.*[\s*&>])(\w+)\s*((?:\[\s*\w*\s*\])?)$", re.DOTALL)


def signature_of(source: Source, name: str) -> Signature:
    """Read the parameter list of the entry ``name``.

    Names of types are looked up in what the host supplied. A parameter of a type that the source
    itself defines, of a macro or of a template stays unchecked; so does every one of an entry that
    the source declares in several forms.
    """
    text = _COMMENT.sub(" ", source.text)
    supplied = dict(_USING.findall(source.preamble))
    own = {name for found in _DEFINED.findall(text) for name in found if name}
    known = {name: given for name, given in supplied.items() if name not in own}
    forms = {
        tuple(_parameter(one, known, own, stored) for one in declared)
        for declared, stored in _parameter_lists(text, name)
    }
    return Signature(forms.pop() if len(forms) == 1 else ())


_Stored = frozenset[str]
_STORE = re.compile(r"\b(\w+)\s*\.\s*(?:async_store|async_reduce)\w*\s*[(<]")


def _parameter_lists(text: str, name: str) -> Iterator[tuple[list[str], _Stored]]:
    """Yield the parameters of every declaration of a ``__global__`` function.

    With them come the names whose stores its body calls.
    """
    for found in re.finditer(rf"__global__[^;{{}}]*?\b{re.escape(name)}\s*\(", text):
        yield _split(text, found.end()), frozenset(_STORE.findall(_body(text, found.end())))


def _body(text: str, start: int) -> str:
    """Return the first braces after a position, with what they enclose."""
    depth = 0
    for found in re.finditer(r"[{};]", text[start:]):
        depth += {"{": 1, "}": -1, ";": 0}[found[0]]
        if not depth:
            return text[start : start + found.end()]
    return ""


def _split(text: str, start: int) -> list[str]:
    """Return what stands between a bracket and its end, cut at its commas."""
    depth, begin, parts = 0, start, []
    for position in range(start, len(text)):
        sign = text[position]
        if sign in "(<[{":
            depth += 1
        elif sign in ")>]}":
            depth -= 1
        if depth < 0 or (sign == "," and not depth):
            parts.append(text[begin:position].strip())
            begin = position + 1
        if depth < 0:
            break
    return [part for part in parts if part]


def _parameter(
    text: str, known: Mapping[str, str], own: set[str], stored: _Stored
) -> _PointerParameter | _ValueParameter | None:
    """Return what one declaration takes; None where only the compiler knows."""
    shown = " ".join(text.split())
    bare = _ATTRIBUTE.sub(" ", text.partition("=")[0]).strip()
    if "(" in bare or "#" in bare:
        return None
    named = _NAME_AT_END.match(bare)
    kind = (named[1] + ("*" if named[3] else "") if named else bare).strip()
    if "*" in kind:
        return _pointer(shown, kind, known, own)
    declared = _without_const(kind)
    if declared not in known and not _MAP_OR_ARRAY.fullmatch(declared):
        return None
    is_grid_constant = "__grid_constant__" in text
    is_stored = named is not None and named[2] in stored
    return _ValueParameter(shown, is_grid_constant, is_stored, *_resolved(declared, known))


def _pointer(text: str, kind: str, known: Mapping[str, str], own: set[str]) -> _PointerParameter:
    target, _, _ = kind.rpartition("*")
    is_const = bool(re.search(r"\bconst\b", target.rpartition("*")[2]))
    if "*" in target:
        return _PointerParameter(text, _without_const(target), is_const, _POINTEES["u64"])
    pointee = _without_const(target)
    plain = known.get(pointee, pointee).removeprefix("::")
    plain = re.sub(r"^(?:tmaasync|std|cuda::std)::", "", plain)
    elements = None if plain in own else _POINTEES.get(plain)
    return _PointerParameter(text, pointee, is_const, elements)


def _without_const(kind: str) -> str:
    return " ".join(re.sub(r"\bconst\b", " ", kind).split())


_MAP_OR_ARRAY = re.compile(r"(?:(?:tmaasync::)?(?:ptx::)?TensorMap|CUtensorMap|.*Array\s*<.*>)")
_ARRAY_OF = re.compile(r"(?:tmaasync::)?TMATensorTileArray\s*<\s*(\w+)\s*>")


def _resolved(declared: str, known: Mapping[str, str]) -> tuple[str, str] | tuple[None, None]:
    """Return the name of a tile's type and the type, if the host supplied it."""
    array = _ARRAY_OF.fullmatch(declared)
    name = array[1] if array else declared
    cuda_type = known.get(name)
    if cuda_type is None or not _is_tile_type(cuda_type):
        return None, None
    return name, f"tmaasync::TMATensorTileArray<{cuda_type}>" if array else cuda_type


# --- the names of types in CUDA C++ -----------------------------------------------------------

_BYTES = tuple(row.name for row in ELEMENTS if row.itemsize == 1)
_FLOAT = tuple(row.name for row in ELEMENTS if row.cuda_type in ("float", "tmaasync::tfloat32"))
# Signed and unsigned integers of one width may alias in C++. NumPy and CuPy store bfloat16 and FP8
# as unsigned integers where ml_dtypes is not in use.
_READ_AS = {
    _BYTES: "unsigned char, char, uint8_t, u8, byte",
    ("int8", "uint8"): "signed char, int8_t, i8",
    ("bool", "uint8"): "bool",
    ("int16", "uint16"): "short, int16_t, i16, short int",
    ("uint16", "int16"): "unsigned short, uint16_t, u16, unsigned short int",
    ("int32", "uint32"): "int, int32_t, i32, signed int, signed",
    ("uint32", "int32"): "unsigned, unsigned int, uint32_t, u32",
    ("int64", "uint64"): "long long, int64_t, i64, long, long long int, long int, ptrdiff_t",
    ("uint64", "int64"): "unsigned long long, uint64_t, u64, unsigned long, size_t, uintptr_t, "
    "unsigned long long int, unsigned long int",
    ("float16",): "__half, half, float16",
    ("bfloat16", "uint16"): "__nv_bfloat16, nv_bfloat16, bfloat16",
    ("float8_e4m3fn", "uint8"): "__nv_fp8_e4m3, float8_e4m3",
    ("float8_e5m2", "uint8"): "__nv_fp8_e5m2, float8_e5m2",
    _FLOAT: "float, tfloat32",
    ("float64",): "double",
}
_POINTEES = {name: read for read, names in _READ_AS.items() for name in names.split(", ")}

_WORDS = "|".join(sorted({re.escape(row.cuda_type) for row in ELEMENTS}, key=len, reverse=True))
_TILE_TYPE = re.compile(
    rf"tmaasync::(\w+)<((?:{_WORDS}|tmaasync::(?:\w+<|Swizzle::k\w+|CachePolicy::\w+)"
    r"|0x[0-9a-f]+|\d+|true|false|>|,\s*)+)>"
)
# A type in the host's spelling has all its arguments; by hand some can be left to their defaults.
_ARGUMENT_COUNTS = {
    "TMATensorTile": 4,
    "TMATensorTileIm2col": 5,
    "RaggedTensorMap": 5,
    "RaggedTMA3DTile": 5,
    "SplitLastDimTMATensorTile": 5,
}


def _is_tile_type(cuda_type: str) -> bool:
    """True for a type in the spelling of a tile's ``cuda_type``, which can be compared."""
    found = _TILE_TYPE.fullmatch(cuda_type)
    if found is None:
        return False
    count = len(_split(cuda_type, cuda_type.index("<") + 1))
    return count >= _ARGUMENT_COUNTS.get(found[1], 1)
