"""Read a kernel's parameter types from its source, and check arguments against them."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from tmaasync import _arrays
from tmaasync._arrays import ArrayView, is_contiguous
from tmaasync._comments import without_comments
from tmaasync._compile import Parameter, Source
from tmaasync._elements import ELEMENTS
from tmaasync._entries import function_name, template_of
from tmaasync._kinds import shown
from tmaasync._tile.argument import KernelArgument, MapArgument, MapTile
from tmaasync._tile.array import TMATensorTileArray
from tmaasync._tile.pointer import Pointer
from tmaasync.errors import ArrayTypeError, CompileError, LaunchError, Violation
from tmaasync.kernel.arguments import View

__all__ = ["Signature", "elements_of_variable", "signature_of"]

# --- kinds of parameters ----------------------------------------------------------------------


class _PointerParameter(NamedTuple):
    """A parameter such as ``const float* x``; ``elements`` is None for void and unknown types."""

    text: str
    pointee: str
    is_const: bool
    elements: tuple[str, ...] | None

    def violations(self, argument: str, view: View) -> Iterator[Violation]:
        """Yield the rules that an array breaks for this pointer."""
        if not isinstance(view, ArrayView):
            return
        if self.elements is not None and view.element.name not in self.elements:
            yield self._wrong_element(argument, view, self.elements[0])
        if view.read_only and not self.is_const:
            yield Violation(
                argument,
                "a read-only array",
                f"the kernel declares `{self.text}`, through which it may write",
                f"{_WRITABLE[view.framework]}, or declare const {self.pointee}* if the kernel only "
                "reads",
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
    ("numpy", "cupy", "torch", "other"), "Pass a writable array, such as a copy"
) | {"jax": "JAX arrays are immutable: write into a CuPy array, and pass it to JAX by DLPack"}
_ALWAYS_WRITABLE = ("cupy", "torch")
_CONTIGUOUS = {
    "numpy": "numpy.ascontiguousarray(array)",
    "cupy": "cupy.ascontiguousarray(array)",
    "torch": "array.contiguous()",
    "jax": "array.copy()",
    "other": "a copy made by its library",
}


_Indices = frozenset[str]


class _ValueParameter(NamedTuple):
    """A parameter such as ``const __grid_constant__ Tile tile``.

    ``type_name``, the tile type ``supplied`` for it, and the ``cuda_type`` of the parameter are
    None unless the host supplied a tile type. ``stored`` holds the indices with which the entry,
    or a function that it calls, stores to the parameter.
    """

    text: str
    is_grid_constant: bool
    stored: _Indices
    type_name: str | None
    supplied: str | None
    cuda_type: str | None
    position: str

    @property
    def is_array(self) -> bool:
        return "TMATensorTileArray<" in (self.cuda_type or self.text)

    def violations(self, argument: str, view: View) -> Iterator[Violation]:
        """Yield a mismatch of a tile's type, or of its tensor map's memory."""
        if not isinstance(view, KernelArgument) or isinstance(view, Pointer):
            return
        if self.is_array and isinstance(view, MapTile):
            yield Violation(
                argument,
                f"a {type(view).__name__}",
                f"the kernel declares `{self.text}`, an array of tiles",
                "Pass TMATensorTileArray([tile])",
            )
            return
        if isinstance(view, MapArgument) and not self.is_grid_constant:
            yield Violation(
                argument,
                f"a {type(view).__name__}",
                f"the kernel declares `{self.text}` at {self.position}, a copy of the tensor map "
                "in local memory, where TMA cannot read it",
                f"Declare const __grid_constant__ {_without_const(self.text)}",
            )
        if self.cuda_type is not None and not _is_same(view.cuda_type, self.cuda_type):
            yield self._other_type(argument, view)

    def read_only(self, argument: str, view: View) -> Iterator[Violation]:
        """Yield a violation if the kernel stores to a tile of a read-only array."""
        if isinstance(view, TMATensorTileArray):
            yield from self._read_only_tiles(argument, list(view))
        elif isinstance(view, MapArgument) and _is_read_only(view):
            yield self._not_writable(argument, view)

    def _read_only_tiles(
        self, argument: str, tiles: Sequence[KernelArgument]
    ) -> Iterator[Violation]:
        """Yield the read-only tiles at literal indices, or the first if no tile is writable."""
        read_only = [index for index, tile in enumerate(tiles) if _is_read_only(tile)]
        named = {int(index) for index in self.stored if index.isdecimal()}
        if len(named) < len(self.stored) and len(read_only) == len(tiles):
            named.update(read_only[:1])
        for index in sorted(named.intersection(read_only)):
            yield self._not_writable(f"{argument}[{index}]", tiles[index])

    def _not_writable(self, argument: str, tile: KernelArgument) -> Violation:
        return Violation(
            argument,
            "a tile of a read-only array",
            f"the kernel stores to `{self.text}`",
            _WRITABLE[tile.framework],
        )

    def _other_type(self, argument: str, view: KernelArgument) -> Violation:
        return Violation(
            argument,
            f"a {type(view).__name__} of type {view.cuda_type}",
            f"the kernel declares `{self.text}` and was built with "
            f"{self.type_name} = {self.supplied}",
            "Pass a tile of that type (the same tile shape, box, swizzle and element type; the "
            f"array may differ), or build a Kernel with types={{{self.type_name!r}: tile}} for "
            "this one",
        )


class _NumberParameter(NamedTuple):
    """A parameter such as ``int n``; `pack` checks its kind, as defined in `Parameter`."""

    text: str
    kind: str


class _ReferenceParameter(NamedTuple):
    text: str
    position: str


def _is_read_only(tile: KernelArgument) -> bool:
    if tile.framework in _ALWAYS_WRITABLE:
        return False
    return _arrays.view(tile.array).read_only


def _is_same(cuda_type: str, other: str) -> bool:
    # Only a type given as text can have another spelling; that comparison takes 30 us.
    return cuda_type == other or _compared(cuda_type) == _compared(other)


def _compared(cuda_type: str) -> str:
    """Return a type in canonical spelling; a kernel may read a `BulkTile` as any element type."""
    plain = _SPACE.sub(r"\1", cuda_type)
    return _BULK_ELEMENT.sub("BulkTile<", plain)


_SPACE = re.compile(r"\s*([<>,])\s*")
_BULK_ELEMENT = re.compile(r"BulkTile<[^,]*,")


# --- the check --------------------------------------------------------------------------------


class Signature:
    """The declared parameter types of a kernel, which every launch checks its arguments against."""

    def __init__(self, parameters: Sequence[_Declared | None]) -> None:
        self._count = len(parameters)
        self._declared = parameters
        self._kinds = {
            position: parameter.kind
            for position, parameter in enumerate(parameters)
            if isinstance(parameter, _NumberParameter)
        }
        self._checked = [
            (position, f"args[{position}]", parameter)
            for position, parameter in enumerate(parameters)
            if isinstance(parameter, _PointerParameter | _ValueParameter)
        ]

    def typed(self, parameters: Sequence[Parameter]) -> Sequence[Parameter]:
        """Return the compiled parameters, with the signedness that the source declares."""
        if len(parameters) != self._count:
            return parameters
        return [
            replace(one, kind=self._kinds[position])
            if position in self._kinds and one.kind in "us"
            else one
            for position, one in enumerate(parameters)
        ]

    def refuse_references(self) -> None:
        """Refuse parameters that are references, as the CUDA C++ Programming Guide does.

        nvcc and NVRTC compile them as pointers.

        Raises:
            CompileError: A parameter is a reference.
        """
        for parameter in self._declared:
            if isinstance(parameter, _ReferenceParameter):
                message = (
                    f"{parameter.position} declares `{parameter.text}`, a reference; the "
                    "parameters of a __global__ function are passed by value. Declare it without &."
                )
                raise CompileError(message, message)

    def explain(self, error: ArrayTypeError, args: Sequence[object]) -> None:
        """Raise an error with the declared type, if it is not an array that the kernel takes there.

        Args:
            error: What `views` raised for one of the arguments.
            args: The arguments.
        """
        for position, parameter in enumerate(self._declared):
            argument = f"args[{position}]"
            if argument not in {violation.argument for violation in error.violations}:
                continue
            if isinstance(parameter, _NumberParameter):
                rule, remedy = _NUMBERS.get(parameter.kind, ("a number", "Pass an int"))
            elif isinstance(parameter, _ValueParameter) and parameter.is_array:
                rule, remedy = "an array of tiles", "Pass TMATensorTileArray([tile, ...])"
            else:
                return
            rule = f"the kernel's parameter `{parameter.text}` is {rule}"
            given = shown(args[position])
            raise LaunchError.of([Violation(argument, given, rule, remedy)]) from None

    def check(self, seen: Sequence[View]) -> None:
        """Check the views of the arguments against the declared types.

        Raises:
            LaunchError: A tile or array has another type, or an array is read-only or not
                contiguous; every mismatch is reported.
        """
        if len(seen) != self._count:  # `pack` reports it
            return
        found: list[Violation] = []
        for position, argument, parameter in self._checked:
            view = seen[position]
            if view is None:
                continue
            found += parameter.violations(argument, view)
            if isinstance(parameter, _ValueParameter) and parameter.stored:
                found += parameter.read_only(argument, view)
        LaunchError.raise_for(found)


# --- the declaration --------------------------------------------------------------------------

_Declared = _PointerParameter | _ValueParameter | _NumberParameter | _ReferenceParameter

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


def signature_of(source: Source, expression: str) -> Signature:
    """Read the parameter list of the entry, which may be an instance such as ``fill<float, 8>``.

    Type names are looked up among the host's types and the instance's arguments. A parameter whose
    type is defined by the source or by a macro is not checked. If the source declares the entry
    with different parameter lists, no parameter is checked.
    """
    name = function_name(expression)
    text = without_comments(source.text)
    supplied = dict(_USING.findall(source.preamble))
    own = _defined(text)
    instance = _instance(text, name, expression)
    supplied |= {name: supplied.get(given, given) for name, given in instance.items()}
    own -= instance.keys()
    known = {name: given for name, given in supplied.items() if name not in own}
    first = re.search(rf"\b{re.escape(name)}\s*\(", text)
    line = text.count("\n", 0, first.start()) + 1 if first else 1
    types = _Types(known, own, _aliases(text, supplied, known), f"{source.name}:{line}")
    forms = {
        tuple(_parameter(one, types, stored) for one in declared)
        for declared, stored in _parameter_lists(text, name)
    }
    return Signature(forms.pop() if len(forms) == 1 else ())


def _defined(text: str) -> set[str]:
    """Return the names of the types that a text without comments defines."""
    return {name for found in _DEFINED.findall(text) for name in found if name}


def _instance(text: str, name: str, expression: str) -> dict[str, str]:
    """Return the template's type parameters with the instance's types."""
    parameters = template_of(text, name)
    if parameters is None or "<" not in expression:
        return {}
    given = _split(expression, expression.index("<") + 1)
    declared = _split(parameters + ">", 0)
    if any("..." in one for one in declared) or len(given) > len(declared):
        return {}
    found = {}
    for position, one in enumerate(declared):
        named, _, default = one.partition("=")
        kind = re.fullmatch(r"(?:class|typename)\s+(\w+)\s*", named)
        argument = given[position] if position < len(given) else default.strip()
        if kind and argument:
            found[kind[1]] = argument
    return found


_VARIABLE = (
    r"__(?:constant|device|managed)__\s+"
    r"(?:(?:__\w+__|static|extern|inline|volatile|const|alignas\([^)]*\))\s+)*"
    r"([\w:\s]+?)\s+{}\s*(?:\[[^;\]]*\]\s*)*[;=]"
)


def elements_of_variable(source: Source, name: str) -> tuple[str, ...] | None:
    """Return the element types that may fill a variable of the source; None if unknown.

    They are unknown for a struct, a type that the source defines, and a name of several variables.
    """
    text = without_comments(source.text)
    own = _defined(text)
    supplied = dict(_USING.findall(source.preamble))
    known = {name: given for name, given in supplied.items() if name not in own}
    types = _Types(known, own, {}, source.name)
    pattern = _VARIABLE.format(re.escape(name.rpartition("::")[2]))
    kinds = {_without_const(found[1]) for found in re.finditer(pattern, text)}
    return _POINTEES.get(types.plain(kinds.pop())) if len(kinds) == 1 else None


class _Types(NamedTuple):
    """Type names: supplied by the host, defined by the source, and aliases of the host's types."""

    known: Mapping[str, str]
    own: set[str]
    aliases: Mapping[str, str]
    position: str  # file and line of the entry

    def plain(self, kind: str) -> str:
        """Return a type's name without namespaces; "" for a type that the source defines."""
        name = self.known.get(kind, kind).removeprefix("::")
        name = re.sub(r"^(?:tmaasync|std|cuda::std)::", "", name)
        return "" if name in self.own else name

    def without_aliases(self, kind: str) -> str:
        """Return a declared type with the source's aliases replaced by the host's names."""
        return re.sub(r"\w+", lambda word: self.aliases.get(word[0], word[0]), kind)


