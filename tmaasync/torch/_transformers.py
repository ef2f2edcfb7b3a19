"""`register_with_transformers`: attention for Hugging Face models with the kernels of this package.

Two functions are registered under one name. transformers calls the first once per forward pass to
make a mask, and the second in every layer with that mask. The mask is one of:

* None: every key is visible, except those that ``is_causal`` and ``sliding_window`` hide;
* bool [batch, keys]: a causal mask with padding. The last columns are the positions of the queries.
  Later keys, which a static cache has, do not exist yet;
* bool [batch, 1, 1, keys]: padding without a causal mask;
* anything else: unsupported by the kernels.
"""

from __future__ import annotations

import functools
import importlib
import inspect
from collections.abc import Callable, Iterator
from typing import Any

import torch

from tmaasync._kinds import shown
from tmaasync.errors import ArgumentError, BackendError, Violation
from tmaasync.torch._any_head_dim import attend, attend_packed
from tmaasync.torch._autocast import computed_type

_INSTEAD = 'Load the model with attn_implementation="sdpa"'
_TYPES = (torch.bfloat16, torch.float16)
_WITHOUT_INFLUENCE = {
    "cache_position",
    "deterministic",
    "logits_to_keep",
    "num_items_in_batch",
    "output_hidden_states",
    "output_router_logits",
    "position_embeddings",
    "position_ids",
    "return_dict",
    "use_cache",
}
"""Arguments that models pass through and that change nothing: positions are rotated before."""


def register_with_transformers(name: str = "tmaasync") -> None:
    """Make the kernels an attention implementation of Hugging Face's transformers.

    Afterwards ``from_pretrained(..., attn_implementation="tmaasync")`` and
    ``model.set_attn_implementation("tmaasync")`` select them. They support models in bfloat16 or
    float16 with head_dim up to 256, softcap, GQA, and dynamic and static caches. Causal masks and
    sliding windows are never materialised. Sequences padded on either side are packed; the output
    of padding queries is zero.

    Everything else raises `ArgumentError` when the model runs: dropout, attention sinks, position
    biases, packed sequences, and custom masks. Gradients need head_dim up to 128.

    Args:
        name: The name by which models select the kernels. It must not be one of transformers' own.

    Raises:
        ArgumentError: The name is taken, or has another meaning in transformers.
        BackendError: transformers is missing or too old.
    """
    interface, masks = _interfaces()
    ArgumentError.raise_for(_name_violations(name, interface, masks))
    interface.AttentionInterface.register(name, _attention)
    masks.AttentionMaskInterface.register(name, functools.partial(_mask, masks))


def _interfaces() -> tuple[Any, Any]:
    try:
        masks = importlib.import_module("transformers.masking_utils")
        interface = importlib.import_module("transformers.modeling_utils")
    except ImportError as error:
        raise BackendError(
            f"transformers cannot be imported: {error}. Install it: pip install transformers."
        ) from error
    if "q_offset" not in inspect.signature(masks.sdpa_mask).parameters:
        raise BackendError(
            "transformers is too old: its masks have no q_offset, the position of the first query. "
            "Upgrade it: pip install --upgrade transformers."
        )
    return interface, masks


def _name_violations(name: Any, interface: Any, masks: Any) -> Iterator[Violation]:
    remedy = 'Leave it out for "tmaasync"'
    if not isinstance(name, str) or not name.isidentifier() or "flash" in name:
        rule = "it must be an identifier without 'flash', which transformers gives a meaning"
        yield Violation("name", shown(name), rule, remedy)
        return
    registered = interface.AttentionInterface().get(name, None)
    is_a_mask = registered is None and name in masks.AttentionMaskInterface()
    if is_a_mask or registered not in (None, _attention):
        yield Violation("name", shown(name), "transformers has this name already", remedy)


# --- the mask -----------------------------------------------------------------------------------


def _mask(  # noqa: PLR0913 - the arguments of transformers' mask functions
    masks: Any,
    batch_size: int,
    q_length: int,
    kv_length: int,
    q_offset: Any = 0,
    kv_offset: int = 0,
    mask_function: Callable[..., Any] | None = None,
    attention_mask: Any = None,
    local_size: int | None = None,
    allow_is_causal_skip: bool = True,
    **options: Any,
) -> Any:
    """Return None if ``is_causal`` and ``sliding_window`` suffice; else padding, or a mask."""
    may_skip = allow_is_causal_skip or options.get("allow_is_bidirectional_skip", False)
    is_in_reach = local_size is None or kv_offset + kv_length <= local_size
    is_causal = (allow_is_causal_skip and is_in_reach) or _is_own(
        mask_function, masks, "causal", local_size
    )
    is_known = is_causal or _is_own(mask_function, masks, "bidirectional", local_size)
    if not is_known or (q_length > 1 and not may_skip):
        sizes = (batch_size, q_length, kv_length, q_offset, kv_offset, mask_function)
        whole = {"allow_is_causal_skip": False, "allow_is_bidirectional_skip": False}
        return masks.sdpa_mask(*sizes, attention_mask, local_size, **{**options, **whole})
    keys = int(q_offset) + q_length - kv_offset if is_causal else kv_length
    seen = _padding(attention_mask, keys, kv_offset)
    if keys == kv_length and (seen is None or seen.all()):
        return None
    if seen is None:
        seen = torch.ones((batch_size, keys), dtype=torch.bool, device=options.get("device"))
    return seen if is_causal else seen[:, None, None]


def _is_own(function: Any, masks: Any, kind: str, local_size: int | None) -> bool:
    """Return whether a mask function is exactly transformers' own function of this kind."""
    own = getattr(masks, f"{kind}_mask_function")
    if local_size is not None:
        own = getattr(masks, f"sliding_window_{kind}_mask_function")(local_size)
    return _is_same(function, own)


