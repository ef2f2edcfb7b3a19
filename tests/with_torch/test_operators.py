"""Operators of tmaasync.torch on CPU tensors: values, fake kernels, compilation, export, guard."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from parity.tile_configs import one_gemm_config

from tmaasync import ArgumentError, ops
from tmaasync._torch_internals import refuse_old_release

torch: Any = pytest.importorskip("torch")

from torch._dynamo.testing import CompileCounterWithBackend  # noqa: E402
from torch.autograd import forward_ad  # noqa: E402
from torch.torch_version import TorchVersion  # noqa: E402
from torch_cases import (  # noqa: E402
    CASES,
    FORMS,
    WITHOUT_GRADIENT,
    as_tuple,
    call_of,
    checks_of,
    chip_of,
    compiled,
    draw,
    error,
    exported,
    in_float64,
    outputs_like,
    registered,
)

import tmaasync.torch as operators  # noqa: E402

NAMES = sorted(CASES)


def test_an_older_release_of_torch_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "__version__", TorchVersion("2.6.0+cu124"))

    with pytest.raises(ImportError, match=r"needs torch 2\.7 or later, but this is torch 2\.6\.0"):
        refuse_old_release()


@pytest.fixture(autouse=True)
def _fresh(request: pytest.FixtureRequest) -> Iterator[None]:
    torch.manual_seed(0)
    torch._dynamo.reset()
    with one_gemm_config(), chip_of(request):
        yield


def agree(found: Any, wanted: Any) -> None:
    """Compare results bit by bit."""
    for one, other in zip(as_tuple(found), as_tuple(wanted), strict=True):
        assert (one.shape, one.dtype, one.stride()) == (other.shape, other.dtype, other.stride())
        assert torch.equal(one, other)


@pytest.mark.parametrize("name", NAMES)
def test_values_agree_with_float64(name: str) -> None:
    case = CASES[name]
    given = case.given(9)

    found = as_tuple(case.call(*given, **case.options))

    wanted = as_tuple(case.reference(*in_float64(given)))
    assert [one.shape for one in found] == [one.shape for one in wanted]
    assert all(one.is_contiguous() for one in found)
    assert max(error(*pair) for pair in zip(found, wanted, strict=True)) < 2e-3


def test_every_registered_operator_has_a_case() -> None:
    """So the tests over cases here, and in tests/gpu, leave no operator out."""
    called = [call_of(CASES[name], CASES[name].given(9), is_out=is_out) for name, is_out in FORMS]

    # test_group.py has the operators of a process group.
    collectives = ("all_gather", "reduce_scatter", "all_reduce", "all_to_all")
    rings = ("ring_attention", "ring_attention_backward")
    matmuls = ("all_gather_matmul", "matmul_reduce_scatter", "matmul_all_reduce")
    scaled = ("all_gather_scaled_matmul", "scaled_matmul_reduce_scatter")
    of_groups = {f"tmaasync::{name}" for name in (*collectives, *matmuls, *scaled, *rings)}
    assert {function.name() for function, _, _ in called} == registered() - of_groups


@pytest.mark.parametrize(("name", "is_out"), FORMS)
def test_torch_finds_no_fault_in_the_operator(name: str, is_out: bool) -> None:
    case = CASES[name]
    given = case.given(9)
    if case.has_gradient and not is_out:
        given = [one.requires_grad_() if one.is_floating_point() else one for one in given]
    function, args, kwargs = call_of(case, given, is_out=is_out)

    found = torch.library.opcheck(function, args, kwargs, test_utils=checks_of(name))
    assert set(found.values()) == {"SUCCESS"}


@pytest.mark.parametrize("name", [name for name, is_out in FORMS if is_out])
def test_an_output_of_the_callers_is_written_and_counted_as_changed(name: str) -> None:
    case = CASES[name]
    given = case.given(9)
    wanted = as_tuple(case.call(*given, **case.options))
    out = torch.zeros_like(wanted[0])
    version = out._version

    found = as_tuple(case.call(*given, **case.options, out=out))

    assert found[0] is out
    assert out._version > version
    agree(found, wanted)


def test_a_factor_of_no_addend_is_refused() -> None:
    a, b = draw(4, 16), draw(16, 8)

    with pytest.raises(ArgumentError, match=r"beta is 2\.0, and there is no c"):
        operators.matmul(a, b, beta=2)
    assert torch.equal(operators.matmul(a, b, beta=0), operators.matmul(a, b))


def test_a_tensor_is_added_to_in_place() -> None:
    target, source = draw(9, 24), draw(2, 9, 24)
    wanted = (target.double() + source.double().sum(0)).float()
    version = target._version

    assert operators.reduce_add(target, source) is target

    assert target._version > version
    assert error(target, wanted) < 2e-3
    with pytest.raises(ArgumentError, match="requires grad"):
        operators.reduce_add(target, source.requires_grad_())


def test_attention_reads_tensors_off_16_bytes() -> None:
    q = draw(2 * 8 * 2 * 16 + 3)[3:].view(2, 8, 2, 16)
    whole = draw(2, 8, 2, 19)
    sums = torch.tensor([0, 8, 16], dtype=torch.int32)
    for one in (q, whole[..., 3:]):
        wanted = operators.attention(one.clone(), one.clone(), one.clone())
        assert torch.equal(operators.attention(one, one, one), wanted)
        rows = one.flatten(0, 1)
        assert torch.equal(operators.varlen_attention(rows, rows, rows, sums), wanted.flatten(0, 1))


@pytest.mark.parametrize(("batch", "positions"), [(0, 5), (2, 0)])
def test_attention_without_queries_is_empty_and_has_gradients(batch: int, positions: int) -> None:
    q = draw(batch, positions, 2, 16).requires_grad_()
    k, v = (draw(batch, 7, 1, 16).requires_grad_() for _ in range(2))

    out, lse = operators.attention(q, k, v, return_lse=True)
    out.sum().backward()

    on_meta = operators.attention(*(one.to("meta") for one in (q, k, v)), return_lse=True)
    for found, like in zip((out, lse), on_meta, strict=True):
        assert (found.shape, found.dtype) == (like.shape, like.dtype)
    assert all(one.grad is not None and not one.grad.any() for one in (q, k, v))


def test_packed_float8_is_as_padded() -> None:
    q, k, v = (draw(2, 8, heads, 16).to(torch.float8_e4m3fn) for heads in (4, 2, 2))
    sums = torch.tensor([0, 8, 16], dtype=torch.int32)
    scales = (torch.tensor([0.5]), None, torch.tensor([[1.0, 2.0], [0.25, 3.0]]))
    wanted = operators.attention(q, k, v, scales=scales, causal=True, return_lse=True)
    rows = [one.flatten(0, 1) for one in (q, k, v)]

    packed = (rows[0], rows[1], rows[2], sums)
    found = operators.varlen_attention(*packed, scales=scales, causal=True, return_lse=True)

    assert found[0].dtype == torch.bfloat16
    assert torch.equal(found[0], wanted[0].flatten(0, 1))
    assert torch.equal(found[1], wanted[1].transpose(0, 1).flatten(1))
    q, k, v, sums = (one.to("meta") for one in packed)
    assert operators.varlen_attention(q, k, v, sums, None, 8).dtype == torch.bfloat16


# --- fake kernels, compilation, export ----------------------------------------------------------


@pytest.mark.parametrize("name", NAMES[::4])
def test_it_compiles_whole_and_once_for_all_sizes(name: str) -> None:
    case = CASES[name]
    call, faster, counter = compiled(case)
    for rows in (9, 11, 16, 24):  # the first size is taken for a constant, the second is not
        given = case.given(rows)
        out = outputs_like(case, given, is_out=case.has_out)
        agree(faster(given, out), call(given, outputs_like(case, given, is_out=case.has_out)))
        if case.has_out:
            agree(out["out"] * 2, call(given, out)[0])
    assert counter.frame_count <= 2


@pytest.mark.parametrize("name", ["attention_with_lse"])
def test_compiled_code_has_its_gradients_for_all_sizes(name: str) -> None:
    case = CASES[name]
    counter = CompileCounterWithBackend("aot_eager")

    def call(*given: Any) -> Any:
        return as_tuple(case.call(*given, **case.options))[0].float().square().sum()

    compiled = torch.compile(call, backend=counter, fullgraph=True)
    for rows in (9, 11, 16):
        given = case.given(rows)
        needing = [one.requires_grad_() for one in given if one.dtype == torch.float16]
        found = torch.autograd.grad(compiled(*given), needing)
        agree(found, torch.autograd.grad(call(*given), needing))
    assert counter.frame_count <= 2


@pytest.mark.parametrize("name", NAMES)
def test_it_is_exported(name: str) -> None:
    case = CASES[name]

    given = case.given(9)
    program = exported(case, given, outputs_like(case, given, is_out=case.has_out))

    given = case.given(9)
    out = outputs_like(case, given, is_out=case.has_out)
    wanted = as_tuple(case.call(*given, **case.options))
    agree(program(given, out), wanted * (1 + case.has_out))
    if case.has_out:
        agree(out["out"], wanted[0])


@pytest.mark.parametrize("name", ["matmul", "matmul_epilogue", "grouped_matmul", "copy"])
def test_it_is_exported_for_any_number_of_rows(name: str) -> None:
    case = CASES[name]

    given = case.given(8)
    rows = torch.export.Dim("rows", min=2, max=4096)
    shapes = [{0: rows} if one.shape[0] == 8 else {} for one in given]
    program = exported(case, given, dynamic_shapes=(shapes,))

    for count in (8, 11, 200):
        given = case.given(count)
        agree(program(given), case.call(*given, **case.options))


@pytest.mark.filterwarnings("ignore")  # of torch's own code
def test_code_generated_by_inductor_calls_it_with_an_output_too() -> None:
    weight, square = draw(24, 40), draw(24, 24)
    out = torch.empty(16, 24, dtype=torch.float16)

    def call(x: Any, out: Any) -> Any:
        y = operators.matmul(x + 1, weight.T, activation="gelu")
        operators.matmul(y * 2, square, out=out)
        return y, out + 1

    x = draw(16, 40)
    # For one file it does not pay to compile headers ahead, start processes or try out vectors.
    with torch._inductor.config.patch(
        {"compile_threads": 1, "cpp.simdlen": 1, "cpp_cache_precompile_headers": False}
    ):
        found = torch.compile(call, fullgraph=True)(x, out)

    wanted = call(x, torch.empty_like(out))
    agree(found[0], wanted[0])
    assert error(found[1], wanted[1]) < 1e-3
    assert error(out, wanted[1] - 1) < 1e-3


def test_the_direct_form_names_the_operator_in_compiled_code() -> None:
    x = draw(8, 16)
    compiled = torch.compile(lambda x: ops.matmul(x, x.T), backend="aot_eager", fullgraph=True)

    with pytest.raises(RuntimeError, match=r"in compiled code call torch.ops.tmaasync.matmul"):
        compiled(x)


# --- the guard ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "is_compiled"),
    [
        *((name, False) for name in WITHOUT_GRADIENT),
        *((one, True) for one in WITHOUT_GRADIENT[::3]),
    ],
)
def test_an_operator_without_a_backward_refuses_what_requires_grad(
    name: str, is_compiled: bool
) -> None:
    case = CASES[name]

    def call(*given: Any) -> Any:
        return case.call(*given, **case.options)

    made = torch.compile(call, backend="aot_eager", fullgraph=True) if is_compiled else call
    given = case.given(8)
    wanted = call(*given)
    for index in range(len(given)):
        if given[index].dtype in (torch.float16, torch.float32):
            needing = list(given)
            needing[index] = given[index].clone().requires_grad_()
            with pytest.raises(Exception, match="this call has no backward") as refused:
                made(*needing)
            assert is_compiled or refused.type is ArgumentError
            with torch.no_grad():
                agree(made(*needing), wanted)


@pytest.mark.parametrize("name", [name for name, is_out in FORMS if is_out])
def test_an_output_that_requires_grad_is_refused(name: str) -> None:
    case = CASES[name]
    given = case.given(8)
    out = torch.zeros_like(as_tuple(case.call(*given, **case.options))[0]).requires_grad_()

    with pytest.raises(ArgumentError, match="requires grad"):
        case.call(*given, **case.options, out=out)


@pytest.mark.filterwarnings("ignore")  # of torch's own code
@pytest.mark.parametrize("name", NAMES)
def test_a_transform_of_torch_func_and_a_tangent_are_refused(name: str) -> None:
    """Through the kernel alone, its gradients and tangents would be zeros."""
    case = CASES[name]
    first, *others = case.given(8)

    def call(first: Any) -> Any:
        return as_tuple(case.call(first, *others, **case.options))[0]

    for transformed in (
        torch.func.grad(lambda one: call(one).float().sum()),
        lambda one: torch.func.vjp(call, one),
        lambda one: torch.func.jvp(call, (one,), (one,)),
        lambda one: torch.func.vmap(call)(one[None]),
    ):
        with pytest.raises(ArgumentError, match=r"a transform of torch.func.*torch.autograd.grad"):
            transformed(first)
    for needs_grad in (False, case.has_gradient):
        with forward_ad.dual_level(), pytest.raises(ArgumentError, match="with a tangent"):
            call(forward_ad.make_dual(first.clone().requires_grad_(needs_grad), first))


def test_what_becomes_one_batch_has_the_shape_of_the_output() -> None:
    a, b, other = draw(2, 3, 8, 16), draw(2, 3, 16, 24), draw(3, 2, 8, 24)
    for name in ("c", "out"):
        with pytest.raises(ArgumentError, match=rf"{name} has shape \(3, 2, 8, 24\); the output"):
            operators.matmul(a, b, **{name: other})
    with pytest.raises(ArgumentError, match=r"c has shape \(24,\); the output has shape"):
        operators.matmul(a, b, c=other[0, 0, 0])
    with pytest.raises(ArgumentError, match=r"out has strides .* must be contiguous"):
        operators.matmul(a, b, out=other.transpose(0, 1))


def test_zeros_are_added_up_in_batches_of_batches() -> None:
    a, b = draw(2, 3, 8, 0).requires_grad_(), draw(3, 0, 24)

    out = operators.matmul(a, b)
    out.sum().backward()

    assert out.shape == (2, 3, 8, 24)
    assert not out.any()
    assert a.grad.shape == a.shape


def test_tensors_on_meta_go_with_no_others() -> None:
    """The dispatcher takes the fake kernel, whose results would be uninitialised."""
    q = draw(1, 8, 2, 16)
    with pytest.raises(ArgumentError, match=r"matmul lie on cpu and meta; .* to one device"):
        operators.matmul(q[0, 0].to("meta"), q[0, 0].T)
    with pytest.raises(ArgumentError, match="attention lie on cpu and meta"):
        operators.scaled_dot_product_attention(q, q.to("meta"), q)


def test_vectors_and_batches_of_batches_have_a_remedy() -> None:
    a, b = draw(16), draw(16, 24)
    for multiply in (ops.matmul, operators.matmul):
        with pytest.raises(ArgumentError, match=r"a has shape \(16,\).* Pass a vector as a matrix"):
            multiply(a, b)
    with pytest.raises(ArgumentError, match=r"tmaasync.torch.matmul takes any number of batch"):
        ops.matmul(draw(2, 3, 8, 16), b)
