"""Words that this project once used for things that the field already had a name for.

`python tools/retired_words.py [FOLDER]` prints every one that is left, and how many there are.
docs/glossary.md has the field's words.
"""

from __future__ import annotations

import functools
import re
import subprocess
import sys
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

_ROOT = Path(__file__).resolve().parents[1]
_SUFFIXES = {
    *(".py", ".cu", ".cuh", ".hpp", ".cpp", ".h", ".md", ".rst", ".toml", ".html", ".js", ".css"),
    *(".yaml", ".ipynb"),
}
# Recorded results, and this list.
_EXCLUDED = (
    "benchmarks/results/",
    "tests/data/",
    "tools/retired_words.py",
    "tests/documents/test_words.py",
)

_CODE_WITHOUT_TESTS = (
    "README docs kernels tmaasync examples tools benchmarks CHANGELOG CONTRIBUTING"
)
_PROSE = "README docs CHANGELOG CONTRIBUTING"
_KERNEL_SIDE = "README docs kernels examples tmaasync/ops tmaasync/kernel tmaasync/cli CHANGELOG"
_ATTENTION = "docs/attention.md kernels/attention tmaasync/ops/_flash examples/08_ragged_attention"


@dataclass(frozen=True)
class Retired:
    """A retired expression, what to write instead, and where the rule holds."""

    pattern: str
    instead: str
    where: str = ""  # Starts of paths; everywhere without
    allowed: str = ""  # Matches at the same position that are meant

    def found(self, line: str) -> Iterator[str]:
        """Each retired expression in one line of text."""
        for match in _compiled(self.pattern).finditer(line):
            around = line[max(0, match.start() - 24) : match.end() + 24]
            if not (self.allowed and re.search(self.allowed, around)):
                yield match.group()

    def holds_in(self, path: str) -> bool:
        """Tell whether the rule is one for this file."""
        return not self.where or path.startswith(tuple(self.where.split()))


@functools.cache
def _compiled(pattern: str) -> re.Pattern[str]:
    # Words inside of identifiers count: underscores and digits part words.
    return re.compile(rf"(?<![A-Za-z])(?:{pattern})(?![A-Za-z])")


RETIRED = (
    Retired(
        "[Pp]roducts?",
        "matmul, GEMM",
        allowed=r"(?i)(dot|inner|outer|cross|scalar|cartesian|partial|tensor)[ _-]products?"
        r"|product\(|import product|itertools\.product",
    ),
    Retired("[Dd]eeds?", "operation, access, issuer", "tmaasync/emulate"),
    Retired("[Bb]ehind", "after, beyond"),
    Retired("[Bb]esides?(?! the| that)", "next to, outside, in addition to"),
    Retired("in front", "before"),
    Retired("under way", "in flight"),
    Retired("in turns|(?:take|takes|took|taking) turns|by turns", "ping-pong, interleaved"),
    Retired("[Tt]old|[Tt]ells|tell of", "reports, prints, shows"),
    Retired("[Ss]uch(?! as)", "name the thing", allowed="[Nn]o such (file|kernel|device|option)"),
    Retired("so many", "name the number"),
    Retired(
        "[Tt]hat[ _]of|[Tt]hose[ _]of|of those|of that(?= [a-z]+s )|the latter|the former",
        "name the thing",
    ),
    Retired("what (?:is|are|was|were)", "name the thing", _CODE_WITHOUT_TESTS),
    Retired("waist", "portability layer"),
    Retired("ladder|rungs?", "tutorial, step"),
    Retired("makers?", "allocator, factory"),
    Retired("wants", "needs, expects, takes"),
    Retired("blockings?", "tile config", allowed="[Nn]on[-_ ]?blocking"),
    Retired("multiprocessors?", "SMs", allowed="streaming multiprocessors?|multiprocessor_count"),
    Retired("[Ww]alks?|walked", "tile scheduler, iteration", allowed=r"(os|ast|path|\w)\.walk"),
    Retired("[Rr]ates?", "throughput, bandwidth", allowed="(clock|error|hit) rates?"),
    Retired("aims?|aimed|[Rr]epeatable", "bind, bound launch; target"),
    Retired("lifts?|slack", "lazy rescaling threshold", allowed="`lift`|lift WGMMA"),
    Retired("by_columns|flips?|flipped|swapped", "swap AB", allowed="(byte|buffer)s? swapped"),
    Retired("few queries of many keys|few queries", "decode"),
    Retired("(?:keys|values) in pages", "paged KV cache"),
    Retired("copied first|in a copy", "fallback copy, staging copy"),
    Retired(
        "(?:last|whole|full|first|more|of) rounds?", "waves", "docs kernels tmaasync/ops README"
    ),
    Retired("extras?(?= of)|work behind", "epilogue", "docs kernels tmaasync/ops"),
    Retired(
        "[Ss]ums",
        "accumulators; row_sum; cumulative lengths",
        _KERNEL_SIDE,
        allowed="(?i)(partial|row|check|block|prefix)[ _]?sums",
    ),
    Retired(
        "[Pp]laces?",
        "address, pointer, position, pipeline state",
        _KERNEL_SIDE,
        allowed=r"in[- _]place|take[sn]? place|placeholder",
    ),
    Retired("[Ww]eights?", "probabilities, P", _ATTENTION),
    Retired("[Tt]he ring|[Rr]ings", "pipeline", _PROSE, allowed="ring buffers?|cluster_rings"),
)

