"""Make the compiler's input from the caller's source, types and constants."""

from __future__ import annotations

import contextlib
import numbers
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

import numpy as np

from tmaasync._elements import ELEMENTS, SHORT_NAMES, element
from tmaasync._hardware import HOPPER, INT32_LIMIT, MAX_SHARED_BYTES
from tmaasync._kinds import is_integer, is_number_in, shown
from tmaasync._source.compile import Source, target_of
from tmaasync._source.includes import ComputedIncludeError, reached, text_of
from tmaasync._source.paths import find_kernel, include_dir
from tmaasync._source.program import entries_of, is_ptx
from tmaasync._source.tokens import without_comments
from tmaasync._tile.argument import KernelArgument, UnboundTile
from tmaasync.errors import ArgumentError, ArrayTypeError, BackendError, CompileError, Violation

_CONSUMER_MAJOR = 12
# Which chips have these instructions was read off ptxas 13.5 (tests/device/test_other_chips.py).
# Functions for tiles multiply with mma.sync where there is no wgmma; one instruction needs it.
_WGMMA = re.compile(r"\bwgmma\.(?!cuh)|\bptx(?:::|/)wgmma|\bwgmma_[rs]s_atom\b")
# Code that includes this header, directly or not, uses its instructions.
_TCGEN05_HEADER = "tmaasync/tcgen05.cuh"
_WITH_TCGEN05 = (10, 11)  # majors of compute capabilities


def read(source: str | Path) -> tuple[str, str, tuple[Path, ...]]:
    """Return a source's text, its name for messages, and the folder of its own headers.

    Raises:
        ArgumentError: There is no file of that name.
    """
    if isinstance(source, str) and _is_text(source):
        _require_utf8(source.encode("utf-8", "surrogatepass"), "the text")
        return source, "kernel.ptx" if is_ptx(source) else "kernel.cu", ()
    if not isinstance(source, str | os.PathLike):
        raise ArgumentError.broken(
            "source",
            f"{source!r}",
            "it must be a path or CUDA C++ text",
            "Pass the path of a .cu file, the name of a shipped kernel such as 'gemm.cu', or "
            "the text",
        )
    try:
        path = find_kernel(source)
    except (OSError, ValueError) as error:
        if isinstance(source, str) and _is_code(source):
            raise _without_entry(source) from None
        if isinstance(error, ArgumentError):
            raise
        raise ArgumentError.broken(
            "kernel",
            f"{str(source)[:40]!r}...",
            f"it is no path ({error})",
            "Pass a path, or CUDA C++ text, which has a line break or __global__",
        ) from None
    try:
        content = path.read_bytes()
    except OSError as error:
        raise ArgumentError.broken(
            "source",
            f"{str(path)!r}",
            f"it cannot be read ({error.strerror})",
            "Pass a file that can be read, or its text",
        ) from None
    return _require_utf8(content, shown(path.name)), _shown_name(path.name), (path.parent,)


def _shown_name(name: str) -> str:
    """Return a file's name for #line and for PTX, which have no escapes."""
    text = os.fsencode(name).decode("utf-8", "replace")  # in any locale
    shown = (letter if letter.isprintable() and letter not in '"\\' else "?" for letter in text)
    return "".join(shown)


def _require_utf8(content: bytes, what: str) -> str:
    """Return UTF-8 text with line breaks of one kind, as Python reads files."""
    try:
        text = content.decode()
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise ArgumentError.broken(
            "source",
            what,
            f"line {line} has the byte {content[error.start]:#x}, which is no UTF-8",
            "Save the source as UTF-8",
        ) from None
    return text.replace("\r\n", "\n").replace("\r", "\n")


def _is_code(text: str) -> bool:
    return any(sign in text for sign in "{};") or text.lstrip().startswith("#")


def _without_entry(text: str) -> ArgumentError:
    return ArgumentError(
        f"source is {text[:40]!r}{'...' * (len(text) > 40)}; it has no __global__ function, and no "
        'file has this name. Write extern "C" __global__ void name(...), or pass a path.'
    )