_ALIAS = re.compile(
    r"(\btemplate\s*<[^;{}]*>\s*)?"
    r"(?:\busing\s+(\w+)\s*=\s*([^;]+);|\btypedef\s+([^;]+?)\s+(\w+)\s*;)"
)


def _aliases(text: str, supplied: Mapping[str, str], known: Mapping[str, str]) -> dict[str, str]:
    """Return the source's aliases for the host's types, or for arrays of the host's tiles.

    A name that is defined twice, or also supplied by the host, is left to the compiler.
    """
    found: dict[str, set[str]] = {}
    for template, using, target, typedef_target, typedef in _ALIAS.findall(text):
        given = "" if template else (target or typedef_target).strip()
        found.setdefault(using or typedef, set()).add(given)
    aliases: dict[str, str] = {}
    for alias, targets in found.items():
        target = aliases.get(*targets, *targets) if len(targets) == 1 else ""
        array = _ARRAY_OF.fullmatch(target)
        if alias not in supplied and (array[1] if array else target) in known:
            aliases[alias] = target
    return aliases


# --- tiles to which the kernel stores ---------------------------------------------------------

_Stored = Mapping[str, _Indices]
_INDEX = r"(?:\[((?:[^\[\]]|\[[^\[\]]*\])*)\])?"
_STORE = re.compile(
    rf"\b(\w+)\s*{_INDEX}\s*\.\s*(?:template\s+)?(?:async_store|async_reduce)\w*\s*[(<]"
)
# Store functions of tma.cuh; their first argument is the tensor map.
_RAW_STORE = re.compile(
    rf"\btma_(?:store|reduce)\s*(?:<[^;{{}}()]*>)?\s*\(\s*(\w+)\s*{_INDEX}\s*(?:\.\s*map)?\s*,"
)
# Store methods of `Epilogue`; their second argument is the output.
_EPILOGUE_STORE = re.compile(r"\.\s*(?:template\s+)?(?:store|reduce)\s*(?:<[^;{}()]*>)?\s*\(")
_TILE_ARGUMENT = re.compile(rf"&?\s*(\w+)\s*{_INDEX}")
_CALL = r"\b{}\s*(?:<[^;{{}}()]*>)?\s*\("
_FUNCTION = re.compile(r"__device__[^;{}()]*?\b(\w+)\s*\(")


