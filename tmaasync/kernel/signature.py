"""Read a kernel's parameter types from its source, and check arguments against them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import NamedTuple

from tmaasync._arrays import ArrayView, is_contiguous
from tmaasync._elements import ELEMENTS
from tmaasync._kinds import shown
from tmaasync._source.compile import Parameter, Source
from tmaasync._source.declarations import Code, declared, end_of, named_types, variables
from tmaasync._source.entries import Declaration, declarations, function_name
from tmaasync._source.tokens import closing, joined, parts, spelled, tokens, words
from tmaasync._tile.argument import KernelArgument, MapArgument, MapTile
from tmaasync._tile.pointer import Pointer
from tmaasync.errors import ArrayTypeError, CompileError, LaunchError, Violation
from tmaasync.kernel.arguments import View

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
_CONTIGUOUS = {
    "numpy": "numpy.ascontiguousarray(array)",
    "cupy": "cupy.ascontiguousarray(array)",
    "torch": "array.contiguous()",
    "jax": "array.copy()",
    "other": "a copy made by its library",
}


class _ValueParameter(NamedTuple):
    """A parameter such as ``const __grid_constant__ Tile tile``.

    ``type_name``, the tile type ``supplied`` for it, and the ``cuda_type`` of the parameter are
    None unless the host supplied a tile type.
    """

    text: str
    is_grid_constant: bool
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


def _without_const(text: str) -> str:
    return " ".join(word for word in text.split() if word != "const")


def _is_same(cuda_type: str, other: str) -> bool:
    # Only a type given as text can have another spelling.
    return cuda_type == other or _compared(cuda_type) == _compared(other)


def _compared(cuda_type: str) -> list[str]:
    """Return the words of a type, without the element type of a `BulkTile`.

    A kernel may read the tile's bytes as any element type.
    """
    code = tokens(cuda_type)
    found = words(code)
    if "BulkTile" not in found:
        return found
    at = found.index("BulkTile") + 1
    return found[:at] + [word for part in parts(code, at)[1:] for word in words(part)]


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
            raise LaunchError.broken(argument, given, rule, remedy) from None

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
        LaunchError.raise_for(found)


# --- the declaration --------------------------------------------------------------------------

_Declared = _PointerParameter | _ValueParameter | _NumberParameter | _ReferenceParameter


def signature_of(source: Source, expression: str) -> Signature:
    """Read the parameter list of the entry, which may be an instance such as ``fill<float, 8>``.

    Type names are looked up among the host's types and the instance's arguments. A parameter whose
    type is defined by the source or by a macro is not checked. If the source declares the entry
    with different parameter lists, no parameter is checked.
    """
    found = [one for one in declarations(source.text) if one.name == function_name(expression)]
    if not found:
        return Signature(())
    code = tokens(source.text)
    supplied = _supplied(source)
    instance = _instance(found, expression)
    own = _defined(code) - instance.keys()
    supplied |= {name: supplied.get(given, given) for name, given in instance.items()}
    known = {name: given for name, given in supplied.items() if name not in own}
    line = source.text.count("\n", 0, found[0].start) + 1
    types = _Types(known, own, _aliases(code, supplied, known), f"{source.name}:{line}")
    forms = {tuple(_parameter(one, types) for one in each.parameters) for each in found}
    return Signature(forms.pop() if len(forms) == 1 else ())


def _supplied(source: Source) -> dict[str, str]:
    """Return the host's types by name."""
    return {name: spelled(target) for name, target in named_types(tokens(source.preamble))}


def _defined(code: Code) -> set[str]:
    """Return the names of the types and macros that a text defines."""
    found = {name for name, _ in named_types(code)}
    for (word, *_), (name, *_), (after, *_) in zip(code, code[1:], code[2:], strict=False):
        if word in _DEFINING or (word == "typename" and after in (",", ">", "=")):
            found.add(name)
    return found


_DEFINING = ("struct", "class", "union", "enum", "namespace", "define")


def _instance(found: Sequence[Declaration], expression: str) -> dict[str, str]:
    """Return the template's type parameters with the instance's types."""
    named = tokens(expression)
    template = next((one.template for one in found if one.template), [])
    at = end_of(named, 0, "<")
    given = [spelled(one) for one in parts(named, at)] if at < len(named) else []
    if not given or len(given) > len(template) or any("..." in spelled(one) for one in template):
        return {}
    types = {}
    for position, one in enumerate(template):
        argument = given[position] if position < len(given) else spelled(one[3:])
        is_type = one[0].text in ("class", "typename") and words(one[2:3]) in ([], ["="])
        if is_type and len(one) > 1 and argument:
            types[one[1].text] = argument
    return types


