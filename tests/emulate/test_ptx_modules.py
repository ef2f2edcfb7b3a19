"""PTX modules on the CPU: right numbers, and reports at the lines of the source."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt
import pytest
from parity.guide_samples import FOLDER as OF_CUDA
from parity.guide_samples import SAMPLES
from triton_stand_in import compiled

from tmaasync import (
    ArgumentError,
    CompileError,
    EmulatedDeadlock,
    EmulatedFault,
    EmulatedRace,
    Kernel,
    LaunchError,
    create_tma_tile,
    emulate,
    triton,
)
from tmaasync._source.compile import assemble
from tmaasync.kernel.source import source_of

FOLDER = Path(__file__).with_name("ptx_modules")
TRITON = (FOLDER / "triton_kernels.py").read_text().split("\n")

Array = npt.NDArray[Any]
RNG = np.random.default_rng(7)


def text_of(name: str) -> str:
    return (FOLDER / f"{name}.ptx").read_text()


def line_of(code: str) -> str:
    """Return where reports say that a line of the Triton kernels is."""
    (found,) = (number for number, line in enumerate(TRITON, 1) if code in line)
    return f"triton_kernels.py:{found}"


# --- kernels of Triton ------------------------------------------------------------------------


def softmax(kernel: Kernel) -> tuple[Array, Array]:
    x = RNG.standard_normal((5, 1000), np.float32)
    out = np.full_like(x, np.nan)
    kernel(5, 128, (x, out, 1000, 0, 0), shared_mem=16)
    e = np.exp(x.astype(np.float64))
    return out, e / e.sum(1, keepdims=True)


def matrices(m: int, n: int, k: int) -> tuple[Array, Array, Array]:
    a = RNG.standard_normal((m, k), np.float32).astype(np.float16)
    b = RNG.standard_normal((k, n), np.float32).astype(np.float16)
    return a, b, a.astype(np.float64) @ b.astype(np.float64)


def descriptor(array: Array, *box: int) -> tuple[Any, ...]:
    """Return the five parameters of Triton's tensor descriptor."""
    return create_tma_tile(array, box, swizzle="128B"), *array.shape, array.shape[1], 1


def gemm(kernel: Kernel) -> tuple[Array, Array]:
    a, b, wanted = matrices(256, 128, 192)
    out = np.full((256, 128), np.nan, np.float16)
    maps = (*descriptor(a, 128, 64), *descriptor(b, 64, 64), *descriptor(out, 128, 64))
    kernel((2, 1), 128, (*maps, 192, 0, 0), shared_mem=98328)
    return out, wanted


LAUNCHES: dict[str, Callable[[Kernel], tuple[Array, Array]]] = {"softmax": softmax, "gemm": gemm}


@pytest.mark.parametrize("races", [False, True])
@pytest.mark.parametrize("name", LAUNCHES)
def test_a_kernel_of_triton_equals_numpy(name: str, races: bool) -> None:
    with emulate.scheduled(races=races):
        out, wanted = LAUNCHES[name](Kernel(FOLDER / f"{name}.ptx"))
    assert np.abs(out - wanted).max() <= 1e-3 * np.abs(wanted).max()


@dataclass(frozen=True)
class Planted:
    """An edit of a module, and the report that must follow."""

    kernel: str
    edit: tuple[str, str]
    error: type[Exception]
    lines: tuple[str, ...]
    says: str
    nth: int = 0

    @property
    def text(self) -> str:
        before, *rest = text_of(self.kernel).split(self.edit[0])
        assert len(rest) > self.nth
        joined = [*([self.edit[0]] * self.nth), self.edit[1], *([self.edit[0]] * len(rest))]
        pairs = zip(joined, rest, strict=False)
        return before + "".join(between + after for between, after in pairs)


PLANTED = {
    "a barrier removed in a library function": Planted(
        "softmax",
        ("\tbar.sync \t0;\n", ""),
        EmulatedRace,
        (f"{line_of('e = tl.exp(a - tl.max(a, 0))')} (in standard.py:",),
        "no barrier orders",
    ),
    "a wait for TMA removed": Planted(
        "gemm",
        (
            "\tmbarrier.try_wait.parity.shared::cta.b64 complete, [%r32], %r157;",
            "setp.eq.u32 complete, 0, 0;",
        ),
        EmulatedFault,
        (line_of("total = tl.dot(a.load"),),
        "nothing has written",
    ),
    "more bytes expected than loaded": Planted(
        "gemm",
        ("_, [%r8], 32768;", "_, [%r8], 32784;"),
        EmulatedDeadlock,
        (f"the mbarrier of {line_of('for k in range(0, depth, K)')} (shared offset 98304)",),
        "expects 32784, and loads delivered 32768",
    ),
    "a proxy fence removed": Planted(
        "gemm",
        ("fence.proxy.async.shared::cta;", ""),
        EmulatedRace,
        (line_of("c.store([m, n]"),),
        "was not made visible to TMA",
    ),
    "a store beyond the end": Planted(
        "softmax",
        ("mul.wide.u32 \t%rd21, %r21, 4;", "mul.wide.u32 \t%rd21, %r21, 400;"),
        EmulatedFault,
        (line_of("a = tl.load(x + row * columns"),),
        "in none of the launch's arrays",
    ),
}


