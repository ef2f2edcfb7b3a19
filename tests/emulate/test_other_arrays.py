"""A subscript of a pointer parameter that leads into another array of the launch."""

from __future__ import annotations

import logging
import re

import numpy as np
import pytest

from tmaasync import EmulatedFault, Kernel, Pointer, emulate
from tmaasync.emulate.frontend.cpp.subscripts import places

FLOATS = 64
ALONE = 256  # elements from an array to the next, where nothing is next to it

# One build: `which` chooses the access, `at` its index.
ACCESSES = """
template <typename T> __device__ T through(const T* any, int at) { return any[at]; }

template <typename T, typename Unused = void>
__global__ void in_template(const T* scale, T* c, int at) { c[0] = scale[at] * T(2); }

extern "C" __global__ void accesses(
    const float* scale, float* c, float2* pairs, const int* __restrict__ index, int which, int at
) {
    const auto loaded = [&](int place) { return scale[place]; };
    const float* copied = scale;
    #pragma unroll
    for (int i = 0; i < 1; ++i) {
        if (which == 0) c[0] = scale[at];
        if (which == 1) c[at] = 1;
        if (which == 2) c[at] += 1;
        if (which == 3) c[0] = loaded(at);
        if (which == 4) c[0] = 2 * (float)scale[index[at]];
        if (which == 5) { const float2 pair = {c[0], 2}; pairs[at] = pair; }
        if (which == 6) { const float2 pair = pairs[at]; c[0] = pair.x; }
        if (which == 7) /* é */ c[at] = scale[0];
        if (which == 8) c[0] = copied[at];
        if (which == 9) c[0] = through(scale + 0, at);
    }
}
"""


@pytest.fixture(scope="module")
def kernel() -> Kernel:
    return Kernel(ACCESSES, "accesses")


def four(*starts: int) -> list[np.ndarray]:
    """Return scale, c, pairs and index: arrays of 16 elements in one memory."""
    memory = np.zeros(2 * ALONE, np.float32)
    scale, c, pairs, index = (memory[start : start + 16] for start in starts)
    return [scale, c, pairs, index.view(np.int32)]


@pytest.mark.parametrize(
    ("which", "at", "said"),
    [
        (
            0,
            16,
            "a read of 4 bytes by a subscript leads to scale[16], right after the end of scale",
        ),
        (0, 19, "a read of 4 bytes by a subscript leads to scale[19], 12 bytes after the end"),
        (1, -1, "a write of 4 bytes by a subscript leads to c[-1], 4 bytes before the start of c"),
        (2, 16, "a read of 4 bytes by a subscript leads to c[16], right after the end of c"),
        (3, 17, "a read of 4 bytes by a subscript leads to scale[17], 4 bytes after the end"),
        (4, 16, None),  # index ends the memory of the four
        (8, 17, "a read of 4 bytes by a subscript leads to scale[17], 4 bytes after the end"),
        (7, -16, "a write of 4 bytes by a subscript leads to c[-16], 64 bytes before the start"),
    ],
)
def test_an_access_that_leaves_its_array_is_a_fault(
    kernel: Kernel, which: int, at: int, said: str | None
) -> None:
    arrays = four(0, 16, 32, 48)
    said = said or "lies in none of the launch's arrays"
    with pytest.raises(EmulatedFault, match=re.escape(said)) as caught:
        kernel(1, 1, (*arrays, which, at))
    assert "Check" in str(caught.value)
    assert str(caught.value.source).startswith("kernel.cu:")


def test_the_fault_names_the_other_array_too(kernel: Kernel) -> None:
    with pytest.raises(EmulatedFault, match=r"lands in another array: 0x\w+ \(c\[2\]\)") as caught:
        kernel(1, 1, (*four(0, 16, 32, 48), 0, 18))
    assert caught.value.rule == "other-array"


@pytest.mark.parametrize("which", range(10))
def test_accesses_inside_their_arrays_are_legal_wherever_these_lie(
    kernel: Kernel, which: int
) -> None:
    at = 7 if which in (5, 6) else 15
    for starts in [(0, 16, 32, 48), (0, 0, 0, 0), (0, 8, 12, 4), (48, 32, 16, 0)]:
        kernel(1, 1, (*four(*starts), which, at))


def test_a_function_s_parameter_is_not_known(kernel: Kernel) -> None:
    kernel(1, 1, (*four(0, 16, 32, 48), 9, 17))


