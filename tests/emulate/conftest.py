"""The TMA engine, built once per session."""

from __future__ import annotations

import ctypes
import shutil
import subprocess
from pathlib import Path

import pytest
from emulate.engine_library import FLAGS, Engine

collect_ignore = ["ptx_modules", "triton_programs.py"]  # need Triton


@pytest.fixture(scope="session")
def compiler() -> str:
    found = next(filter(None, map(shutil.which, ("c++", "g++", "clang++"))), None)
    if found is None:
        pytest.skip("no C++ compiler: none of c++, g++, clang++ is on the path")
    return found


@pytest.fixture(scope="session")
def engine(compiler: str, tmp_path_factory: pytest.TempPathFactory) -> Engine:
    source = Path(__file__).with_name("tma_engine_abi.cpp")
    target = tmp_path_factory.mktemp("tma_engine") / "tma_engine.so"
    built = subprocess.run(
        [compiler, *FLAGS, "-O1", "-shared", "-fPIC", str(source), "-o", str(target)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert built.returncode == 0, built.stderr
    return Engine(ctypes.CDLL(str(target)))
