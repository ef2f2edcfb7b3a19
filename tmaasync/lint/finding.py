"""A rule's finding in a kernel."""

from __future__ import annotations

from dataclasses import dataclass

from tmaasync.lint.ptx import Location


@dataclass(frozen=True, slots=True)
class Finding:
    """A mistake: the rule, the ``__global__`` function, the line, the reason and the remedy.

    ``location`` is the innermost source line outside the headers of the library and of CUDA; None
    where the compiler gives no line.
    """

    rule: str
    function: str
    location: Location | None
    reason: str
    remedy: str

    def __str__(self) -> str:
        where = f"{self.location}: " if self.location else ""
        return f"{where}{self.rule} in {self.function}: {self.reason} {self.remedy}"
