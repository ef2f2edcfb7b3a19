"""``tmaasync check``: a verdict for each kernel of a script, or each entry of a module."""

from __future__ import annotations

from pathlib import Path

import pytest
import triton_stand_in
from command_line import assert_refused, json_of, run

MODULES = Path(__file__).parents[1] / "emulate" / "ptx_modules"
KERNELS = """
import sys
import numpy as np
from tmaasync import EmulatedRace, Kernel

SOURCE = '''
extern "C" __global__ void shift(int* out) {
    __shared__ int held[64];
    held[threadIdx.x] = threadIdx.x;
    BARRIER
    out[threadIdx.x] = held[63 - threadIdx.x];
}
extern "C" __global__ void fill(int* out) { out[threadIdx.x] = 1; }
'''.replace("BARRIER", sys.argv[1])
out = np.zeros(64, np.int32)
for _ in range(3):
    Kernel(SOURCE, "fill")(1, 64, (out,))
try:
    Kernel(SOURCE, "shift")(1, 64, (out,))
except EmulatedRace:
    print("caught")
"""
OF_TRITON = """
import numpy as np
from triton_stand_in import JITFunction
x = np.ones((3, 1000), np.float32)
JITFunction()[(int(__import__("sys").argv[1]),)](x, np.zeros_like(x), 1000, BLOCK=1024)
"""


def script(folder: Path, text: str) -> str:
    path = folder / "launches.py"
    path.write_text(text)
    return str(path)


def test_a_script_without_errors_has_a_line_for_each_kernel(tmp_path: Path) -> None:
    ran = run("check", script(tmp_path, KERNELS), "__syncthreads();")
    assert ran.exit_code == 0, ran.output
    assert ran.stdout == "fill: 3 launches, no error\nshift: 1 launch, no error\n"


def test_an_error_that_the_script_catches_is_reported_with_its_line(tmp_path: Path) -> None:
    ran = run("check", script(tmp_path, KERNELS), "")
    assert ran.exit_code == 1
    caught, fill, shift = ran.stdout.splitlines()
    assert (caught, fill) == ("caught", "fill: 3 launches, no error")
    assert shift.startswith("shift: 1 launch, error: a race on held")
    assert "kernel.cu:6" in shift


def test_the_document_of_json_has_the_same(tmp_path: Path) -> None:
    document = json_of("check", script(tmp_path, KERNELS), "", exit_code=1)
    fill, shift = document["kernels"]
    assert fill == {"name": "fill", "launches": 3, "notes": [], "error": None}
    assert shift["error"].startswith("a race on held")


@pytest.mark.parametrize("programs", [3, 4])
def test_kernels_of_triton_run_on_the_cpu(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, programs: int
) -> None:
    triton_stand_in.install(monkeypatch)
    ran = run("check", script(tmp_path, OF_TRITON), str(programs))
    is_good = programs == 3
    assert ran.exit_code == (0 if is_good else 1), ran.output
    (verdict,) = (one for one in ran.stdout.splitlines() if one.startswith("softmax: 1 launch"))
    assert ("no error" in verdict) == is_good
    assert ("triton_kernels.py:" in verdict) != is_good


def test_a_broken_rule_that_is_tolerated_is_a_note(tmp_path: Path) -> None:
    text = f"""
import numpy as np
from tmaasync import Kernel, create_tma_tile
from pathlib import Path
module = Path({str(MODULES / "gemm.ptx")!r}).read_text().replace("gemm", "noted_gemm")
def described(array, *box):
    return create_tma_tile(array, box, swizzle="128B"), *array.shape, array.shape[1], 1
a, b, out = (np.zeros(s, np.float16) for s in ((128, 64), (64, 128), (128, 128)))
maps = (*described(a, 128, 64), *described(b, 64, 64), *described(out, 128, 64))
Kernel(module, "noted_gemm")(1, 128, (*maps, 64, 0, 0), shared_mem=98328)
"""
    ran = run("check", script(tmp_path, text))
    assert ran.exit_code == 0, ran.output
    assert ran.stdout.startswith("noted_gemm: 1 launch, no error; note: no fence makes mbarrier")
    assert "[rule: init-without-fence]" in ran.stdout


def test_a_script_that_fails_has_exit_code_1(tmp_path: Path) -> None:
    assert run("check", script(tmp_path, "1 / 0")).exit_code == 1


def test_a_module_is_translated(tmp_path: Path) -> None:
    assert run("check", str(MODULES / "softmax.ptx")).stdout == (
        "softmax(u64, u64, u32, u64, u64): runs on the CPU\n"
    )
    path = tmp_path / "wrong.ptx"
    text = (MODULES / "softmax.ptx").read_text()
    path.write_text(text.replace("ex2.approx.f32", "ex2.exact.f32", 1))
    ran = run("check", str(path))
    assert ran.exit_code == 1
    line = next(at for at, one in enumerate(text.splitlines(), 1) if "ex2.approx.f32" in one)
    assert f"wrong.ptx:{line}: `ex2.exact.f32" in ran.stdout


def test_bad_usage_is_refused(tmp_path: Path) -> None:
    assert_refused("file is", "check", script(tmp_path, "pass"))
    assert_refused("file is", "check", str(tmp_path / "missing.py"))
    path = tmp_path / "empty.ptx"
    path.write_text(".version 8.0\n")
    assert_refused(f"file is {str(path)!r}; it is no PTX module", "check", str(path))
    assert_refused("arguments is 'x'", "check", str(MODULES / "softmax.ptx"), "x")
    assert run("check").exit_code == 2
