"""Calls of torch operators with one argument changed, and what torch makes of them."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from launch_recorder import recording
from torch._subclasses.fake_tensor import FakeTensorMode
from torch_cases import cumulative, draw

from tmaasync.ops._call_cache import forget

TYPES = (
    *(torch.float16, torch.bfloat16, torch.float32, torch.float64),
    *(torch.float8_e4m3fn, torch.float8_e5m2, torch.int8, torch.int32, torch.int64),
    *(torch.bool, torch.complex64),
)

OPTIONS: dict[str, tuple[Any, ...]] = {
    "alpha": (2.0, float("nan")),
    "beta": (2.0, float("inf")),
    "activation": ("relu", "tanh"),
    "precision": ("tf32", "fp8"),
    "dtype": TYPES,
    "stride": ([0], [1, 2, 3], [9], [3]),
    "padding": ([-1], [1, 2, 3], [200], [1, 0, 0, 1]),
    "dilation": ([0], [1, 2, 3], [40]),
    "causal_alignment": ("left", "top_left"),
    "scale": (0.0, -1.0, float("nan"), 0.5),
    "softcap": (-1.0, 20.0),
    "window_left": (-2, 3),
    "window_right": (-7, 0),
    "max_seqlen_q": (-1, None, 40),
    "max_seqlen_k": (-1, 40),
    "total_rows": (-3, 0, 44),
    "max_length": (-3, 0, 60),
}

Called = tuple[Any, tuple[Any, ...], dict[str, Any]]
"""An operator and its arguments."""


E4M3, _OPS = torch.float8_e4m3fn, torch.ops.tmaasync


def _pages() -> list[Any]:
    lengths = (cumulative(0, 3, 9), cumulative(0, 20, 40), 6, 32, torch.zeros(2, 2).int())
    return [draw(9, 4, 16), draw(6, 16, 2, 16), draw(6, 16, 2, 16), *lengths]


def _heads() -> list[Any]:
    return [draw(2, 8, heads, 16, dtype=E4M3) for heads in (2, 1, 1)]


SPECIAL: dict[str, Callable[[], Called]] = {
    "attention of float8": lambda: (
        _OPS.attention.default,
        (*_heads(), torch.ones(1), torch.ones(2, 1), torch.ones(())),
        {},
    ),
    "attention of float8 with out=": lambda: (
        _OPS.attention.out, (*_heads(), torch.ones(1)), {"out": draw(2, 8, 2, 16)}
    ),
    "packed float8": lambda: (
        _OPS.varlen_attention.default,
        (
            *(one.flatten(0, 1) for one in _heads()),
            *(cumulative(0, 8, 16), None, 8, None, None),
            *(torch.ones(1), torch.ones(2, 1), torch.ones(())),
        ),
        {},
    ),
    "a paged KV cache": lambda: (_OPS.varlen_attention.default, (*_pages(),), {"causal": True}),
    "a paged KV cache with out=": lambda: (
        _OPS.varlen_attention_with_lse.out, (*_pages(),), {"out": draw(9, 4, 16)}
    ),
    "a backward with other numbers of keys": lambda: (
        _OPS.varlen_attention_backward.default,
        (
            *(draw(rows, 2, 16) for rows in (9, 9, 12, 12, 9)),
            *(torch.ones(2, 9), cumulative(0, 3, 9), cumulative(0, 4, 12), 6, 8),
        ),
        {},
    ),
    "matmul of float8 with scales": lambda: (
        _OPS.matmul.default,
        (
            *(draw(8, 16, dtype=E4M3), draw(16, 24, dtype=E4M3)),
            *(draw(8, 24, dtype=torch.bfloat16), torch.ones(24), torch.ones(1), torch.ones(())),
        ),
        {"alpha": 2.0},
    ),
    "matmul of tf32": lambda: (
        _OPS.matmul.default, (torch.ones(8, 16), torch.ones(16, 24)), {"precision": "tf32"}
    ),
    "matmul of batches of batches": lambda: (
        _OPS.matmul.out,
        (draw(2, 3, 8, 16), draw(3, 16, 24), draw(2, 3, 8, 24), draw(24)),
        {"out": draw(2, 3, 8, 24)},
    ),
    "matmul of many rows": lambda: (
        _OPS.matmul.default, (draw(2, 3, 8, 16), draw(16, 24), draw(2, 3, 8, 24)), {}
    ),
    "conv2d with padding on each side": lambda: (
        _OPS.conv2d.out,
        (draw(2, 5, 6, 8), draw(16, 3, 3, 8), torch.ones(16), [1, 2], [1, 0, 2, 1], [1]),
        {"out": torch.ones(2, 4, 4, 16)},
    ),
    "scaled_matmul with scales for columns": lambda: (
        _OPS.scaled_matmul.out,
        (
            *(draw(8, 256, dtype=E4M3), draw(16, 256, dtype=E4M3).T),
            *(torch.ones(8, 2), torch.ones(2, 16)),
        ),
        {"out": draw(8, 16)},
    ),
    "ragged_store of strided rows": lambda: (
        _OPS.ragged_store.default, (draw(2, 9, 4, 16)[:, :, ::2], cumulative(0, 3, 5), 40), {}
    ),
    "a copy of strided rows": lambda: (_OPS.copy.default, (draw(8, 4, 16)[:, ::2],), {}),
    "an addition to strided rows": lambda: (
        _OPS.reduce_add.default, (draw(8, 4, 16)[:, ::2], draw(8, 2, 16)), {}
    ),
}  # fmt: skip
"""Calls with arguments that the cases of `torch_cases` lack."""


def changed(tensor: Any) -> Iterator[tuple[str, Any]]:
    """Yield tensors of other shapes, strides, types and addresses."""
    for dim in range(tensor.ndim):
        size = tensor.shape[dim]
        for length in {0, size - 1} - {-1}:
            yield f"{length} of dimension {dim}", tensor.narrow(dim, 0, length)
        doubled = torch.cat([tensor.float()] * 2, dim).to(tensor.dtype)
        yield f"dimension {dim} doubled", doubled
        yield (
            f"every second of dimension {dim}",
            tensor[(slice(None),) * dim + (slice(None, None, 2),)],
        )
        yield f"dimension {dim} repeated", tensor.narrow(dim, 0, 1).expand(tensor.shape)
    if tensor.ndim:
        yield "one dimension less", tensor[0]
    yield "one dimension more", tensor[None]
    yield "a scalar", tensor.flatten()[0]
    if tensor.ndim > 1:
        yield "transposed", tensor.mT
        yield "in another order", tensor.mT.contiguous().mT
        yield "three dimensions more", tensor[None, None, None]
    memory = torch.zeros(tensor.numel() + 1, dtype=tensor.dtype)
    yield "off 16 bytes", memory[1:].view(tensor.shape)
    for dtype in TYPES:
        if dtype is not tensor.dtype:
            yield f"of {dtype}", tensor.float().to(dtype)


def wrong_calls(
    function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Iterator[tuple[str, Called]]:
    """Yield calls with one tensor or option changed, most of which are wrong."""
    arguments = [argument.name for argument in function._schema.arguments]
    given = {**dict(zip(arguments, args, strict=False)), **kwargs}
    for name, one in given.items():
        if isinstance(one, torch.Tensor):
            for what, tensor in changed(one):
                yield f"{name}: {what}", (function, (), {**given, name: tensor})
            if "out" in given and name != "out" and one.shape == given["out"].shape:
                yield f"out: {name}", (function, (), {**given, "out": one})
    for name in OPTIONS.keys() & set(arguments):
        for value in OPTIONS[name]:
            yield f"{name}={value}", (function, (), {**given, name: value})


RESULT = "result"

OF_VALUES = re.compile(r"(offsets|cu_seqlens\w*)\[")
"""How errors begin that look at the values of lengths, which fake tensors do not have."""


def outcome(called: Called) -> tuple[str, Any]:
    """Return the class and text of an error, or RESULT and the layouts of the results."""
    function, args, kwargs = called
    try:
        with torch.no_grad():
            results = function(*args, **kwargs)
    except Exception as error:
        return type(error).__name__, re.sub(r"0x[0-9a-f]+", "0x...", str(error))
    results = results if isinstance(results, tuple) else (results,)
    given = [one for one in results if one is not None]
    return RESULT, [(tuple(one.shape), one.stride(), one.dtype) for one in given]


def outcome_without_memory(called: Called, mode: FakeTensorMode) -> tuple[str, Any]:
    """Return the same of fake tensors; those that calls share are made once in a mode."""
    function, args, kwargs = called
    logging.getLogger("torch._subclasses.fake_tensor").setLevel(logging.CRITICAL)
    with mode:

        def fake(one: Any) -> Any:
            return mode.from_tensor(one) if isinstance(one, torch.Tensor) else one

        named = {name: fake(one) for name, one in kwargs.items()}
        return outcome((function, tuple(map(fake, args)), named))


@contextmanager
def without_launches() -> Iterator[None]:
    """Have operations check their arguments and make their outputs, but compile and run nothing."""
    forget()
    with recording():
        yield
    forget()
