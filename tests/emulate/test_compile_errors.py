"""An error of the C++ compiler is one sentence with the kernel's line, and the first error."""

from __future__ import annotations

import traceback
from pathlib import Path

import numpy as np
import pytest

from tmaasync import CompileError, Kernel, create_tma_tile
from tmaasync._source.compile import Source
from tmaasync.emulate.frontend.cpp.compile_errors import refusal

HEAD = """#include <tmaasync/tmaasync.cuh>
using namespace tmaasync;
"""
CASES = {
    "a rule of a header": (
        "    claim_registers<33>();  //@",
        "setmaxnreg takes multiples of 8 from 24 to 256.",
        "tmaasync/ptx/setmaxnreg.cuh:",
    ),
    "a rule of a template's argument": (
        (
            "    Tile::Shared* shared = nullptr;\n    SharedMemBarrier* full = nullptr;\n"
            "    tile.async_copy(*shared, *full, {0, 0, 0});  //@"
        ),
        "one coordinate per dimension, innermost first.",
        "tmaasync/operands/copies.cuh:",
    ),
    "two unknown functions": (
        "    x[0] = first(3);  //@\n    x[1] = second(4);",
        "'first' was not declared in this scope.",
        (
            "Not defined: first, second. Include the header that declares it, or define it as a "
            "__device__ function."
        ),
    ),
    "an unknown constant": (
        "    x[0] = STAGES;  //@",
        "'STAGES' was not declared in this scope.",
        "pass types={'Name': tile} or constants={'NAME': value} to Kernel.",
    ),
    "a missing semicolon": ("    x[0] = 3  //@", "expected ';' before '}' token.", "x[0] = 3"),
}


@pytest.mark.parametrize(
    ("back_end", "head", "use", "remedy"),
    [
        (
            "cpu",
            "#include <tmaasync/tmaasync.cuh>",
            "warp_index()",
            " Write tmaasync::warp_index, or add `using namespace tmaasync;`.",
        ),
        (
            "nvrtc",
            "#include <tmaasync/tmaasync.cuh>",
            "sizeof(SharedMemBarrier)",
            " Write tmaasync::SharedMemBarrier, or add `using namespace tmaasync;`.",
        ),
        (
            "cpu",
            "#include <tmaasync/tmaasync.cuh>\nusing namespace tmaasync;",
            "wgmma_tile()",
            " Add #include <tmaasync/wgmma.cuh>.",
        ),
        (
            "nvrtc",
            "",
            "elect_one()",
            (
                " Add #include <tmaasync/warp.cuh>. Write tmaasync::elect_one, or add `using "
                "namespace tmaasync;`."
            ),
        ),
    ],
)
def test_a_name_of_the_library_comes_with_its_namespace_and_header(
    back_end: str, head: str, use: str, remedy: str
) -> None:
    kernel = Kernel(f'{head}\nextern "C" __global__ void k(float* x) {{ x[0] = {use}; }}\n', "k")

    with pytest.raises(CompileError) as caught:
        kernel.compile() if back_end == "nvrtc" else kernel(1, 1, (np.zeros(1, np.float32),))

    (hint,) = (one for one in str(caught.value).splitlines() if one.startswith("Not defined: "))
    assert hint.endswith(f", of namespace tmaasync.{remedy}")


@pytest.mark.parametrize(
    ("name", "header", "back_end"),
    [
        ("CUtensorMap", "cuda.h", "cpu"),
        ("__half2", "cuda_fp16.h", "nvrtc"),
        ("__nv_bfloat16", "cuda_bf16.h", "cpu"),
        ("__nv_fp8_e4m3", "cuda_fp8.h", "nvrtc"),
    ],
)
def test_a_type_of_cuda_comes_with_its_header(name: str, header: str, back_end: str) -> None:
    entry = f'extern "C" __global__ void k(const __grid_constant__ {name} map, float* x) {{}}'
    array = np.zeros((8, 32), np.float32)
    args = (create_tma_tile(array, (8, 32)), array)
    kernel = Kernel(f"\n{entry}\n", "k")

    with pytest.raises(CompileError) as caught:
        kernel.compile() if back_end == "nvrtc" else kernel(1, 1, args)

    assert f"Not defined: {name}. Add #include <{header}>." in str(caught.value)
    assert "types=" not in str(caught.value)