def _is_text(source: str) -> bool:
    """Return True for CUDA C++ text and False for a path."""
    return "\n" in source or "__global__" in source or source.lstrip().startswith("#include")


def source_of(
    source: str | Path,
    *,
    types: Mapping[str, object] | None = None,
    constants: Mapping[str, bool | int | float] | None = None,
    include_dirs: Iterable[str | Path] = (),
    options: Iterable[str] = (),
    names: Mapping[str, int] | None = None,
) -> Source:
    """Return the compiler's input for the arguments of `Kernel`.

    Raises:
        ArgumentError: The file does not exist, or a name or value has no C++ text.
    """
    given = {"types": types, "constants": constants}
    ArgumentError.raise_for(
        [
            *_mapping_violations(given),
            *_list_violations("include_dirs", include_dirs),
            *_list_violations("options", options),
            *_offset_violations(names),
        ]
    )
    include_dirs, options = tuple(include_dirs), tuple(options)
    ArgumentError.raise_for([*_folder_violations(include_dirs), *_option_violations(options)])
    text, label, folders = read(source)
    if module := is_ptx(text):
        _refuse_for_module(types=types, constants=constants, options=options)
    return Source(
        text=text,
        name=label,
        include_dirs=(*folders, *(Path(one).expanduser().absolute() for one in include_dirs)),
        options=options,
        preamble=preamble(types or {}, constants or {}),
        is_file=bool(folders),
        is_ptx=module,
        shared_names=tuple(sorted((offset, name) for name, offset in (names or {}).items())),
    )


def _refuse_for_module(**given: object) -> None:
    """Refuse arguments of the compiler, because a PTX module is compiled already."""
    ArgumentError.raise_for(
        Violation(argument, shown(value), "the source is a PTX module", "Leave it out")
        for argument, value in given.items()
        if value
    )


def default_name(source: Source) -> str:
    """Return the stem of a source's file, or the name of a PTX module's only entry.

    Raises:
        ArgumentError: The module has several entries, or none.
    """
    if not source.is_ptx:
        return Path(source.name).stem
    names = tuple(entries_of(source.text, "", "", ""))
    if len(names) == 1:
        return names[0]
    rule = f"{source.name} has {len(names)} entries"
    raise ArgumentError.broken("name", "None", rule, f"Pass one of: {', '.join(names) or 'none'}")


def _offset_violations(names: object) -> Iterator[Violation]:
    remedy = "Pass a dict, such as {'tile': 0, 'full[0]': 4096}"
    if names is not None and not isinstance(names, Mapping):
        yield Violation("names", shown(names), "it maps names to offsets in shared memory", remedy)
    for name, offset in names.items() if isinstance(names, Mapping) else ():
        is_offset = is_integer(offset) and 0 <= offset <= MAX_SHARED_BYTES
        if not isinstance(name, str) or not is_offset:
            rule = f"it maps a str to a number of bytes, from 0 to {MAX_SHARED_BYTES}"
            yield Violation(f"names[{name!r}]", shown(offset), rule, remedy)


def _mapping_violations(given: Mapping[str, object]) -> list[Violation]:
    return [
        Violation(
            argument,
            shown(value),
            "it maps names of the source to what they stand for",
            "Pass a dict, such as {'Tile': tile} or {'STAGES': 4}",
        )
        for argument, value in given.items()
        if value is not None and not isinstance(value, Mapping)
    ]


def _list_violations(argument: str, value: object) -> list[Violation]:
    """Reject values other than iterables, and strings, whose characters would be the items."""
    if isinstance(value, Iterable) and not isinstance(value, str | bytes):
        return []
    return [Violation(argument, shown(value), "it must be a list", f"Pass [{shown(value)}]")]


class from_the_call:  # noqa: N801 - used like a function
    """Let the traceback of a CompileError begin at the caller: the build's frames are ours."""

    # No contextmanager of contextlib, which puts the frames back.
    def __enter__(self) -> None:
        pass

    def __exit__(self, _kind: object, error: BaseException | None, _traceback: object) -> None:
        if isinstance(error, CompileError):
            raise error.with_traceback(None) from None


