"""Write tests/data/device_functions.txt: the functions that CUDA's headers declare for the device.

Needs nvcc, whose headers it reads, and NVRTC, which has to compile a call of each for sm_90a.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from tmaasync._source.compile import Source, compile_source

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT / "tests"), str(ROOT / "tests" / "helpers")]

# Only now is their folder on the path.
from parity.device_calls import kernel_text  # noqa: E402

TARGET = ROOT / "tests" / "data" / "device_functions.txt"
INCLUDES = "#include <cuda_fp16.h>\n#include <cuda_bf16.h>\n#include <cuda_fp8.h>\n"
HEADER = re.compile(
    r"(common|device|device_double|math|device_atomic|sm_\d+_atomic)_functions|sm_\d+_(intrinsics|rt)"
    r"|cuda_(fp16|bf16|fp8)"
)
DECLARED = re.compile(
    r"([A-Za-z_][\w\s*&]*?[\s*&])(\w+)\s*\(([^()]*)\)\s*(?:noexcept\s*(?:\(\w+\))?)?\s*[;{]"
)
ATTRIBUTE = re.compile(r"__attribute__\s*\(\((?:[^()]|\([^()]*\))*\)\)")
NO_TYPE = re.compile(
    r"\b(?:return|else|new|case|goto|operator|using|do|typedef|struct|class|volatile)\b"
)
# Helpers of the headers, launches, and forms without a mask, which sm_70 has lost.
PRIVATE = re.compile(
    r"_U$|__(?:nv_(?!cvt)|internal|cuda|nvvm|pm\d|cmath|pow_helper|assert_fail|float_simpl)"
    r"|__(?:finite|isinf|isnan|signbit)l$|__[a-z0-9]+Atomic|(?:__)?(?:any|all|ballot)$|syncthreads|__cluster_map_shared_multicast"
)
WORDS = {"int", "char", "short", "long", "float", "double", "unsigned", "bool", "size_t"}


def main() -> None:
    signatures = sorted(set(declared()))
    compile_source(Source(text=kernel_text(signatures), name="calls.cu"), "sm_90a")
    TARGET.write_text("\n".join(signatures) + "\n")
    names = {signature.partition("(")[0] for signature in signatures}
    print(f"{len(names)} functions with {len(signatures)} signatures")


def declared() -> Iterator[str]:
    """Yield one line ``name(type, type)`` for each declaration in the headers of interest."""
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder, "all.cu")
        source.write_text(INCLUDES)
        command = ["nvcc", "-E", "-arch=sm_90a", str(source)]
        text = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    of_file: dict[str, list[str]] = {}
    name = ""
    for line in text.splitlines():
        marker = re.match(r'# \d+ "([^"]*)"', line)
        name = Path(marker[1]).name if marker else name
        if not marker:
            of_file.setdefault(name, []).append(line)
    for name, lines in of_file.items():
        if HEADER.fullmatch(name.removesuffix(".h")):
            bare = ATTRIBUTE.sub("", "\n".join(lines))
            for result, function, parameters in DECLARED.findall(bare):
                types = ", ".join(filter(None, map(plain, parameters.split(","))))
                is_own = (
                    NO_TYPE.search(result)
                    or PRIVATE.match(function)
                    or re.search(r"_Tp|[.]{3}", types)
                )
                if not is_own:
                    # Templates of atomics take any type of 16 bytes.
                    yield f"{function}({types.replace('_T', 'uint4')})"


def plain(parameter: str) -> str:
    """Return a parameter's type, without its name and default.

    >>> plain("float const *x"), plain("float *const x"), plain("unsigned int mask = 3")
    ('const float*', 'float*', 'unsigned int')
    """
    words, star = parameter.partition("=")[0].partition("*")[:2]
    kind = words.split()
    if not star and len(kind) > 1 and kind[-1] not in WORDS:
        kind.pop()
    const = "const " if star and "const" in kind else ""
    bare = " ".join(word for word in kind if word not in ("const", "enum"))
    return "" if bare == "void" and not star else f"{const}{bare}{star}"


if __name__ == "__main__":
    main()
