"""Each planted defect is found in its line; sound and shipped kernels have none."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from device import test_attention_kernels as attention
from device import test_kernels as shipped
from typer.testing import CliRunner

from tmaasync import Kernel, ops
from tmaasync._source.paths import shipped_kernels
from tmaasync.cli import app
from tmaasync.cli._shipped_kernels import kernels_of
from tmaasync.kernel.source import arch_for, arch_without_device, source_of
from tmaasync.lint import RULES, Finding, check, compiler, tcgen05
from tmaasync.ops._flash.config import TileConfig as FlashConfig
from tmaasync.ops._flash.tensor_memory import TensorMemoryConfig
from tmaasync.ops._gemm.config import TileConfig

HERE = Path(__file__).resolve().parent
SOUND = "fits"  # a kernel of claims.cu
REPOSITORY = HERE.parents[1]
DOCUMENT = REPOSITORY / "docs" / "lint.md"
TUTORIAL = sorted((REPOSITORY / "examples").glob("[0-9][0-9]_*.py"))


def findings(file: str) -> list[Finding]:
    source = source_of(HERE / file)
    chip = (10, 0) if file == "tcgen05.cu" else (9, 0)
    return check(source, arch_for(source, chip))


def line_of(finding: Finding) -> str:
    assert finding.location is not None
    return (
        (HERE / finding.location.file).read_text().splitlines()[finding.location.line - 1].strip()
    )


PLANTED = {
    "lost_speed.cu": [
        (compiler.SERIALISED, "serialised", "wgmma_ss_atom"),
        (compiler.SETMAXNREG, "ignored", "release_registers<24>"),
    ],
    "claims.cu": [
        (compiler.CLAIM, "two_ctas_of_an_sm", "claim_registers<232>"),
        (compiler.CLAIM, "nobody_releases", "if (threadIdx.x >= 128) claim_registers<176>"),
    ],
    "local_memory.cu": [
        (compiler.SPILL, "spilled", 'extern "C" __global__ void __launch_bounds__'),
        (compiler.ARRAY, "indexed", "for (int i = 0; i < 16; ++i) values[i] = p[i]"),
    ],
    "tcgen05.cu": [
        (tcgen05.UNFINISHED, "leaks", "if (threadIdx.x < 32) ptx::tcgen05_alloc"),
        (tcgen05.UNFINISHED, "leaks", "ptx::tcgen05_st"),
        (tcgen05.UNFINISHED, "leaks", "ptx::tcgen05_ld"),
    ],
}


@pytest.mark.parametrize("file", PLANTED)
def test_a_planted_defect_is_found_in_its_line_and_nothing_else(file: str) -> None:
    found = findings(file)

    assert [(one.rule, one.function) for one in found] == [
        (rule, function) for rule, function, _ in PLANTED[file]
    ]
    for one, (_, _, text) in zip(found, PLANTED[file], strict=True):
        assert line_of(one).startswith(text)


def test_every_rule_has_a_planted_defect_and_a_place_in_the_document() -> None:
    planted = {rule for defects in PLANTED.values() for rule, _, _ in defects}

    assert planted == set(RULES)
    text = DOCUMENT.read_text()
    assert [rule for rule in RULES if f"`{rule}`" not in text] == []


# All others are in device/test_kernels.py, which asserts the same of what the compiler reports.
SHIPPED: dict[str, Callable[[], Kernel]] = {
    "gemm": lambda: shipped.gemm_with(TileConfig(2, 128, 2), "bfloat16", "bfloat16", False, True),
    "attention": lambda: attention.attention_with(
        FlashConfig(64, 2, 128), attention.EVERYTHING, np.float16
    ),
    "attention on tensor memory": lambda: attention.attention_with(
        TensorMemoryConfig(128, 4, 128), attention.CAUSAL, np.float16
    ),
}


@pytest.mark.sampled(1)
@pytest.mark.parametrize("name", SHIPPED)
def test_a_shipped_kernel_has_no_finding(name: str) -> None:
    source = SHIPPED[name]()._recipe.source

    assert check(source, arch_without_device(source)) == []


# --- the command ------------------------------------------------------------------------------


def run(*arguments: object) -> Any:
    return CliRunner().invoke(app, ["lint", *map(str, arguments)])


def test_the_command_prints_a_line_for_each_finding_and_exits_with_one() -> None:
    ran = run(HERE / "local_memory.cu")

    spill, array, summary = ran.stdout.splitlines()
    assert ran.exit_code == 1
    assert spill.startswith("local_memory.cu:2: spill in spilled: ")
    assert array.startswith("local_memory.cu:13: local-array in indexed: an array lies in local ")
    assert "Index it by constants alone" in array
    assert summary.startswith("2 findings in ")


def test_one_entry_is_looked_at_where_one_is_named() -> None:
    ran = run(HERE / "local_memory.cu", "--entry", "indexed", "--json")

    assert ran.exit_code == 1
    (finding,) = json.loads(ran.stdout)["findings"]
    assert (finding["file"], finding["function"]) == ("local_memory.cu", "indexed")
    assert set(finding) == {"file", "line", "rule", "function", "reason", "remedy"}


def test_a_shipped_source_takes_types_and_constants() -> None:
    ran = run(
        *("copy.cu", "--type", "Tile=tmaasync::BulkTile<unsigned char, 4096>"),
        *("--constant", "STAGES=4", "--constant", "LOADS_AHEAD=2"),
    )

    assert (ran.exit_code, ran.stdout) == (0, "0 findings in copy.cu.\n")


@pytest.mark.parametrize("source", [path.name for path in shipped_kernels()])
def test_every_shipped_source_has_kernels_of_the_operations(source: str) -> None:
    kernels = kernels_of(source)

    assert kernels
    assert {kernel.source.name for kernel in kernels} == {source}
    assert len(set(kernels)) == len(kernels)


def test_a_lint_of_shipped_kernels_leaves_no_skipped_launch_in_the_caches() -> None:
    kernels_of("copy.cu")
    source, target = np.arange(1 << 10, dtype=np.float32), np.zeros(1 << 10, np.float32)

    ops.copy(source, target)

    np.testing.assert_array_equal(source, target)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("file", ["copy.cu", REPOSITORY / "kernels" / "ragged.cu"])
def test_a_shipped_source_is_linted_as_the_operations_build_it(file: str | Path) -> None:
    ran = run(file, "--json")

    document = json.loads(ran.stdout)
    assert (ran.exit_code, document["findings"]) == (0, [])
    assert {kernel["source"] for kernel in document["kernels"]} == {Path(file).name}
    assert run(file).stdout == f"0 findings in {len(document['kernels'])} kernels of {file}.\n"


@pytest.mark.sampled(1)
@pytest.mark.parametrize("script", TUTORIAL[::5], ids=lambda path: path.stem)
def test_a_step_of_the_tutorial_is_linted_through_its_script(script: Path) -> None:
    ran = run(script)

    assert (ran.exit_code, ran.stdout) == (0, f"0 findings in 1 kernel of {script}.\n")


_SCRIPT = """
import sys
import numpy as np
from tmaasync import Kernel
SPILLED = {folder!r} + "/local_memory.cu", "spilled"
kernels = [Kernel(*SPILLED), Kernel(*SPILLED), Kernel({folder!r} + "/claims.cu", sys.argv[1])]
print("built", *kernels)
{end}
"""


@pytest.mark.parametrize(("end", "exit_code"), [("", 1), ("raise RuntimeError('after')", 2)])
def test_every_kernel_that_a_script_builds_is_checked_once(
    tmp_path: Path, end: str, exit_code: int
) -> None:
    script = tmp_path / "builds.py"
    script.write_text(_SCRIPT.format(folder=str(HERE), end=end))

    ran = run(script, SOUND)

    finding, summary = ran.stdout.splitlines()
    assert ran.exit_code == exit_code
    assert finding.startswith("local_memory.cu:2: spill in spilled")
    assert summary == f"1 finding in 2 kernels of {script}."
    assert "built <Kernel spilled" in ran.stderr
    assert ("RuntimeError: after" in ran.stderr) == bool(end)
    assert ("only kernels built before are checked" in ran.stderr) == bool(end)


def test_one_kernel_of_a_script_can_be_chosen(tmp_path: Path) -> None:
    script = tmp_path / "builds.py"
    script.write_text(_SCRIPT.format(folder=str(HERE), end=""))

    assert run(script, SOUND, "--entry", SOUND).exit_code == 0
    ran = run(script, SOUND, "--entry", "other")
    assert (ran.exit_code, ran.stdout) == (2, "")
    assert f"builds no kernel of that name. It has: spilled, {SOUND}." in ran.stderr


def test_names_that_the_source_leaves_open_are_answered_in_options(sources: Path) -> None:
    ran = run(sources / "fine.cu")

    first, *log = ran.stderr.splitlines()
    assert first.startswith("error: fine.cu does not compile")
    assert "the source does not define N. Pass --type NAME=C++ or --constant NAME=VALUE" in first
    assert "types={" not in ran.stderr
    assert log == ['fine.cu(1): error: identifier "N" is undefined']


@pytest.fixture
def sources(tmp_path: Path) -> Path:
    (tmp_path / "binary.cu").write_bytes(bytes(range(128, 256)))
    (tmp_path / "empty.cu").write_text("")
    (tmp_path / "wrong.cu").write_text('extern "C" __global__ void wrong() { return 1 }\n')
    (tmp_path / "fine.cu").write_text('extern "C" __global__ void fine(float* p) { *p = N; }\n')
    (tmp_path / "idle.py").write_text("pass\n")
    (tmp_path / "failing.py").write_text("raise SystemExit(3)\n")
    return tmp_path


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["absent.cu"], "no file has this name"),
        (["."], "no file has this name"),
        (["binary.cu"], "which is no UTF-8"),
        (["empty.cu"], "no __global__ function"),
        (["wrong.cu"], "does not compile"),
        (["fine.cu"], "does not define N"),
        (["fine.cu", "argument"], "takes none"),
        (["absent.py"], "cannot be read"),
        (["idle.py"], "it ended without a Kernel"),
        (["failing.py"], "it ended with exit code 3 without a Kernel"),
        (["fine.cu", "--constant", "N=2", "--entry", "other"], "It has: fine."),
        (["fine.cu", "--constant", "N"], "must be NAME=VALUE"),
        (["fine.cu", "--constant", "N="], "must be NAME=VALUE"),
        (["fine.cu", "--constant", "N=two"], "must be true, false or a number"),
        (["fine.cu", "--constant", "N=nan"], "a number that float32 holds"),
        (["fine.cu", "--constant", "1N=2"], "C++ identifier"),
        (["fine.cu", "--type", "Tile"], "must be NAME=VALUE"),
    ],
    ids=str,
)
def test_bad_input_is_a_sentence_and_exits_with_two(
    sources: Path, arguments: list[str], words: str
) -> None:
    ran = run(sources / arguments[0], *arguments[1:])

    assert ran.exit_code == 2
    assert ran.stdout == ""
    assert ran.stderr.startswith("error: ")
    assert words in ran.stderr


_WITHOUT_NVRTC = """
import sys
sys.modules["cuda.bindings.nvrtc"] = None
from tmaasync.cli import main
main()
"""


def test_without_nvrtc_the_command_says_so() -> None:
    ran = subprocess.run(
        [sys.executable, "-c", _WITHOUT_NVRTC, "lint", str(HERE / "claims.cu")],
        check=False,
        capture_output=True,
        text=True,
    )

    assert (ran.returncode, ran.stdout) == (2, "")
    assert ran.stderr.startswith("error: there is no NVRTC, which compiles the kernels. Install it")