FIRST_WORDS = Retired("What|Of|That|Those", "name the thing first")
"""Words that begin no comment. Inside of a comment a sentence may begin with them."""

# A kernel in a string of a Python file has comments, too.
_COMMENTS = {
    **dict.fromkeys((".cu", ".cuh", ".hpp", ".cpp", ".h"), re.compile(r"(?:^|(?<=\s))//+(.*)")),
    ".py": re.compile(r"(?:^|(?<=\s))(?:#:?(?= )|//+)(.*)"),
    ".toml": re.compile(r"(?:^|(?<=\s))#(.*)"),
}


def comment_starts(lines: Sequence[str], suffix: str) -> Iterator[tuple[int, str]]:
    """Number of the line and text of every comment, at the first line of each."""
    above = None
    for number, line in enumerate(lines, 1):
        found = _COMMENTS[suffix].search(line)
        column = found.start() if found else None
        if found and not (column == above and not line[:column].strip()):
            yield number, found[1].strip()
        above = column


def files(root: Path) -> Iterator[str]:
    """Every text file that people read, relative to the root."""
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard"],
        cwd=root,
        capture_output=True,
        text=True,
        check=True,
    )
    for path in listed.stdout.splitlines():
        if path.startswith(_EXCLUDED) or not (root / path).is_file():
            continue
        if Path(path).suffix in _SUFFIXES or Path(path).name in ("Makefile", "run"):
            yield path


def retired_in(root: Path) -> Iterator[tuple[str, int, str, Retired]]:
    """Path, line number, expression and rule of every retired expression."""
    for path in files(root):
        text = (root / path).read_text(encoding="utf-8", errors="replace")
        # Most texts have few of the expressions, and a whole text is searched faster than lines;
        # without what may be around it, an expression is found by its first letters.
        rules = [
            rule
            for rule in RETIRED
            if rule.holds_in(path) and re.search(rule.pattern, text) and any(rule.found(text))
        ]
        for number, line in enumerate(text.splitlines(), 1):
            for rule in rules:
                for expression in rule.found(line):
                    yield path, number, expression, rule
        if Path(path).suffix not in _COMMENTS:
            continue
        for number, comment in comment_starts(text.splitlines(), Path(path).suffix):
            if _compiled(FIRST_WORDS.pattern).match(comment):
                yield path, number, comment, FIRST_WORDS


def main() -> None:
    """Print what is left, by line and by file; arguments are a root and the starts of paths."""
    starts = tuple(sys.argv[1:])
    counts: Counter[str] = Counter()
    for path, number, expression, rule in retired_in(_ROOT):
        if path.startswith(starts or ("",)):
            print(f"{path}:{number}: {expression!r} -> {rule.instead}")
            counts[path.split("/")[0]] += 1
    for folder, count in counts.most_common():
        print(f"{count:6d}  {folder}")
    print(f"{counts.total():6d}  in all")


if __name__ == "__main__":
    main()
