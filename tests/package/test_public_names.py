from __future__ import annotations

from types import ModuleType

import tmaasync


def _public_attributes() -> set[str]:
    return {
        name
        for name, value in vars(tmaasync).items()
        if not name.startswith("_") and not isinstance(value, ModuleType)
    }


def test_all_is_sorted() -> None:
    assert list(tmaasync.__all__) == sorted(tmaasync.__all__)


def test_all_names_everything_public_and_nothing_else() -> None:
    modules = {name for name in tmaasync.__all__ if isinstance(getattr(tmaasync, name), ModuleType)}

    assert set(tmaasync.__all__) == _public_attributes() | modules | {"__version__"}


def test_every_public_object_has_a_docstring() -> None:
    silent = {
        name
        for name in tmaasync.__all__
        if callable(value := getattr(tmaasync, name)) and not value.__doc__
    }

    assert silent == set()
