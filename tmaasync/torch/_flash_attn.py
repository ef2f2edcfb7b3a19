"""Drop-in attention functions with the signatures of the flash_attn package."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np
import torch

from tmaasync import _arrays
from tmaasync._hardware import TMA_ALIGNMENT
from tmaasync._kinds import check_flags, is_integer, is_number, shown
from tmaasync.errors import ArgumentError, Violation
from tmaasync.ops._flash.operands import positive_violations
from tmaasync.torch._any_head_dim import attend, attend_packed
from tmaasync.torch._attention import fake_varlen, mask_arguments, varlen_attention
from tmaasync.torch._autocast import computed_type
from tmaasync.torch._plain import is_symbolic
from tmaasync.torch._tensors import require_tensors, require_tensors_or_none

__all__ = ["flash_attn_func", "flash_attn_varlen_func", "flash_attn_with_kvcache"]

_ROW_STEP = 8
_INTEGERS = (torch.int32, torch.int64, torch.int16, torch.int8, torch.uint8)


def flash_attn_func(  # noqa: PLR0913 - the parameters of flash_attn
    q: Any,
    k: Any,
    v: Any,
    dropout_p: float = 0.0,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: tuple[int, int] = (-1, -1),
    softcap: float = 0.0,
    alibi_slopes: Any = None,
    deterministic: bool = False,
    return_attn_probs: bool = False,
) -> Any:
    """Compute ``flash_attn.flash_attn_func``; its backward needs head_dim up to 128.

    Args:
        q: [batch, positions, heads, head_dim], bfloat16 or float16, head_dim up to 256.
        k: [batch, keys, kv_heads, head_dim].
        v: As k.
        dropout_p: 0; the kernels have no dropout.
        softmax_scale: Factor of the scores; by default ``1 / sqrt(head_dim)``.
        causal: Whether to apply a causal mask, with the last query aligned with the last key.
        window_size: Sliding window (left, right): keys that a query attends to before and after its
            own; -1 means no limit.
        softcap: Scores become ``softcap * tanh(score / softcap)``; 0 or less means no softcap.
        alibi_slopes: None; the kernels have no ALiBi.
        deterministic: Whether the backward is deterministic; the forward always is.
        return_attn_probs: Whether to return the log-sum-exp too.

    Returns:
        The output; with ``return_attn_probs`` a tuple of the output, the log-sum-exp, float32
        [batch, heads, positions], and None for the probabilities.

    Raises:
        ArgumentError: An argument that the kernels do not support; all are listed.
        ArrayTypeError: A type that the kernels do not support.
    """
    require_tensors(q=q, k=k, v=v)
    check_flags(return_attn_probs=return_attn_probs)
    ArgumentError.raise_for(_lacking_flash(dropout_p, alibi_slopes))
    mask = _mask(causal, window_size, softcap, softmax_scale)
    options = {**mask, "return_lse": return_attn_probs, "deterministic": deterministic}
    results = attend(q, k, v, **options)
    return (*results, None) if return_attn_probs else results


def flash_attn_varlen_func(  # noqa: PLR0913 - the parameters of flash_attn
    q: Any,
    k: Any,
    v: Any,
    cu_seqlens_q: Any,
    cu_seqlens_k: Any,
    max_seqlen_q: int | None,
    max_seqlen_k: int | None,
    dropout_p: float = 0.0,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: tuple[int, int] = (-1, -1),
    softcap: float = 0.0,
    alibi_slopes: Any = None,
    deterministic: bool = False,
    return_attn_probs: bool = False,
    block_table: Any = None,
) -> Any:
    """Compute ``flash_attn.flash_attn_varlen_func``; the backward is as in `flash_attn_func`.

    Args:
        q: [rows, heads, head_dim], bfloat16 or float16, head_dim up to 256.
        k: [key_rows, kv_heads, head_dim]; with ``block_table`` [blocks, block_size, kv_heads,
            head_dim], head_dim a multiple of 8.
        v: As k.
        cu_seqlens_q: Cumulative lengths of the sequences in q, int32.
        cu_seqlens_k: The same for k.
        max_seqlen_q: Rows of the longest sequence in q; None if ``cu_seqlens_q`` is in host memory.
        max_seqlen_k: The same for k.
        dropout_p: As in `flash_attn_func`.
        softmax_scale: As in `flash_attn_func`.
        causal: As in `flash_attn_func`, for each sequence.
        window_size: As in `flash_attn_func`.
        softcap: As in `flash_attn_func`.
        alibi_slopes: As in `flash_attn_func`.
        deterministic: As in `flash_attn_func`.
        return_attn_probs: As in `flash_attn_func`.
        block_table: The blocks of each sequence's keys, [sequences, blocks_per_sequence], int32.

    Returns:
        The output; with ``return_attn_probs`` a tuple of the output, the log-sum-exp, float32
        [heads, rows], and None for the probabilities.

    Raises:
        ArgumentError: An argument that the kernels do not support; all are listed.
        ArrayTypeError: A type that the kernels do not support.
    """
    require_tensors(q=q, k=k, v=v, cu_seqlens_q=cu_seqlens_q, cu_seqlens_k=cu_seqlens_k)
    require_tensors_or_none(block_table=block_table)
    check_flags(return_attn_probs=return_attn_probs)
    ArgumentError.raise_for(_lacking_flash(dropout_p, alibi_slopes))
    longest = (
        _count(name, one)
        for name, one in (("max_seqlen_q", max_seqlen_q), ("max_seqlen_k", max_seqlen_k))
    )
    lengths = (cu_seqlens_q, cu_seqlens_k, *longest)
    options = {
        **_mask(causal, window_size, softcap, softmax_scale),
        "return_lse": return_attn_probs,
    }
    options["deterministic"] = deterministic
    if block_table is None:
        results = attend_packed(q, k, v, *lengths, **options)
    else:
        options["page_table"] = block_table
        results = varlen_attention(q, k, v, *lengths, **options)
    return (*results, None) if return_attn_probs else results


def flash_attn_with_kvcache(  # noqa: PLR0913 - the parameters of flash_attn
    q: Any,
    k_cache: Any,
    v_cache: Any,
    k: Any = None,
    v: Any = None,
    rotary_cos: Any = None,
    rotary_sin: Any = None,
    cache_seqlens: Any = None,
    cache_batch_idx: Any = None,
    cache_leftpad: Any = None,
    block_table: Any = None,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: tuple[int, int] = (-1, -1),
    softcap: float = 0.0,
    rotary_interleaved: bool = True,
    alibi_slopes: Any = None,
    num_splits: int = 0,
    return_softmax_lse: bool = False,
) -> Any:
    """Compute ``flash_attn.flash_attn_with_kvcache``, without rotary embeddings.

    Args:
        q: [batch, positions, heads, head_dim], bfloat16 or float16, head_dim a multiple of 8.
        k_cache: [cache_batch, cache_length, kv_heads, head_dim]; with ``block_table`` [blocks,
            block_size, kv_heads, head_dim]. The second dimension is a multiple of 8.
        v_cache: As k_cache.
        k: New keys, [batch, new, kv_heads, head_dim]; they are written to the cache, after
            ``cache_seqlens`` keys, before attention runs.
        v: As k.
        rotary_cos: None; apply rotary embeddings before the call.
        rotary_sin: None.
        cache_seqlens: Keys of each sequence in the cache: an int, or an int32 tensor [batch]. By
            default the whole cache.
        cache_batch_idx: The cache entry of each sequence; not with ``block_table``.
        cache_leftpad: None; the keys of a sequence start at the start of its cache.
        block_table: The blocks of each sequence, [batch, blocks_per_sequence], int32.
        softmax_scale: As in `flash_attn_func`.
        causal: As in `flash_attn_func`.
        window_size: As in `flash_attn_func`.
        softcap: As in `flash_attn_func`.
        rotary_interleaved: Ignored, because there are no rotary embeddings.
        alibi_slopes: As in `flash_attn_func`.
        num_splits: Ignored; the operation chooses the number of splits.
        return_softmax_lse: Whether to return the log-sum-exp too.

    Returns:
        The output; with ``return_softmax_lse`` the pair (output, log-sum-exp), log-sum-exp as
        float32 [batch, heads, positions].

    Raises:
        ArgumentError: An argument that the kernels do not support; all are listed.
        ArrayTypeError: A type that the kernels do not support.
    """
    del rotary_interleaved, num_splits
    check_flags(return_softmax_lse=return_softmax_lse)
    caches = {"k_cache": k_cache, "v_cache": v_cache}
    require_tensors(q=q, **caches)
    require_tensors_or_none(k=k, v=v, cache_batch_idx=cache_batch_idx, block_table=block_table)
    if not _is_length(cache_seqlens):
        require_tensors_or_none(cache_seqlens=cache_seqlens)
    ArgumentError.raise_for(_of_other_ranks(q=q, **caches, k=k, v=v))
    given = {"rotary_cos": rotary_cos, "rotary_sin": rotary_sin, "cache_leftpad": cache_leftpad}
    ArgumentError.raise_for(
        [
            *_lacking_flash(0.0, alibi_slopes),
            *_lacking_cache(given),
            *_contradictions(k_cache, k, v, cache_batch_idx, block_table),
            *_unlike(q, k_cache, v_cache),
            *_misshapen(q, k_cache, cache_seqlens, k=k, v=v),
            *_elsewhere(
                q,
                **caches,
                k=k,
                v=v,
                cache_seqlens=cache_seqlens,
                cache_batch_idx=cache_batch_idx,
                block_table=block_table,
            ),
            *_not_numbers_of_pages(q, k_cache, cache_batch_idx, block_table),
            *_lost_gradients(q=q, **caches, k=k, v=v),
        ]
    )
    options = _mask(causal, window_size, softcap, softmax_scale)
    batch, positions, heads, head_dim = q.shape
    if not batch:
        return _no_sequences(q, return_lse=return_softmax_lse)
    table = _page_table(q, k_cache, cache_batch_idx, block_table)
    capacity = table.shape[1] * k_cache.shape[1]
    ArgumentError.raise_for(_overflow(cache_seqlens, capacity, 0 if k is None else k.shape[1]))
    lengths = _lengths(q, cache_seqlens, capacity)
    totals = lengths if k is None else lengths + k.shape[1]
    if block_table is not None:
        ArgumentError.raise_for(_wrong_blocks(block_table, totals, k_cache))
    packed = (
        *(q.reshape(batch * positions, heads, head_dim), k_cache, v_cache),
        torch.arange(batch + 1, dtype=torch.int32, device=q.device) * positions,
        torch.nn.functional.pad(totals.cumsum(0, dtype=torch.int32), (1, 0)),
        *(positions, capacity),
    )
    if k is not None:
        _check_attention(*packed, table, options)
        _append(k_cache, k, table, lengths)
        _append(v_cache, v, table, lengths)
    options |= {"page_table": table, "return_lse": return_softmax_lse}
    results = varlen_attention(*packed, **options)
    if not return_softmax_lse:
        return results.view(q.shape)
    out, lse = results
    return out.view(q.shape), lse.view(heads, batch, positions).transpose(0, 1)


def _is_length(cache_seqlens: Any) -> bool:
    """Return whether it is an int, for all sequences."""
    return isinstance(cache_seqlens, (int, np.integer)) and not isinstance(cache_seqlens, bool)


def _no_sequences(q: Any, *, return_lse: bool) -> Any:
    _, positions, heads, _ = q.shape
    out = q.new_empty(q.shape, dtype=computed_type(q))
    lse = q.new_empty((0, heads, positions), dtype=torch.float32)
    return (out, lse) if return_lse else out


def _count(name: str, value: Any) -> Any:
    """Return a maximum length, which may be a tensor of one integer, or a symbol."""
    if value is None or isinstance(value, (int, torch.SymInt)):
        return value
    if isinstance(value, torch.Tensor) or is_integer(value):
        return int(value)
    rule = "it must be the rows of the longest sequence"
    raise ArgumentError.of([Violation(name, shown(value), rule, "Pass an int, or None")])


def _mask(causal: bool, window_size: Any, softcap: Any, softmax_scale: Any) -> dict[str, Any]:
    is_pair = isinstance(window_size, (tuple, list)) and len(window_size) == 2
    if not is_pair or not all(side is None or is_integer(side) for side in window_size):
        rule = "it must be the numbers of keys (before, after) a query's own, -1 for no limit"
        violation = Violation(
            "window_size", shown(window_size), rule, "Pass (-1, -1) for no window"
        )
        raise ArgumentError.of([violation])
    left, right = (None if side is None or side < 0 else side for side in window_size)
    window = None if left is right is None else (left, right)
    if not is_symbolic(softmax_scale):
        remedy = "Leave it out for the default"
        ArgumentError.raise_for(positive_violations("softmax_scale", softmax_scale, remedy))
    is_capped = not is_number(softcap) or not softcap <= 0
    softcap = softcap if is_capped else None
    return {"causal": causal, "scale": softmax_scale, "window": window, "softcap": softcap}


def _lacking_flash(dropout_p: float, alibi_slopes: Any) -> Iterator[Violation]:
    if dropout_p:
        remedy = "Pass 0, or call flash_attn's own function"
        yield Violation("dropout_p", dropout_p, "the kernels have no dropout", remedy)
    if alibi_slopes is not None:
        require_tensors(alibi_slopes=alibi_slopes)
        shape = f"of shape {tuple(alibi_slopes.shape)}"
        rule = "the kernels add no bias to the scores"
        yield Violation("alibi_slopes", shape, rule, "Call flash_attn's own function")


def _lacking_cache(given: dict[str, Any]) -> Iterator[Violation]:
    remedies = {
        "rotary_cos": "Rotate q and k before the call",
        "rotary_sin": "Rotate q and k before the call",
        "cache_leftpad": "Start the keys of each sequence at the start of its cache",
    }
    for name, value in given.items():
        if value is not None:
            require_tensors(**{name: value})
            rule = "the kernels do not take it"
            yield Violation(name, f"of shape {tuple(value.shape)}", rule, remedies[name])


def _of_other_ranks(**tensors: Any) -> Iterator[Violation]:
    for name, tensor in tensors.items():
        if tensor is not None and tensor.dim() != 4:
            rule = "it has four dimensions: [batch or blocks, positions, heads, head_dim]"
            yield Violation(f"{name}.shape", tuple(tensor.shape), rule, "Reshape it")


def _unlike(q: Any, k_cache: Any, v_cache: Any) -> Iterator[Violation]:
    """Check queries against caches, as the operation would after new keys are written."""
    if v_cache.shape != k_cache.shape:
        rule = f"k_cache has shape {tuple(k_cache.shape)}"
        remedy = "Pass caches of one shape"
        yield Violation("v_cache.shape", tuple(v_cache.shape), rule, remedy)
    if k_cache.shape[-1] != q.shape[-1]:
        rule = f"q has heads of {q.shape[-1]}"
        yield Violation("k_cache.shape[-1]", k_cache.shape[-1], rule, "Pass keys of that head_dim")
    own = computed_type(q)
    for name, cache in (("k_cache", k_cache), ("v_cache", v_cache)):
        if computed_type(cache) != own:
            rule = f"q holds {q.dtype}, and the tensor cores take one type"
            yield Violation(f"{name}.dtype", cache.dtype, rule, "Convert one of them")
    step = TMA_ALIGNMENT // own.itemsize
    if q.shape[-1] % step:
        rule = f"a head has a multiple of {step} columns"
        yield Violation("q.shape[-1]", q.shape[-1], rule, "Pad q and the caches with zeros")


def _misshapen(q: Any, k_cache: Any, cache_seqlens: Any, **new: Any) -> Iterator[Violation]:
    """Reject shapes that would be broadcast, and types that would be converted."""
    batch = q.shape[0]
    if isinstance(cache_seqlens, torch.Tensor):
        if cache_seqlens.shape != (batch,):
            rule = f"q has {batch} sequences, each with its number of keys"
            remedy = f"Pass an int, or a tensor of shape {(batch,)}"
            yield Violation("cache_seqlens", f"of shape {tuple(cache_seqlens.shape)}", rule, remedy)
        if cache_seqlens.dtype not in _INTEGERS:
            rule = "keys are counted in integers"
            yield Violation("cache_seqlens.dtype", cache_seqlens.dtype, rule, "Convert it to int32")
    for name, tensor in new.items():
        if tensor is None:
            continue
        shape = (batch, *tensor.shape[1:2], *k_cache.shape[2:])
        if tensor.shape != shape:
            rule = f"q has {batch} sequences, and the cache {tuple(k_cache.shape[2:])} for each key"
            remedy = f"Pass [batch, new, kv_heads, head_dim], such as {shape}"
            yield Violation(name, f"of shape {tuple(tensor.shape)}", rule, remedy)
        if tensor.dtype != k_cache.dtype:
            rule = f"the cache holds {k_cache.dtype}"
            yield Violation(f"{name}.dtype", tensor.dtype, rule, "Convert it")


def _elsewhere(q: Any, **given: Any) -> Iterator[Violation]:
    """Reject tensors on other devices before the cache changes; lengths may be in host memory."""
    for name, tensor in given.items():
        if not isinstance(tensor, torch.Tensor):
            continue
        is_in_host_memory = name == "cache_seqlens" and tensor.device.type == "cpu"
        if tensor.device != q.device and not is_in_host_memory:
            rule, remedy = f"q lies on {q.device}", f"Pass {name}.to(q.device)"
            yield Violation(f"{name}.device", tensor.device, rule, remedy)


def _not_numbers_of_pages(
    q: Any, k_cache: Any, cache_batch_idx: Any, block_table: Any
) -> Iterator[Violation]:
    """Check the cache entries of the sequences; numbers on a GPU are not checked."""
    batch, count = q.shape[0], k_cache.shape[0]
    if block_table is not None:
        if block_table.dim() != 2 or block_table.shape[0] != batch:
            rule = f"q has {batch} sequences, each with a row of blocks"
            remedy = f"Pass [{batch}, blocks_per_sequence]"
            yield Violation("block_table.shape", tuple(block_table.shape), rule, remedy)
        if block_table.dtype != torch.int32:
            rule = "blocks are numbered in int32"
            yield Violation("block_table.dtype", block_table.dtype, rule, "Convert it")
    elif cache_batch_idx is None and count < batch:
        rule = f"q has {batch} sequences, each with an entry of the cache"
        yield Violation("k_cache.shape[0]", count, rule, "Pass a larger cache, or cache_batch_idx")
    elif cache_batch_idx is not None:
        yield from _wrong_entries(cache_batch_idx, batch, count)


def _wrong_entries(cache_batch_idx: Any, batch: int, count: int) -> Iterator[Violation]:
    if cache_batch_idx.shape != (batch,) or cache_batch_idx.dtype not in _INTEGERS:
        rule = f"q has {batch} sequences, each with the number of its entry of the cache"
        value = f"of {cache_batch_idx.dtype} and shape {tuple(cache_batch_idx.shape)}"
        yield Violation("cache_batch_idx", value, rule, f"Pass int32 of shape {(batch,)}")
    elif _is_readable(cache_batch_idx) and batch:
        least, most = int(cache_batch_idx.min()), int(cache_batch_idx.max())
        if least < 0 or most >= count:
            rule = f"the cache has entries 0 to {count - 1}"
            yield Violation("cache_batch_idx", f"from {least} to {most}", rule, "Pass these")


def _wrong_blocks(block_table: Any, totals: Any, k_cache: Any) -> Iterator[Violation]:
    if not (_is_readable(block_table) and _is_readable(totals)):
        return
    count, rows = k_cache.shape[:2]
    used = torch.arange(block_table.shape[1]) < -(-totals // rows)[:, None]
    for sequence, column in (used & ((block_table < 0) | (block_table >= count))).nonzero()[:1]:
        name = f"block_table[{int(sequence)}, {int(column)}]"
        rule = f"the cache has {count} blocks, numbered from 0"
        yield Violation(name, int(block_table[sequence, column]), rule, "Pass one of them")


def _is_readable(tensor: Any) -> bool:
    """Return whether the host can read the values without waiting for a GPU."""
    return tensor.device.type == "cpu" and not torch.compiler.is_compiling()


def _contradictions(
    k_cache: Any, k: Any, v: Any, cache_batch_idx: Any, block_table: Any
) -> Iterator[Violation]:
    if (k is None) != (v is None):
        missing, other = ("k", "v") if k is None else ("v", "k")
        rule = f"{other} is given, and the cache takes keys and values together"
        yield Violation(missing, None, rule, "Pass both, or neither")
    if block_table is not None and cache_batch_idx is not None:
        rule = "block_table has the blocks of each sequence already"
        shape = f"of shape {tuple(cache_batch_idx.shape)}"
        yield Violation("cache_batch_idx", shape, rule, "Pass one of them")
    if block_table is None and k_cache.shape[1] % _ROW_STEP:
        rule = f"it must be a multiple of {_ROW_STEP}, after which TMA's swizzle repeats"
        rows = -(-k_cache.shape[1] // _ROW_STEP) * _ROW_STEP
        remedy = f"Allocate {rows}, and pass cache_seqlens"
        yield Violation("k_cache.shape[1]", k_cache.shape[1], rule, remedy)


def _lost_gradients(**tensors: Any) -> Iterator[Violation]:
    """Reject, before the cache changes, tensors that the operation would reject afterwards."""
    for name, tensor in tensors.items():
        if tensor is not None and tensor.requires_grad and torch.is_grad_enabled():
            rule = "there is no backward through a cache, so its gradient would be lost"
            remedy = "Call it inside torch.no_grad(), or pass its .detach()"
            yield Violation(name, "a tensor that requires grad, in grad mode", rule, remedy)


def _overflow(cache_seqlens: Any, capacity: int, new: int) -> Iterator[Violation]:
    """Check the lengths that the host can read without waiting for a GPU."""
    least = longest = capacity if cache_seqlens is None else cache_seqlens
    if isinstance(longest, torch.Tensor):
        if not (_is_readable(longest) and longest.numel()):
            return
        least, longest = int(longest.min()), int(longest.max())
    if least < 0:
        rule = "a sequence has 0 keys or more"
        yield Violation("cache_seqlens", least, rule, "Pass the number of keys in the cache")
    if longest + new > capacity:
        rule = f"with {new} new keys it must be at most {capacity}, the rows of a sequence's cache"
        remedy = "Pass the number of keys before the new ones, or a larger cache"
        yield Violation("cache_seqlens", longest, rule, remedy)


def _page_table(q: Any, k_cache: Any, cache_batch_idx: Any, block_table: Any) -> Any:
    """Return the page table of a cache; without ``block_table`` a sequence's cache is one page."""
    if block_table is not None:
        return block_table
    entries = cache_batch_idx
    if entries is None:
        entries = torch.arange(q.shape[0], dtype=torch.int32, device=q.device)
    return entries.to(torch.int32)[:, None].contiguous()


