"""Signals, handlers, masks and forks around launches and builds on the emulator.

Each test runs a program of its own, whose handlers are not pytest's.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

HEAD = """
import faulthandler, os, signal, sys, threading, time
import numpy as np
from tmaasync import Kernel, TMAError, emulate

SOURCE = '''
#include <signal.h>
__device__ __attribute__((noipa)) int look(const int* at) { return *at; }
extern "C" __global__ void work(float* x, int* stops, int rounds) {
    float* mine = x + threadIdx.x;
    float value = *mine;
    for (int i = 0; i < rounds; ++i) {
        value = value * 0.5f + 1;
        if (WAITS) __syncthreads();
        stops[1 + threadIdx.x] = i + 1;
        if (!WAITS && look(stops)) break;
        if (WAITS && __syncthreads_or(look(stops))) break;
    }
    *mine = value;
}
extern "C" __global__ void blocks_signals(float* x) {
    sigset_t all;
    sigfillset(&all);
    pthread_sigmask(SIG_BLOCK, &all, nullptr);
    *x = 1;
}
extern "C" __global__ void crashes(float* x) { *reinterpret_cast<float*>(8) = *x; }
'''
KERNELS = {
    kind: Kernel(SOURCE, "work", constants={"WAITS": kind == "waits"})
    for kind in ("computes", "waits")
}

class Launch:
    "A launch that runs until `stops[0]` is set."

    def __init__(self, kind="computes"):
        self.kernel = KERNELS[kind]
        self.x, self.stops = np.zeros(32, np.float32), np.zeros(33, np.int32)

    def __call__(self, rounds=2**31 - 1):
        with emulate.scheduled(budget_seconds=15, races=False):
            self.kernel(1, 32, (self.x, self.stops, rounds))

    def in_thread(self):
        thread = in_thread(self)
        while not self.stops[1]:
            time.sleep(0.001)
        return thread

    def stop(self, *_):
        self.stops[0] = 1

def in_thread(run):
    thread = threading.Thread(target=run)
    thread.start()
    return thread

def send(number, seconds=0.1):
    "Send the process a signal in a while."
    if number == signal.SIGALRM:
        signal.setitimer(signal.ITIMER_REAL, seconds)
    else:
        threading.Timer(seconds, os.kill, (os.getpid(), number)).start()

class Late(Exception):
    pass

def late(*_):
    raise Late

for kind in KERNELS:
    Launch(kind)(4)
"""


def run(program: str, code: int = 0) -> str:
    """Run a program, and return its stderr."""
    ended = subprocess.run(
        [sys.executable, "-c", HEAD + program],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert ended.returncode == code, (ended.returncode, ended.stdout, ended.stderr)
    return ended.stderr


def test_handlers_run_during_launches() -> None:
    run(
        """
for number, kind in (("SIGALRM", "computes"), ("SIGALRM", "waits"), ("SIGINT", "waits")):
    number, launch = getattr(signal, number), Launch(kind)
    signal.signal(number, launch.stop)
    send(number)
    launch()  # to its end, which the handler brings about

# A handler may launch.
launch, other = Launch(), Launch()
def handler(*_):
    other(1)
    launch.stop()
signal.signal(signal.SIGALRM, handler)
send(signal.SIGALRM)
launch()
assert (other.x == 1).all()

# It cannot repeat the bound launch that it interrupts.
launch = Launch()
addresses = [launch.x.ctypes.data, launch.stops.ctypes.data]
prepared = launch.kernel.prepare(1, 32, (launch.x, launch.stops, 2**31 - 1))
caught = []
def handler(*_):
    try:
        prepared.launch_at(addresses, 0)
    except TMAError as error:
        caught.append(str(error))
    launch.stop()
signal.signal(signal.SIGALRM, handler)
send(signal.SIGALRM)
with emulate.scheduled(budget_seconds=15, races=False):
    prepared.launch_at(addresses, 0)
    prepared.launch_at(addresses, 0)
assert len(caught) == 1 and "a signal handler launches it again" in caught[0], caught
"""
    )


def test_an_exception_of_a_handler_ends_launches() -> None:
    run(
        """
from tmaasync import trace
signal.signal(signal.SIGALRM, late)
signal.signal(signal.SIGUSR1, late)
signal.signal(signal.SIGTERM, signal.default_int_handler)

def ended_by(error, number, run):
    send(number)
    began = time.monotonic()
    try:
        run()
    except error:
        assert time.monotonic() - began < 5
    else:
        raise AssertionError(run)

def on_devices():
    with emulate.scheduled(budget_seconds=15), emulate.devices(2) as world:
        for device in world:
            arrays = (np.zeros(32, np.float32), np.zeros(33, np.int32))
            KERNELS["computes"](1, 32, (*map(device.array, arrays), 2**31 - 1))

for kind in KERNELS:
    launch = Launch(kind)
    for _ in range(2):
        ended_by(Late, signal.SIGALRM, launch)
    launch.x[:] = 0
    launch(1)
    assert (launch.x == 1).all()
ended_by(Late, signal.SIGUSR1, on_devices)
ended_by(KeyboardInterrupt, signal.SIGTERM, Launch())
with trace.record() as recorded:
    ended_by(Late, signal.SIGALRM, Launch())
assert len(recorded.launches) == 1, recorded.launches
"""
    )


def test_ctrl_c_ends_a_launch_of_another_thread_too() -> None:
    run(
        """
class Interrupted(Launch):
    was_interrupted = False

    def __call__(self):
        try:
            super().__call__()
        except KeyboardInterrupt:
            self.was_interrupted = True

signal.signal(signal.SIGINT, signal.default_int_handler)
launch = Interrupted()
thread = launch.in_thread()
try:
    os.kill(os.getpid(), signal.SIGINT)
    time.sleep(5)