def check_names(**names: object) -> None:
    """Reject names that are neither None nor strings.

    Raises:
        ArgumentError: Lists each invalid name with its value.
    """
    ArgumentError.raise_for(
        Violation(argument, shown(name), "it must be a str", "Pass a name, or leave it out")
        for argument, name in names.items()
        if name is not None and not isinstance(name, str)
    )


def _folder_violations(include_dirs: Iterable[object]) -> list[Violation]:
    return [
        Violation(
            "include_dirs", shown(folder), "each is the path of a folder", "Pass a str or Path"
        )
        for folder in include_dirs
        if not isinstance(folder, str | os.PathLike)
    ]


def _option_violations(options: Iterable[object]) -> Iterator[Violation]:
    for option in options:
        if not isinstance(option, str):
            rule = "each is an option of NVRTC"
            yield Violation("options", shown(option), rule, "Pass a str, such as '-lineinfo'")


DEBUG_OPTIONS = ("--define-macro=TMAASYNC_DEBUG=1",)


def is_debug(asked: bool | None) -> bool:
    """Return the caller's ``debug``, else the environment variable's setting."""
    return os.environ.get("TMAASYNC_DEBUG", "0") not in ("", "0") if asked is None else asked


def preamble(types: Mapping[str, object], constants: Mapping[str, bool | int | float]) -> str:
    """Return CUDA C++ definitions of the host's types and constants.

    Raises:
        ArgumentError: A name is not an identifier, or a value has no C++ text.
    """
    lines = [
        f"using {_identifier('types', name)} = {_cuda_type(name, types[name])};" for name in types
    ]
    for name, value in constants.items():
        lines.append(f"constexpr {_constant(_identifier('constants', name), value)};")
    headers = "#include <tmaasync/tmaasync.cuh>\n#include <tmaasync/types.cuh>\n" if types else ""
    return headers + "".join(f"{line}\n" for line in lines)


def _identifier(argument: str, name: object) -> str:
    if not isinstance(name, str) or not (name.isidentifier() and name.isascii()):
        raise ArgumentError.broken(
            argument,
            f"the name {name!r}",
            "it must be a C++ identifier",
            "Use letters, digits and underscores",
            verb="has",
        )
    return name


# half, float and double stay C++ text, because in cuda_fp16.h half is CUDA's own type.
_CPP_NAMES = ("half", "float", "double")
_ELEMENT_TYPES = {
    name: element(name).cuda_type
    for name in (*map(str, ELEMENTS), *SHORT_NAMES)
    if name not in _CPP_NAMES
}


def _cuda_type(name: str, value: object) -> str:
    if isinstance(value, KernelArgument | UnboundTile):
        return value.cuda_type
    if isinstance(value, str):
        return _ELEMENT_TYPES.get(value, value)
    try:
        return element(value).cuda_type
    except ArrayTypeError as error:
        raise ArgumentError.broken(
            f"types[{name!r}]",
            shown(value),
            "it must be a tile, an element type or C++ text",
            "Pass what create_tma_tile returned, numpy.float16, or 'MyType<4>'",
        ) from error


_MAX_FLOAT32 = float(np.finfo(np.float32).max)


def _constant(name: str, value: object) -> str:
    if isinstance(value, bool | np.bool_):
        return f"bool {name} = {'true' if value else 'false'}"
    if isinstance(value, numbers.Integral):
        number = int(value)
        if -INT32_LIMIT <= number < INT32_LIMIT:
            return f"int {name} = {number}"
        if -(2**63) < number < 2**63:
            return f"long long {name} = {number}ll"
    elif is_number_in(value, -_MAX_FLOAT32, _MAX_FLOAT32):
        return f"float {name} = {float(value)!r}f"
    raise ArgumentError.broken(
        f"constants[{name!r}]",
        shown(value),
        "it must be a bool, a number that float32 holds, or an int of 64 bits",
        "Pass other things as kernel arguments or through types",
    )


