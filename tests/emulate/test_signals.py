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
KERNEL = Kernel(SOURCE, "work", constants={"WAITS": len(sys.argv) > 1 and sys.argv[1] == "waits"})

class Launch:
    "A launch that runs until `stops[0]` is set."

    def __init__(self):
        self.x, self.stops = np.zeros(32, np.float32), np.zeros(33, np.int32)

    def __call__(self, rounds=2**31 - 1):
        with emulate.scheduled(budget_seconds=15, races=False):
            KERNEL(1, 32, (self.x, self.stops, rounds))

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

Launch()(4)
"""


def run(program: str, *arguments: str, code: int = 0) -> str:
    """Run a program, and return its stderr."""
    ended = subprocess.run(
        [sys.executable, "-c", HEAD + program, *arguments],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert ended.returncode == code, (ended.returncode, ended.stdout, ended.stderr)
    return ended.stderr


TIMER = """
class Late(Exception):
    pass

def late(*_):
    raise Late
"""


@pytest.mark.parametrize(
    ("number", "kind"),
    [("SIGALRM", "computes"), ("SIGALRM", "waits"), ("SIGUSR1", "computes"), ("SIGINT", "waits")],
)
def test_a_handler_runs_during_a_launch(number: str, kind: str) -> None:
    send = (
        "signal.setitimer(signal.ITIMER_REAL, 0.2)"
        if number == "SIGALRM"
        else f"threading.Timer(0.2, os.kill, (os.getpid(), signal.{number})).start()"
    )
    run(
        f"""
launch = Launch()
signal.signal(signal.{number}, launch.stop)
{send}
launch()  # to its end, which the handler brings about
""",
        kind,
    )


@pytest.mark.parametrize("kind", ["computes", "waits"])
def test_an_exception_of_a_handler_ends_the_launch(kind: str) -> None:
    run(
        f"""{TIMER}
signal.signal(signal.SIGALRM, late)
launch = Launch()
for _ in range(2):
    signal.setitimer(signal.ITIMER_REAL, 0.2)
    began = time.monotonic()
    try:
        launch()
    except Late:
        assert time.monotonic() - began < 5
    else:
        raise AssertionError
launch.x[:] = 0
launch(1)
assert (launch.x == 1).all()
""",
        kind,
    )


def test_an_exception_of_a_handler_ends_the_launches_of_several_devices() -> None:
    run(
        f"""{TIMER}
signal.signal(signal.SIGUSR1, late)
threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGUSR1)).start()
try:
    with emulate.scheduled(budget_seconds=15), emulate.devices(2) as world:
        for device in world:
            arrays = (np.zeros(32, np.float32), np.zeros(33, np.int32))
            KERNEL(1, 32, (*map(device.array, arrays), 2**31 - 1))
except Late:
    pass
else:
    raise AssertionError
"""
    )


def test_pythons_handler_of_ctrl_c_ends_a_launch_at_another_signal_too() -> None:
    run(
        """
signal.signal(signal.SIGTERM, signal.default_int_handler)
threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGTERM)).start()
began = time.monotonic()
try:
    Launch()()
except KeyboardInterrupt:
    assert time.monotonic() - began < 5
else:
    raise AssertionError
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


def test_a_handler_may_launch() -> None:
    run(
        """
launch, other = Launch(), Launch()
def handler(*_):
    other(1)
    launch.stop()
signal.signal(signal.SIGALRM, handler)
signal.setitimer(signal.ITIMER_REAL, 0.2)
launch()
assert (other.x == 1).all()
"""
    )


def test_a_handler_cannot_repeat_the_bound_launch_that_it_interrupts() -> None:
    run(
        f"""{TIMER}
launch = Launch()
addresses = [launch.x.ctypes.data, launch.stops.ctypes.data]
prepared = KERNEL.prepare(1, 32, (launch.x, launch.stops, 2**31 - 1))
caught = []
def handler(*_):
    try:
        prepared.launch_at(addresses, 0)
    except TMAError as error:
        caught.append(str(error))
    launch.stop()
signal.signal(signal.SIGALRM, handler)
signal.setitimer(signal.ITIMER_REAL, 0.2)
with emulate.scheduled(budget_seconds=15, races=False):
    prepared.launch_at(addresses, 0)
    prepared.launch_at(addresses, 0)
assert len(caught) == 1 and "a signal handler launches it again" in caught[0], caught
"""
    )


def test_a_trace_of_a_launch_that_a_handler_ended_is_kept() -> None:
    run(
        f"""{TIMER}
from tmaasync import trace
signal.signal(signal.SIGALRM, late)
signal.setitimer(signal.ITIMER_REAL, 0.2)
with trace.record() as recorded:
    try:
        Launch()()
    except Late:
        pass
assert len(recorded.launches) == 1, recorded.launches
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


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("crash", "then"),
    [
        ("_sigsegv", ""),
        ("_sigsegv", "disable"),
        ("_sigabrt", "launch"),
        ("_sigfpe", "disable and launch"),
        ("_read_null", ""),
        ("_read_null", "launch"),
    ],
)
def test_a_crash_of_the_program_ends_it(then: str, crash: str) -> None:
    number = {"_sigabrt": signal.SIGABRT, "_sigfpe": signal.SIGFPE}.get(crash, signal.SIGSEGV)
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


def test_a_kernel_that_crashes_is_a_fault_after_others_changed_handlers() -> None:
    run(
        f"""{ENABLED}
faulthandler.disable()
for _ in range(2):
    try:
        Kernel(SOURCE, "crashes", constants={{"WAITS": False}})(1, 1, (launch.x,))
    except TMAError as error:
        assert "0x8" in str(error), error
    else:
        raise AssertionError
"""
    )


def test_a_handler_of_python_that_is_installed_during_a_launch_stays() -> None:
    run(
        """
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
    )


@pytest.mark.parametrize("where", ["main", "thread"])
def test_a_kernel_leaves_the_signal_mask_as_it_was(where: str) -> None:
    run(
        f"""
masks = []
x = np.zeros(1, np.float32)
def launch():
    masks.append(signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR2]))
    kernel = Kernel(SOURCE, "blocks_signals", constants={{"WAITS": False}})
    masks.append(signal.pthread_sigmask(signal.SIG_BLOCK, []))
    kernel(1, 1, (x,))
    masks.append(signal.pthread_sigmask(signal.SIG_BLOCK, []))

launch() if {where!r} == "main" else in_thread(launch).join()
assert x[0] == 1
assert masks[1] == masks[2] == masks[0] | {{signal.SIGUSR2}}, masks
"""
    )


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


def test_a_child_of_a_fork_during_a_launch_launches() -> None:
    run(
        f"""{FORK}
launch = Launch()
thread = launch.in_thread()
heap = Kernel('\\nextern "C" __global__ void k(int* x) {{ *x += *new int(1); }}', "k")
total = np.zeros(1, np.int32)
more = in_thread(lambda: [heap(1, 1, (total,)) for _ in range(300)])
codes = [exit_code(lambda: (Launch()(4), heap(1, 1, (total,)))) for _ in range(20)]
assert codes == [0] * 20, codes
launch.stop()
thread.join()
more.join()
assert total == 300
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