except KeyboardInterrupt:
    thread.join(10)
    assert launch.was_interrupted
else:
    raise AssertionError
"""
    )


# --- handlers that others install meanwhile -------------------------------------------------------

# Python's fault handler, enabled by another thread during a launch; then another launch.
ENABLED = """
launch = Launch()
thread = launch.in_thread()
faulthandler.enable()
launch.stop()
thread.join()
Launch()(4)
"""


@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    ("crash", "then"), [("_sigsegv", "disable"), ("_sigabrt", "launch"), ("_read_null", "")]
)
def test_a_crash_of_the_program_ends_it(then: str, crash: str) -> None:
    number = {"_sigabrt": signal.SIGABRT}.get(crash, signal.SIGSEGV)
    text = run(
        f"""{ENABLED}
if "disable" in {then!r}:
    faulthandler.disable()
if "launch" in {then!r}:
    Launch().in_thread()
signal.alarm(20)
faulthandler.{crash}()
""",
        code=-number,
    )

    assert text.count("Fatal Python error") == ("disable" not in then)


CRASHES_ARE_FAULTS = """
faulthandler.disable()
crashes = Kernel(SOURCE, "crashes", constants={"WAITS": False})
for _ in range(2):
    try:
        crashes(1, 1, (launch.x,))
    except TMAError as error:
        assert "0x8" in str(error), error
    else:
        raise AssertionError
"""
HANDLERS_OF_PYTHON = """
seen = []
launch = Launch()
thread = launch.in_thread()
numbers = (signal.SIGURG, signal.SIGFPE, signal.SIGTRAP, signal.SIGABRT)
for number in numbers:
    signal.signal(number, lambda number, _: seen.append(number))
launch.stop()
thread.join()
seen.clear()  # SIGURG is the watchdog's signal, too
for number in numbers:
    os.kill(os.getpid(), number)
time.sleep(0.01)
assert seen == [*numbers], seen
"""
MASKS = """
blocks_signals = Kernel(SOURCE, "blocks_signals", constants={"WAITS": False})
def masked():
    x = np.zeros(1, np.float32)
    masks = [signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR2])]
    masks.append(signal.pthread_sigmask(signal.SIG_BLOCK, []))
    blocks_signals(1, 1, (x,))
    masks.append(signal.pthread_sigmask(signal.SIG_BLOCK, []))
    checked.append(x[0] == 1 and masks[1] == masks[2] == masks[0] | {signal.SIGUSR2})
checked = []
in_thread(masked).join()
masked()
assert checked == [True, True], checked
"""


@pytest.mark.slow
def test_handlers_and_masks_stay_as_others_set_them() -> None:
    """Handlers that are installed during a launch, and a kernel that blocks signals."""
    run(ENABLED + CRASHES_ARE_FAULTS + HANDLERS_OF_PYTHON + MASKS)


# --- forks ----------------------------------------------------------------------------------------

FORK = """
def exit_code(child):
    "Of a child that has 20 s."
    pid = os.fork()
    if pid == 0:
        signal.alarm(20)
        try:
            child()
        except BaseException as error:
            print(repr(error), file=sys.stderr, flush=True)
            os._exit(1)
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
"""


def test_a_child_of_a_fork_during_a_build_builds_and_launches(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The thread of its parent that builds, and holds locks, is not in the child."""
    slow = tmp_path / "as"  # the assembler, which g++ finds on the path
    slow.write_text(f'#!/bin/sh\nsleep 1\nexec {shutil.which("as")} "$@"\n')
    slow.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    run(
        f"""{FORK}
def kernel(value):
    text = f'// {{os.getppid()}} {{value}}\\nextern "C" __global__ void k(int* x) {{{{ *x = 1; }}}}'
    return Kernel(text, "k")

def launch(kernel):
    out = np.zeros(1, np.int32)
    kernel(1, 1, (out,))
    assert out[0] == 1

shared = kernel(os.getpid())
thread = in_thread(lambda: launch(shared))
time.sleep(0.4)
assert exit_code(lambda: launch(shared)) == 0
assert exit_code(lambda: launch(kernel(2))) == 0
thread.join()
"""
    )


@pytest.mark.slow
def test_a_child_of_a_fork_during_a_launch_launches() -> None:
    run(
        f"""{FORK}
launch = Launch()
thread = launch.in_thread()
heap = Kernel('\\nextern "C" __global__ void k(int* x) {{ *x += *new int(1); }}', "k")
total = np.zeros(1, np.int32)
more = in_thread(lambda: [heap(1, 1, (total,)) for _ in range(100)])
codes = [exit_code(lambda: (Launch()(4), heap(1, 1, (total,)))) for _ in range(8)]
assert codes == [0] * 8, codes
launch.stop()
thread.join()
more.join()
assert total == 100
"""
    )


def test_a_child_of_a_fork_closes_the_lock_of_its_parents_build(tmp_path: Path) -> None:
    """Else a parent that is killed leaves the lock to its children."""
    run(
        f"""{FORK}
from pathlib import Path
from tmaasync._source.cache_folder import made_once
path = Path({str(tmp_path)!r}) / "file.o"
if os.fork() == 0:
    in_thread(lambda: made_once(path, lambda: time.sleep(60), {{}}))
    time.sleep(0.2)
    if os.fork() != 0:
        os._exit(0)  # in the middle of the build
    signal.alarm(10)
    while not path.exists():
        time.sleep(0.01)
    os._exit(0)
os.wait()
signal.alarm(5)
assert made_once(path, lambda: b"whole", {{}}).read_bytes() == b"whole"
"""
    )
