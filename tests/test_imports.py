from __future__ import annotations

import json
import subprocess
import sys

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
    code = "import numpy; from tmaasync import _arrays; _arrays.view(numpy.ones(3))"

    assert _imported_by(code) & _HEAVY == set()


def test_the_test_above_would_notice() -> None:
    assert _imported_by("import tmaasync, cuda.bindings") & _HEAVY == {"cuda"}
