"""What the emulator reports of a planted defect."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from emulate.planted.defects import Defect, Reported
from emulate.planted.kernels import KERNELS, text_of

from tmaasync import (
    ArgumentError,
    CompileError,
    EmulatedDeadlock,
    EmulatedFault,
    EmulatedRace,
    EmulatedTimeout,
    LaunchError,
)
from tmaasync.errors import TMAError

_CLASSES: dict[Reported, tuple[type[Exception], ...]] = {
    "race": (EmulatedRace,),
    "deadlock": (EmulatedDeadlock,),
    "fault": (EmulatedFault,),
    "timeout": (EmulatedTimeout,),
    "compile": (CompileError,),
    "argument": (ArgumentError, LaunchError, TypeError),
}
_PLACE = re.compile(r"kernel\.cu:(\d+)")


def planted(defect: Defect) -> str:
    """Return the kernel's text with the defect."""
    text = text_of(defect.kernel)
    if defect.host is not None:
        return text
    assert text.count(defect.old) == defect.times, defect.key
    return text.replace(defect.old, defect.new)


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
        expected: tuple[type[Exception], ...] = sum(
            (_CLASSES[each] for each in self.defect.reported), ()
        )
        return isinstance(self.error, expected)

    @property
    def lines(self) -> list[str]:
        """The lines of the kernel that the report names."""
        lines = self.text.splitlines()
        numbers = map(int, _PLACE.findall(str(self.error)))
        return [lines[number - 1].strip() for number in numbers if number <= len(lines)]

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
    text, job = planted(defect), KERNELS[defect.kernel]()
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