def _parameter_lists(text: str, name: str) -> Iterator[tuple[list[str], _Stored]]:
    """Yield the parameters of every declaration of a ``__global__`` function.

    Each comes with the names to which the function stores, and their indices.
    """
    helpers = _storing_functions(text)
    for found in re.finditer(rf"__global__[^;{{}}]*?\b{re.escape(name)}\s*\(", text):
        body = _body(text, found.end())
        stored: dict[str, _Indices] = {}
        for tile, index in (*_stored_in(body), *_stored_by_helpers(body, helpers)):
            stored[tile] = stored.get(tile, frozenset()) | {index.strip()}
        yield _split(text, found.end()), stored


def _stored_in(body: str) -> Iterator[tuple[str, str]]:
    """Yield the names to which code stores, each with an index or an empty string."""
    yield from _STORE.findall(body)
    yield from _RAW_STORE.findall(body)
    for call in _EPILOGUE_STORE.finditer(body):
        output = _TILE_ARGUMENT.fullmatch((*_split(body, call.end()), "", "")[1])
        if output and "Epilogue" in body[: call.start()]:
            yield output[1], output[2] or ""


def _storing_functions(text: str) -> dict[str, frozenset[int]]:
    """Return the device functions that store to a tile parameter, with the parameter positions."""
    functions: dict[str, frozenset[int]] = {}
    for found in _FUNCTION.finditer(text):
        body = _body(text, found.end())
        if not body:
            continue
        stored = {tile for tile, _ in _stored_in(body)}
        names = [_NAME_AT_END.match(one) for one in _split(text, found.end())]
        positions = frozenset(i for i, name in enumerate(names) if name and name[2] in stored)
        functions[found[1]] = positions & functions.get(found[1], positions)
    return {name: positions for name, positions in functions.items() if positions}


