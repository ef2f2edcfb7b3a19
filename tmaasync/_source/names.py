"""Names in a kernel's source: ``ring.full[2]`` belongs to a stage, and warps have roles."""

from __future__ import annotations

from typing import NamedTuple

_MEMBERS = ("full", "empty", "stages", "side")


class RingPart(NamedTuple):
    """The barrier or the buffer of one stage.

    ``ring`` is the name of the struct that has the barriers, "" if it is the whole shared memory;
    ``member`` is ``full``, ``empty``, ``stages`` or ``side``.
    """

    ring: str
    member: str
    stage: int

    @property
    def stage_name(self) -> str:
        """The stage in a sentence: ``stage 2 of ring_k``."""
        return f"stage {self.stage} of {self.ring}" if self.ring else f"stage {self.stage}"

    def sibling(self, member: str) -> str:
        """Return the name of another member of the same stage."""
        return f"{self.ring}.{member}[{self.stage}]" if self.ring else f"{member}[{self.stage}]"


def ring_part(name: str | None) -> RingPart | None:
    """Return the part of a ring that a name stands for; None if it is no part of one.

    >>> ring_part("pipes.ring_k.empty[2]")
    RingPart(ring='pipes.ring_k', member='empty', stage=2)
    >>> ring_part("ring.stages[1].b").stage_name
    'stage 1 of ring'
    >>> ring_part("done")
    """
    steps = (name or "").split(".")
    for at, step in enumerate(steps):
        member, _, index = step.partition("[")
        number, _, inside = index.partition("]")
        if member in _MEMBERS and number.isdecimal():
            is_inside = bool(inside or steps[at + 1 :])
            if member in ("full", "empty") and is_inside:
                return None
            return RingPart(".".join(steps[:at]), member, int(number))
    return None


def element_of(name: str) -> tuple[str, int] | None:
    """Return the array and the index of an element's name; None for other names.

    >>> element_of("ring.full[2]"), element_of("done")
    (('ring.full', 2), None)
    """
    array, _, index = name.removesuffix("]").rpartition("[")
    return (array, int(index)) if name.endswith("]") and index.isdecimal() else None


_NO_NUMBER = 0xFFFFFFFF


def role_name(name: bytes, number: int) -> str | None:
    """Return the role that a kernel gave, with its number; None for an empty name.

    >>> role_name(b"consumer", 1), role_name(b"producer", 0xFFFFFFFF), role_name(b"", 0)
    ('consumer 1', 'producer', None)
    """
    text = name.decode(errors="replace")
    if not text:
        return None
    return text if number == _NO_NUMBER else f"{text} {number}"