def _lengths(q: Any, cache_seqlens: Any, capacity: int) -> Any:
    """Return the keys of each sequence in int32, in which sums with new keys do not wrap around."""
    if isinstance(cache_seqlens, torch.Tensor):
        return cache_seqlens.to(torch.int32)
    length = capacity if cache_seqlens is None else cache_seqlens
    return torch.full((q.shape[0],), length, dtype=torch.int32, device=q.device)


_NAMES = {"k": "k_cache", "v": "v_cache", "page_table": "block_table"}
"""The arguments of flash_attn_with_kvcache by their names in `varlen_attention`."""


_CHECKED: set[object] = set()
"""Layouts and options that `_check_attention` has passed. The check of a decode step that appends
keys then takes 54 us, not 500 (4 sequences of one query, a CPU without a GPU, 2026-11-24)."""

_MOST_CHECKED = 1024


def _check_attention(q: Any, k_cache: Any, v_cache: Any, *others: Any) -> None:
    """Check, before the cache changes, what `varlen_attention` would check afterwards."""
    if torch.compiler.is_compiling():
        return  # the fake kernel checks it before anything runs
    *sequences, options = others
    given = {"q": q, "k_cache": k_cache, "v_cache": v_cache}
    for name, one in given.items():
        _arrays.require_no_tangent(one, name)
    for name in ("k_cache", "v_cache"):
        _arrays.require_updatable(given[name], name)
    mask = mask_arguments(**options)
    key = _layouts(*given.values(), *sequences), tuple(mask.values())
    if key in _CHECKED:
        return
    _check_layouts((*map(_cast, given.values()), *sequences), mask)
    if len(_CHECKED) >= _MOST_CHECKED:
        _CHECKED.clear()
    if key[0] is not None:
        _CHECKED.add(key)


