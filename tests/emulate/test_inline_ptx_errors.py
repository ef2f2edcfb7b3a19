"""Unsupported inline PTX is reported in one sentence with the instruction and its line."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

from tmaasync import CompileError, EmulatedFault, Kernel
from tmaasync.emulate.frontend.ptx import translated

OPERANDS = ': "=r"(d), "=l"(e) : "r"(a), "l"(p), "n"(4), "f"(x)'
CASES = {
    "an unknown instruction": ("alloca.u64 %1, 16;", "an instruction that the CPU does not"),
    "an unknown qualifier": (
        "mbarrier.init.shared::cta.b32 [%2], 1;",
        r"has a form that the CPU does not have. It has: mbarrier\.init",
    ),
    "an instruction of sm_100": ("tcgen05.alloc.b32 [%2], 4;", "is of sm_100a .* for sm_90a"),
    "NVLink multicast": ("multimem.st.weak.global.u32 [%3], %2;", "is of NVLink multicast"),
    "too few operands": ("add.u32 %0, %2;", "has too few operands"),
    "an operand too wide": (
        "add.u32 %0, %2, %3;",
        "takes an operand of 32 bits where it has %3 of 64",
    ),
    "an operand that is not there": ("mov.u32 %0, %9;", "the statement does not have; it has 6"),
    "an input that is written": ("mov.u32 %2, %0;", "writes %2, which is an input"),
    "a register that is declared nowhere": ("mov.u32 %0, r7;", "names r7, which the text"),
    "a label that is nowhere": ("bra.uni THERE;", "branches to a label"),
    "a predicate that is none": ("selp.u32 %0, 1, 2, %2;", "takes a predicate here"),
    "no semicolon": ("mov.u32 %0, %2", "has no semicolon"),
    "a brace too many": ("mov.u32 %0, %2; }", "closes no scope"),
    "a register of no type": (".reg .v3 q;", "declares no register of a known type"),
    "coordinates too few": (
        (
            "cp.async.bulk.tensor.3d.shared::cluster.global.tile.mbarrier::complete_tx::bytes "
            "[%2], [%3, {%2, %2}], [%2];"
        ),
        "has 2 coordinates and takes 3",
    ),
    "a constant that is none": ("setmaxnreg.inc.sync.aligned.u32 %2;", "takes a constant here"),
    "accumulators in registers of the text": (
        (
            "{ .reg .f32 c<4>; .reg .pred p; wgmma.mma_async.sync.aligned.m64n8k16.f32.f16.f16 "
            "{c0, c1, c2, c3}, %3, %3, p, 1, 1, 0, 0; }"
        ),
        "takes operands of the statement with the constraint f or r",
    ),
}


@pytest.mark.sampled(4)
@pytest.mark.parametrize("name", CASES)
def test_what_is_unknown_is_named_with_its_line(name: str) -> None:
    ptx, words = CASES[name]
    asm = f'asm volatile("nanosleep.u32 1;\\n\\t"\n    "{ptx}" {OPERANDS});'
    text = f'# 1 "mine.cu"\nvoid f() {{\n  {asm}\n}}\n'

    error = str(translated(text, lambda file, flags: True).refusals[0])

    assert re.search(words, error)
    assert error.startswith("mine.cu does not run on the CPU, at mine.cu:3: `")


def test_an_unknown_constraint_is_named() -> None:
    text = '# 7 "mine.cu"\nvoid f() { asm("mov.u32 %0, 1;" : "=m"(x)); }\n'

    error = str(translated(text, lambda file, flags: True).refusals[0])

    assert re.search(r'mine\.cu:7: .* has the constraint "=m"', error)


def test_statements_of_other_files_stay() -> None:
    text = (
        '# 1 "/usr/include/x.h" 1 3\nvoid g() { asm("nop"); }\n# 2 "mine.cu" 2\n'
        'int name() __asm__("other");\nvoid f() { int asm_count = 0; char quote = \'"\'; }\n'
    )

    assert translated(text, lambda file, flags: "3" not in flags).text == text


OF_A_LIBRARY = """# 1 "/usr/include/chrono" 1 3
#pragma GCC diagnostic push
int f() {
# 9 "/usr/include/chrono" 3
}
# 1 "mine.cu" 2
void wrap() { asm("exit;"); }
void k() { wrap(); }
"""


def test_pragmas_of_other_files_end_nothing() -> None:
    found = translated(OF_A_LIBRARY, lambda file, flags: "3" not in flags)

    assert 'void __attribute__((always_inline, visibility("hidden"))) wrap()' in found.text


CONVERTS = """
struct Word {
    int value;
    __device__ operator int() const {
        int read;
        asm("mov.u32 %0, %1;" : "=r"(read) : "r"(value));
        return read;
    }
    __device__ int operator()(int n) const {
        if constexpr (sizeof(n) == 4) {
            asm("add.s32 %0, %0, 1;" : "+r"(n));
        }
        return n;
    }
    __device__ explicit Word(int given) { asm("mov.u32 %0, %1;" : "=r"(value) : "r"(given)); }
};
extern "C" __global__ void k(int* x) { x[0] = Word(x[0] + 1)(x[0]) + Word(5); }
"""


def test_operators_and_constructors_may_hold_inline_ptx() -> None:
    x = np.ones(1, np.int32)
    Kernel(CONVERTS, "k")(1, 1, (x,))
    assert x[0] == 7


MACROS = """
#define READ_LANE(target) \\
    asm volatile("mov.u32 %0, " \\
                 "%%laneid;" : "=r"(target))