@pytest.mark.parametrize("name", PLANTED)
def test_a_planted_defect_is_reported_at_the_line_of_the_source(name: str) -> None:
    planted = PLANTED[name]
    with (
        emulate.scheduled(races=True),
        pytest.raises(planted.error, match=re.escape(planted.says)) as raised,
    ):
        LAUNCHES[planted.kernel](Kernel(planted.text, planted.kernel))
    for line in planted.lines:
        assert line in str(raised.value)


def test_rules_that_compilers_break_are_notes(caplog: pytest.LogCaptureFixture) -> None:
    module = text_of("gemm") + "// a kernel of its own, whose notes are not logged yet\n"
    gemm(Kernel(module))
    (note,) = (one for one in caplog.messages if "[rule:" in one)
    assert line_of("total = tl.dot(a.load") in note
    assert "[rule: init-without-fence]" in note

    with emulate.scheduled(tolerate=()), pytest.raises(EmulatedRace) as raised:
        gemm(Kernel(module))
    assert raised.value.rule == "init-without-fence"


# --- launches as Triton's ----------------------------------------------------------------------


def test_a_compiled_kernel_of_triton_is_launched_with_its_hidden_arguments() -> None:
    x = RNG.standard_normal((5, 1000), np.float32)
    out = np.full_like(x, np.nan)
    triton.launch(compiled("softmax", 16), (5,), x, out, 1000)
    e = np.exp(x.astype(np.float64))
    np.testing.assert_allclose(out, e / e.sum(1, keepdims=True), rtol=1e-5)


def test_a_tensor_descriptor_becomes_a_map_with_sizes_and_strides() -> None:
    a, b, wanted = matrices(256, 128, 192)
    out = np.full((256, 128), np.nan, np.float16)
    blocks = ((a, (128, 64)), (b, (64, 128)), (out, (128, 128)))
    described = [triton.TensorDescriptor(*one) for one in blocks]
    boxes = ((128, 64), (64, 64), (128, 64))
    triton.launch(compiled("gemm", 98328, boxes), (2, 1), *described, 192)
    assert np.abs(out - wanted).max() <= 1e-3 * np.abs(wanted).max()


def test_a_descriptor_has_another_shape_than_its_array() -> None:
    a, b, wanted = matrices(256, 128, 192)
    out = np.full((2, 128, 128), np.nan, np.float16)
    padded = np.pad(b, ((0, 0), (0, 64)))
    shaped = (
        (a.reshape(2, 128, 192), a.shape, (192, 1), (128, 64)),
        (padded, b.shape, (192, 1), (64, 128)),
        (out, (256, 128), (128, 1), (128, 128)),
    )
    names = ("base", "shape", "strides", "block_shape")
    described = [SimpleNamespace(**dict(zip(names, one, strict=True))) for one in shaped]
    boxes = ((128, 64), (64, 64), (128, 64))
    triton.launch(compiled("gemm", 98328, boxes), (2, 1), *described, 192)
    assert np.abs(out.reshape(256, 128) - wanted).max() <= 1e-3 * np.abs(wanted).max()


# --- kernels of CUDA C++ ----------------------------------------------------------------------


@pytest.mark.parametrize("races", [False, True])
def test_the_ptx_of_a_cuda_kernel_equals_numpy(races: bool) -> None:
    """TMA, mbarriers, clusters, and wgmma whose accumulators NVVM numbers in any order."""
    ptx = assemble(source_of((OF_CUDA / "cluster_gemm.cu").read_text()), "sm_90a").ptx
    launch = SAMPLES["cluster_gemm"](np.copy)
    with emulate.scheduled(races=races):
        kernel = Kernel(ptx, "cluster_gemm")
        kernel(launch.grid, launch.block, launch.arguments, **launch.options)
    np.testing.assert_array_equal(launch.result, launch.expected)


GIVEN = np.array([(1.25, 5)], np.dtype([("a", "f4"), ("b", "i4")]))


def features(n: int = 128) -> tuple[Array, Array]:
    x = RNG.standard_normal(128, np.float32)
    out = np.full_like(x, np.nan)
    Kernel(FOLDER / "features.ptx")(1, 128, (x, out, n, GIVEN))
    t, wide = np.arange(128), x.astype(np.float64)
    own = np.empty((128, 4))
    for i in range(4):
        own[t, (i + t) & 3] = wide[(t + i) % 128]
    total = own @ [8.0, 4.0, 2.0, 1.0] + np.array([0.5, 1.0, 0.25])[t % 3]
    total += 2 * 1.25 + t + 1 + 1.0 + 7
    return out, np.where(t > 64, total, np.where(t & 1, total * 2, total + 1))


