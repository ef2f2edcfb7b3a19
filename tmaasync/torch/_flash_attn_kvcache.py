"""flash_attn_with_kvcache with the signature of the flash_attn package."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import torch

from tmaasync import _arrays
from tmaasync._hardware import TMA_ALIGNMENT
from tmaasync._kinds import check_flags
from tmaasync.errors import ArgumentError, Violation
from tmaasync.kernel import backend_of
from tmaasync.ops._allocation import saturated_int32
from tmaasync.ops._flash.launches import describe_paged_sequence
from tmaasync.ops._report import report_of
from tmaasync.torch import _kvcache_rules as rules
from tmaasync.torch._attention import fake_varlen, mask_arguments, varlen_attention
from tmaasync.torch._autocast import computed_type
from tmaasync.torch._flash_attn import mask_options, unsupported_options
from tmaasync.torch._tensors import require_tensors, require_tensors_or_none


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

    The options of the scores and the mask are as in `flash_attn_func`.

    Args:
        q: [batch, positions, heads, head_dim], bfloat16 or float16, head_dim a multiple of 8.
        k_cache: [cache_batch, cache_length, kv_heads, head_dim]; with ``block_table`` [blocks,
            block_size, kv_heads, head_dim]. The second dimension is a multiple of 8.
        v_cache: As k_cache.
        k: New keys, [batch, new, kv_heads, head_dim]; they are written to the cache, after
            ``cache_seqlens`` keys, before attention runs. Nothing is written for a sequence that
            has no room, or whose block does not exist.
        v: As k.
        rotary_cos: None; apply rotary embeddings before the call.
        rotary_sin: None.
        cache_seqlens: Keys of each sequence in the cache: an int, or an int32 tensor [batch]. By
            default the whole cache. Invalid values on a GPU, and invalid blocks, are reported by a
            later call, and the output of their sequences is undefined.
        cache_batch_idx: The cache entry of each sequence; not with ``block_table``.
        cache_leftpad: None; the keys of a sequence start at the start of its cache.
        block_table: The blocks of each sequence, [batch, blocks_per_sequence], int32.
        rotary_interleaved: Ignored, because there are no rotary embeddings.
        num_splits: Ignored; the operation chooses the number of splits.
        return_softmax_lse: Whether to return the log-sum-exp too.

    Returns:
        The output; with ``return_softmax_lse`` the pair (output, log-sum-exp), log-sum-exp as
        float32 [batch, heads, positions].

    Raises:
        ArgumentError: An argument that the kernels do not support; all are listed. Or an earlier
            call had invalid values on a GPU.
        ArrayTypeError: A type that the kernels do not support.
    """
    del rotary_interleaved, num_splits
    check_flags(return_softmax_lse=return_softmax_lse)
    cache = _Cache(k_cache, v_cache, k, v, cache_seqlens, cache_batch_idx, block_table)
    given = {"rotary_cos": rotary_cos, "rotary_sin": rotary_sin, "cache_leftpad": cache_leftpad}
    _check_call(q, cache, alibi_slopes, given)
    options = mask_options(causal, window_size, softcap, softmax_scale)
    if not q.shape[0]:
        return _no_sequences(q, return_lse=return_softmax_lse)
    return _attend(q, cache, options, return_lse=return_softmax_lse)


class _Cache(NamedTuple):
    """A cache, the keys to write into it, and where they go, named as the arguments of a call."""

    k_cache: Any
    v_cache: Any
    k: Any
    v: Any
    cache_seqlens: Any
    cache_batch_idx: Any
    block_table: Any


def _check_call(q: Any, cache: _Cache, alibi_slopes: Any, unsupported: dict[str, Any]) -> None:
    k_cache, v_cache, k, v, cache_seqlens, cache_batch_idx, block_table = cache
    caches = {"k_cache": k_cache, "v_cache": v_cache}
    require_tensors(q=q, **caches)
    require_tensors_or_none(k=k, v=v, cache_batch_idx=cache_batch_idx, block_table=block_table)
    if not rules.is_length(cache_seqlens):
        require_tensors_or_none(cache_seqlens=cache_seqlens)
    ArgumentError.raise_for(rules.wrong_dimensions(q=q, **caches, k=k, v=v))
    ArgumentError.raise_for(
        [
            *unsupported_options(0.0, alibi_slopes),
            *rules.unsupported(unsupported),
            *rules.contradictions(k_cache, k, v, cache_batch_idx, block_table),
            *rules.mismatched_caches(q, k_cache, v_cache),
            *rules.wrong_shapes(q, k_cache, cache_seqlens, k=k, v=v),
            *rules.wrong_devices(
                q,
                **caches,
                k=k,
                v=v,
                cache_seqlens=cache_seqlens,
                cache_batch_idx=cache_batch_idx,
                block_table=block_table,
            ),
            *rules.wrong_pages(q, k_cache, cache_batch_idx, block_table),
            *rules.lost_gradients(q=q, **caches, k=k, v=v),
        ]
    )