# One build: `which` chooses the access. All begin at scale[at] or c[at].
COPIES = """
extern "C" __global__ void copies(const float* scale, float* c, int which, int at) {
    const float* row = scale + at;
    auto* other = c + 1;
    const float* moving = &scale[at];
    int* __restrict__ cast = reinterpret_cast<int*>(c + at);
    const float* again = row - 1;
    float sum = 0;
    if (which == 0) sum = row[0];
    if (which == 1) sum = *row;
    if (which == 2) other[at - 1] = 1;
    if (which == 3) for (int i = 0; i < 2; ++i) sum += *moving++;
    if (which == 4) cast[0] = 3;
    if (which == 5) *(c + at) = 4;
    if (which == 6) sum = *(scale + at);
    if (which == 7) *(c + at) += 4;
    if (which == 8) sum = 2.f * *(scale + at);
    if (which == 9) { const float known = again[1]; sum = known; }
    if (sum != 0) c[0] = sum;
}
"""


@pytest.fixture(scope="module")
def copies() -> Kernel:
    return Kernel(COPIES, "copies")


@pytest.mark.parametrize("which", range(10))
def test_copies_of_a_parameter_and_dereferences_are_known(copies: Kernel, which: int) -> None:
    memory = np.zeros(FLOATS, np.float32)
    copies(1, 1, (memory[16:32], memory[32:48], which, 14))
    copies(1, 1, (memory[16:32], memory[16:32], which, 14))
    first, second = memory[:16], memory[16:32]
    arrays, name = ((second, first), "c") if which in (2, 4, 5, 7) else ((first, second), "scale")
    with pytest.raises(EmulatedFault, match=re.escape(f"leads to {name}[16]")) as caught:
        copies(1, 1, (*arrays, which, 16))
    assert "Check" in str(caught.value)


def test_an_array_that_ends_in_a_larger_one_is_left_at_its_own_end(kernel: Kernel) -> None:
    """The base of a slice is no argument, unless it is passed too."""
    arrays = four(0, ALONE, ALONE + 32, ALONE + 64)
    with pytest.raises(EmulatedFault, match="lies in none of the launch's arrays"):
        kernel(1, 1, (*arrays, 0, 16))


def test_a_column_of_a_matrix_reaches_all_rows(kernel: Kernel) -> None:
    matrix = np.zeros((8, 8), np.float32)
    other = four(0, 16, 32, 48)
    kernel(1, 1, (Pointer(matrix[:, 1]), *other[1:], 0, 7 * 8))
    kernel(1, 1, (matrix[1:3], *other[1:], 0, 15))


def test_a_template_is_checked() -> None:
    memory = np.zeros(FLOATS, np.float32)
    kernel = Kernel(ACCESSES, "in_template<float>")
    kernel(1, 1, (memory[:16], memory[16:], 15))
    with pytest.raises(EmulatedFault, match=r"leads to scale\[16\]"):
        kernel(1, 1, (memory[:16], memory[16:], 16))


def test_a_kernel_with_inline_ptx_and_macros_is_checked() -> None:
    source = """
    #define LAST(POINTER) POINTER[at]
    extern "C" __global__ void f(const float* scale, float* c, int at) {
        asm volatile("fence.acq_rel.gpu;" ::: "memory");
        c[0]   =   LAST(scale);
    }
    """
    memory = np.zeros(FLOATS, np.float32)
    kernel = Kernel(source, "f")
    kernel(1, 1, (memory[:16], memory[16:], 15))
    with pytest.raises(EmulatedFault, match=r"leads to scale\[16\]"):
        kernel(1, 1, (memory[:16], memory[16:], 16))


def test_the_rule_can_be_relaxed(kernel: Kernel, caplog: pytest.LogCaptureFixture) -> None:
    arrays = four(0, 16, 32, 48)
    arrays[1][1] = 5
    with caplog.at_level(logging.WARNING), emulate.scheduled(tolerate={"other-array"}):
        kernel(1, 1, (*arrays, 0, 17))
    assert arrays[1][0] == 5
    assert caplog.messages[0].endswith("[rule: other-array]")


def test_exchanged_pointers_are_no_fault() -> None:
    source = """
    extern "C" __global__ void f(float* a, float* b, float* c, float* d) {
        float* held = a; a = b; b = held; a[0] = 1; b[0] = 2;
        const auto exchange = [](float*& x, float*& y) { float* z = x; x = y; y = z; };
        exchange(c, d); c[0] = 3; d[0] = 4;
    }
    """
    memory = np.zeros(4, np.float32)
    Kernel(source, "f")(1, 1, (memory[:1], memory[1:2], memory[2:3], memory[3:]))
    assert memory.tolist() == [2, 1, 4, 3]