def test_calls_pointers_and_variables_of_a_module(capfd: pytest.CaptureFixture[str]) -> None:
    out, wanted = features()
    np.testing.assert_allclose(out, wanted, rtol=1e-5, atol=1e-4)
    assert capfd.readouterr().out == "3 text 1.50 1099511627776 100%\n"


def test_an_assertion_of_a_module_is_reported_at_its_line() -> None:
    lines = (FOLDER / "features.cu").read_text().split("\n")
    line = next(at for at, text in enumerate(lines, 1) if "assert(" in text)
    with pytest.raises(EmulatedFault, match=rf"features\.cu:{line}: assert\(n == 128\) does not"):
        features(n=127)


# --- modules written by hand ------------------------------------------------------------------


def test_short_pointers_and_jump_tables() -> None:
    out, values = np.full(32, -1, np.int64), np.arange(10, 14)
    Kernel(FOLDER / "by_hand.ptx", "jumps")(1, 32, (out, values.tobytes()))
    assert (out[:24] == np.tile([6, 11, 5, 13], 6)).all()
    assert (out[24:] == -1).all()


def test_a_division_by_zero_is_no_fault() -> None:
    """Triton divides speculatively."""
    body = (
        ".reg .b32 %r<3>; .reg .b64 %rd1; ld.param.u64 %rd1, [out];"
        "div.s32 %r1, 7, 0; rem.u32 %r2, 7, 0; st.global.v2.b32 [%rd1], {%r1, %r2};"
    )
    out = np.zeros(2, np.int32)
    kernel = Kernel(EMPTY.format(name="k", body=body).replace("k()", "k(.param .u64 out)"), "k")
    kernel(1, 1, (out,))
    assert out.tolist() == [-1, 7]


def test_a_struct_of_one_pointer_takes_an_array() -> None:
    """Mojo passes a tensor so."""
    body = ".reg .b64 %rd1; ld.param.b64 %rd1, [x]; st.global.b32 [%rd1+SIZE], 5;"
    text = EMPTY.format(name="k", body=body).replace("k()", "k(.param .align 8 .b8 x[8])")
    x = np.zeros(3, np.int32)
    Kernel(text.replace("SIZE", "4"), "k")(1, 1, (x,))
    assert x.tolist() == [0, 5, 0]
    with (
        emulate.scheduled(),
        pytest.raises(EmulatedFault, match=r"args\[0\]\[3\], right after the end"),
    ):
        Kernel(text.replace("SIZE", "12"), "k")(1, 1, (x,))


def test_floats_in_registers_of_bits() -> None:
    """LLVM writes constants by mov.b64, and pairs of bfloat16 to registers of 32 bits."""
    body = (
        ".reg .b16 %h; .reg .b32 %r<4>; .reg .b64 %rd<4>; ld.param.u64 %rd1, [out];"
        "mov.b64 %rd2, 0d3FF8000000000000; add.f64 %rd2, %rd2, %rd2; st.global.b64 [%rd1], %rd2;"
        "mov.b32 %r1, 0f3FC00000; mul.f32 %r1, %r1, %r1; st.global.b32 [%rd1+8], %r1;"
        "mov.b32 %r2, 0x40003FC0; fma.rn.bf16x2 %r2, %r2, %r2, %r2; st.global.b32 [%rd1+12], %r2;"
        "mov.b16 %h, 0x3E00; add.f16 %h, %h, %h; st.global.b16 [%rd1+16], %h;"
    )
    out = np.zeros(24, np.uint8)
    text = EMPTY.format(name="k", body=body).replace("k()", "k(.param .u64 out)")
    Kernel(text, "k")(1, 1, (out,))
    assert out[:8].view(np.float64) == 3
    assert out[8:12].view(np.float32) == 2.25
    assert list(out[12:16].view(ml_dtypes.bfloat16)) == [3.75, 6]
    assert out[16:18].view(np.float16) == 3


def test_a_kernel_and_a_parameter_have_names_that_are_words_of_cpp() -> None:
    body = ".reg .b64 %rd1; ld.param.u64 %rd1, [new]; st.global.b32 [%rd1], 5;"
    text = EMPTY.format(name="double", body=body).replace("double()", "double(.param .u64 new)")
    out = np.zeros(1, np.int32)
    Kernel(text, "double")(1, 1, (out,))
    assert out.tolist() == [5]


def test_accumulators_in_two_orders() -> None:
    exchanged(text_of("by_hand"))