def _stored_by_helpers(
    body: str, helpers: Mapping[str, frozenset[int]]
) -> Iterator[tuple[str, str]]:
    for helper, positions in helpers.items():
        for call in re.finditer(_CALL.format(helper), body):
            for position, argument in enumerate(_split(body, call.end())):
                tile = _TILE_ARGUMENT.fullmatch(argument)
                if position in positions and tile:
                    yield tile[1], tile[2] or ""


def _body(text: str, start: int) -> str:
    """Return the first braced block after a position, including its braces."""
    depth = 0
    for found in re.finditer(r"[{};]", text[start:]):
        depth += {"{": 1, "}": -1, ";": 0}[found[0]]
        if not depth:
            return text[start : start + found.end()]
    return ""


def _split(text: str, start: int) -> list[str]:
    """Split the contents of a bracket at its top-level commas."""
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


def _parameter(text: str, types: _Types, stored: _Stored) -> _Declared | None:
    """Parse one parameter declaration; None if only the compiler can know its type."""
    on_one_line = " ".join(text.split())
    bare = _ATTRIBUTE.sub(" ", text.partition("=")[0]).strip()
    if "(" in bare or "#" in bare:
        return None
    named = _NAME_AT_END.match(bare)
    kind = (named[1] + ("*" if named[3] else "") if named else bare).strip()
    if kind.endswith("&"):
        return _ReferenceParameter(on_one_line, types.position)
    kind = types.without_aliases(kind)
    if "*" in kind:
        return _pointer(on_one_line, kind, types)
    declared = _without_const(kind)
    number = _KINDS.get(types.plain(declared))
    if number is not None:
        return _NumberParameter(on_one_line, number)
    if declared not in types.known and not _MAP_OR_ARRAY.fullmatch(declared):
        return None
    indices = stored.get(named[2], frozenset()) if named else frozenset()
    is_grid_constant = "__grid_constant__" in text
    type_name, supplied, cuda_type = _resolved(declared, types.known)
    return _ValueParameter(
        on_one_line, is_grid_constant, indices, type_name, supplied, cuda_type, types.position
    )


