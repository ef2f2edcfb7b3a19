"""Every rule over every kernel of a source."""

from __future__ import annotations

from collections.abc import Iterator

from tmaasync._source.compile import Assembly, Source, assemble, nvrtc_include_dirs
from tmaasync._source.paths import include_dir
from tmaasync.errors import ArgumentError
from tmaasync.lint import compiler, tcgen05
from tmaasync.lint.finding import Finding
from tmaasync.lint.ptx import Function, entries

RULES = (
    compiler.SETMAXNREG,
    compiler.CLAIM,
    compiler.SERIALISED,
    compiler.SPILL,
    compiler.ARRAY,
    tcgen05.UNFINISHED,
)


def check(source: Source, arch: str, entry: str | None = None) -> list[Finding]:
    """Return every rule's findings in a source, in the order of its lines. Needs no GPU.

    Args:
        source: The source to compile.
        arch: The architecture, such as ``"sm_90a"``.
        entry: The ``__global__`` function to check; by default every one of the source.

    Raises:
        ArgumentError: It has no function of that name, or none at all.
        CompileError: It does not compile.
        BackendError: There is no NVRTC.
    """
    assembly = assemble(source, arch)
    known = ", ".join(assembly.entries) or "none"
    if entry is not None and entry not in assembly.entries:
        raise ArgumentError.broken(
            "entry",
            f"{entry!r}",
            f"{source.name} has no __global__ function of that name",
            f"It has: {known}",
        )
    if not assembly.entries:
        raise ArgumentError(
            f"{source.name} has no __global__ function, so there is nothing to check. Pass a "
            "source with a kernel; a template has to be instantiated."
        )
    return sorted(_findings(assembly, entry), key=_order)


def _findings(assembly: Assembly, entry: str | None) -> Iterator[Finding]:
    """Yield one finding of each rule for each line: unrolling and inlining repeat lines."""
    names = {compiled.symbol: name for name, compiled in assembly.entries.items()}
    for function in entries(assembly.ptx, hidden=(include_dir(), *nvrtc_include_dirs())):
        name = names[function.name]
        if entry in (None, name):
            found = [*_of(function, assembly, name)]
            first = {(one.rule, one.location): one for one in reversed(found)}
            yield from first.values()


def _of(function: Function, assembly: Assembly, name: str) -> Iterator[Finding]:
    yield from compiler.advice(function, assembly.log)
    yield from compiler.claims(function, assembly.entries[name], assembly.log)
    yield from compiler.memory(function, assembly.entries[name])
    yield from tcgen05.unfinished(function)


def _order(finding: Finding) -> tuple[str, int, str]:
    at = finding.location
    return (at.file, at.line, finding.rule) if at else ("", 0, finding.rule)
