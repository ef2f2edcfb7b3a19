"""Whoever waits for the build of another process or thread says so."""

from __future__ import annotations

import re
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tmaasync._source.cache_folder import locked

_HOLDS = """
import sys, time
from pathlib import Path
from tmaasync._source.cache_folder import locked
with locked(Path(sys.argv[1])):
    print("held", flush=True)
    sys.stdin.readline()
"""


def take(lock: Path) -> None:
    with locked(lock):
        pass


def wait_until(holds: Callable[[], object]) -> None:
    deadline = time.monotonic() + 60
    while not holds() and time.monotonic() < deadline:
        time.sleep(0.05)


def assert_says(caplog: pytest.LogCaptureFixture, holder: str) -> None:
    (line,) = caplog.messages
    # Where /proc/locks shows nothing, it is another process.
    words = rf"tmaasync: waiting for ({holder}|another process), which builds .*/kernel"
    assert re.fullmatch(words, line)


def test_a_process_that_waits_for_another_s_build_says_so(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    lock = tmp_path / "kernel.lock"
    with subprocess.Popen(
        [sys.executable, "-c", _HOLDS, str(lock)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as other:
        assert other.stdout
        assert other.stdout.readline() == "held\n"
        waiting = threading.Thread(target=take, args=(lock,))
        waiting.start()
        wait_until(lambda: caplog.messages)
        other.communicate("\n")
        waiting.join()

    assert_says(caplog, f"process {other.pid}")


def test_a_thread_that_waits_for_another_one_s_build_says_so(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    lock = tmp_path / "kernel.lock"
    waiting = threading.Thread(target=take, args=(lock,))
    with locked(lock):
        waiting.start()
        wait_until(lambda: caplog.messages)
    waiting.join()

    assert_says(caplog, "another thread")