def _pointer(text: str, kind: str, types: _Types) -> _PointerParameter:
    target, _, _ = kind.rpartition("*")
    is_const = bool(re.search(r"\bconst\b", target.rpartition("*")[2]))
    if "*" in target:
        return _PointerParameter(text, _without_const(target), is_const, _POINTEES["u64"])
    pointee = _without_const(target)
    return _PointerParameter(text, pointee, is_const, _POINTEES.get(types.plain(pointee)))


def _without_const(kind: str) -> str:
    return " ".join(re.sub(r"\bconst\b", " ", kind).split())


_MAP_OR_ARRAY = re.compile(r"(?:(?:tmaasync::)?(?:ptx::)?TensorMap|CUtensorMap|.*Array\s*<.*>)")
_ARRAY_OF = re.compile(r"(?:tmaasync::)?TMATensorTileArray\s*<\s*(\w+)\s*>")


def _resolved(
    declared: str, known: Mapping[str, str]
) -> tuple[str, str, str] | tuple[None, None, None]:
    """Return a name, the tile type that the host supplied for it, and the parameter's own type."""
    array = _ARRAY_OF.fullmatch(declared)
    name = array[1] if array else declared
    cuda_type = known.get(name)
    if cuda_type is None or not _is_tile_type(cuda_type):
        return None, None, None
    own = f"tmaasync::TMATensorTileArray<{cuda_type}>" if array else cuda_type
    return name, cuda_type, own