def test_a_copy_of_accumulators_before_their_wait() -> None:
    wait = "    wgmma.wait_group.sync.aligned 0;\n"
    early = f"    mov.b32 %r9, %f1;\n{wait}    mov.b32 %f1, %r9;\n"
    exchanged(text_of("by_hand").replace(wait, early, 1))


def test_an_early_use_of_accumulators_is_a_race() -> None:
    wait = "    wgmma.wait_group.sync.aligned 0;\n"
    text = text_of("by_hand").replace(wait, f"    add.f32 %f1, %f1, %f1;\n{wait}", 1)
    with pytest.raises(EmulatedRace, match="registers are used before wgmma has finished"):
        exchanged(text)


def exchanged(text: str) -> None:
    def in_core_matrices(x: Array) -> Array:
        return np.ascontiguousarray(x.reshape(-1, 8, 2, 8).transpose(0, 2, 1, 3))

    a, b, p = matrices(64, 8, 16)
    out = np.full((64, 8), np.nan, np.float32)
    kernel = Kernel(text, "exchanged")
    with emulate.scheduled(races=True):
        kernel(1, 128, (in_core_matrices(a), in_core_matrices(b.T.copy()), out))
    exchanged = p.reshape(64, 4, 2)[..., ::-1].reshape(64, 8)
    np.testing.assert_allclose(out, p + exchanged, atol=1e-4)


# --- errors -----------------------------------------------------------------------------------

EMPTY = ".version 8.0\n.target sm_90a\n.address_size 64\n.visible .entry {name}()\n{{\n{body}\n}}\n"


def launch(body: str) -> None:
    Kernel(EMPTY.format(name="k", body=body), "k")(1, 32, (), device=None)


@pytest.mark.parametrize(
    ("body", "says"),
    {
        "an unknown instruction": (
            "ret;\nframe.buffer 3;",
            "kernel.ptx:7: `frame.buffer 3` is an ",
        ),
        "another chip's": (
            "tcgen05.wait::ld.sync.aligned;",
            "is of sm_100a and sm_103a, and the kernel is compiled for sm_90a",
        ),
        "a result without a register": ("mov.u32 %r1, 3;", "needs a register for its result"),
        "an unknown function": ("call f, ();", "names f, which the text declares nowhere"),
        "a branch to nowhere": ("bra THERE;", "branches to a label that the text does not have"),
    }.values(),
)
def test_what_the_cpu_lacks_is_named_with_its_line(body: str, says: str) -> None:
    with emulate.scheduled(), pytest.raises(CompileError, match=re.escape(says)):
        launch(body)


def test_the_line_of_the_source_is_named_too() -> None:
    text = text_of("softmax").replace("ex2.approx.f32", "ex2.exact.f32", 1)
    line = line_of("e = tl.exp(a - tl.max(a, 0))")
    with pytest.raises(CompileError, match=rf"{line}, kernel\.ptx:\d+: `ex2\.exact\.f32 .* has a"):
        softmax(Kernel(text, "softmax"))


def test_a_wrong_entry_is_refused_with_those_there_are() -> None:
    with pytest.raises(ArgumentError, match=r"has no \.entry of that name.*It has: softmax"):
        softmax(Kernel(FOLDER / "softmax.ptx", "sotfmax"))


def test_a_module_of_several_entries_needs_a_name() -> None:
    with pytest.raises(ArgumentError, match=r"by_hand\.ptx has 2 entries.*jumps, exchanged"):
        Kernel(FOLDER / "by_hand.ptx")


def test_another_block_than_the_required_one_is_refused() -> None:
    x = np.zeros((1, 1000), np.float32)
    with pytest.raises(LaunchError, match=r"softmax is declared with \.reqntid 128, 1, 1"):
        Kernel(FOLDER / "softmax.ptx")(1, 64, (x, x.copy(), 1000, 0, 0), shared_mem=16)


def test_the_compilers_arguments_are_refused() -> None:
    with pytest.raises(ArgumentError, match=r"constants.*the source is a PTX module"):
        Kernel(FOLDER / "softmax.ptx", constants={"N": 3})


def test_a_variable_of_a_module_is_written_by_its_name() -> None:
    kernel = Kernel(FOLDER / "features.ptx")
    variable = kernel.variable("counter", device="cpu")
    assert np.frombuffer(variable.read(np.uint8).tobytes(), np.int32) == 7


def test_a_wrong_argument_is_refused() -> None:
    kernel, x = Kernel(FOLDER / "softmax.ptx"), np.zeros((1, 1000), np.float32)
    with pytest.raises(LaunchError, match="args has 3 items; softmax takes 5"):
        kernel(1, 128, (x, x, 1000))
    with pytest.raises(LaunchError, match=r"args\[2\] is .* a 4-byte integer"):
        kernel(1, 128, (x, x, np.int64(1000), 0, 0))
