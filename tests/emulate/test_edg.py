"""C++ that nvcc accepts and g++ refuses runs on the emulator, with the lines of the source."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tmaasync import CompileError, EmulatedFault, Kernel
from tmaasync.emulate.toolchain.compiler import compiler_facts, is_clang

pytestmark = pytest.mark.skipif(
    is_clang() or int(compiler_facts()[1].split()[-1].partition(".")[0]) < 12,
    reason="g++ names the places from 12 on",
)

PARTS = """
template <int n = 16> struct Arena {
    int* next;
    __device__ Arena(int* begin) : next(begin) {}
    template <typename T> __device__ T& take() { return *reinterpret_cast<T*>(next++); }
};
struct Plan {
    template <int n> __device__ int step(int x) const { return 10 * n + x; }
    template <int n> __device__ static int at(int x) { return n * x; }
    template <typename T> __device__ T as() const { return T(7.5f); }
    template <typename T> struct Rebind { using Type = T; };
    template <int n> __device__ int operator()(int x) const { return n - x; }
    template <typename T> __device__ int operator<<(T x) const { return sizeof(T) << x; }
};
struct Outer { Plan plan; };
"""
# Each with the value of use(plan): the first, by hand.
DEPENDENT = {
    "a constant": ("return plan.step<2>(1);", 21),
    "a type": ("return plan.as<int>();", 7),
    "a pointer": ("const P* to = &plan; return to->step<3>(4);", 34),
    "a static member": ("return P::at<5>(6);", 30),
    "a member of a member": ("struct Own { P plan; } own; return own.plan.as<unsigned>() + 1;", 8),
    "an argument of its own kind": ("return plan.step<sizeof(P)>(plan.as<int>());", 17),
    "a generic lambda": ("auto f = [](auto q) { return q.step<1>(2); }; return f(plan);", 12),
    "two on a line": ("return plan.step<1>(plan.as<int>()) + plan.as<int>() * 2;", 31),
    "a comparison too": ("return plan.step<1>(1) < 12 ? plan.as<int>() : 0;", 7),
    "letters of more than a byte": ('(void)"\u00e4\u00f6"; return plan.step<4>(0);', 40),
    "a call operator": ("return plan.operator()<9>(2);", 7),
    "another operator": ("return plan.operator << <short>(2) + plan.operator ( ) <1>(0);", 9),
    "a templated lambda": (
        "auto f = []<int n>(auto q) { return q.operator()<n>(1); }; return f.operator()<7>(plan);",
        6,
    ),
    "a deduced class": (
        "int raw[2] = {8, 9}; Arena arena(&raw[0]); arena.take<int>(); return arena.take<int>();",
        9,
    ),
}


def run(text: str, **given: object) -> int:
    out = np.zeros(1, np.int32)
    Kernel(text, "k", **given)(1, 1, (out,))  # type: ignore[arg-type]
    return int(out[0])


HEADS = pytest.mark.parametrize(
    "head", ["", '__device__ void f() { asm volatile("fence.proxy.async;"); }']
)


@HEADS
def test_a_member_template_needs_no_keyword(head: str) -> None:
    uses = "".join(
        f"template <typename P> __device__ int use{number}(P plan) {{ {body} }}\n"
        for number, (body, _) in enumerate(DEPENDENT.values())
    )
    calls = "".join(f"out[{number}] = use{number}(Plan());" for number in range(len(DEPENDENT)))
    out = np.zeros(len(DEPENDENT), np.int32)
    text = f'{head}{PARTS}{uses}extern "C" __global__ void k(int* out) {{ {calls} }}\n'

    Kernel(text, "k")(1, 1, (out,))

    assert out.tolist() == [value for _, value in DEPENDENT.values()]


def test_a_header_s_member_templates_need_no_keyword(tmp_path: Path) -> None:
    (tmp_path / "use.cuh").write_text(
        "#pragma once\n#define TWICE(X) ((X) + (X))\n"
        "template <typename P> struct Use : P {\n"
        "    __device__ int value() { return TWICE(this->as<int>()); }\n};\n"
    )
    text = f"""{PARTS}
