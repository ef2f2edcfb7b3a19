"""The inputs of a build and of a launch, the same for every back end."""

from __future__ import annotations

import functools
import logging
from dataclasses import dataclass, replace
from typing import NamedTuple

from tmaasync._collectors import CollectorOf
from tmaasync._forks import cached_property
from tmaasync._source.cache_folder import cache_dir, current_path, made_once
from tmaasync._source.compile import Program, Source, compile_source, header_texts
from tmaasync._source.entries import check_entry, declaring_text
from tmaasync._source.includes import digest
from tmaasync._source.program import entries_of
from tmaasync.errors import ArgumentError
from tmaasync.kernel.launch import Extents
from tmaasync.kernel.signature import Signature, signature_of

TRACE_OPTIONS = ("--define-macro=TMAASYNC_TRACE=1",)
"""Compiler options of a traced build for a GPU."""

_LOG = logging.getLogger("tmaasync")


@dataclass(frozen=True)
class Recipe:
    """The inputs from which every back end builds a kernel.

    Attributes:
        source: Text, preamble and options.
        name: The entry function.
        arch: The architecture to compile for; None lets the device and the source decide.
        budget_seconds: Maximum duration of a wait; None in a release build.
        collector_of: Returns the trace collector of a launch, at launch time.
    """

    source: Source
    name: str
    arch: str | None
    budget_seconds: float | None
    collector_of: CollectorOf

    @cached_property
    def signature(self) -> Signature:
        """The parameters as the source declares them; a module declares neither types nor const."""
        if self.source.is_ptx:
            return Signature(())
        return signature_of(self.source, self.name)

    def program(self, arch: str, *, is_traced: bool = False) -> Program:
        """Compile for a GPU, or take the result from the cache.

        Remarks of the assembler are logged, except for debug and traced builds, which are slower
        anyway.
        """
        source = self.source
        if source.expression:  # for which NVRTC would print its own error messages
            headers = functools.partial(header_texts, source)
            declaring = declaring_text(source.text, self.name, headers)
            check_entry(declaring, source.name, self.name)
        if is_traced:
            source = replace(source, options=(*source.options, *TRACE_OPTIONS))
        program = _module(source, arch) if source.is_ptx else compile_source(source, arch)
        if self.name not in program.entries:
            known = ", ".join(program.entries) or "none"
            kind = ".entry" if source.is_ptx else "__global__ function"
            raise ArgumentError.broken(
                "name",
                f"{self.name!r}",
                f"{source.name} has no {kind} of that name",
                f"It has: {known}",
            )
        if not is_traced and self.budget_seconds is None:
            for remark in program.remarks:
                _LOG.warning("%s: the assembler reports: %s", source.name, remark)
        return program


def _module(source: Source, arch: str) -> Program:
    """Return a PTX module as a program: the driver compiles it when it is loaded."""
    text = source.text.encode()
    path = current_path(cache_dir(), digest(text), ".ptx")
    made_once(path, lambda: text, {"source": source.name})
    return Program(path, arch, entries_of(source.text, "", "", ""), "")


class LaunchRequest(NamedTuple):
    """The arguments of `Kernel.prepare`, except the kernel's arguments."""

    grid: Extents
    block: Extents
    cluster: Extents | None
    shared_mem: int | None
    pdl: bool
    cooperative: bool = False
    emulated_device: int | None = None
