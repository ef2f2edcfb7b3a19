"""Everything the documents say in code runs, everything they link to exists.

A ``python`` block that begins with ``>>>`` is a doctest; any other is executed. The blocks of one
document share their names, from top to bottom; one that imports Triton runs by itself. A block
after ``<!-- gpu -->`` needs a device: without one it runs on NumPy arrays up to its first launch,
whose kernel is compiled and whose arguments are counted. A ``console`` block has command lines
after ``$`` and what they print, where ``...`` stands for anything. A ``cuda`` block is compiled,
with a `Tile` and `STAGES` from the host.
The examples are treated like blocks that need a device.
"""

from __future__ import annotations

import doctest
import functools
import re
import runpy
import shlex
import sys
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from command_line import run
from foreign_launchers import stand_in
from result_files import RESULTS, Section, write_section

from tmaasync import Kernel, create_tma_tile

ROOT = Path(__file__).resolve().parents[2]
DOCUMENTS = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
PROJECT_PAGES = [ROOT / f"{name}.md" for name in ("ARCHITECTURE", "CONTRIBUTING", "RELEASING")]
EXAMPLES = sorted((ROOT / "examples").glob("*.py"))
COMPILED = [one for one in EXAMPLES if one.stem != "tensor_parallel_mlp"]  # it needs torchrun

# tools/plot_results.py, which is imported with matplotlib alone, has the same.
DRAWN_WITH_THE_SITE = ("speed", "matmul")

_BLOCK = re.compile(
    r"^(?P<gpu><!-- gpu -->\n)?```(?P<language>\w+)\n(?P<text>.*?)^```$", re.DOTALL | re.MULTILINE
)
_LINK = re.compile(r"\]\((?!https?:)([^)#]*)(?:#([^)]*))?\)")
_ENTRY = re.compile(r"__global__[^;{]*?\b(\w+)\s*\(")


class _Tracebacks:
    """The module traceback, of which doctest takes the last of an exception's texts.

    With an exception's notes, those are several texts; from Python 3.13 on it joins them.
    """

    print_exception = traceback.print_exception

    @staticmethod
    def format_exception_only(*error: Any) -> list[str]:
        return ["".join(traceback.format_exception_only(*error))]


@dataclass(frozen=True)
class Block:
    path: Path
    line: int
    language: str
    text: str
    needs_gpu: bool

    @property
    def needs_triton(self) -> bool:
        return "\nimport triton\n" in self.text

    def run(self, names: dict[str, Any]) -> None:
        if self.text.startswith(">>>"):
            self._run_doctest(names)
        else:
            # A failure then has the line numbers of the document.
            padded = "\n" * (self.line - 1) + self.text
            exec(compile(padded, str(self.path), "exec"), names)  # noqa: S102

    def _run_doctest(self, names: dict[str, Any]) -> None:
        test = doctest.DocTestParser().get_doctest(
            self.text, names, self.path.name, str(self.path), self.line - 1
        )
        said: list[str] = []
        flags = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
        runner = doctest.DocTestRunner(verbose=False, optionflags=flags)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(doctest, "traceback", _Tracebacks)
            runner.run(test, out=said.append, clear_globs=False)
        names.update(test.globs)
        assert not said, "".join(said)


def blocks(path: Path, *languages: str) -> list[Block]:
    text = path.read_text()
    return [
        Block(
            path=path,
            line=text.count("\n", 0, found.start("text")) + 1,
            language=found["language"],
            text=found["text"],
            needs_gpu=bool(found["gpu"]),
        )
        for found in _BLOCK.finditer(text)
        if found["language"] in languages
    ]


def named(paths: Sequence[Path]) -> list[Any]:
    return [pytest.param(path, id=str(path.relative_to(ROOT))) for path in paths]


# --- blocks that need a GPU, without one ------------------------------------------------------


class _LaunchedError(Exception):
    """The first launch: what comes after it needs its result."""