def arch_for(source: Source, capability: tuple[int, int], device: str = "this device") -> str:
    """Return the architecture to compile a source for, on a device of this compute capability.

    It is architecture-specific (``sm_90a``, ``sm_100a``): machine code targets the present device,
    and headers such as CUTLASS's omit instructions that other targets do not assemble.

    Raises:
        BackendError: The source needs wgmma or tcgen05, and the device has none.
    """
    if capability != HOPPER and _WGMMA.search(_own_code(source)):
        raise _without_wgmma(source.name, capability, device)
    if capability[0] not in _WITH_TCGEN05 and _includes_tcgen05(source):
        raise without_tcgen05(source.name, capability, device)
    return f"sm_{capability[0]}{capability[1]}a"


def arch_without_device(source: Source) -> str:
    """Return the architecture to compile a source for, where no device is named.

    >>> arch_without_device(source_of("#include <tmaasync/tcgen05.cuh>"))
    'sm_100a'
    """
    return "sm_100a" if _includes_tcgen05(source) else "sm_90a"


def check_runs(arch: str, capability: tuple[int, int], device: str) -> None:
    """Check that machine code for an architecture runs on a device.

    ``sm_XY`` runs on X.Y and later minor versions, ``sm_XYa`` only on X.Y.

    Raises:
        ArgumentError: The code does not run on the device.
    """
    target = target_of(arch)
    if target is None:  # NVRTC rejects it
        return
    major, minor = divmod(target, 10)
    runs = major == capability[0] and minor <= capability[1]
    if not runs or (arch.endswith("a") and minor != capability[1]):
        raise ArgumentError.broken(
            "arch",
            f"{arch!r}",
            f"{device} has compute capability {capability[0]}.{capability[1]} and does not run "
            f"code for {arch}",
            "Leave arch out: kernels are compiled for the device of their arrays",
        )


def _without_wgmma(user: str, capability: tuple[int, int], device: str) -> BackendError:
    needed = "wgmma, the tensor core instructions of compute capability 9.0 alone"
    instead = "an H100 or H200, or on NumPy arrays, or multiply tiles with wgmma() or wgmma_tile()"
    return _without(user, needed, capability, device, instead)


def without_tcgen05(
    user: str, capability: tuple[int, int], device: str, otherwise: str = ""
) -> BackendError:
    """Return the error for a kernel or operation that needs tcgen05 on a device without it."""
    needed = "tcgen05, the tensor core instructions of compute capabilities 10.0 and 10.3"
    instead = 'a B200 or B300, or on NumPy arrays inside emulate.chip("sm_100a")'
    return _without(user, needed, capability, device, instead + otherwise)


def without_scale_factors(user: str, capability: tuple[int, int], device: str) -> BackendError:
    """Return the error for an operation that needs block-scaled MMAs on a device without them."""
    needed = "block-scaled MMAs, of compute capabilities 10.0, 10.3, 12.0 and 12.1"
    instead = 'a B200, B300 or RTX 50, or on NumPy arrays inside emulate.chip("sm_100a")'
    return _without(user, needed, capability, device, instead)


def _without(
    user: str, needed: str, capability: tuple[int, int], device: str, instead: str
) -> BackendError:
    own = "wgmma" if capability == HOPPER else "tcgen05"
    own = "mma.sync" if capability[0] == _CONSUMER_MAJOR else own
    return BackendError(
        f"{user} needs {needed}; {device} has compute capability {capability[0]}.{capability[1]}, "
        f"whose tensor cores take {own} instead. Run it on {instead}."
    )


def _includes_tcgen05(source: Source) -> bool:
    try:
        return include_dir() / _TCGEN05_HEADER in _headers_of(source)
    except ComputedIncludeError:
        return _TCGEN05_HEADER in _own_code(source)


def _headers_of(source: Source) -> tuple[Path, ...]:
    return tuple(reached(source.including_text, (include_dir(), *source.header_dirs)))


def _own_code(source: Source) -> str:
    """Return the text, the preamble and the caller's headers, without comments.

    The package's headers are left out, because they mention instructions that the kernel may not
    use.
    """
    texts = [source.preamble, source.text]
    with contextlib.suppress(ComputedIncludeError):
        headers = _headers_of(source)
        texts += [text_of(path) for path in headers if not path.is_relative_to(include_dir())]
    return without_comments("\n".join(texts))