def elements_of_variable(source: Source, name: str) -> tuple[str, ...] | None:
    """Return the element types that may fill a variable of the source; None if unknown.

    They are unknown for a struct, a type that the source defines, and a name of several variables.
    """
    code = tokens(source.text)
    own = _defined(code)
    known = {name: given for name, given in _supplied(source).items() if name not in own}
    types, wanted = _Types(known, own, {}, source.name), name.rpartition("::")[2]
    kinds = {
        joined(word for word in variable.kind if word not in _QUALIFIERS)
        for variable, _ in variables(code, ("__constant__", "__device__", "__managed__"))
        if variable.name == wanted
    }
    return _POINTEES.get(types.plain(kinds.pop())) if len(kinds) == 1 else None


_QUALIFIERS = ("static", "extern", "inline", "const")


class _Types(NamedTuple):
    """Type names: supplied by the host, defined by the source, and aliases of the host's types."""

    known: Mapping[str, str]
    own: set[str]
    aliases: Mapping[str, list[str]]
    position: str  # file and line of the entry

    def plain(self, kind: str) -> str:
        """Return a type's name without namespaces; "" for a type that the source defines."""
        name = self.known.get(kind, kind)
        for namespace in ("::", "tmaasync::", "cuda::", "std::"):
            name = name.removeprefix(namespace)
        return "" if name in self.own else name


def _aliases(
    code: Code, supplied: Mapping[str, str], known: Mapping[str, str]
) -> dict[str, list[str]]:
    """Return the source's aliases for the host's types, or for arrays of the host's tiles.

    A name that is defined twice, or also supplied by the host, is left to the compiler.
    """
    found: dict[str, list[list[str]]] = {}
    for alias, given in named_types(code):
        found.setdefault(alias, []).append(words(given))
    aliases: dict[str, list[str]] = {}
    for alias, targets in found.items():
        target = aliases.get(joined(targets[0]), targets[0])
        name = _element_of_array(target) or joined(target)
        if len(targets) == 1 and alias not in supplied and name in known:
            aliases[alias] = target
    return aliases


def _parameter(code: Code, types: _Types) -> _Declared | None:
    """Return the parameter of a declaration; None if only the compiler can know its type."""
    text = spelled(code)
    bare, _, is_array = declared(words(code))
    kind = [word for one in bare for word in types.aliases.get(one, [one])] + ["*"] * is_array
    if kind[-1:] == ["&"]:
        return _ReferenceParameter(text, types.position)
    if "*" in kind:
        return _pointer(text, kind, types)
    kind = [word for word in kind if word != "const"]
    number = _KINDS.get(types.plain(joined(kind)))
    if number is not None:
        return _NumberParameter(text, number)
    name = joined(kind)
    if name not in types.known and name not in _MAPS and "Array<" not in name:
        return None
    is_grid_constant = "__grid_constant__" in words(code)
    type_name, supplied, cuda_type = _resolved(kind, types.known)
    return _ValueParameter(text, is_grid_constant, type_name, supplied, cuda_type, types.position)


_MAPS = (
    "CUtensorMap",
    "TensorMap",
    "ptx::TensorMap",
    "tmaasync::TensorMap",
    "tmaasync::ptx::TensorMap",
)


def _pointer(text: str, kind: list[str], types: _Types) -> _PointerParameter:
    last = len(kind) - 1 - kind[::-1].index("*")
    target = kind[:last]
    is_const = "const" in joined(target).rpartition("*")[2].split()
    pointee = joined(word for word in target if word != "const")
    elements = _POINTEES["u64"] if "*" in target else _POINTEES.get(types.plain(pointee))
    return _PointerParameter(text, pointee, is_const, elements)


def _resolved(
    kind: list[str], known: Mapping[str, str]
) -> tuple[str, str, str] | tuple[None, None, None]:
    """Return a name, the tile type that the host supplied for it, and the parameter's own type."""
    element = _element_of_array(kind)
    name = element or joined(kind)
    cuda_type = known.get(name)
    if cuda_type is None or not _is_tile_type(cuda_type):
        return None, None, None
    own = f"tmaasync::TMATensorTileArray<{cuda_type}>" if element else cuda_type
    return name, cuda_type, own


def _element_of_array(kind: Sequence[str]) -> str:
    """Return T of TMATensorTileArray<T>; an empty string for other types."""
    whole = joined(kind).removeprefix("tmaasync::")
    is_array = whole.startswith("TMATensorTileArray<") and len(kind) in (4, 6)
    return kind[-2] if is_array else ""


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

_WORDS = {"tmaasync", "true", "false"}.union(*(words(tokens(row.cuda_type)) for row in ELEMENTS))
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
    code = tokens(cuda_type)
    texts = words(code)
    if texts[:2] != ["tmaasync", "::"] or texts[3:4] != ["<"] or closing(code, 3) != len(code) - 1:
        return False
    is_known = all(
        word in _WORDS or before == "::" or not word.isidentifier()
        for before, word in pairwise(texts)
    )
    return is_known and len(parts(code, 3)) >= _ARGUMENT_COUNTS.get(texts[2], 1)