def _attend(q: Any, cache: _Cache, options: dict[str, Any], *, return_lse: bool) -> Any:
    """Write the new keys, and compute attention over the cache as over pages."""
    k_cache, v_cache, k, v, cache_seqlens, cache_batch_idx, block_table = cache
    batch, positions, heads, head_dim = q.shape
    table = _page_table(q, k_cache, cache_batch_idx, block_table)
    capacity, new = table.shape[1] * k_cache.shape[1], 0 if k is None else k.shape[1]
    ArgumentError.raise_for(rules.overflow(cache_seqlens, batch, capacity, new))
    capacity = min(capacity, rules.MOST_KEYS - batch * positions)
    lengths, totals = _lengths(q, cache_seqlens, capacity, new)
    if block_table is not None:
        ArgumentError.raise_for(rules.wrong_blocks(block_table, totals, k_cache))
    packed = (
        *(q.reshape(batch * positions, heads, head_dim), k_cache, v_cache),
        torch.arange(batch + 1, dtype=torch.int32, device=q.device) * positions,
        torch.nn.functional.pad(saturated_int32(totals.cumsum(0)), (1, 0)),
        *(positions, capacity),
    )
    if k is not None:
        _check_attention(*packed, table, options)
        append(((k_cache, k), (v_cache, v)), table, lengths, totals <= capacity)
    options |= {"page_table": table, "return_lse": return_lse}
    results = varlen_attention(*packed, **options)
    if not return_lse:
        return results.view(q.shape)
    out, lse = results
    return out.view(q.shape), lse.view(heads, batch, positions).transpose(0, 1)


def _no_sequences(q: Any, *, return_lse: bool) -> Any:
    _, positions, heads, _ = q.shape
    out = q.new_empty(q.shape, dtype=computed_type(q))
    lse = q.new_empty((0, heads, positions), dtype=torch.float32)
    return (out, lse) if return_lse else out


def _page_table(q: Any, k_cache: Any, cache_batch_idx: Any, block_table: Any) -> Any:
    """Return the page table of a cache; without ``block_table`` a sequence's cache is one page."""
    if block_table is not None:
        return block_table
    entries = cache_batch_idx
    if entries is None:
        entries = torch.arange(q.shape[0], dtype=torch.int32, device=q.device)
    return saturated_int32(entries)[:, None].contiguous()


def _lengths(q: Any, cache_seqlens: Any, capacity: int, new: int) -> tuple[Any, Any]:
    """Return the keys of each sequence before and after new ones, in int64.

    A sequence whose number of keys is invalid has one more than it can, which kernels report.
    """
    if not isinstance(cache_seqlens, torch.Tensor):
        length = capacity if cache_seqlens is None else cache_seqlens
        lengths = torch.full((q.shape[0],), length, dtype=torch.int64, device=q.device)
        return lengths, lengths + new
    lengths = cache_seqlens.to(torch.int64)
    if rules.is_readable(lengths):  # checked already
        return lengths, lengths + new
    is_valid = (lengths >= 0) & (lengths <= capacity - new)
    return lengths, torch.where(is_valid, lengths + new, capacity + 1)


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
    if q.is_cuda and key[0] is not None:
        report_of(backend_of(q.device.index), describe_paged_sequence).refuse("an earlier call")
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


def append(caches: Sequence[tuple[Any, Any]], table: Any, lengths: Any, has_room: Any) -> None:
    """Append new keys and values of each sequence to its pages, without a wait for the GPU.

    A sequence without room, or with a page that does not exist, repeats the write of another one.
    If there is no other, it repeats the cache.
    """
    (cache, keys), _ = caches
    (count, rows), device = cache.shape[:2], keys.device
    lengths, has_room = lengths.to(device), has_room.to(device)
    steps = torch.arange(keys.shape[1], device=device)
    positions = torch.where(has_room, lengths, 0)[:, None] + steps
    pages = table.gather(1, positions // rows).long()
    is_right = has_room & ((pages >= 0) & (pages < count)).all(1)
    writer = torch.where(is_right, torch.arange(len(pages), device=device), is_right.int().argmax())
    at = pages[writer].clip(0, count - 1), positions[writer] % rows
    for cache, new in caches:
        cache[at] = torch.where(is_right.any(), new[writer], cache[at])