def _is_same(one: Any, other: Any) -> bool:
    """Compare functions by their code and closures."""
    if isinstance(one, tuple) and isinstance(other, tuple) and len(one) == len(other):
        return all(_is_same(*pair) for pair in zip(one, other, strict=True))
    if not (inspect.isfunction(one) and inspect.isfunction(other)):
        return type(one) is type(other) and isinstance(one, int) and one == other
    cells = (tuple(c.cell_contents for c in f.__closure__ or ()) for f in (one, other))
    return one.__code__ is other.__code__ and _is_same(*cells)


def _padding(attention_mask: Any, keys: int, kv_offset: int) -> Any:
    """Return the mask columns of the keys; a mask that this function made has no others."""
    if attention_mask is None or attention_mask.shape[1] == keys:
        return attention_mask
    seen = attention_mask[:, kv_offset : kv_offset + keys]
    return torch.nn.functional.pad(seen, (0, keys - seen.shape[1]))


# --- the attention ------------------------------------------------------------------------------


def _attention(  # noqa: PLR0913 - the arguments of transformers' attention functions
    module: Any,
    query: Any,
    key: Any,
    value: Any,
    attention_mask: Any,
    dropout: float = 0.0,
    scaling: float | None = None,
    is_causal: bool | None = None,
    sliding_window: int | None = None,
    softcap: float | None = None,
    **others: Any,
) -> tuple[Any, None]:
    """Take [batch, heads, positions, head_dim]; return [batch, positions, heads, head_dim]."""
    ArgumentError.raise_for(
        [
            *_lacking_types(query=query, key=key, value=value),
            *_lacking_options(dropout, others),
            *_lacking_masks(attention_mask, query, key),
        ]
    )
    q, k, v = (one.transpose(1, 2) for one in (query, key, value))
    if attention_mask is None:
        causal = getattr(module, "is_causal", True) if is_causal is None else is_causal
    else:
        causal = attention_mask.ndim == 2
    options: dict[str, Any] = {"causal": bool(causal), "scale": scaling, "softcap": softcap}
    if sliding_window is not None:
        # As for flash_attn: the window sizes of transformers include a query's own key.
        options["window"] = (sliding_window - 1, None if causal else sliding_window - 1)
    if attention_mask is None:
        return attend(q, k, v, **options).contiguous(), None
    seen = attention_mask.flatten(1)
    k, v = (one[:, : seen.shape[1]] for one in (k, v))
    if seen.all():
        return attend(q, k, v, **options).contiguous(), None
    return _attend_padded(q, k, v, seen, options), None


def _attend_padded(q: Any, k: Any, v: Any, seen: Any, options: dict[str, Any]) -> Any:
    """Pack the sequences without padding, run attention, and unpack the output."""
    is_windowed = "window" in options
    if is_windowed:
        ArgumentError.raise_for(_gaps(seen))
    positions, keys = q.shape[1], seen.shape[1]
    is_query = seen.new_ones(q.shape[:2])
    if options["causal"] or is_windowed:
        is_query = seen[:, -positions:]
    lengths = (
        torch.nn.functional.pad(one.sum(1).cumsum(0, dtype=torch.int32), (1, 0))
        for one in (is_query, seen)
    )
    rows = attend_packed(q[is_query], k[seen], v[seen], *lengths, positions, keys, **options)
    out = rows.new_zeros(*q.shape[:3], rows.shape[-1])
    out[is_query] = rows
    return out


def _gaps(seen: Any) -> Iterator[Violation]:
    starts = seen & ~torch.nn.functional.pad(seen[:, :-1], (1, 0))
    if int(starts.sum(1).max()) > 1:
        rule = "padding between keys of a sequence would leave the sliding window"
        yield Violation("attention_mask", "0 between ones", rule, "Pad on the left or on the right")


def _lacking_types(**tensors: Any) -> Iterator[Violation]:
    types = [computed_type(tensor) for tensor in tensors.values()]
    for own, (name, tensor) in zip(types, tensors.items(), strict=True):
        if own not in _TYPES or own != types[0]:
            rule = "the kernels multiply bfloat16 or float16, one type for all"
            remedy = "Load the model with dtype=torch.bfloat16"
            yield Violation(f"{name}.dtype", tensor.dtype, rule, remedy)


def _lacking_options(dropout: float, others: dict[str, Any]) -> Iterator[Violation]:
    if dropout:
        remedy = "Call model.eval(), or set attention_dropout=0 in the config"
        yield Violation("dropout", dropout, "the kernels have no dropout", remedy)
    for name, value in others.items():
        if name in _WITHOUT_INFLUENCE or value is None or value is False:
            continue
        shape = getattr(value, "shape", None)
        what = shown(value) if shape is None else f"of shape {tuple(shape)}"
        yield Violation(name, what, "the kernels do not take it", _INSTEAD)


def _lacking_masks(mask: Any, query: Any, key: Any) -> Iterator[Violation]:
    if mask is None:
        return
    batch, keys = query.shape[0], key.shape[2]
    shape = tuple(getattr(mask, "shape", ()))
    is_ours = getattr(mask, "dtype", None) is torch.bool and shape[:-1] in ((batch,), (batch, 1, 1))
    if not is_ours or not 0 < shape[-1] <= keys:
        rule = (
            "the kernels take causal masks, sliding windows and padding, "
            f"bool {(batch, keys)}, and no other mask or bias"
        )
        yield Violation("attention_mask", f"of shape {shape}", rule, _INSTEAD)
