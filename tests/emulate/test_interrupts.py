"""Ctrl-C while a kernel runs on the emulator."""

from __future__ import annotations

import signal
import subprocess
import sys

PROGRAM = """
import os, signal, sys, threading, time
import numpy as np
from tmaasync import Kernel, emulate

SOURCE = '''
extern "C" __global__ void work(float* x, int rounds) {
    float* mine = x + blockIdx.x * blockDim.x + threadIdx.x;
    float value = *mine;
    for (int i = 0; i < rounds; ++i) {
        value = value * 0.5f + 1;
        if (WAITS) __syncthreads();
    }
    *mine = value;
}
'''
KERNELS = [Kernel(SOURCE, "work", constants={"WAITS": waits}) for waits in (False, True)]
x = np.zeros(512, np.float32)
for kernel in KERNELS:
    kernel(8, 64, (x, 4))

def interrupt_soon():
    threading.Timer(0.15, os.kill, (os.getpid(), signal.SIGINT)).start()

def work(rounds=2**31 - 1, number=0):
    with emulate.scheduled(budget_seconds=100):
        KERNELS[number](8, 64, (x, rounds))

def is_interrupted(run):
    interrupt_soon()
    try:
        run()
    except KeyboardInterrupt:
        return True
    return False

def on_devices():
    with emulate.scheduled(budget_seconds=100), emulate.devices(2) as world:
        for device in world:
            KERNELS[0](8, 64, (device.array(np.zeros(512, np.float32)), 2**31 - 1))

def with_own_handler():
    seen = []
    before = signal.signal(signal.SIGINT, lambda *_: seen.append(1))
    try:
        interrupt_soon()
        end = time.monotonic() + 0.4
        while time.monotonic() < end:
            work(1000)
    finally:
        signal.signal(signal.SIGINT, before)
    return seen == [1]

for run in (work, lambda: work(number=1), on_devices):
    assert is_interrupted(run)
    x[:] = 0
    KERNELS[0](8, 64, (x, 1))
    assert (x == 1).all()
assert with_own_handler()
print("went on")
"""


def test_it_stops_the_launch_and_the_program_goes_on() -> None:
    ended = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    assert ended.stdout == "went on\n", ended.stderr
