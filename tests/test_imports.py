from __future__ import annotations

import ast
import graphlib
import json
import subprocess
import sys
from collections.abc import Collection
from pathlib import Path

import pytest

import tmaasync

_HEAVY = {"cupy", "cuda", "torch", "jax"}


def _imported_by(code: str) -> set[str]:
    """The top-level modules that are loaded after ``code`` ran in a fresh interpreter."""
    show = "import json, sys; print(json.dumps([name.partition('.')[0] for name in sys.modules]))"
    ran = subprocess.run(
        [sys.executable, "-c", f"{code}\n{show}"], check=True, capture_output=True, text=True
    )
    return set(json.loads(ran.stdout))


def test_importing_the_package_imports_no_gpu_library() -> None:
    assert _imported_by("import tmaasync") & _HEAVY == set()


def test_looking_at_a_numpy_array_imports_no_gpu_library() -> None:
    code = "import numpy; from tmaasync._arrays import view; view(numpy.ones(3))"

    assert _imported_by(code) & _HEAVY == set()


def test_the_test_above_would_notice() -> None:
    assert _imported_by("import tmaasync, cuda.bindings") & _HEAVY == {"cuda"}


# --- circles ----------------------------------------------------------------------------------

_ROOT = Path(tmaasync.__file__).parent


def _modules() -> dict[str, ast.Module]:
    """Every module of the package by its name, parsed."""
    found = {}
    for path in sorted(_ROOT.rglob("*.py")):
        parts = ("tmaasync", *path.relative_to(_ROOT).with_suffix("").parts)
        name = ".".join(parts).removesuffix(".__init__")
        found[name] = ast.parse(path.read_text())
    return found


def _imports(module: ast.Module, known: Collection[str]) -> set[str]:
    """The modules that one imports anywhere: under TYPE_CHECKING and inside functions too."""
    found = set()
    for node in ast.walk(module):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            names = {alias.name: f"{node.module}.{alias.name}" for alias in node.names}
            found |= {full if full in known else node.module for full in names.values()}
    return found & set(known)


def _order(graph: dict[str, set[str]]) -> list[str]:
    return list(graphlib.TopologicalSorter(graph).static_order())


def test_no_import_closes_a_circle_not_even_one_for_types() -> None:
    modules = _modules()
    graph = {name: _imports(module, modules) - {name} for name, module in modules.items()}

    assert sorted(_order(graph)) == sorted(modules)


def test_a_circle_would_be_noticed() -> None:
    source = "if TYPE_CHECKING:\n    from b import thing"

    with pytest.raises(graphlib.CycleError):
        _order({"a": _imports(ast.parse(source), {"b"}), "b": {"a"}})
