"""What flash_attn_with_kvcache refuses, before the cache changes: all violations of a call."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch

from tmaasync._hardware import TMA_ALIGNMENT
from tmaasync._kinds import as_int
from tmaasync.errors import Violation
from tmaasync.ops._extents import MAX_EXTENT
from tmaasync.torch._autocast import computed_type
from tmaasync.torch._tensors import require_tensors

MOST_KEYS = MAX_EXTENT
"""Keys of all sequences, even in shared blocks."""
_ROW_STEP = 8
_INTEGERS = (torch.int32, torch.int64, torch.int16, torch.int8, torch.uint8)


def is_length(cache_seqlens: Any) -> bool:
    """Return whether it is an int, for all sequences."""
    return isinstance(cache_seqlens, (int, np.integer)) and not isinstance(cache_seqlens, bool)


def unsupported(given: dict[str, Any]) -> Iterator[Violation]:
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


def wrong_dimensions(**tensors: Any) -> Iterator[Violation]:
    for name, tensor in tensors.items():
        if tensor is not None and tensor.dim() != 4:
            rule = "it has four dimensions: [batch or blocks, positions, heads, head_dim]"
            yield Violation(f"{name}.shape", tuple(tensor.shape), rule, "Reshape it")


def mismatched_caches(q: Any, k_cache: Any, v_cache: Any) -> Iterator[Violation]:
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


def wrong_shapes(q: Any, k_cache: Any, cache_seqlens: Any, **new: Any) -> Iterator[Violation]:
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


def wrong_devices(q: Any, **given: Any) -> Iterator[Violation]:
    """Reject tensors on other devices before the cache changes; lengths may be in host memory."""
    for name, tensor in given.items():
        if not isinstance(tensor, torch.Tensor):
            continue
        is_in_host_memory = name == "cache_seqlens" and tensor.device.type == "cpu"
        if tensor.device != q.device and not is_in_host_memory:
            rule, remedy = f"q lies on {q.device}", f"Pass {name}.to(q.device)"
            yield Violation(f"{name}.device", tensor.device, rule, remedy)


def wrong_pages(
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
    elif is_readable(cache_batch_idx) and batch:
        least, most = int(cache_batch_idx.min()), int(cache_batch_idx.max())
        if least < 0 or most >= count:
            rule = f"the cache has entries 0 to {count - 1}"
            yield Violation("cache_batch_idx", f"from {least} to {most}", rule, "Pass these")


def wrong_blocks(block_table: Any, totals: Any, k_cache: Any) -> Iterator[Violation]:
    if not (is_readable(block_table) and is_readable(totals)):
        return
    count, rows = k_cache.shape[:2]
    used = torch.arange(block_table.shape[1]) < -(-totals // rows)[:, None]
    for sequence, column in (used & ((block_table < 0) | (block_table >= count))).nonzero()[:1]:
        name = f"block_table[{int(sequence)}, {int(column)}]"
        rule = f"the cache has {count} blocks, numbered from 0"
        yield Violation(name, int(block_table[sequence, column]), rule, "Pass one of them")


def is_readable(tensor: Any) -> bool:
    """Return whether the host can read the values without waiting for a GPU."""
    return tensor.device.type == "cpu" and not torch.compiler.is_compiling()


def contradictions(
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


def lost_gradients(**tensors: Any) -> Iterator[Violation]:
    """Reject, before the cache changes, tensors that the operation would reject afterwards."""
    for name, tensor in tensors.items():
        if tensor is not None and tensor.requires_grad and torch.is_grad_enabled():
            rule = "there is no backward through a cache, so its gradient would be lost"
            remedy = "Call it inside torch.no_grad(), or pass its .detach()"
            yield Violation(name, "a tensor that requires grad, in grad mode", rule, remedy)


def overflow(cache_seqlens: Any, batch: int, capacity: int, new: int) -> Iterator[Violation]:
    """Check the lengths that the host can read without waiting for a GPU."""
    if new > capacity:
        rule = f"a sequence's cache has {capacity} rows"
        yield Violation("k.shape[1]", new, rule, "Pass a larger cache")
        return
    if isinstance(cache_seqlens, torch.Tensor):
        if not (is_readable(cache_seqlens) and cache_seqlens.numel()):
            return
        least, longest = int(cache_seqlens.min()), int(cache_seqlens.max())
        total = int(cache_seqlens.sum())
    else:
        least = longest = capacity if cache_seqlens is None else as_int(cache_seqlens)
        total = batch * longest
    if least < 0:
        rule = "a sequence has 0 keys or more"
        yield Violation("cache_seqlens", least, rule, "Pass the number of keys in the cache")
    if longest + new > capacity:
        rule = f"with {new} new keys it must be at most {capacity}, the rows of a sequence's cache"
        remedy = "Pass the number of keys before the new ones, or a larger cache"
        yield Violation("cache_seqlens", longest, rule, remedy)
    elif total + batch * new > MOST_KEYS:
        rule = (
            f"the sequences of a call have at most {MOST_KEYS} keys together, even in shared blocks"
        )
        value = f"{total + batch * new} keys in all"
        yield Violation("cache_seqlens", value, rule, "Split the batch into several calls")