def _check_layouts(arguments: Iterable[Any], mask: Mapping[str, Any]) -> None:
    try:
        fake_varlen(*arguments, **mask)
    except ArgumentError as error:
        if not error.violations:
            raise
        raise ArgumentError.of(map(_renamed, error.violations)) from None


def _layouts(*given: Any) -> tuple[Any, ...] | None:
    """Return all that `fake_varlen` looks at; None if a tensor may have no address."""
    tensors = [one for one in given if isinstance(one, torch.Tensor)]
    if any(type(one) is not torch.Tensor for one in tensors):
        return None
    numbers = [one for one in given if not isinstance(one, torch.Tensor)]
    layouts = (
        (
            *(one.shape, one.stride(), one.dtype, one.device),
            *(one.data_ptr() % TMA_ALIGNMENT, computed_type(one)),
        )
        for one in tensors
    )
    return (*layouts, *numbers)


def _cast(tensor: Any) -> Any:
    """Return the tensor, or one without values for what autocast makes of it."""
    dtype = computed_type(tensor)
    return tensor if tensor.dtype == dtype else torch.empty_like(tensor, dtype=dtype)


def _renamed(violation: Violation) -> Violation:
    argument = re.sub(r"^\w+", lambda name: _NAMES.get(name[0], name[0]), violation.argument)
    return dataclasses.replace(violation, argument=argument)


def _append(cache: Any, new: Any, table: Any, lengths: Any) -> None:
    """Append new keys or values of each sequence to its pages."""
    positions = lengths.to(new.device)[:, None] + torch.arange(new.shape[1], device=new.device)
    pages = table.gather(1, (positions // cache.shape[1]).long()).long()
    cache[pages, positions % cache.shape[1]] = new
