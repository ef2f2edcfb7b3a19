"""The translation unit of a kernel: the source, its entry, and constants for the host."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from tmaasync._source.compile import Source
from tmaasync._source.declarations import named_types
from tmaasync._source.entries import declarations, function_name, template_of
from tmaasync._source.includes import included
from tmaasync._source.tokens import parts, spelled, tokens
from tmaasync.emulate.chips import Chip
from tmaasync.emulate.frontend import ptx
from tmaasync.emulate.frontend.program import EXPORTED


def translation_unit(source: Source, name: str, declaring: str, *, has_asm: bool) -> str:
    """Return the C++ text to compile for one entry of a source."""
    own = _own_integers(source.text)
    renamed = "".join(f"#define {name} tmaasync_own_{name}\n" for name in own)
    kept = "".join(f"#undef {name}\n" for name in own)
    return (
        f"#include <tmaasync_emulate/{'inline_ptx' if has_asm else 'cuda'}.hpp>\n"
        f"{renamed}{source.including_text}\n{kept}"
        f'#line 1 "the entry of {source.name}"\n'
        f"TMAASYNC_EMULATE_ENTRY({name})\n"
        f"{_attributes(declaring, name)}"
    )


# NVRTC has no <cstdint>, so kernels define its names, differently from the host's compiler.
_INTEGERS = [f"{sign}int{bits}_t" for sign in ("", "u") for bits in (8, 16, 32, 64, "ptr")]
_HEADERS_WITH_INTEGERS = ("cuda/", "cooperative_groups", "tmaasync/")


def _own_integers(text: str) -> tuple[str, ...]:
    """Return the names of <cstdint> that the source defines and its headers do not need."""
    if any(one.name.startswith(_HEADERS_WITH_INTEGERS) for one in included(text)):
        return ()
    return tuple(dict.fromkeys(one for one, _ in named_types(tokens(text)) if one in _INTEGERS))


def _attributes(text: str, name: str) -> str:
    """Return constants with the values of the entry's __launch_bounds__ and __cluster_dims__."""
    function = function_name(name)
    found = next((one.attributes for one in declarations(text) if one.name == function), {})
    values = {attribute: list(map(spelled, given)) for attribute, given in found.items()}
    if sizes := [parts(one, 0) for one in found.get("__block_size__", ())]:
        block, *cluster = [list(map(spelled, sides)) for sides in sizes]
        values["__launch_bounds__"] = ["*".join(f"({side})" for side in block)]
        values |= {"__cluster_dims__": cluster[0]} if cluster else {}
    return "".join(
        _constant_of(constant, value, text, name) for constant, value in _constants(values)
    )


def _constants(values: Mapping[str, Sequence[str]]) -> Iterator[tuple[str, str]]:
    for attribute, constants in EXPORTED.items():
        if attribute in values:
            yield from zip(constants, (*values[attribute], "1", "1"), strict=False)


def module_unit(source: Source, name: str, chip: Chip) -> str:
    """Return the C++ text to compile for one entry of a PTX module."""
    code = ptx.module_code(source.text, source.name, name, chip)
    constants = (_exported(*one) for one in _constants(code.attributes))
    return f"{code.text}{''.join(constants)}"


def _constant_of(constant: str, value: str, text: str, name: str) -> str:
    """Return an exported constant, whose value may depend on the entry's template arguments."""
    function = function_name(name)
    scope, arguments = name.partition("<")[0].rpartition("::")[0], name.partition("<")[2]
    parameters = template_of(text, function)
    head = ""
    if scope or parameters is not None:
        template = f"template <{parameters}> " if parameters is not None else ""
        holder = f"{template}struct {constant}_of {{ static constexpr int value = ({value}); }};"
        head = f"namespace {scope} {{ {holder} }}\n" if scope else f"{holder}\n"
        value = f"::{scope}{'::' if scope else ''}{constant}_of{'<' + arguments}::value"
        if parameters is None:
            value = value.replace("<::value", "::value")
    return head + _exported(constant, value)


def _exported(constant: str, value: str) -> str:
    return (
        f'extern "C" {{ extern const int __attribute__((visibility("default"))) {constant}; '
        f"const int {constant} = ({value}); }}\n"
    )
