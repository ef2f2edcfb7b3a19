"""``tmaasync trace``: the launches of a script or of a file, in a table, a file or a picture."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

import numpy as np
import pytest
from command_line import assert_refused, run

from tmaasync import Kernel, emulate, trace

KERNEL = """
#include <tmaasync/tmaasync.cuh>
using namespace tmaasync;
extern "C" __global__ void relay(int* out) {
    __shared__ SharedMemBarrier ready;
    if (threadIdx.x == 0) ready.init(1);
    if (threadIdx.x == 0) fence_barrier_init();
    __syncthreads();
    if (threadIdx.x == 0) ready.arrive();
    if (threadIdx.x >= 32) ready.wait(0);
    out[blockIdx.x * 64 + threadIdx.x] = 1;
}
"""
SCRIPT = f"""
import sys
import numpy as np
from tmaasync import Kernel
out = np.zeros(256, np.int32)
kernel = Kernel({KERNEL!r}, "relay")
for blocks in map(int, sys.argv[1:]):
    kernel(blocks, 64, (out,))
print("launched", len(sys.argv) - 1, __name__)
"""


@pytest.fixture
def script(tmp_path: Path) -> Path:
    path = tmp_path / "launches.py"
    path.write_text(SCRIPT)
    return path


@pytest.fixture
def saved(script: Path) -> Path:
    path = script.with_suffix(".json")
    assert run("trace", str(script), "1", "2", "--save", str(path)).exit_code == 0
    return path


def test_a_script_runs_as_main_and_its_launches_are_listed(script: Path) -> None:
    before = sys.argv[:], sys.path[:]

    ran = run("trace", str(script), "1", "2")

    assert ran.exit_code == 0, ran.output
    assert "launched 2 __main__" in ran.stdout
    assert "2 launches" in ran.stdout
    (waiting,) = [line for line in ran.stdout.splitlines() if "waits on ready" in line]
    assert waiting.split()[:5] == ["waits", "on", "ready", "warp", "0"]
    assert (sys.argv, sys.path) == before


DEVICES = f"""
import numpy as np
from tmaasync import Kernel, emulate
kernel = Kernel({KERNEL!r}, "relay")
with emulate.devices(2) as world:
    for launches in (1, 2):
        for device in world:
            kernel(1, 64, (device.array(np.zeros(256, np.int32)),))
