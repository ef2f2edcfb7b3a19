"""Each device header compiles alone, with no GPU, and includes nothing from outside the project."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tmaasync._source.compile import Source, compile_source
from tmaasync._source.paths import include_dir, kernels_dir

HEADERS = sorted(str(path.relative_to(include_dir())) for path in include_dir().rglob("*.cuh"))
PTX_HEADERS = [name for name in HEADERS if "/ptx/" in name]
OUTSIDE = {
    "tmaasync/types.cuh": {"cuda_bf16.h", "cuda_fp16.h", "cuda_fp8.h"},
    "tmaasync/instrument/trap.cuh": {"cstdio"},  # for nvcc alone
}


def text_of(header: str) -> str:
    return (include_dir() / header).read_text()


@pytest.mark.sampled(24)
@pytest.mark.parametrize("header", HEADERS)
def test_a_header_compiles_alone(header: str) -> None:
    # As nvcc does, which includes them with C++17.
    options = ("--std=c++17",)
    source = Source(text=f"#include <{header}>\n", name=f"{Path(header).stem}.cu", options=options)

    program = compile_source(source, "sm_90a")

    assert program.warnings == ()


@pytest.mark.parametrize("header", HEADERS)
def test_a_header_includes_only_the_project_or_the_element_types(header: str) -> None:
    included = set(re.findall(r"#include\s*[<\"]([^>\"]+)", text_of(header)))

    outside = {name for name in included if not name.startswith("tmaasync/")}

    assert outside == OUTSIDE.get(header, set())


def test_assembly_lies_in_the_portability_layer_only() -> None:
    above = [name for name in HEADERS if "/ptx/" not in name]
    sources = [*(text_of(name) for name in above)]
    kernels = [*kernels_dir().glob("*.cu*"), *kernels_dir().glob("*/*.cu*")]
    sources += [path.read_text() for path in kernels]

    assert {"gemm.cu", "split_kv.cuh"} <= {path.name for path in kernels}
    assert not [text for text in sources if re.search(r"\basm\b", text)]


# Pure functions of their operands, or of registers that never change.
WITHOUT_EFFECT = (
    *("mapa", "mov.u32", "mul.wide", "createpolicy", "ex2.approx", "rcp.approx", "query_cancel"),
    *("cvt.r", ".satfinite.ue8m0x2", ".f32x2", "redux.sync", "mma.sync.aligned", "mma.sp::"),
)


@pytest.mark.parametrize("header", PTX_HEADERS)
def test_assembly_that_touches_memory_is_volatile_and_clobbers_memory(header: str) -> None:
    statements = re.findall(r"\basm\b(.*?);\n", text_of(header), re.DOTALL)

    careless = [
        statement
        for statement in statements
        if not any(word in statement for word in WITHOUT_EFFECT)
        and ("volatile" not in statement or '"memory"' not in statement)
    ]

    assert careless == []


def test_the_check_above_can_fail() -> None:
    statements = re.findall(r"\basm\b(.*?);\n", 'asm("bar.sync 0;");\n', re.DOTALL)

    assert statements
    assert "volatile" not in statements[0]
