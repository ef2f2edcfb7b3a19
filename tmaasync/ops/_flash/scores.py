"""What the scores go through: scale, mask, softcap; checked, and as the kernel takes it."""

from __future__ import annotations

import math
import numbers
from collections.abc import Iterator
from typing import NamedTuple

from tmaasync.errors import ArgumentError, Violation

__all__ = ["Scores", "positive_violations"]

# Further than any sequence reaches; added to a position it fits 32 bits.
_UNLIMITED = 1 << 28

_LEAVE_OUT = "Leave it out for the default"
_CORNERS = ("top_left", "bottom_right")
_LOG2_E = math.log2(math.e)


class Scores(NamedTuple):
    """Scale and mask. A query sees ``left`` keys before its own and ``right`` after it.

    The own key of query i is key i where the mask is aligned top left; else the last query is
    aligned with the last key. None is no limit.
    """

    scale: float
    left: int | None
    right: int | None
    is_top_left: bool
    softcap: float | None

    @classmethod
    def of(
        cls,
        head_dim: int,
        causal: bool | str,
        scale: float | None,
        window: tuple[int | None, int | None] | None,
        softcap: float | None,
    ) -> Scores:
        """Check the caller's arguments.

        Raises:
            ArgumentError: One of them is not as described; every one is named.
        """
        found = [
            *_causal_violations(causal),
            *positive_violations("scale", scale, _LEAVE_OUT),
            *_window_violations(window),
            *positive_violations("softcap", softcap, _LEAVE_OUT),
        ]
        ArgumentError.raise_for(found)
        left, right = (_limit(side) for side in window or (None, None))
        if causal:
            right = 0 if right is None else min(right, 0)
        return cls(
            scale=head_dim**-0.5 if scale is None else float(scale),
            left=left,
            right=right,
            is_top_left=causal == "top_left",
            softcap=None if softcap is None else float(softcap),
        )

    @property
    def factors(self) -> tuple[float, float]:
        """Factors of a score before softcap's tanh, and in the exponent of 2."""
        if self.softcap is None:
            return 1.0, self.scale * _LOG2_E
        return self.scale / self.softcap, self.softcap * _LOG2_E


def _limit(side: int | None) -> int | None:
    return None if side is None or side < 0 or side >= _UNLIMITED else side


def _causal_violations(causal: object) -> Iterator[Violation]:
    if not isinstance(causal, bool) and causal not in _CORNERS:
        rule = f"it is True, False, {' or '.join(map(repr, _CORNERS))}"
        yield Violation("causal", repr(causal), rule, "True aligns the last positions")


def positive_violations(name: str, value: object, remedy: str) -> Iterator[Violation]:
    """Yield why a value, unless it is None, is no finite number above 0."""
    if value is None:
        return
    is_number = isinstance(value, numbers.Real) and not isinstance(value, bool)
    if not is_number or not 0 < value < math.inf:  # type: ignore[operator]
        rule = "it must be a finite number above 0"
        yield Violation(name, repr(value), rule, remedy)


def _window_violations(window: object) -> Iterator[Violation]:
    if window is None:
        return
    is_pair = isinstance(window, tuple | list) and len(window) == 2
    sides = window if is_pair else ()
    if not is_pair or any(not _is_side(side) for side in sides):  # type: ignore[attr-defined]
        rule = "it must be (left, right): how many keys on either side a position sees"
        remedy = "Pass ints, and None for a side without a limit"
        yield Violation("window", repr(window), rule, remedy)


def _is_side(side: object) -> bool:
    return side is None or (isinstance(side, int) and not isinstance(side, bool) and side >= -1)
