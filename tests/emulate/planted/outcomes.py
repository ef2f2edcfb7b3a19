"""What the emulator reports of a planted defect."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from emulate.planted.kernels import KERNELS, text_of
from planted import Defect, lines_named

from tmaasync.errors import TMAError


@dataclass(frozen=True, slots=True)
class Outcome:
    """One launch of a kernel with a defect: the error, or whether the result was right."""

    defect: Defect
    text: str
    error: TMAError | None
    is_right: bool

    @property
    def is_found(self) -> bool:
        return self.error is not None

    @property
    def has_class(self) -> bool:
        return isinstance(self.error, self.defect.reported)

    @property
    def lines(self) -> list[str]:
        """The lines of the kernel that the report names."""
        return lines_named(self.text, str(self.error))

    @property
    def has_line(self) -> bool:
        return self.is_found and (
            not self.defect.line or any(self.defect.line in line for line in self.lines)
        )

    @property
    def has_words(self) -> bool:
        return self.is_found and bool(
            re.search(self.defect.says, str(self.error), re.DOTALL | re.IGNORECASE)
        )


def outcome(defect: Defect) -> Outcome:
    """Launch the kernel with the defect once, as it is scheduled here."""
    text, job = defect.plant(text_of(defect.kernel)), KERNELS[defect.kernel]()
    if defect.host is not None:
        defect.host(job)
    try:
        job.run(text)
    except TMAError as error:
        return Outcome(defect, text, error, False)
    return Outcome(defect, text, None, job.is_right())


def schedules() -> list[dict[str, Any]]:
    """Return the schedules in which a defect is looked for until one finds it."""
    return [
        {},
        *({"policy": "random", "seed": seed} for seed in range(3)),
        *({"policy": "adversarial", "seed": seed} for seed in range(2)),
    ]