#include "use.cuh"
extern "C" __global__ void k(int* out) {{ out[0] = Use<Plan>().value(); }}
"""
    assert run(text, include_dirs=[tmp_path]) == 14


MEMBERS = """
namespace lib {
template <typename T, int n> struct Array { T x[n]; };
enum class Mode { kOne = 4 };
template <typename T> struct Holder {
    using Array = Array<T, 3>;
    using Mode = Mode;
    Array array;
};
template <typename T> __device__ void never(T x) { reset_everything(); }
}
"""


def test_a_member_may_have_the_name_of_its_type() -> None:
    text = f"""{MEMBERS}
extern "C" __global__ void k(int* out) {{
    out[0] = sizeof(lib::Holder<int>::Array) + int(lib::Holder<int>::Mode::kOne);
}}
"""
    assert run(text) == 16


@pytest.mark.parametrize(
    ("head", "line", "words"),
    [
        (PARTS, "int* wrong = 5;", "invalid conversion from 'int' to 'int"),
        (MEMBERS, "int wrong = undefined + plan.step<2>(1);", "'undefined' was not declared"),
        (PARTS, "plan.gone<2>(1);", "has no member named 'gone'"),
    ],
)
def test_other_mistakes_keep_their_line(head: str, line: str, words: str) -> None:
    text = f"""{head}
struct Own {{ template <int n> __device__ int step(int x) {{ return n + x; }} }};
template <typename P> __device__ int use(P plan) {{
    int x = plan.step<2>(1);
    {line}
    return x;
}}
extern "C" __global__ void k(int* out) {{ out[0] = use(Own()); }}
"""
    at = text[: text.index(line)].count("\n") + 1

    with pytest.raises(CompileError) as caught:
        run(text)

    first = str(caught.value).splitlines()[0]
    assert words in first
    assert f"kernel.cu:{at}:" in first


def test_a_fault_after_a_repair_has_the_line_of_the_source() -> None:
    text = f"""{PARTS}
template <typename P> __device__ int use(P plan, int* out) {{
    int x = plan.step<2>(1);
    return x + out[1'000'000];
}}
extern "C" __global__ void k(int* out) {{ out[0] = use(Plan(), out); }}
"""
    line = text[: text.index("    return x + out")].count("\n") + 1
    with pytest.raises(EmulatedFault, match=rf"kernel\.cu:{line}\b"):
        run(text)


# Statements of a kernel that set `own` to 7, with a name that is CUDA's too.
OWN_NAMES = {
    "a member": "struct Own {{ int {0}; }} x; x.{0} = 7; const Own* to = &x; own = to->{0};",
    "a designated member": "struct Own {{ int {0}; }}; own = Own{{.{0} = 7}}.{0};",
    "a struct": "struct In {{ int x; }}; struct {{ In {0}; }} y{{{{7}}}}; own = y.{0}.x;",
    "a variable": "int {0} = 7; own = {0};",
    "a parameter": "own = [](int {0}) {{ return {0}; }}(7);",
    "in a constructor": (
        "struct Own {{ int {0}; Own(int x) : {0}(x) {{}} int get() const {{ return {0}; }} }};"
        " own = Own(7).get();"
    ),
}


NAMES = ("threadIdx", "blockIdx", "blockDim", "gridDim", "warpSize")


@HEADS
def test_a_name_of_cuda_may_be_declared_again(head: str) -> None:
    bodies = [use.format(name) for use in OWN_NAMES.values() for name in NAMES]
    uses = "".join(
        f"{{ int own = 0; {{ {body} }}\n out[{80 * number} + at] += own * 1000 + warpSize; }}\n"
        for number, body in enumerate(bodies)
    )
    text = f"""{head}
extern "C" __global__ void k(int* out) {{
    __shared__ char marks[3];
    __shared__ int sums[40];
    const dim3 size = blockDim;
    const unsigned at = blockIdx.x * size.x + threadIdx.x;
    if (threadIdx.x < 3) marks[threadIdx.x] = 1;
    sums[threadIdx.x] = gridDim.x * 100;
    __syncthreads();
    for (int i = 0; i < {len(bodies)}; ++i) out[80 * i + at] = sums[size.x - 1 - threadIdx.x] + at;
    {uses}
}}
"""
    out = np.zeros((len(bodies), 80), np.int32)
    Kernel(text, "k")(2, 40, (out,))
    assert (out == 7 * 1000 + 2 * 100 + 32 + np.arange(80)).all()
