"""Initialisers of ``__shared__`` variables, which CUDA C++ does not allow and C++ compilers do."""

from __future__ import annotations

import re

from tmaasync._comments import without_comments
from tmaasync._compile import Source
from tmaasync.errors import CompileError

__all__ = ["refuse_shared_initializers"]

_INITIALIZED = re.compile(
    r"\b__shared__\b(?:\s*(?:alignas|__align__)\s*\([^)]*\))*"
    r"(?P<type>[^;{}()=]*?[\s&*>,])(?P<name>\w+)\s*(?:\[[^\]]*\]\s*)*[={]"
)
# "struct Point {" and "struct {" begin the type of a variable.
_BEGINS_TYPE = re.compile(r"\b(?:struct|class|union|enum)\s*$")


def refuse_shared_initializers(source: Source) -> None:
    """Raise a CompileError for the first ``__shared__`` variable with an initialiser, as nvcc does.

    Only the source itself is searched, not its headers.
    """
    bare = without_comments(source.text)
    for found in _INITIALIZED.finditer(bare):
        is_type = _BEGINS_TYPE.search(found["type"]) or _BEGINS_TYPE.fullmatch(found["name"])
        if not is_type:
            line = bare.count("\n", 0, found.start("name")) + 1
            message = (
                f"{source.name}:{line} initialises the __shared__ variable {found['name']}: an "
                "initializer is not allowed for a __shared__ variable. Assign it in the kernel, "
                "then call __syncthreads()."
            )
            raise CompileError(message, message)
