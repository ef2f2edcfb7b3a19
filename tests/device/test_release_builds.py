"""Release builds hold nothing of the hang watch."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest
from device import test_kernels as shipped
from elftools.elf.elffile import ELFFile
from parity.backends import Emulate
from parity.planted_hangs import PlantedHangs

from tmaasync import Kernel
from tmaasync._source.paths import include_dir
from tmaasync.ops._copy import TILED_PIPELINE, copy_kernel

# Code that calls the hang watch, and the source location that it passes.
_ASKS = re.compile(
    r"^ +if constexpr \(instrument::kWatchesHangs\) \{\n.*\n +\}\n"
    r"|^ +if \(instrument::(?:is_draining|has_waited(?:_cluster)?)\(.*\n",
    re.MULTILINE,
)
_LOCATION = re.compile(
    r"(?:,\s+|(?<=\())(?:const )?WaitLocation&? location(?: = \{\})?"
    r"|^ +WaitLocation location_;\n|, location_\(location\)|, location_?(?=[,)}])",
    re.MULTILINE,
)
_LEFT = re.compile(r"is_draining|has_waited|gives_up|kWatchesHangs|WaitLocation&? location")

TILE = "tmaasync::TMATensorTile<float, tmaasync::Shape<8, 32>, tmaasync::Box<8, 32>>"
KERNELS = {
    "gemm": lambda: shipped.gemm_with(shipped.FEW_COLUMNS[1], "bfloat16", "bfloat16", False, False),
    "copy": lambda: copy_kernel(TILE, TILED_PIPELINE),
    "hangs": lambda: PlantedHangs(Emulate(), debug=None).kernel,
}

OF_ONE_SOURCE = {"copy": ["copy", "reduce_add"]}


@pytest.fixture(scope="module")
def bare_headers(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The headers without a line that asks the hang watch."""
    bare = tmp_path_factory.mktemp("bare") / "include"
    shutil.copytree(include_dir(), bare)
    removed = 0
    for path in sorted(bare.rglob("*.cuh")):
        if path.parent.name != "instrument":
            text, count = _ASKS.subn("", path.read_text())
            text = _LOCATION.sub("", text)
            assert not _LEFT.search(text), path
            path.write_text(text)
            removed += count
    assert removed > 25
    return bare


def code_of(kernel: Kernel) -> dict[str, bytes]:
    """The instructions of its functions."""
    with kernel.compile().path.open("rb") as file:
        sections = [(section.name, section.data()) for section in ELFFile(file).iter_sections()]
    return {name: data for name, data in sections if name.startswith(".text")}


@pytest.mark.parametrize("name", KERNELS)
def test_the_instructions_equal_headers_without_the_hang_watch(
    name: str, bare_headers: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("TMAASYNC_DEBUG", raising=False)
    with_watch = code_of(KERNELS[name]())

    monkeypatch.setattr("tmaasync._source.compile.include_dir", lambda: bare_headers)

    assert code_of(KERNELS[name]()) == with_watch
    assert with_watch.keys() == {f".text.{kernel}" for kernel in OF_ONE_SOURCE.get(name, [name])}


def test_the_check_above_can_fail() -> None:
    release, debug = (PlantedHangs(Emulate(), debug=debug).kernel for debug in (False, True))

    assert code_of(debug) != code_of(release)


@pytest.mark.parametrize(
    ("name", "registers", "spill_bytes"), [("copy", 40, 0), ("hangs", 48, 0), ("gemm", 168, 0)]
)
def test_debug_builds_compile_and_stay_small(
    name: str, registers: int, spill_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TMAASYNC_DEBUG", "1")

    entry = KERNELS[name]().compile().entries[name]

    assert entry.registers <= registers
    assert entry.spill_bytes <= spill_bytes