def _compile_instead(
    kernel: Kernel, grid: object, block: object, args: Sequence[object], **_: object
) -> None:
    program = kernel.compile()
    assert program.warnings == ()
    assert len(args) == len(program.entries[kernel.name].parameters)
    raise _LaunchedError


@pytest.fixture
def up_to_the_launch(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[], object]], None]:
    """Calls something with NumPy in CuPy's place, up to its first launch."""

    def call(run: Callable[[], object]) -> None:
        with monkeypatch.context() as patch:
            patch.setitem(sys.modules, "cupy", np)
            patch.setattr(Kernel, "prepare", _compile_instead)
            patch.setattr(Kernel, "__call__", _compile_instead)
            stand_in(patch, _LaunchedError)
            try:
                run()
            except _LaunchedError:
                return

    return call


# --- the tests --------------------------------------------------------------------------------


@pytest.mark.sampled(5)
@pytest.mark.parametrize("path", named(DOCUMENTS))
def test_the_python_of_a_document_runs(
    path: Path, up_to_the_launch: Callable[[Callable[[], object]], None]
) -> None:
    names: dict[str, Any] = {"__name__": "document"}
    found = [block for block in blocks(path, "python") if not block.needs_triton]
    for library in ("torch", "transformers", "cutlass_library"):
        needs = re.compile(rf"^(import|from) {library}\b", re.MULTILINE)
        if any(needs.search(block.text) and not block.needs_gpu for block in found):
            pytest.importorskip(library)
    for block in found:
        if block.needs_gpu:
            up_to_the_launch(lambda block=block: block.run(names))  # type: ignore[misc]
        else:
            block.run(names)


_OF_TRITON = [block for path in DOCUMENTS for block in blocks(path, "python") if block.needs_triton]


@pytest.mark.filterwarnings("ignore:TRITON_DEFAULT_FP_FUSION:UserWarning")
@pytest.mark.parametrize("block", _OF_TRITON, ids=lambda block: f"{block.path.name}:{block.line}")
def test_a_block_with_triton_runs_by_itself(block: Block) -> None:
    pytest.importorskip("triton")
    block.run({"__name__": "document"})


@pytest.mark.gpu
@pytest.mark.hopper
@pytest.mark.parametrize(
    "path", named([path for path in DOCUMENTS if "<!-- gpu -->" in path.read_text()])
)
def test_the_python_of_a_document_runs_on_a_gpu(path: Path) -> None:
    pytest.importorskip("cupy")
    names: dict[str, Any] = {"__name__": "document"}
    for block in blocks(path, "python"):
        block.run(names)


@pytest.mark.gpu
@pytest.mark.hopper
def test_the_page_about_pytorch_runs_on_a_gpu() -> None:
    torch = pytest.importorskip("torch")
    names: dict[str, Any] = {"__name__": "document"}
    with torch.device("cuda"):
        for block in blocks(ROOT / "docs/pytorch.md", "python"):
            block.run(names)


