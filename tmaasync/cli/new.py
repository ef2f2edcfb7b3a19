"""``new``: the files of a kernel to start from."""

from __future__ import annotations

import keyword
import re
import sys
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from tmaasync.errors import ArgumentError, BackendError

_TEMPLATES = Path(__file__).parent / "templates"
_NAME = "my_kernel"
"""Stands in the templates, and in their files' names, for the name of the kernel."""

# Keywords of C++20. Python's come from its module `keyword`.
_CPP_KEYWORDS = (
    "alignas alignof asm auto bool case catch char char16_t char32_t char8_t co_await co_return "
    "co_yield concept const const_cast consteval constexpr constinit decltype default delete do "
    "double dynamic_cast enum explicit export extern false float friend goto inline int long "
    "mutable namespace new noexcept nullptr operator private protected public register "
    "reinterpret_cast requires short signed sizeof static static_assert "
    "static_cast struct switch template this thread_local throw true typedef typeid typename "
    "union unsigned using virtual void volatile wchar_t"
)


class Kind(StrEnum):
    """What a new kernel resembles: a folder of templates."""

    GEMM = "gemm"
    ATTENTION = "attention"
    COPY = "copy"
    REDUCE = "reduce"


def new(
    kind: Annotated[Kind, typer.Argument(help="What the kernel resembles.")],
    name: Annotated[str, typer.Argument(help="The name of the kernel and of its files.")],
) -> None:
    """Write a kernel to start from: its .cu, a .py and a test, which run on the CPU at once."""
    texts = _texts(kind)
    _check_name(name, texts)
    files = {
        Path(path.replace(_NAME, name)): text.replace(_NAME, name) for path, text in texts.items()
    }
    _check_absent(name, files)
    for path, text in files.items():
        _write(path, text)
    typer.echo(_next_steps(name))


def _texts(kind: Kind) -> dict[str, str]:
    folder = _TEMPLATES / kind
    return {
        file: (folder / file).read_text(encoding="utf-8")
        for file in (f"{_NAME}.cu", f"{_NAME}.py", f"test_{_NAME}.py")
    }


def _check_name(name: str, texts: dict[str, str]) -> None:
    words = {word for text in texts.values() for word in re.findall(r"\w+", text)} - {_NAME}
    if not (name.isascii() and name.isidentifier()):
        rule = "it must be an identifier of C: letters, digits and underscores, no digit first"
    elif name in _CPP_KEYWORDS.split() or keyword.iskeyword(name) or keyword.issoftkeyword(name):
        rule = "C++ or Python has this keyword"
    elif name in sys.stdlib_module_names:
        rule = f"{name}.py would hide the module of Python's library"
    elif name in words:
        rule = "the files use this word for something else"
    else:
        return
    raise ArgumentError.broken(
        "name", f"{name!r}", f"{rule}", f"Pass another, such as {_suggestion(name)}"
    )


def _suggestion(name: str) -> str:
    """Return a legal name that resembles this one.

    >>> _suggestion("row-norms"), _suggestion("2d"), _suggestion("copy")
    ('row_norms', 'my_2d', 'my_copy')
    """
    letters = re.sub(r"[^A-Za-z0-9_]+", "_", name).strip("_")
    if letters in ("", name) or letters[0].isdigit():
        return f"my_{letters or 'kernel'}".replace("my_my_", "my_")
    return letters


def _check_absent(name: str, files: dict[Path, str]) -> None:
    present = [str(path) for path in files if path.exists()]
    if present:
        raise ArgumentError.broken(
            "name",
            f"{name!r}",
            f"{', '.join(present)}: in this folder already, and nothing is overwritten",
            "Pass another name, or run in another folder",
        )


def _write(path: Path, text: str) -> None:
    try:
        with path.open("x", encoding="utf-8") as file:
            file.write(text)
    except OSError as error:
        raise BackendError(
            f"{path} cannot be written ({error.strerror}). Run in a folder that you can write to."
        ) from None


def _next_steps(name: str) -> str:
    steps = {
        f"python {name}.py": "run it on NumPy arrays, on the CPU",
        f"pytest test_{name}.py": "compare it with NumPy, also in other orders of its threads",
        f"python {name}.py --gpu": "run it on a Hopper GPU, on CuPy arrays",
        f"tmaasync lint {name}.py": "find spills and lost speed, without a GPU",
    }
    width = max(map(len, steps))
    lines = [f"  {command:{width}}  {what}" for command, what in steps.items()]
    written = f"{name}.cu, {name}.py and test_{name}.py are written. Next:"
    return "\n".join([written, *lines])
