"""Options that operators take as they are: numbers, text, and symbols of a trace.

All others are left to the operation's own check. Otherwise torch's dispatcher would refuse them in
its own words, or silently convert them: a bool, or a tensor of one element, to a number.
"""

from __future__ import annotations

from typing import Any

import torch

# Tuples: torch.compile of torch 2.7 does not take ``in`` of a frozenset.
_SYMBOLS = (torch.SymInt, torch.SymFloat, torch.fx.Proxy)
NUMBERS: tuple[Any, ...] = (float, *_SYMBOLS)
"""Types of numbers, except int: torch cannot convert every int to float."""

NUMBERS_OR_NONE = (*NUMBERS, type(None))
TEXT_OR_NONE: tuple[Any, ...] = (str, type(None), torch.fx.Proxy)


def is_symbolic(number: object) -> bool:
    """Return whether a number may be unknown, in a trace; comparing it would add a guard."""
    return isinstance(number, _SYMBOLS) or torch.compiler.is_compiling()