@pytest.mark.parametrize("path", named([path for path in DOCUMENTS if blocks(path, "console")]))
def test_the_commands_of_a_document_print_what_it_says(
    path: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    flags = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
    for block in blocks(path, "console"):
        for command, wanted in re.findall(
            r"^\$ tmaasync (.*)\n((?:(?!\$ ).*\n)*)", block.text, re.MULTILINE
        ):
            ran = run(*shlex.split(command), columns=100)
            printed = ran.output or repr(ran.exception)
            assert doctest.OutputChecker().check_output(wanted, printed, flags), (
                f"{path.name}: tmaasync {command} prints\n{printed}"
            )


@pytest.mark.parametrize("path", named(DOCUMENTS))
def test_the_cuda_of_a_document_compiles(path: Path) -> None:
    tile = create_tma_tile(np.zeros((256, 256), np.float32), (64, 64))
    for block in blocks(path, "cuda"):
        entry = _ENTRY.search(block.text)
        text = block.text if entry else block.text + 'extern "C" __global__ void none() {}\n'
        kernel = Kernel(
            "\n" + text,
            entry[1] if entry else "none",
            types={"Tile": tile} if "Tile" in block.text else {},
            constants={"STAGES": 4} if "STAGES" in block.text else {},
        )
        assert kernel.compile().warnings == ()


@pytest.mark.sampled(1)
@pytest.mark.parametrize("path", named(COMPILED))
def test_an_example_compiles(
    path: Path, up_to_the_launch: Callable[[Callable[[], object]], None]
) -> None:
    up_to_the_launch(lambda: runpy.run_path(str(path), run_name="__main__"))


def first_program() -> Block:
    return blocks(ROOT / "README.md", "python")[0]


def test_the_first_program_of_the_readme_has_at_most_fifteen_lines() -> None:
    text = first_program().text

    assert "__global__" in text
    assert sum(bool(line.strip()) for line in text.splitlines()) <= 15


@pytest.mark.gpu
@pytest.mark.hopper
def test_the_first_program_of_the_readme_runs_on_a_gpu() -> None:
    pytest.importorskip("cupy")
    program = first_program()
    text = program.text.replace("import numpy as np", "import cupy as np")
    names: dict[str, Any] = {}

    replace(program, text=text).run(names)

    wanted = np.zeros((4, 8), np.float32)
    wanted[:2, :4] = [[28, 29, 30, 31], [36, 37, 38, 39]]
    assert (names["out"].get() == wanted).all()


@pytest.mark.parametrize("path", named(EXAMPLES))
def test_an_example_fits_a_screen_or_two(path: Path) -> None:
    assert len(path.read_text().splitlines()) <= 80


@pytest.mark.parametrize("path", named([*DOCUMENTS, *PROJECT_PAGES]))
def test_every_relative_link_leads_somewhere(path: Path) -> None:
    dead = [link for link in _links(path) if not _exists(path, *link)]

    assert dead == []


def _links(path: Path) -> Iterator[tuple[str, str]]:
    without_code = _BLOCK.sub("", path.read_text())
    yield from _LINK.findall(without_code)


def _exists(document: Path, target: str, anchor: str) -> bool:
    path = document.parent / target if target else document
    drawn = path.parent == ROOT / "docs" / "images" and path.stem in DRAWN_WITH_THE_SITE
    return (path.exists() or drawn) and (not anchor or anchor in _anchors(path))


def _anchors(path: Path) -> set[str]:
    headings = re.findall(r"^#+ (.*)$", _as_built(path.read_text()), re.MULTILINE)
    return {
        re.sub(r"[^\w\- ]", "", heading).strip().lower().replace(" ", "-") for heading in headings
    }


def _as_built(text: str) -> str:
    """The page with the tables that the site has and the repository does not."""
    tool = _case_tables()
    mark = tool["EVERY_CASE"]
    return text.replace(mark, tool["every_case"]()) if mark in text else text


@functools.cache
def _case_tables() -> dict[str, Any]:
    return runpy.run_path(str(ROOT / "tools" / "case_tables.py"))


def test_the_site_has_a_table_for_every_recorded_section() -> None:
    tool = _case_tables()
    wanted = [
        f"{tool['_TITLES'].get(name, name)} on {tool['gpu_name'](section)}"
        for _, name, section in tool["all_recorded"](RESULTS)
    ]

    found = re.findall(r"^### (.*)$", tool["every_case"](), re.MULTILINE)

    assert sorted(found) == sorted(wanted)
    marked = [path.name for path in DOCUMENTS if tool["EVERY_CASE"] in path.read_text()]
    assert marked == ["benchmarks.md"]


def test_the_measured_tables_agree_with_the_results() -> None:
    script = runpy.run_path(str(ROOT / "tools" / "write_tables.py"))

    stale = [
        str(path.relative_to(ROOT))
        for path in script["DOCUMENTS"]
        if script["rewritten"](path.read_text()) != path.read_text()
    ]

    assert stale == [], "run python tools/write_tables.py"


def test_the_sentences_on_performance_have_no_ratio_of_their_own() -> None:
    """Ratios in sentences are written from the results; others go stale."""
    text = (ROOT / "docs" / "performance.md").read_text()
    _, _, sentences = text.partition("## What limits each operation")

    own = re.sub(r"<!-- figure: .*?<!-- end -->", "", sentences)

    assert re.findall(r".*\b\d\.\d\d.*", own) == []


@pytest.mark.sampled(1)
@pytest.mark.parametrize("peer", ["FlashAttention-3", "FlashAttention-4", "DeepGEMM", "QuACK"])
def test_the_readme_has_the_range_over_the_peers_with_rows_of_their_own(peer: str) -> None:
    script = runpy.run_path(str(ROOT / "tools" / "write_tables.py"))
    recorded = list(script["all_recorded"](RESULTS))
    ratios = [
        operation.ratio(row)
        for operation in script["OPERATIONS"]
        for _, name, section in recorded
        if name == operation.section and operation.peer == peer
        for row in operation.members(section)
    ]

    readme = re.sub(r"<!--.*?-->", "", (ROOT / "README.md").read_text())
    range_over_peer = f"{min(ratios):.2f} to {max(ratios):.2f} of {peer}"
    assert range_over_peer in " ".join(readme.split())


def test_a_table_without_results_says_so(tmp_path: Path) -> None:
    script = runpy.run_path(str(ROOT / "tools" / "write_tables.py"))
    text = "<!-- measured: short -->\nold\n<!-- end measured -->\n"

    assert script["rewritten"](text, tmp_path) == (
        f"<!-- measured: short -->\n{script['NOT_MEASURED']}\n<!-- end measured -->\n"
    )


def test_a_table_has_a_line_per_row_of_the_results(tmp_path: Path) -> None:
    for name, row in _ROWS.items():
        write_section(tmp_path / "gpu" / f"{name}.jsonl", Section(_MEASURED, [row]))

    written = _case_tables()["every_case"](tmp_path)

    assert "| copy (TB/s, read + write) | tmaasync | cupy | speed over cupy |" in written
    assert "| contiguous 64 MiB | 4.200 | 4.100 | 1.024 (1.014 to 1.034) |" in written
    assert "| cached tile | 0.500 | 0.10 |" in written


def test_rows_over_different_peers_have_tables_of_their_own(tmp_path: Path) -> None:
    row = _ROWS["copy"]
    other = {
        "case": "strided",
        "us": {"tmaasync": 5.0, "numpy": 9.0},
        "host_us": {"tmaasync": 20.0},
    }
    other["speed_over_numpy"] = _speeds(1.8)
    write_section(tmp_path / "gpu" / "copy.jsonl", Section(_MEASURED, [row, other]))

    lines = _case_tables()["every_case"](tmp_path).splitlines()

    titles = [line for line in lines if line.startswith("| copy ")]
    assert [line.split(" | ")[-2:] for line in titles] == [
        ["cupy", "speed over cupy |"],
        ["speed over numpy", "tmaasync, host (microseconds) |"],
    ]
    (found,) = (line for line in lines if line.startswith("| strided "))
    assert found == "| strided | 5.000 | 9.000 | 1.800 (1.790 to 1.810) | 20.0 |"


def test_a_figure_in_a_sentence_is_the_least_and_the_greatest_of_its_cases(tmp_path: Path) -> None:
    script = runpy.run_path(str(ROOT / "tools" / "write_tables.py"))
    cases = {"window 1": 1.5, "window 2": 2.5, "contiguous 1": 0.9}
    rows = [
        {**_ROWS["copy"], "case": case, "speed_over_cupy": _speeds(ratio)}
        for case, ratio in cases.items()
    ]
    write_section(tmp_path / "gpu" / "copy.jsonl", Section(_MEASURED, rows))
    gpu = script["gpu_name"](Section(_MEASURED, rows))

    def written(cases: str, what: str) -> str:
        text = f"it is <!-- figure: {gpu} copy /{cases}/ {what} -->old<!-- end --> of CuPy"
        return str(script["rewritten"](text, tmp_path))

    assert ">1.50 to 2.50<" in written("^window", "speed over cupy")
    assert ">0.90<" in written("^contiguous", "speed over cupy")
    assert ">4.20<" in written("^contiguous", "tb_per_s of tmaasync")
    assert ">1.00<" in written("", "speed of cupy over cupy")
    with pytest.raises(ValueError, match="no result"):
        written("gather", "speed over cupy")
    with pytest.raises(ValueError, match="begins a line"):
        script["rewritten"](f"a\n<!-- figure: {gpu} copy /window/ us of cupy --> b", tmp_path)
    with pytest.raises(ValueError, match="in a table"):
        script["rewritten"](
            f"| <!-- figure: {gpu} copy /a|b/ us of cupy -->1<!-- end --> |", tmp_path
        )


def test_a_table_by_operation_names_outliers_and_leaves_them_out_of_the_mean(
    tmp_path: Path,
) -> None:
    script = runpy.run_path(str(ROOT / "tools" / "write_tables.py"))
    ratios = {"contiguous 1 MiB": 0.9, "contiguous 2 MiB": 1.0, "contiguous 3 MiB": 2.5}
    rows = [
        {**_ROWS["copy"], "case": case, "speed_over_cupy": _speeds(ratio)}
        for case, ratio in ratios.items()
    ]
    for gpu in ("NVIDIA H100 80GB HBM3", "NVIDIA H200"):
        measured = {**_MEASURED, "gpu": gpu}
        write_section(tmp_path / gpu / "copy.jsonl", Section(measured, rows))

    written = script["rewritten"]("<!-- measured: short -->\n<!-- end measured -->\n", tmp_path)

    cell = "**0.95** (0.90 to 1.00); contiguous 3 MiB: 2.50"
    assert "| operation | fastest peer | H200: speed over peer | H100: speed over peer |" in written
    assert f"| Copy, contiguous | CuPy or torch | {cell} | {cell} |" in written


def _speeds(ours: float) -> dict[str, dict[str, float]]:
    return {
        "tmaasync": {"median": ours, "min": ours - 0.01, "max": ours + 0.01},
        "cupy": {"median": 1, "min": 1, "max": 1},
    }


_MEASURED = {"gpu": "Fake", "date": "2026-01-01 00:00 UTC", "driver": "1"}
_ROWS: dict[str, dict[str, Any]] = {
    "copy": {
        "case": "contiguous 64 MiB",
        "us": {"tmaasync": 30, "cupy": 31},
        "tb_per_s": {"tmaasync": 4.2, "cupy": 4.1},
        "speed_over_cupy": _speeds(1.024),
    },
    "host": {
        "group": "tiles",
        "us": {"cached tile": 0.5, "peer": 5.0},
        "cost_over_peer": {"cached tile": 0.1, "peer": 1.0},
    },
}


def test_the_pictures_are_those_the_script_draws() -> None:
    script = runpy.run_path(str(ROOT / "tools" / "pictures"))

    stale = [
        name
        for name, text in script["rendered"]()
        if not (path := script["FOLDER"] / name).exists() or path.read_text() != text
    ]

    assert stale == [], "run python tools/pictures"


def test_each_picture_has_one_for_dark_pages() -> None:
    names = {path.name for path in (ROOT / "docs" / "images").iterdir()}
    light = {Path(name) for name in names if not Path(name).stem.endswith("_dark")}

    assert names == {name for one in light for name in (one.name, f"{one.stem}_dark{one.suffix}")}
