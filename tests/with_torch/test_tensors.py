"""What is no tensor, and an option of a wrong kind, is refused by all of tmaasync.torch."""

from __future__ import annotations

import inspect
from typing import Any

import numpy as np
import pytest

from tmaasync import ArgumentError, ArrayTypeError, ops

torch: Any = pytest.importorskip("torch")

import tmaasync.torch as operators  # noqa: E402

WITHOUT_TENSORS = {"register_with_transformers", "symmetric_buffers", "symmetric_tiles"}
NAMES = sorted(set(operators.__all__) - WITHOUT_TENSORS)
NUMBERS = {"total_rows", "max_length", "max_seqlen", "max_seqlen_q", "max_seqlen_k"}
PARTS = {"qkv": 3, "kv": 2}
OPTIONAL = {
    "alibi_slopes",
    "attn_mask",
    "bias",
    "block_table",
    "c",
    "cache_batch_idx",
    "cache_leftpad",
    "cache_seqlens",
    "cu_seqlens_k",
    "out",
    "page_table",
    "rotary_cos",
    "rotary_sin",
    "scale_a",
    "scale_b",
}
CASES = [
    (name, argument)
    for name in NAMES
    for argument, one in inspect.signature(getattr(operators, name)).parameters.items()
    if argument in OPTIONAL
    or (one.default is inspect.Parameter.empty and argument not in NUMBERS)
    or (name == "flash_attn_with_kvcache" and argument in "kv")
]


def together(name: str, argument: str) -> Any:
    lead = (8,) if "varlen" in name else (1, 8)
    return torch.ones(*lead, PARTS[argument], 1, 16, dtype=torch.float16)


@pytest.mark.parametrize("value", [[[1.0, 2.0]], np.zeros((2, 2), np.float16)])
@pytest.mark.parametrize(("name", "argument"), CASES)
def test_a_list_and_a_numpy_array_are_refused_with_a_remedy(
    name: str, argument: str, value: Any
) -> None:
    function = getattr(operators, name)
    x = torch.ones(1, 8, 1, 16, dtype=torch.float16)
    given = {
        other: 8 if other in NUMBERS else together(name, other) if other in PARTS else x
        for other, one in inspect.signature(function).parameters.items()
        if one.default is inspect.Parameter.empty
    }

    with pytest.raises(ArrayTypeError) as refused:
        function(**{**given, argument: value})

    kind = type(value).__name__
    assert str(refused.value) == (
        f"{argument} is a {kind}; the functions of tmaasync.torch take torch tensors. "
        f"Pass torch.as_tensor({argument})."
    )


def test_scales_of_attention_are_tensors_too() -> None:
    x = torch.ones(1, 8, 1, 16).to(torch.float8_e4m3fn)
    with pytest.raises(ArrayTypeError, match=r"scales\[1\] is a float"):
        operators.attention(x, x, x, scales=(None, 2.0, None))


def test_all_arguments_that_are_no_tensors_are_in_one_error() -> None:
    with pytest.raises(ArrayTypeError, match=r"a is None; .*\nb is a list"):
        operators.matmul(None, [1.0])


def ones(*shape: int) -> Any:
    return torch.ones(*shape, dtype=torch.float16)


FACTORS: list[Any] = ["a", True, [1.0], torch.ones(()), torch.ones(3), 10**400]
COUNTS: list[Any] = ["a", 40.0, True, 1 << 70]
MASK = {
    "causal": [2, [1], None, torch.ones(3), "left"],
    "scale": FACTORS,
    "softcap": FACTORS,
    "window": [3, ("a", 0), (1.0, 0)],
    "return_lse": [1, None, "yes"],
}
ENDS = torch.tensor([0, 3, 8], dtype=torch.int32)
WRONG_OPTIONS: dict[str, tuple[dict[str, Any], dict[str, list[Any]]]] = {
    "matmul": (
        {"a": ones(8, 16), "b": ones(16, 8)},
        {
            "alpha": [*FACTORS, None, np.ones(3)],
            "beta": [*FACTORS, None],
            "precision": [3, ["tf32"]],
            "activation": [1, ["relu"]],
        },
    ),
    "attention": (dict.fromkeys("qkv", ones(1, 8, 2, 16)), MASK),
    "varlen_attention": (
        {**dict.fromkeys("qkv", ones(8, 2, 16)), "cu_seqlens_q": ENDS},
        {**MASK, "max_seqlen_q": COUNTS, "max_seqlen_k": COUNTS},
    ),
    "conv2d": (
        {"images": ones(1, 5, 5, 8), "filters": ones(8, 3, 3, 8)},
        {
            "padding": ["same", None, 1.5, ((1, 0), (2, "a")), -1, 1 << 70],
            "stride": [2.0, "a", None, True, (1, 2.0), np.array([2, 1]), 1 << 70],
            "dilation": [2.0, None, True],
            "activation": [1, ["relu"]],
        },
    ),
    "ragged_load": ({"packed": ones(8, 2, 16), "cu_seqlens": ENDS}, {"max_length": COUNTS}),
}


@pytest.mark.parametrize(
    ("name", "argument"),
    [(name, argument) for name, (_, options) in WRONG_OPTIONS.items() for argument in options],
)
def test_an_option_of_a_wrong_kind_is_refused_as_by_ops(name: str, argument: str) -> None:
    given, options = WRONG_OPTIONS[name]
    for value in options[argument]:
        errors = []
        for library in (operators, ops):
            with pytest.raises(ArgumentError, match=argument) as refused:
                getattr(library, name)(**given, **{argument: value})
            errors.append(str(refused.value))
        assert errors[0] == errors[1]


@pytest.mark.parametrize("value", ["a", 2.0, True, None])
def test_a_number_of_rows_is_an_integer(value: Any) -> None:
    with pytest.raises(ArgumentError, match=r"total_rows is .*; it must be an integer"):
        operators.ragged_store(ones(2, 5, 16), ENDS, value)
    with pytest.raises(ArgumentError, match=r"max_length is .*; it must be an integer"):
        operators.ragged_load(ones(8, 16), ENDS, value)


@pytest.mark.parametrize("name", ["flash_attn_func", "flash_attn_varlen_func"])
@pytest.mark.parametrize(
    "options", [{"softcap": "a"}, {"softmax_scale": "a"}, {"causal": 2}, {"return_attn_probs": 1}]
)
def test_the_drop_ins_name_an_option_of_a_wrong_kind(name: str, options: dict[str, Any]) -> None:
    ((argument, value),) = options.items()
    given = [ones(1, 8, 2, 16)] * 3
    if "varlen" in name:
        given = [*(one[0] for one in given), ENDS, ENDS, 8, 8]
    with pytest.raises(ArgumentError, match=f"^{argument} is {value!r}; it "):
        getattr(operators, name)(*given, **options)


def test_a_side_of_a_window_may_be_longer_than_any_sequence() -> None:
    q = torch.randn(8, 2, 16).half()
    found = operators.varlen_attention(q, q, q, ENDS, window=(1 << 70, 0))
    assert torch.equal(found, operators.varlen_attention(q, q, q, ENDS, causal=True))