"""


def test_the_picture_of_a_launch_has_the_other_devices_next_to_it(script: Path) -> None:
    pytest.importorskip("matplotlib")
    script.write_text(DEVICES)
    picture = script.with_suffix(".svg")

    ran = run("trace", str(script), "--launch", "3", "--plot", str(picture))

    assert ran.exit_code == 0, ran.output
    assert re.findall(r"device (\d): relay", ran.stdout) == ["0", "1", "0", "1"]
    assert "relay: block (0, 0, 0) of 1 x 1 x 1 on each of 2 devices" in picture.read_text()


def test_the_table_fits_a_terminal_of_80_columns_without_cutting(script: Path) -> None:
    named = SCRIPT.replace("Barrier ready", "Barrier long_barrier_name")
    script.write_text(named.replace("ready.", "long_barrier_name."))

    output = run("trace", str(script), "1", columns=80).stdout

    assert max(map(len, output.splitlines())) <= 80
    assert "\N{HORIZONTAL ELLIPSIS}" not in output
    for word in ("waits on long_barrier_name", "warp 0", "longest"):
        assert word in output


def test_the_document_has_every_launch_and_stdout_has_nothing_else(script: Path) -> None:
    ran = run("trace", "--json", str(script), "1", "3")

    document = json.loads(ran.stdout)
    assert document["subject"] == str(script)
    assert [launch["blocks"] for launch in document["launches"]] == [1, 3]
    (first, _) = document["launches"]
    (role,) = [role for role in first["roles"] if role["name"] == "warp 1"]
    (waits,) = [one for one in role["shares"] if one["activity"] == "waiting_barrier"]
    assert 0 <= waits["share"] <= 1
    assert waits["whom"] == ["warp 0"]


def test_options_of_the_script_go_after_two_dashes(script: Path) -> None:
    script.write_text("import sys\nprint(sys.argv[1:])\nsys.exit(3)\n")

    ran = run("trace", str(script), "4", "--", "--json", "-n")

    assert ran.stdout == "['4', '--json', '-n']\n"
    assert ran.exit_code == 3


def test_a_saved_trace_says_the_same_again(saved: Path) -> None:
    first = json.loads(run("trace", str(saved), "--json").stdout)
    kept = trace.load(saved)

    assert [launch["blocks"] for launch in first["launches"]] == [1, 2]
    assert len(kept.launches) == 2
    assert "relay" in run("trace", str(saved), "--launch", "1").stdout


def test_a_picture_is_drawn_of_the_block_and_the_time_asked_for(saved: Path) -> None:
    pytest.importorskip("matplotlib")
    whole, part = saved.with_suffix(".svg"), saved.with_name("part.png")

    ran = run("trace", str(saved), "--launch", "1", "--block", "1,0,0", "--plot", str(whole))
    assert ran.exit_code == 0, ran.output
    other = saved.with_name("other.svg")
    assert run("trace", str(saved), "--launch", "1", "--plot", str(other)).exit_code == 0
    assert whole.read_text() != other.read_text()
    ran = run("trace", str(saved), "--between", "0,3", "--plot", str(part))
    assert ran.exit_code == 0, ran.output
    assert part.read_bytes().startswith(b"\x89PNG")


def test_a_script_that_fails_has_its_own_traceback_and_its_launches(script: Path) -> None:
    script.write_text(SCRIPT + "raise RuntimeError('half way')\n")

    ran = run("trace", str(script), "1")

    assert ran.exit_code == 1
    assert "half way" in ran.stderr
    assert "runpy" not in ran.stderr
    assert "relay" in ran.stdout


def test_a_script_that_fails_before_any_launch_has_its_exit_code(script: Path) -> None:
    script.write_text("raise SystemExit('no input')\n")

    ran = run("trace", str(script))

    assert (ran.exit_code, ran.stdout, ran.stderr) == (1, "", "no input\n")


# --- what is refused --------------------------------------------------------------------------


def test_what_cannot_be_read_is_refused(tmp_path: Path) -> None:
    other = tmp_path / "other.json"
    other.write_text("{}")
    broken = tmp_path / "broken.py"
    broken.write_text("def\n")

    assert_refused("file is ", "trace", str(tmp_path / "none.py"))
    assert_refused("file is ", "trace", str(tmp_path))
    assert_refused("file is ", "trace", str(broken))
    assert_refused("path is ", "trace", str(tmp_path / "none.json"))
    assert_refused("path is ", "trace", str(other))


def test_a_script_that_launches_nothing_is_refused(tmp_path: Path) -> None:
    script = tmp_path / "idle.py"
    script.write_text("pass\n")

    assert_refused("file is ", "trace", str(script))


def test_a_trace_without_events_is_refused(tmp_path: Path) -> None:
    kept = trace.Collector()
    kept.add("idle", (1, 1, 1), (32, 1, 1), None, b"")
    kept.save(tmp_path / "idle.json")

    assert_refused("file is ", "trace", str(tmp_path / "idle.json"))


def test_options_that_do_not_fit_are_refused(saved: Path) -> None:
    subject = str(saved)

    assert_refused("--launch is 7", "trace", subject, "--launch", "7")
    assert_refused("block is ", "trace", subject, "--block", "9", "--plot", "a.png")
    assert_refused("--block is ", "trace", subject, "--block", "here", "--plot", "a.png")
    assert_refused("--between is ", "trace", subject, "--between", "5", "--plot", "a.png")
    assert_refused("between is ", "trace", subject, "--between", "5,2", "--plot", "a.png")
    assert_refused("arguments are 'more'", "trace", subject, "more")
    assert_refused("path is 'a.gif'", "trace", subject, "--plot", "a.gif")
    assert_refused("--plot is ", "trace", subject, "--plot", str(saved.parent / "no" / "a.png"))
    assert_refused("--save is ", "trace", subject, "--save", str(saved.parent / "no" / "a.json"))
    assert_refused("notes_per_warp is 0", "trace", subject.replace(".json", ".py"), "--notes", "0")


@pytest.mark.usefixtures("without_matplotlib")
def test_a_picture_without_matplotlib_is_refused_before_anything_runs(script: Path) -> None:
    assert_refused("--plot is 'a.png'; plot draws with matplotlib", "trace", str(script), "1",
                   "--plot", "a.png")  # fmt: skip


# --- kernels that are to be traced ------------------------------------------------------------


def test_a_traced_kernel_keeps_its_last_trace_and_leaves_the_others_to_record() -> None:
    out = np.zeros(256, np.int32)
    kernel = Kernel(KERNEL, "relay", trace=True)

    assert kernel.last_trace is None
    kernel(1, 64, (out,))
    kernel(2, 64, (out,))
    last = kernel.last_trace
    with trace.record() as kept:
        kernel(3, 64, (out,))

    assert last is not None
    assert last.grid == (2, 1, 1)
    assert kernel.last_trace is last
    assert [launch.grid for launch in kept.launches] == [(3, 1, 1)]


def test_a_kernel_may_be_left_out() -> None:
    out = np.zeros(256, np.int32)

    with trace.record() as kept, emulate.scheduled():
        Kernel(KERNEL, "relay", trace=False)(1, 64, (out,))

    assert kept.launches == ()
