from __future__ import annotations

import ast
import functools
import graphlib
import json
import subprocess
import sys
from collections.abc import Collection, Iterable, Iterator
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


@functools.cache
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


# --- boundaries -------------------------------------------------------------------------------


def _statements(body: Iterable[ast.stmt]) -> Iterator[ast.stmt]:
    """The statements that run at import: not inside functions, not for type checkers."""
    for node in body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        yield node
        is_for_types = isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)
        for field in ("orelse",) if is_for_types else ("body", "orelse", "finalbody"):
            yield from _statements(getattr(node, field, ()))
        for handler in getattr(node, "handlers", ()):
            yield from _statements(handler.body)


def _closure(name: str, modules: dict[str, ast.Module]) -> set[str]:
    """The modules that importing one imports, with their packages; not the package itself."""
    found: set[str] = set()
    left = [name]
    while left:
        one = left.pop()
        if one in found or one not in modules or "." not in one:
            continue
        found.add(one)
        run = ast.Module([*_statements(modules[one].body)], [])
        direct = ast.Module([node for node in run.body if isinstance(node, _IMPORT)], [])
        left += [one.rpartition(".")[0], *_imports(direct, modules)]
    return found


_IMPORT = (ast.Import, ast.ImportFrom)


def test_a_kernel_imports_few_modules_none_of_the_emulator_or_tracing() -> None:
    closure = _closure("tmaasync.kernel.kernel", _modules())
    packages = {name.split(".")[1] for name in closure}

    assert packages & {"emulate", "trace", "_emulated", "_traced"} == set()
    assert len(closure) <= 71, sorted(closure)


@pytest.mark.parametrize(
    ("source", "imports"),
    [
        ("import p.b", True),
        ("from p import b", True),
        ("from p.b import thing", True),
        ("from p.b.c import thing", True),
        ("try:\n    import p.b\nexcept ImportError:\n    pass", True),
        ("try:\n    pass\nexcept ImportError:\n    import p.b", True),
        ("class A:\n    from p import b", True),
        ("if TYPE_CHECKING:\n    import p.b\nelse:\n    pass", False),
        ("if TYPE_CHECKING:\n    pass\nelse:\n    import p.b", True),
        ("def late():\n    import p.b", False),
        ("class A:\n    def late(self):\n        import p.b", False),
    ],
)
def test_the_closure_counts_imports_that_run(source: str, imports: bool) -> None:
    texts = {"p": "", "p.a": "from p import middle", "p.middle": source, "p.b": "", "p.b.c": ""}
    modules = {name: ast.parse(text) for name, text in texts.items()}

    assert ("p.b" in _closure("p.a", modules)) is imports


def _asks_for_the_back_end(node: ast.AST) -> bool:
    """Whether it is ``device is None`` or ``backend.device is None``, or their negation."""
    if not isinstance(node, ast.Compare) or ast.unparse(node.comparators[0]) != "None":
        return False
    asked = ast.unparse(node.left)
    return asked == "device" or asked.endswith("backend.device")


def test_operations_ask_the_back_end_and_not_for_a_device() -> None:
    asks = [
        f"{name}:{node.lineno}"
        for name, module in _modules().items()
        if name.startswith(("tmaasync.ops", "tmaasync.torch"))
        for node in ast.walk(module)
        if isinstance(node, ast.Compare) and _asks_for_the_back_end(node)
    ]

    assert asks == []


@pytest.mark.parametrize(
    ("source", "asks"),
    [
        ("device is None", True),
        ("self.backend.device is not None", True),
        ("backend.waits", False),
        ("device == 1", False),
    ],
)
def test_a_question_for_the_device_would_be_noticed(source: str, asks: bool) -> None:
    assert _asks_for_the_back_end(ast.parse(source, mode="eval").body) is asks


def test_the_emulator_is_imported_with_the_first_host_array_in_any_thread() -> None:
    code = """
import sys, threading, numpy
import tmaasync
from tmaasync.kernel import backend_of

parts = ["tmaasync._emulated.backend", "tmaasync._traced"]
assert not set(parts) & set(sys.modules)
started, found = threading.Barrier(8), []
def ask():
    started.wait()
    found.append(backend_of(None))
threads = [threading.Thread(target=ask) for _ in range(8)]
[one.start() for one in threads]
[one.join() for one in threads]
assert len(found) == 8 and len({*map(id, found)}) == 1
assert parts[0] in sys.modules and parts[1] not in sys.modules
"""
    subprocess.run([sys.executable, "-c", code], check=True)
