"""Every rule over every kernel of a source."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from tmaasync._source.compile import Assembly, Source, assemble, nvrtc_include_dirs
from tmaasync._source.paths import include_dir
from tmaasync.errors import ArgumentError
from tmaasync.lint import compiler, fences, maps, threads
from tmaasync.lint.code import Code, MemberName
from tmaasync.lint.finding import Finding
from tmaasync.lint.ptx import entries, shared_symbols

__all__ = ["RULES", "check"]

RULES = (
    maps.LOCAL,
    maps.UNFENCED,
    fences.STORE,
    fences.INIT,
    threads.EVERY_THREAD,
    threads.PENDING,
    compiler.SETMAXNREG,
    compiler.CLAIM,
    compiler.SERIALISED,
    compiler.SPILL,
    compiler.ARRAY,
)

_CODE_RULES = (
    maps.local_maps,
    maps.unfenced_maps,
    fences.unfenced_stores,
    fences.unfenced_barriers,
    threads.copies_by_all,
    threads.pending_groups,
)


def check(
    source: Source,
    arch: str,
    entry: str | None = None,
    names_of: Callable[[str], MemberName] = lambda function: lambda offset: None,
) -> list[Finding]:
    """Return every rule's findings in a source, in the order of its lines. Needs no GPU.

    Args:
        source: The source to compile.
        arch: The architecture, such as ``"sm_90a"``.
        entry: The ``__global__`` function to check; by default every one of the source.
        names_of: Returns the names that a function's dynamic shared memory has in the source.

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
    return sorted(_findings(assembly, entry, names_of), key=_order)


def _findings(
    assembly: Assembly, entry: str | None, names_of: Callable[[str], MemberName]
) -> Iterator[Finding]:
    """Yield one finding of each rule for each line: unrolling and inlining repeat lines."""
    shared = shared_symbols(assembly.ptx)
    names = {compiled.symbol: name for name, compiled in assembly.entries.items()}
    for function in entries(assembly.ptx, hidden=(include_dir(), *nvrtc_include_dirs())):
        name = names[function.name]
        if entry in (None, name):
            code = Code.of(function, shared, names_of(name))
            found = [*_of(code, assembly, name)]
            first = {(one.rule, one.location): one for one in reversed(found)}
            yield from first.values()


def _of(code: Code, assembly: Assembly, name: str) -> Iterator[Finding]:
    found = [one for rule in _CODE_RULES for one in rule(code)]
    yield from found
    yield from compiler.advice(code, assembly.log)
    yield from compiler.claims(code, assembly.entries[name], assembly.log)
    for one in compiler.memory(code, assembly.entries[name]):
        # A copied map is the array, and one finding for it is enough.
        if one.rule != compiler.ARRAY or all(other.rule != maps.LOCAL for other in found):
            yield one


def _order(finding: Finding) -> tuple[str, int, str]:
    at = finding.location
    return (at.file, at.line, finding.rule) if at else ("", 0, finding.rule)