# --- type names in CUDA C++ -------------------------------------------------------------------

_BYTES = tuple(row.name for row in ELEMENTS if row.itemsize == 1)
_FLOAT = tuple(row.name for row in ELEMENTS if row.cuda_type in ("float", "tmaasync::tfloat32"))
_NUMBERS = {"f": ("a number", "Pass a float"), "t": ("a bool", "Pass True or False")}
# In C++ signed and unsigned integers of one width may alias. Without ml_dtypes, NumPy and CuPy
# store bfloat16 and FP8 as unsigned integers.
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
# Number types, as kinds of `Parameter`. A plain char may be signed or unsigned.
_KIND_OF = {"int": "i", "uint": "n", "bool": "t"}
_KINDS = {"unsigned char": "n", "uint8_t": "n", "u8": "n", "float": "f", "double": "f"} | {
    name: _KIND_OF[kind]
    for elements, names in _READ_AS.items()
    if elements != _BYTES and (kind := elements[0].rstrip("0123456789")) in _KIND_OF
    for name in names.split(", ")
}

_WORDS = "|".join(sorted({re.escape(row.cuda_type) for row in ELEMENTS}, key=len, reverse=True))
_TILE_TYPE = re.compile(
    rf"tmaasync::(\w+)<((?:{_WORDS}|tmaasync::(?:\w+<|Swizzle::k\w+|CachePolicy::\w+)"
    r"|0x[0-9a-f]+|\d+|true|false|>|,\s*)+)>"
)
# The host's spelling has all template arguments; hand-written types may omit defaults.
_ARGUMENT_COUNTS = {
    "TMATensorTile": 4,
    "TMATensorTileIm2col": 5,
    "RaggedTensorMap": 5,
    "RaggedTMA3DTile": 5,
    "SplitLastDimTMATensorTile": 5,
}


def _is_tile_type(cuda_type: str) -> bool:
    """Return whether a type has the spelling of a tile's ``cuda_type`` and so is comparable."""
    found = _TILE_TYPE.fullmatch(cuda_type)
    if found is None:
        return False
    count = len(_split(cuda_type, cuda_type.index("<") + 1))
    return count >= _ARGUMENT_COUNTS.get(found[1], 1)