# --- which parameters are known -------------------------------------------------------------------


def known(body: str, before: str = "", parameters: str = "float* p, const float* q") -> list[int]:
    """The numbers of the parameters with known places, with p[1] and q[2] after the body."""
    text = f'#line 1 "k.cu"\n{before}\n__global__ void f({parameters}) {{\n{body}\np[1] = q[2]; }}'
    found = places(text, "f", "k.cu", (text,))
    return sorted({number for number, _ in found.values()})


@pytest.mark.parametrize(
    "body",
    [
        "p += 4; ++p[0]; p[3]++; float x = 2 * p[4] + *(p + 3); if (p) x = p - 1;",
        "if (p != nullptr && q == nullptr) g(reinterpret_cast<int*>(p), (long)q[0]);",
        "if (x) p[3] = 2; else p[4] = 3; return p[0]; const float* copy = p; f = s.p; s->p = 3;",
        "auto f = [&] { return a > 0 ? p[1] : q[2]; }; f(&p[3]); struct S { int n; };",
        "x = *p; f(*p); *p = 3; if (*p > 1) ++*p;",
        'x = a * p[4]; // p = q;\n const char* s = "p = q";',
    ],
)
def test_uses_of_a_parameter_keep_it_known(body: str) -> None:
    assert known(body) == [0, 1]


@pytest.mark.parametrize(
    "body",
    [
        "p = other;",
        "swap(p, other);",
        "f(p);",
        "float*& r = p;",
        "float (*p)[4];",
        "for (float* p = other; ;) ;",
        "{ float* p(other); }",
        "{ float p[4]; }",
        "auto g = [](const float* p) { return p[3]; };",
        "auto [p, r] = pair;",
        "for (auto& p : list) ;",
        "struct S { float* p; float g() { return p[3]; } };",
    ],
)
def test_what_may_give_a_name_another_array_makes_it_unknown(body: str) -> None:
    assert known(body) == [1]


@pytest.mark.parametrize(
    "body",
    [
        "#if A\n p = other;\n#endif",
        "#define CHANGE p = other",
        "struct S : Base { float f() { return p[3]; } };",
        "decltype(p) r = q;",
    ],
)
def test_a_kernel_that_cannot_be_read_has_no_known_parameter(body: str) -> None:
    assert known(body) == []


def copied(body: str) -> set[int]:
    """The numbers of the parameters p and q that `r[5]` may be an access by."""
    text = f'#line 1 "k.cu"\n__global__ void f(float* p, const float* q) {{\n{body}\n\nr[5] = 1; }}'
    return {number for (line, _), (number, _) in places(text, "f", "k.cu", ()).items() if line > 3}


@pytest.mark.parametrize(
    ("body", "number"),
    [
        ("float* r = p;", 0),
        ("const float *const __restrict__ r = q + f(1, 2);", None),  # a call may hide a pointer
        ("const float* r = &q[3 * i];", 1),
        ("auto r = q - 3;", 1),
        ("Box<int>* r = reinterpret_cast<Box<int>*>(p);", None),
        ("float* a = p + 2; float* r = a - 1; r += 3;", 0),
        ("for (float* r = p; ; r += 2) ;", 0),
        ("float* r = p; r = other;", None),
        ("float* r = p; f(r);", None),
        ("float* r = i ? p : other;", None),
        ("float* r = p; p = other;", None),
        ("auto* r = [=] { return p; };", None),
    ],
)
def test_a_local_pointer_is_known_where_it_begins_as_a_parameter(
    body: str, number: int | None
) -> None:
    assert copied(body) == (set() if number is None else {number})


@pytest.mark.parametrize(
    "parameters",
    ["float** p, float* q", "float p, float* q", "float (*p)[4], float* q", "Tile p, float* q"],
)
def test_only_pointers_to_elements_are_known(parameters: str) -> None:
    assert known("", parameters=parameters) == [1]


def test_macros_and_other_functions_of_the_name() -> None:
    assert known("", before="#define NEXT() \\\n (p = other)") == [1]
    assert known("", before="__global__ void f(float* p); void g() { f(x); p[3] = 1; }") == [0, 1]
    assert known("", before="#define p other") == [1]
    assert known("", before="__global__ void f(int* p) { p[1] = 2; }") == []
