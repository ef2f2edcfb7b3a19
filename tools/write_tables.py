"""Write the measured tables and figures of README.md and docs from benchmarks/results.

A table stands between ``<!-- measured: KIND -->`` and ``<!-- end measured -->``. KIND is ``short``
(the operations of the README, a line each) or ``groups`` (all operations, a line each). The tables
of every case are not in the repository: docs/conf.py puts them in place of ``<!-- every case -->``
when it builds the site.

A figure in a sentence stands between ``<!-- figure: GPU SECTION /CASES/ WHAT -->`` and
``<!-- end -->``: the least to the greatest over the cases (or groups) whose name has the pattern in
it. GPU and SECTION may have ``*``, for several. WHAT is ``speed over PEER, PEER`` (the fastest of
them), ``speed of CANDIDATE over PEER``, or ``UNIT of CANDIDATE``, as in
``<!-- figure: H200 copy /^window/ speed over cupy -->2.18 to 2.50<!-- end -->``.
"""

from __future__ import annotations

import argparse
import re
import statistics
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "benchmarks"))

from result_files import RESULTS, Row, Section, sections

ROOT = Path(__file__).resolve().parents[1]
DOCUMENTS = (ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md")))
NOT_MEASURED = "Not measured yet: there is no file in `benchmarks/results/`."
OUTLIER = 1.35
"""How far a case is from the median of its operation, at least, to be named and not in the mean."""

_READING = (
    "**Geometric mean** over the cases (least to greatest); outliers, more than "
    f"{OUTLIER} times off the median,\nare named and not in the mean."
)

Recorded = tuple[str, str, Section]
"""A GPU's folder, a section's name, and the section."""

_MARKED = re.compile(
    r"(<!-- measured: (?P<kind>short|groups) -->\n).*?(<!-- end measured -->)", re.DOTALL
)
# A line that begins with the comment would be a block of HTML, not a part of its sentence.
_FIGURE = re.compile(
    r"(?<!\n)(<!-- figure: (?P<gpu>\S+) (?P<section>\S+) /(?P<cases>[^/]*)/ (?P<what>[^>]*) -->)"
    r"[^<]*(<!-- end -->)"
)
_RATIOS = ("speed_over_", "cost_over_")
OURS = "tmaasync"
_CUBLAS = {"torch": "cuBLAS"}
_CUDNN = {"torch": "cuDNN"}
_ATTENTION = {"cudnn": "cuDNN", "flash2": "FlashAttention-2"}
_FLASH = {
    "flash_attn_interface": {"flash_attn_interface": "FlashAttention-3"},
    "flash_attn_cute": {"flash_attn_cute": "FlashAttention-4"},
}
_QUACK = {"quack": "QuACK"}
_DEEP_GEMM = {"deep_gemm": "DeepGEMM"}
_FP8 = {"torch": "cuBLAS", "torch without fast accumulation": "cuBLAS"}
_COPIES = {"cupy": "CuPy", "torch": "torch"}
_COPY = {"ops.copy": "ops.copy of as many bytes"}


@dataclass(frozen=True)
class Operation:
    """Cases that share a mean: of a section, those whose name has the pattern in it.

    Attributes:
        peers: What a case is compared with, the fastest of them, and what readers call it.
        is_short: Whether the README has it.
    """

    name: str
    section: str
    peers: dict[str, str]
    pattern: str = ""
    is_short: bool = True

    def members(self, section: Section) -> list[Row]:
        return [row for row in cases(section) if re.search(self.pattern, row["case"])]

    @property
    def peer(self) -> str:
        return " or ".join(dict.fromkeys(self.peers.values()))

    def ratio(self, row: Row) -> float:
        """Return our speed over the fastest peer's, from the medians over the rounds."""
        speeds = row[ratio_key(row)]
        theirs = max(speeds[peer]["median"] for peer in self.peers if peer in speeds)
        return float(speeds[OURS]["median"] / theirs)


OPERATIONS = (
    Operation("Attention, bf16, full", "attention", _ATTENTION, r"^(?!.*float16).*full$"),
    Operation("Attention, bf16, causal", "attention", _ATTENTION, r"^(?!.*float16).*causal$"),
    Operation("Attention, fp16, causal", "attention", _ATTENTION, "float16", is_short=False),
    Operation("Decode, 1 query, GQA", "attention", _ATTENTION, "decode of 1 query$"),
    Operation("Decode, 16 queries, GQA", "attention", _ATTENTION, "decode of 16", is_short=False),
    Operation(
        "Varlen attention, bf16",
        "varlen_attention",
        {"torch": "torch varlen_attn (FlashAttention-2)"},
    ),
    Operation(
        "FP8 attention", "attention_float8", {"cudnn, bfloat16": "cuDNN in bf16"}, "(full|causal)$"
    ),
    Operation(
        "FP8 decode, GQA",
        "attention_float8",
        {"bfloat16": "ours in bf16"},
        "decode",
        is_short=False,
    ),
    Operation(
        "Decode from pages of 16, bf16, GQA",
        "paged_decode",
        {"cudnn": "cuDNN on padded arrays"},
    ),
    Operation("Attention backward, bf16", "attention_backward", _ATTENTION, "(16|32) heads"),
    Operation("Attention backward, bf16, GQA", "attention_backward", _ATTENTION, "64/8 heads"),
    *(
        Operation(name, f"{section}_{peer}", names, pattern, is_short=False)
        for peer, names in _FLASH.items()
        for name, section, pattern in (
            ("Attention, bf16, full", "attention", "full$"),
            ("Attention, bf16, causal", "attention", "causal$"),
            ("Varlen attention, bf16", "varlen_attention", ""),
            ("Attention backward, bf16", "attention_backward", "(16|32) heads"),
            ("Attention backward, bf16, GQA", "attention_backward", "64/8 heads"),
            ("Varlen attention backward, bf16", "varlen_attention_backward", ""),
        )
    ),
    Operation("GEMM, bf16, M = N = K", "matmul", _CUBLAS, r"^bfloat16 (\d+) x \1 x \1$"),
    Operation(
        "GEMM, bf16, LLM shapes, M 1 to 8192", "matmul", _CUBLAS, r"^bfloat16 (?!(\d+) x \1 x \1$)"
    ),
    Operation("GEMM, fp16, M = N = K", "matmul", _CUBLAS, "^float16", is_short=False),
    Operation("GEMM, few tiles and a long K", "split_k", _CUBLAS, is_short=False),
    Operation("GEMM, batched", "batched_matmul", _CUBLAS),
    Operation(
        "GEMM with an epilogue",
        "matmul_epilogue",
        {"torch": "torch, fused or two kernels"},
        is_short=False,
    ),
    Operation("GEMM, int8", "matmul_types", {"torch": "torch._int_mm"}, "^int8", is_short=False),
    Operation("GEMM, tf32", "matmul_types", _CUBLAS, "^tf32", is_short=False),
    Operation("GEMM, FP8, per-tensor scales", "fp8_matmul", _FP8),
    Operation("GEMM, FP8, block-scaled", "fp8_blockwise_matmul", _CUBLAS),
    Operation("GEMM, bf16", "matmul_deep_gemm", _DEEP_GEMM, is_short=False),
    Operation("GEMM, bf16", "matmul_quack", _QUACK, is_short=False),
    Operation(
        "GEMM, FP8, block-scaled", "fp8_blockwise_matmul_deep_gemm", _DEEP_GEMM, is_short=False
    ),
    Operation(
        "Grouped GEMM (MoE)", "grouped_matmul", {"torch": "torch._grouped_mm"}, "^(equal|zipf)"
    ),
    Operation(
        "Grouped GEMM, 4 to 64 rows a group",
        "grouped_matmul",
        {"torch": "torch._grouped_mm"},
        "^few rows",
        is_short=False,
    ),
    Operation("conv2d, bf16, NHWC", "conv2d", _CUDNN),
    Operation("Copy, strided", "copy", _COPIES, "^window"),
    Operation("Copy, contiguous", "copy", _COPIES, "^contiguous"),
    Operation("Ragged pack (ragged_store)", "ragged", _COPY, "^ragged_store"),
    Operation("Ragged unpack (ragged_load)", "ragged", _COPY, "^ragged_load"),
)


def all_recorded(results: Path) -> list[Recorded]:
    return [one for one in sections(results) if cases_or_groups(one[2])]


def rewritten(text: str, results: Path = RESULTS) -> str:
    """Return the document with its tables made anew."""
    if not _MARKED.search(text) and "<!-- figure:" not in text:
        return text
    recorded = all_recorded(results)
    tables = {
        "short": lambda: _by_operation(recorded, [one for one in OPERATIONS if one.is_short]),
        "groups": lambda: _by_operation(recorded, OPERATIONS),
    }

    def replace(found: re.Match[str]) -> str:
        body = "\n".join(tables[found["kind"]]()) or NOT_MEASURED
        return f"{found[1]}{body}\n{found[3]}"

    if text.count("<!-- figure:") != len(_FIGURE.findall(text)):
        raise ValueError(
            "A figure begins a line, lacks its end, or is not GPU SECTION /CASES/ WHAT."
        )
    if re.search(r"^\|.*<!-- figure: [^/]*/[^/]*\|", text, re.MULTILINE):
        raise ValueError("A figure in a table has a |, which ends its cell.")
    return _FIGURE.sub(lambda found: _sentence_figure(found, recorded), _MARKED.sub(replace, text))


# --- a figure in a sentence -------------------------------------------------------------------


def _sentence_figure(found: re.Match[str], recorded: list[Recorded]) -> str:
    """Return the comment with the figures as they are in the results.

    Raises:
        ValueError: No case or group of that section has the pattern in its name.
    """
    values = [
        _value(row, found["what"])
        for _, name, section in recorded
        if fnmatchcase(gpu_name(section), found["gpu"]) and fnmatchcase(name, found["section"])
        for row in cases_or_groups(section)
        if re.search(found["cases"], row.get("case") or row["group"])
    ]
    if not values:
        raise ValueError(f"no result for {found[1]}")
    pattern = ".2f" if max(values) < 10 else ".1f" if max(values) < 100 else ".0f"
    ends = dict.fromkeys(f"{end:{pattern}}" for end in (min(values), max(values)))
    return f"{found[1]}{' to '.join(ends)}{found[6]}"


def _value(row: Row, what: str) -> float:
    ratio = re.fullmatch(r"speed (?:of (.*) )?over (.*)", what)
    if ratio is None:
        unit, candidate = what.split(" of ", 1)
        return float(row[unit][candidate])
    speeds = row[ratio_key(row)]
    theirs = max(speeds[peer]["median"] for peer in ratio[2].split(", "))
    return float(speeds[ratio[1] or OURS]["median"] / theirs)


# --- a line for each operation ----------------------------------------------------------------


def _by_operation(recorded: list[Recorded], operations: Iterable[Operation]) -> Iterator[str]:
    """Yield a table with an operation a line and a GPU a column."""
    gpus = sorted({gpu_name(section) for _, _, section in recorded}, reverse=True)
    found = {(gpu_name(section), name): section for _, name, section in recorded}
    lines = []
    for operation in operations:
        found_groups = [group_of(operation, found.get((gpu, operation.section))) for gpu in gpus]
        if any(found_groups):
            cells = (group.text if group else "not measured" for group in found_groups)
            lines.append(line([operation.name, operation.peer, *cells]))
    if not lines:
        return
    yield line(["operation", "fastest peer", *(f"{gpu}: speed over peer" for gpu in gpus)])
    yield line(["---"] * (2 + len(gpus)))
    yield from lines
    yield ""
    yield f"{_READING}\n"
    yield from (
        _circumstances([one for _, _, one in recorded if gpu_name(one) == gpu]) for gpu in gpus
    )
    yield ""


def group_of(operation: Operation, section: Section | None) -> Group | None:
    rows = [] if section is None else operation.members(section)
    return Group.of(operation, rows) if rows else None


@dataclass(frozen=True)
class Group:
    """The speed of an operation over its peer, of each case; outliers apart."""

    ratios: dict[str, float]
    outliers: dict[str, float]

    @classmethod
    def of(cls, operation: Operation, rows: Iterable[Row]) -> Group:
        ratios = {row["case"]: operation.ratio(row) for row in rows}
        median = statistics.median(ratios.values())
        outliers = {
            case: ratio
            for case, ratio in ratios.items()
            if not median / OUTLIER < ratio < median * OUTLIER
        }
        kept = {case: ratio for case, ratio in ratios.items() if case not in outliers}
        return cls(kept, outliers)

    @property
    def mean(self) -> float:
        return statistics.geometric_mean(self.ratios.values())

    @property
    def text(self) -> str:
        values = self.ratios.values()
        spread = f" ({min(values):.2f} to {max(values):.2f})" if len(values) > 1 else ""
        apart = "".join(f"; {_short(case)}: {one:.2f}" for case, one in self.outliers.items())
        return f"**{self.mean:.2f}**{spread}{apart}"


def _short(case: str) -> str:
    """Return a case without the words that the operation's name has."""
    bare = re.sub(r"^(bfloat16|float16|e4m3|float8,) |, full, decode of .*$", "", case)
    return re.sub(r"\b(\d+) x \1 x \1\b", r"\1^3", bare)


def gpu_name(section: Section) -> str:
    """Return a GPU's name without its vendor and its memory: H200."""
    gpu = str(section.measured["gpu"])
    model = re.search(r"\b[A-Z]+\d{2,}\b", gpu)
    return model[0] if model else gpu


def _circumstances(measured: Sequence[Section]) -> str:
    """Return the GPU's full name, the dates and the drivers."""
    seen = [section.measured for section in measured]
    days = sorted({one["date"][:10] for one in seen})
    drivers = ", ".join(sorted({one["driver"] for one in seen}))
    when = days[0] if len(days) == 1 else f"{days[0]} to {days[-1]}"
    return f"* {gpu_name(measured[0])}: {seen[0]['gpu']}, measured {when}, driver {drivers}."


# --- rows of a section -------------------------------------------------------------------------


def cases(section: Section) -> list[Row]:
    return [row for row in section.rows if "us" in row and "case" in row]


def groups(section: Section) -> list[Row]:
    return [row for row in section.rows if "us" in row and "group" in row]


def probes(section: Section) -> list[Row]:
    return [row for row in section.rows if "probe" in row and "ranks" in row]


def cases_or_groups(section: Section) -> list[Row]:
    """Return the rows that a table is made of; none where something else was recorded."""
    return cases(section) + groups(section) + probes(section)


def ratio_key(row: Row) -> str:
    return next(key for key in row if key.startswith(_RATIOS))


def line(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cells)} |"


def main() -> None:
    """Rewrite the documents."""
    argparse.ArgumentParser(description=__doc__).parse_args()
    for path in DOCUMENTS:
        text = path.read_text()
        if (fresh := rewritten(text)) != text:
            path.write_text(fresh)


if __name__ == "__main__":
    main()