#define WAIT_TWICE(counter) asm("{ .reg .pred p; TURN_%=: add.u32 %0, %0, 1; \\
    setp.lt.u32 p, %0, 5; @p bra TURN_%=; }" : "+r"(counter))
"""


def test_macros_and_headers_of_the_author_are_translated(tmp_path: Path) -> None:
    (tmp_path / "macros.cuh").write_text(MACROS)
    (tmp_path / "mine.cu").write_text(
        '#include "macros.cuh"\n'
        'extern "C" __global__ void k(unsigned* out) {\n'
        "    unsigned lane, a = 0, b = 3;\n"
        "    READ_LANE(lane);\n"
        "    WAIT_TWICE(a);\n"
        "    WAIT_TWICE(b);\n"
        '    if (lane) asm volatile(R"(\n        // a comment; with a semicolon\n'
        "        add.u32 %[sum], %[sum], /* twice */ %[b];\n"
        '    )" : [sum] "+r"(a) : [b] "r"(b)); else a = 1;\n'
        "    out[threadIdx.x] = a * 100 + lane;\n"
        "}\n"
    )
    out = np.zeros(3, np.uint32)

    Kernel(tmp_path / "mine.cu", "k")(1, 3, (out,))

    assert out.tolist() == [100, 1001, 1002]


def test_an_unknown_instruction_of_a_header_has_the_line_there(tmp_path: Path) -> None:
    (tmp_path / "steps.cuh").write_text('\n__device__ void step() { asm("tcgen05.fence;"); }\n')
    (tmp_path / "mine.cu").write_text(
        '#include "steps.cuh"\nextern "C" __global__ void k(float* x) { step(); }\n'
    )

    with pytest.raises(CompileError, match=r"at steps\.cuh:2: `tcgen05\.fence`"):
        Kernel(tmp_path / "mine.cu", "k")(1, 1, (np.zeros(1, np.float32),))


UNUSED = """
__device__ __forceinline__ void allocate(unsigned columns) {
    asm volatile("tcgen05.alloc.cta_group::1.sync.aligned.b32 [%0], 32;" ::"r"(columns));
}
template <int kChip>
__device__ float square(float x) {
    if constexpr (kChip >= 100) asm("fma.rn.f32x2 %0, %0, %0, %0;" : "+l"(x));
    return x * x;
}
extern "C" __global__ void k(float* x) {
    x[0] = square<90>(x[0]);
    if (BLACKWELL) allocate(32);
}
"""


def test_functions_that_the_kernel_does_not_use_may_have_any_instruction() -> None:
    x = np.full(1, 3, np.float32)
    Kernel(UNUSED, "k", constants={"BLACKWELL": False})(1, 1, (x,))
    assert x[0] == 9

    with pytest.raises(CompileError, match=r"kernel\.cu:3: `tcgen05\.alloc.*` is of sm_100a"):
        Kernel(UNUSED, "k", constants={"BLACKWELL": True})(1, 1, (x,))


FAULTS = """
__device__ unsigned read(const unsigned* at) {
    unsigned value;
    asm volatile("ld.global.u32 %0, [%1 + 4];" : "=r"(value) : "l"(at));
    return value;
}
extern "C" __global__ void k(unsigned* out, int what) {
    if (what == 0) out[0] = read(out + 3);
    if (what == 1) asm volatile("trap;");
    if (what == 2) {
        asm volatile("mbarrier.arrive.shared.b64 _, [%0];" ::"l"(out));
    }
    if (what == 3) asm volatile("st.global.v4.u32 [%0], {0, 0, 0, 0};" ::"l"(out + 1));
}
"""
REASONS = (
    (8, r"a read of 4 bytes at 0x\w+ \(out\[4\], right after the end of out\)"),
    (9, r"__trap\(\)"),
    (11, "is given a generic address"),
    (13, "no multiple of its size"),
)


@pytest.mark.parametrize("what", range(4))
def test_a_fault_has_the_line_of_the_caller(what: int) -> None:
    line, reason = REASONS[what]
    out = np.zeros(4, np.uint32)

    with pytest.raises(EmulatedFault) as caught:
        Kernel(FAULTS, "k")(1, 1, (out, what))

    assert re.search(rf"kernel\.cu:{line}: .*({reason})", str(caught.value)), str(caught.value)
