"""What is no tensor is refused by every function of tmaasync.torch, in one way."""

from __future__ import annotations

import inspect
from typing import Any

import numpy as np
import pytest

from tmaasync import ArrayTypeError

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
