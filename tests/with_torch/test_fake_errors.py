"""Fake kernels refuse what the operators refuse, in the same words, and foresee their results."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

torch: Any = pytest.importorskip("torch")

from torch._dynamo.testing import CompileCounterWithBackend  # noqa: E402
from torch._subclasses.fake_tensor import FakeTensorMode  # noqa: E402
from torch_cases import CASES, FORMS, call_of, chip_of, draw  # noqa: E402
from torch_wrong_calls import (  # noqa: E402
    OF_VALUES,
    RESULT,
    SPECIAL,
    Called,
    outcome,
    outcome_without_memory,
    without_launches,
    wrong_calls,
)

import tmaasync.torch as operators  # noqa: E402
from tmaasync import ArgumentError  # noqa: E402


@pytest.fixture(autouse=True)
def _on_its_chip(request: pytest.FixtureRequest) -> Iterator[None]:
    with chip_of(request):
        yield


def compare(made: Called) -> None:
    """Compare the call with one argument changed, in all ways; some are refused, by our own errors.

    Not by torch's or Python's about some step inside.
    """
    refused, mode = 0, FakeTensorMode()
    with without_launches():
        assert outcome(made)[0] == RESULT
        for what, called in wrong_calls(*made):
            real = kind, text = outcome(called)
            assert kind in {"ArgumentError", "ArrayTypeError", "TensorMapError", RESULT}, what
            if kind == RESULT or not OF_VALUES.match(text):
                assert outcome_without_memory(called, mode) == real, what
                refused += kind != RESULT
    assert refused


@pytest.mark.parametrize(("name", "is_out"), FORMS)
def test_a_fake_kernel_says_what_the_operator_says_of_a_changed_argument(
    name: str, is_out: bool
) -> None:
    torch.manual_seed(0)
    with without_launches():
        made = call_of(CASES[name], CASES[name].given(9), is_out=is_out)
    compare(made)


@pytest.mark.parametrize("what", SPECIAL)
def test_a_fake_kernel_says_it_of_further_arguments_too(what: str) -> None:
    torch.manual_seed(0)
    compare(SPECIAL[what]())


@pytest.mark.parametrize(("name", "is_out"), FORMS)
def test_fake_tensors_of_a_gpu_need_none(name: str, is_out: bool) -> None:
    case = CASES[name]
    with without_launches():
        function, args, kwargs = call_of(case, case.given(9), is_out=is_out)
        wanted = outcome((function, args, kwargs))

    with FakeTensorMode():

        def on_a_gpu(one: Any) -> Any:
            if not isinstance(one, torch.Tensor):
                return one
            return torch.empty_strided(one.shape, one.stride(), dtype=one.dtype, device="cuda")

        named = {name: on_a_gpu(one) for name, one in kwargs.items()}
        assert outcome((function, tuple(map(on_a_gpu, args)), named)) == wanted


def test_tensors_on_meta_are_refused_as_those_with_memory() -> None:
    a, b = draw(8, 16), draw(24, 8)
    for device in ("cpu", "meta"):
        with pytest.raises(ArgumentError, match=r"b has shape \(24, 8\).* must have 16 rows"):
            operators.matmul(a.to(device), b.to(device))


def test_compiled_code_is_refused_when_it_is_traced() -> None:
    torch._dynamo.reset()
    compiled = torch.compile(operators.matmul, backend="aot_eager", fullgraph=True)
    with pytest.raises(Exception, match="a holds float32; the tensor cores round that to tf32"):
        compiled(draw(16, 16).float(), draw(16, 16).float())
    with pytest.raises(Exception, match=r"a has shape .*, so b must have 16 rows"):
        compiled(draw(16, 16), draw(24, 16))


def test_code_compiled_for_all_sizes_is_refused_when_it_runs() -> None:
    """What is checked of the sizes that torch traces with makes no guard: no others compile."""
    torch._dynamo.reset()
    counter = CompileCounterWithBackend("aot_eager")
    # Else torch takes equal sizes for one symbol.
    with torch.fx.experimental._config.patch(use_duck_shape=False):
        compiled = torch.compile(operators.matmul, backend=counter, fullgraph=True, dynamic=True)
        for rows, k in ((8, 16), (9, 24), (13, 16)):
            a, b = draw(rows, k), draw(k, 24)
            assert torch.equal(compiled(a, b), operators.matmul(a, b))
        with pytest.raises(ArgumentError, match=r"b has shape .* so b must have 16 rows"):
            compiled(draw(8, 16), draw(24, 24))
    assert counter.frame_count <= 2


@pytest.mark.filterwarnings("ignore")  # of torch's own code
def test_sizes_that_depend_on_data_are_left_to_the_operator() -> None:
    torch._dynamo.reset()

    def call(x: Any, weight: Any, mask: Any) -> Any:
        return operators.matmul(x[mask.nonzero()[:, 0]], weight)

    with torch._dynamo.config.patch(capture_dynamic_output_shape_ops=True):
        compiled = torch.compile(call, backend="aot_eager", fullgraph=True)
        x, weight = draw(16, 24), draw(24, 8)
        for count in (3, 11):
            mask = torch.arange(16) < count
            assert torch.equal(compiled(x, weight, mask), call(x, weight, mask))
