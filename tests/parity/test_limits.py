"""The largest extents: right up to there, refused beyond, and no integer overflows on the way."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from numpy.lib.stride_tricks import as_strided
from parity import limits
from parity.backends import Backend

from tmaasync import ArgumentError, ops
from tmaasync._source.cache_folder import store_with_facts
from tmaasync.emulate.runtime_library import build_runtime
from tmaasync.emulate.toolchain import compiler_facts

TESTS = Path(limits.__file__).parents[1]
HALF, FLOAT8 = np.float16, ml_dtypes.float8_e4m3fn
TOO_MANY = limits.MAX_EXTENT + 1


@pytest.mark.parametrize("check", [limits.check_numbers, limits.check_masks, limits.check_stream_k])
def test_kernels_count_the_largest_extents(backend: Backend, check: Callable[[Any], None]) -> None:
    check(backend.module)


# --- no overflow --------------------------------------------------------------------------------

OVERFLOWS = """
import numpy as np
from tmaasync import Kernel
source = 'extern "C" __global__ void sum(int* out, int a) { out[0] = a + a; }'
Kernel(source, "sum")(1, 1, (np.zeros(1, np.int32), 2**30))
"""


@pytest.fixture
def run_trapping(tmp_path: Path) -> Callable[..., subprocess.CompletedProcess[str]]:
    """Run Python with a compiler that traps where a signed integer overflows."""
    compiler = tmp_path / "cxx"
    trap = "-fsanitize=signed-integer-overflow -fsanitize-undefined-trap-on-error"
    compiler.write_text(f'#!/bin/sh\nexec {compiler_facts()[0]} "$@" {trap}\n', encoding="utf-8")
    compiler.chmod(0o755)
    paths = filter(None, (str(TESTS), os.environ.get("PYTHONPATH")))
    settings = {
        "CXX": str(compiler),
        "TMAASYNC_CACHE_DIR": str(tmp_path / "cache"),
        "PYTHONPATH": os.pathsep.join(paths),
    }

    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, *arguments],
            env=os.environ | settings,
            capture_output=True,
            encoding="utf-8",
            check=False,
        )

    _give_runtime(run("-c", RUNTIME).stdout.split())
    assert "EmulatedFault" in run("-c", OVERFLOWS).stderr, "the compiler does not trap"
    return run


RUNTIME = """
from tmaasync.emulate import runtime_library
one = runtime_library._runtime()
print(one.library, one.part)
"""


def _give_runtime(wanted: list[str]) -> None:
    """Put the emulator's runtime into another cache: kernels trap, and it takes 15 s of a core."""
    kept = build_runtime()
    for path, name in zip((kept.library, kept.part), wanted, strict=True):
        store_with_facts(Path(name), path.read_bytes(), {"source": "runtime"})


@pytest.mark.slow
def test_no_arithmetic_on_extents_and_wrong_tables_overflows(
    run_trapping: Callable[..., subprocess.CompletedProcess[str]],
) -> None:
    """A compiler assumes that none does: that lost the context of an H100 in the backward."""
    done = run_trapping(limits.__file__)
    assert done.stdout == "no overflow\n", done.stderr

    tables = str(TESTS / "parity" / "test_wrong_tables.py")
    options = ("-q", "-m", "not gpu", "-p", "no:cacheprovider", "-p", "no:xdist")
    done = run_trapping("-m", "pytest", *options, tables)
    assert done.returncode == 0, done.stdout


# --- refusals -----------------------------------------------------------------------------------


def repeated(shape: tuple[int, ...], dtype: Any = HALF) -> Any:
    """Return an array of any shape over one row of zeros."""
    row = np.zeros(16, dtype)
    return as_strided(row, shape, (*(0 for _ in shape[1:]), row.itemsize))


def few(*shape: int, dtype: Any = HALF) -> Any:
    return np.zeros(shape, dtype)


def scaled(m: int, n: int, k: int) -> Any:
    scales = (repeated((m, -(-k // 128)), np.float32), repeated((-(-k // 128), n), np.float32))
    return ops.scaled_matmul(repeated((m, k), FLOAT8), repeated((k, n), FLOAT8), *scales)


def backward(queries: int, keys: int) -> Any:
    q, k = repeated((1, queries, 1, 8)), repeated((1, keys, 1, 8))
    return ops.attention_backward(q, q, k, k, q, repeated((1, 1, queries), np.float32))


def packed(keys: int) -> Any:
    k = repeated((keys, 1, 8))
    return ops.varlen_attention(few(1, 1, 8), k, k, [0, 1], [0, keys])


CALLS: dict[str, tuple[Callable[[], Any], str]] = {
    "M": (lambda: ops.matmul(repeated((TOO_MANY, 8)), few(8, 8)), "M"),
    "N": (lambda: ops.matmul(few(8, 8), repeated((8, TOO_MANY))), "N"),
    "K": (lambda: ops.matmul(repeated((8, TOO_MANY)), repeated((TOO_MANY, 8))), "K"),
    "batch": (lambda: ops.matmul(repeated((TOO_MANY, 8, 8)), few(8, 8)), "batch"),
    "rows of scaled_matmul": (lambda: scaled(TOO_MANY, 8, 128), "M"),
    "depth of scaled_matmul": (lambda: scaled(8, 8, TOO_MANY), "K"),
    "rows of groups": (
        lambda: ops.grouped_matmul(repeated((TOO_MANY, 8)), few(1, 8, 8), [TOO_MANY]),
        "T",
    ),
    "groups of K": (
        lambda: ops.k_grouped_matmul(repeated((8, TOO_MANY)), repeated((TOO_MANY, 8)), [TOO_MANY]),
        "T",
    ),
    "pixels": (lambda: ops.conv2d(repeated((TOO_MANY, 1, 1, 8)), few(8, 1, 1, 8)), "output_pixels"),
    "rows without a depth": (lambda: ops.matmul(repeated((TOO_MANY, 0)), few(0, 8)), "M"),
    "rows of a copy": (lambda: ops.copy(repeated((TOO_MANY, 8, 16))[:, ::2]), "side 0"),
    "keys": (
        lambda: ops.attention(few(1, 1, 1, 8), *[repeated((1, TOO_MANY - 1, 1, 8))] * 2),
        r"q\.shape\[1\] \+ k\.shape\[1\]",
    ),
    "packed keys": (lambda: packed(TOO_MANY - 1), r"q\.shape\[0\] \+ k\.shape\[0\]"),
    "entries of a batch": (lambda: ops.attention(*[repeated((TOO_MANY, 1, 1, 8))] * 3), "tiles"),
    "queries of a gradient": (lambda: backward(TOO_MANY - 1, 1), r"q\.shape\[1\] \+ k\.shape\[1\]"),
}


@pytest.mark.parametrize("name", CALLS)
def test_a_larger_extent_is_refused(name: str) -> None:
    call, argument = CALLS[name]
    with pytest.raises(ArgumentError, match=rf"{argument} is \d+; kernels count in 32 bits"):
        call()


@pytest.mark.slow
def test_a_window_reaches_as_far_as_the_sequences() -> None:
    rng = np.random.default_rng(2)
    q, k, v = (rng.standard_normal((1, length, 1, 8)).astype(HALF) for length in (5, 90, 90))
    for causal in ("top_left", "bottom_right", False):
        wanted, _ = ops.attention(q, k, v, causal=causal, window=(None, 3), return_lse=True)
        for left in (90, 1 << 28, 2**31 - 1, 2**63, 10**30):
            got, _ = ops.attention(q, k, v, causal=causal, window=(left, 3), return_lse=True)
            np.testing.assert_array_equal(got, wanted)
