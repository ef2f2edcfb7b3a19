"""What the emulator reports of a planted defect."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from emulate.planted.defects import DEFECTS, SOUND
from emulate.planted.kernels import KERNELS, Build, text_of
from planted import Defect, lines_named
from planted_choices import choices

from tmaasync import Kernel
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


def with_defect(defect: Defect) -> Build:
    """Return what builds its kernel with the defect."""
    every = tuple(one for one in DEFECTS + SOUND if one.kernel == defect.kernel)
    found = choices(text_of(defect.kernel), every)

    def build(name: str, types: dict[str, Any]) -> Kernel:
        kernel = Kernel(found.text_with(defect), name, types=types)
        found.choose(kernel, defect)
        return kernel

    return build


def outcome(defect: Defect) -> Outcome:
    """Launch the kernel with the defect once, as it is scheduled here."""
    text, job = defect.plant(text_of(defect.kernel)), KERNELS[defect.kernel]()
    if defect.host is not None:
        defect.host(job)
    try:
        job.run(with_defect(defect))
    except TMAError as error:
        return Outcome(defect, text, error, False)
    return Outcome(defect, text, None, job.is_right())


def schedules() -> list[dict[str, Any]]:
    """Return the schedules in which a defect is looked for until one finds it."""
    return [
        {},
        *({"policy": "random", "seed": seed} for seed in range(2)),
        {"policy": "adversarial"},
    ]
