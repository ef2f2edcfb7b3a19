"""Every kernel of the cookbook and of the pages from_* compiles for the GPU.

`test_documents` runs them on the CPU.
"""

from __future__ import annotations

import doctest
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import pytest
from documents.test_documents import Block, blocks

from tmaasync import Kernel, create_tma_tile
from tmaasync._source.compile import Source, run_nvrtc

COOKBOOK = Path(__file__).parents[2] / "docs" / "cookbook"
PAGES = [*COOKBOOK.glob("*.md"), *COOKBOOK.parent.glob("from_*.md")]
WITH_KERNELS = sorted(path for path in PAGES if "Kernel(" in path.read_text())


class _LaunchedError(Exception):
    pass


@pytest.mark.slow
@pytest.mark.parametrize("path", WITH_KERNELS, ids=lambda path: path.stem)
def test_a_page_compiles_for_the_gpu(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if "import cutlass_library" in path.read_text():
        pytest.skip("CUTLASS 4.2 does not compile with libcu++ of CUDA 13")
    compiled: list[Kernel] = []

    def compile_instead(kernel: Kernel, *_: object, **__: object) -> NoReturn:
        assert kernel.compile().warnings == ()
        compiled.append(kernel)
        raise _LaunchedError

    monkeypatch.setattr(Kernel, "__call__", compile_instead)
    monkeypatch.setattr(Kernel, "prepare", compile_instead)
    names: dict[str, Any] = {}
    for block in blocks(path, "python"):
        if not block.needs_gpu:
            run_until_a_launch(block, names)

    assert compiled or path.stem == "own_launcher"


def run_until_a_launch(block: Block, names: dict[str, Any]) -> None:
    examples = doctest.DocTestParser().get_examples(block.text)
    text = "".join(example.source for example in examples) or block.text
    try:
        exec(compile(text, str(block.path), "exec"), names)  # noqa: S102
    except _LaunchedError:
        return


@pytest.mark.slow
def test_the_line_for_nvcc_compiles_the_recipe(tmp_path: Path) -> None:
    page = COOKBOOK / "own_launcher.md"
    names: dict[str, Any] = {}
    exec(blocks(page, "python")[0].text, names)  # noqa: S102
    source = names["source_for"](create_tma_tile(np.zeros((256, 256), np.float32), (64, 64)))
    (tmp_path / "copy_tile.cu").write_text(source)
    (line,) = (block.text for block in blocks(page, "sh"))
    include = subprocess.run(
        [sys.executable, "-m", "tmaasync", "include"], capture_output=True, text=True, check=True
    ).stdout.strip()
    command = shlex.split(line.replace("$(tmaasync include)", include))

    if shutil.which("nvcc"):
        subprocess.run(command, cwd=tmp_path, check=True)
        assert (tmp_path / "copy_tile.cubin").stat().st_size > 0
    else:
        options = [option for option in command if re.match("-(std|arch|I)", option)]
        cubin, _, log, _ = run_nvrtc(Source(text=source, name="copy_tile.cu"), tuple(options))
        assert cubin
        assert log == ""
