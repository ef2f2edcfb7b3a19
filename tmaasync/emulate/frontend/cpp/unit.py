"""The translation unit of a kernel: the source, its entry, and constants for the host."""

from __future__ import annotations

import re

from tmaasync._comments import without_comments
from tmaasync._compile import Source
from tmaasync._entries import function_name, template_of

__all__ = ["EXPORTED", "translation_unit"]


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
_OWN_INTEGERS = re.compile(
    r"\btypedef\s+[\w\s]+?\b(u?int(?:8|16|32|64|ptr)_t)\s*;"
    r"|\busing\s+(u?int(?:8|16|32|64|ptr)_t)\s*="
)
_HEADERS_WITH_INTEGERS = re.compile(r"#\s*include\s*<(?:cuda/|cooperative_groups|tmaasync/)")


def _own_integers(text: str) -> tuple[str, ...]:
    """Return the names of <cstdint> that the source defines and its headers do not need."""
    bare = without_comments(text)
    if _HEADERS_WITH_INTEGERS.search(bare):
        return ()
    return tuple(dict.fromkeys(one or other for one, other in _OWN_INTEGERS.findall(bare)))


EXPORTED = {
    "__launch_bounds__": ("tmaasync_emulate_max_threads", "tmaasync_emulate_min_blocks"),
    "__cluster_dims__": tuple(f"tmaasync_emulate_cluster_{side}" for side in "xyz"),
}
_VALUE = r"((?:[^(),]|\([^()]*\))+)"
_BLOCK_SIZE = re.compile(r"__block_size__\s*\(\s*\(([^()]*)\)\s*(?:,\s*\(([^()]*)\))?\s*\)")


def _spelled_out(block_size: re.Match[str]) -> str:
    """Expand ``__block_size__((x, y, z), (x, y, z))`` into threads and clusters."""
    sides, cluster = block_size.groups()
    bounds = f"__launch_bounds__(({sides.replace(',', ')*(')}))"
    return f"{bounds} __cluster_dims__({cluster})" if cluster else bounds


def _attributes(text: str, name: str) -> str:
    """Return constants with the values of the entry's __launch_bounds__ and __cluster_dims__."""
    bare = _BLOCK_SIZE.sub(_spelled_out, without_comments(text))
    function = function_name(name)
    found = re.search(rf"__global__[^;{{}}]*?\b{re.escape(function)}\s*\(", bare)
    lines = []
    for attribute, constants in EXPORTED.items():
        more = rf"(?:,{_VALUE})?" * (len(constants) - 1)
        values = found and re.search(rf"{attribute}\s*\({_VALUE}{more}", found[0])
        lines += [
            _exported(constant, value, text, name)
            for constant, value in zip(
                constants, values.groups("1") if values else (), strict=False
            )
        ]
    return "".join(lines)


def _exported(constant: str, value: str, text: str, name: str) -> str:
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
    return (
        f'{head}extern "C" {{ extern const int __attribute__((visibility("default"))) {constant}; '
        f"const int {constant} = ({value}); }}\n"
    )