def test_names_that_only_follow_from_the_first_error_are_not_the_host_s() -> None:
    text = f"""{HEAD}extern "C" __global__ void k(float* x) {{
    x[1] = 0
    for (int i = 0; i < 3; ++i) x[i] = i;
}}
"""
    with pytest.raises(CompileError) as caught:
        Kernel(text, "k")(1, 1, (np.zeros(4, np.float32),))

    message = str(caught.value)
    assert message.startswith("kernel.cu does not compile, at kernel.cu:4: expected ';' ")
    assert "Not defined" not in message


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", CASES)
def test_the_first_error_is_one_sentence_with_the_line_of_the_kernel(name: str) -> None:
    body, sentence, shown = CASES[name]
    entry = 'extern "C" __global__ void k(const __grid_constant__ Tile tile, float* x) {'
    text = f"{HEAD}{entry}\n{body}\n}}\n"
    array = np.zeros((8, 16), np.float32)
    tile = create_tma_tile(array, (8, 16))

    with pytest.raises(CompileError) as caught:
        Kernel(text, "k", types={"Tile": tile})(1, 128, (tile, array))

    message = str(caught.value)
    line = next(line for line, code in enumerate(text.splitlines(), 1) if code.endswith("//@"))
    if "clang" not in message:  # which has words of its own
        first = message.splitlines()[0]
        assert first == f"kernel.cu does not compile, at kernel.cu:{line}: {sentence}"
    assert shown in message
    assert message.count(" error: ") == 1
    assert "In file included" not in message
    assert "In file included" in caught.value.log or caught.value.log.count("error:") <= 2


CLANG = """/pkg/include/tmaasync/ptx/setmaxnreg.cuh:11:9: error: static assertion failed due to \
requirement '33 % 8 == 0': setmaxnreg takes multiples of 8 from 24 to 256
   11 |         kRegisters >= 24 && kRegisters <= 256 && kRegisters % 8 == 0,
/pkg/include/tmaasync/warp.cuh:89:38: note: in instantiation of function template specialization \
'tmaasync::ptx::setmaxnreg_inc<33>' requested here
   89 |     if constexpr (kRegisters != 0) ptx::setmaxnreg_inc<kRegisters>();
kernel.cu:5:5: note: in instantiation of function template specialization \
'tmaasync::claim_registers<33>' requested here
    5 |     claim_registers<33>();
1 error generated.
"""


def test_clang_names_the_use_after_the_error() -> None:
    source = Source(text="", name="kernel.cu")

    message = refusal(source, CLANG, "clang++", (), ())

    first, second, *_ = message.splitlines()
    assert first == (
        "kernel.cu does not compile, at kernel.cu:5: setmaxnreg takes multiples of 8 from 24 to "
        "256."
    )
    assert second.startswith("clang++: /pkg/include/tmaasync/ptx/setmaxnreg.cuh:11:9: error: ")


def test_a_log_without_an_error_is_shown_whole() -> None:
    message = refusal(Source(text="", name="kernel.cu"), "ld: cannot find -lm\n", "c++", (), ())

    assert message == "kernel.cu does not compile (c++):\nld: cannot find -lm"


@pytest.mark.parametrize("back_end", ["cpu", "nvrtc"])
def test_the_traceback_has_the_call_and_no_step_of_the_build(back_end: str) -> None:
    kernel = Kernel('\nextern "C" __global__ void k(float* x) { x[0] = gone; }\n', "k")

    with pytest.raises(CompileError) as caught:
        kernel.compile() if back_end == "nvrtc" else kernel(1, 1, (np.zeros(1, np.float32),))

    files = [
        Path(frame.filename).name for frame in traceback.extract_tb(caught.value.__traceback__)
    ]
    assert files[0] == Path(__file__).name
    assert set(files[1:]) <= {"kernel.py", "source.py"}
    assert caught.value.__suppress_context__


@pytest.mark.parametrize(
    ("written", "said"),
    [
        ("Swizzle::kB128", "Did you mean Swizzle::k128B? Swizzle has kNone, k32B, k64B, k128B, "),
        ("OobFill::ZERO", "Did you mean OobFill::kZero? OobFill has kZero, kNan."),
    ],
)
def test_an_enumerator_in_python_s_spelling_comes_with_c_s(written: str, said: str) -> None:
    text = f"""{HEAD}#include <tmaasync/tensormap.cuh>
extern "C" __global__ void k(int* x) {{ x[0] = int({written}); }}
"""
    with pytest.raises(CompileError) as caught:
        Kernel(text, "k")(1, 1, (np.zeros(1, np.int32),))
    assert said in str(caught.value)
