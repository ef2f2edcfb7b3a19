"""ops.attention: FlashAttention of padded batches."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from tmaasync._arrays import ArrayView
from tmaasync._elements import element
from tmaasync._forks import cached_property
from tmaasync._kinds import check_flags
from tmaasync.kernel import Launch
from tmaasync.ops._allocation import (
    Allocator,
    address_of,
    allocator,
    fill,
    in_order,
)
from tmaasync.ops._call_cache import Binding, CallCache
from tmaasync.ops._flash.config import Sizes, TileConfig, Variant, problem
from tmaasync.ops._flash.float8 import (
    UNSCALED,
    Float8Workspace,
    Scales,
    check_factor,
    given_scales,
    scale_names,
    scales_of,
)
from tmaasync.ops._flash.launches import Addresses, Work, attend_steps, transpose_step
from tmaasync.ops._flash.operands import Operands, Options, Results, Scores, reachable
from tmaasync.ops._flash.schedule import padded_schedule, stream_k_pays
from tmaasync.ops._flash.tensor_memory import config_on
from tmaasync.ops._flash.tiles import attention_tiles
from tmaasync.ops._layouts import Layout, is_apart
from tmaasync.ops._operation import LaunchSequence, NamedBinding, Operation, overridden

_AXES = "[batch, positions, heads, head_dim]"
_FLOAT32 = element(np.float32)
_CALLS = CallCache()
_RETURN_LSE = 4  # index in `Options`
_OUT, _LSE = 3, 4  # indices among the arrays of a call, after q, k and v


def attention(  # noqa: PLR0913 - the parameters of attention
    q: Any,
    k: Any,
    v: Any,
    *,
    causal: bool | str = False,
    scale: float | None = None,
    window: tuple[int | None, int | None] | None = None,
    softcap: float | None = None,
    return_lse: bool = False,
    scales: tuple[Any, Any, Any] | None = None,
    dtype: object = None,
    batch_invariant: bool = False,
    out: Any = None,
    stream: object = None,
) -> Any:
    """Compute ``softmax(scale * q @ k.T + mask) @ v`` for every head, accumulated in fp32.

    FlashAttention, on the arrays' GPU, or on the emulator for arrays in host memory. head_dim is
    contiguous; the strides of batch, positions and heads may be any multiples of 16 bytes. Slices
    of a packed QKV array therefore need no copy; transpose [batch, heads, positions, head_dim]
    arrays.

    Scaled scores must fit in float32 (3.4e38); without softcap a greater one gives NaN for its
    query, as in a float32 softmax. Scaled scores of float8 operands, their scales included, must be
    within 4.6e7 (2^26 ln 2): a query whose greatest one is beyond gives NaN. Values up to 1e30
    never overflow the accumulators.

    Queries and keys together may be up to 2^31 - 2^18 (2,147,221,504).

    Args:
        q: [batch, positions, heads, head_dim], bfloat16, float16 or float8_e4m3fn; head_dim is a
            multiple of 8 (float8: 16) and at most 256.
        k: [batch, keys, kv_heads, head_dim]. GQA/MQA: the number of query heads must be a multiple
            of the number of KV heads; head h of q attends to head ``h // (heads // kv_heads)``.
        v: As k.
        causal: Causal mask. ``True`` or ``"bottom_right"``: the last query is aligned with the last
            key. ``"top_left"``: query i attends to keys <= i.
        scale: Factor of the scores, from 2^-60 to 2^60; by default ``1 / sqrt(head_dim)``.
        window: A sliding window (left, right): the number of keys that a query attends to before
            and after its own position; None means no limit. ``causal`` sets the alignment of
            queries and keys; by default the last query is aligned with the last key.
        softcap: Scores become ``softcap * tanh(score / softcap)``, before the mask. From 2^-60 to
            1e4: with larger caps the float32 tanh of the kernels loses the scores.
        return_lse: Whether to return the log-sum-exp of the scores too.
        scales: Descale factors of float8 q, k and v: each a number, None for 1, or a float32 array
            on the same device, with one element or of shape [batch, kv_heads]. In an array, a
            negative scale of q or k gives NaN.
        dtype: The element type of q, k and v, for frameworks without it (float8 in bytes).
        batch_invariant: Whether an entry's bits stay the same whatever the batch is. Then keys are
            never split, which takes longer where few tiles have many keys, as in decode.
        out: The output, an array like q; for float8 operands bfloat16 or float16. By default a new
            contiguous array; for float8 operands bfloat16.
        stream: By default the current stream of the arrays' framework.

    Returns:
        The output, [batch, positions, heads, head_dim]; with ``return_lse`` the pair (output,
        log-sum-exp), log-sum-exp as float32 [batch, heads, positions]. A query without keys gives
        zeros and minus infinity; no other log-sum-exp is below -3.4e38. With no queries, or an
        empty batch, both are empty.

    Raises:
        ArgumentError: An argument is invalid; every broken rule is listed.
        ArrayTypeError: A type that the kernel does not have.
        BackendError: The GPU is older than sm_90; or, for host arrays, there is no C++ compiler.

    >>> import numpy as np
    >>> q = np.zeros((1, 3, 1, 8), np.float16)
    >>> v = np.arange(24, dtype=np.float16).reshape(1, 3, 1, 8)
    >>> attention(q, q, v, causal=True)[0, :, 0, 0]
    array([0., 4., 8.], dtype=float16)
    """
    key = (causal, scale, window, softcap, return_lse, batch_invariant, out is None)
    if scales is not None or dtype is not None:
        return _scaled_attention((q, k, v), out, key, scales, dtype, stream)
    arrays = (q, k, v) if out is None else (q, k, v, out)
    done = _CALLS.run(arrays, key, stream)
    if done is not None:
        return (done[_OUT], done[_LSE]) if return_lse else done[_OUT]
    operands = Operands.of(q, k, v, _AXES, may_be_float8=True)
    return _attend(_Call(arrays, key, out, Options(*key[:-1])), operands, stream)


def _scaled_attention(
    qkv: tuple[Any, Any, Any],
    out: Any,
    options: tuple[Any, ...],
    scales: Any,
    dtype: object,
    stream: object,
) -> Any:
    """Run attention with float8 operands whose scales or type the caller passes."""
    numbers, given = given_scales(scales)
    key = (*options, *numbers, dtype)
    inputs = (*qkv, *given)
    arrays = inputs if out is None else (*inputs, out)
    done = _CALLS.run(arrays, key, stream)
    if done is not None:
        results = done[len(inputs) :]
        return results[:2] if options[_RETURN_LSE] else results[0]
    call = _Call(arrays, key, out, Options(*options[:-1]))
    operands = Operands.of(*qkv, _AXES, may_be_float8=True, dtype=dtype)
    if scales is None:
        return _attend(call, operands, stream)
    return _attend(
        call, operands, stream, *scales_of(numbers, given, operands, operands.k.shape[0])
    )


class _Call(NamedTuple):
    """A call as its cache key: its arrays, and a key of everything else.

    The arrays are q, k, v, scales that are arrays, and the caller's output, if any.
    """

    arrays: tuple[Any, ...]
    key: tuple[Any, ...]
    out: Any
    options: Options


def _attend(
    call: _Call,
    operands: Operands,
    stream: object,
    scales: Scales = UNSCALED,
    scale_arrays: tuple[ArrayView, ...] = (),
) -> Any:
    """Run a call that is not in the cache, and cache it."""
    return_lse = call.options.return_lse
    scores = Scores.of(operands.q.shape[-1], *call.options[:4])
    results = Results(operands, call.out, return_lse=return_lse)
    if operands.q.is_empty:
        return results.returned
    layouts = (operands.layouts, results.layout)
    flags = {"has_lse": return_lse, "batch_invariant": call.options.batch_invariant}
    check_flags(batch_invariant=call.options.batch_invariant)
    operation = _CALLS.operation(Attention, *layouts, scores, scales=scales, **flags)
    operation.run(operands, results.out, results.lse, stream, scale_arrays)
    if operation.is_bindable:
        workspace = operation.workspace(operands.q)
        more = {} if workspace is None else {"workspace": workspace}
        _CALLS.remember(
            call.arrays,
            call.key,
            NamedBinding(operation, (*operation.names, *more)),
            tuple(view.framework for view in (*operands, *scale_arrays, results.out)),
            results.out.device,
            allocators=(*results.allocators(), *more.values()),
            has_workspace=bool(more),
        )
    return results.returned


# --- the operation ------------------------------------------------------------------------------


class Attention(Operation):
    """Attention over padded arrays of given layouts.

    A call is up to three launches: transpose V for FP8, unless attention.cu does it; attention
    itself; and with split-KV the combine kernel.
    """

    def __init__(
        self,
        operands: Sequence[Layout],
        out: Layout,
        scores: Scores,
        *,
        has_lse: bool,
        batch_invariant: bool = False,
        scales: Scales = UNSCALED,
    ) -> None:
        super().__init__(out.device)
        q, k, v = operands
        batch, queries, heads, head_dim = q.shape
        _, keys, kv_heads, _ = k.shape
        per_kv_head, item_bytes = heads // kv_heads, q.element.itemsize
        self._sizes = Sizes(queries, keys, heads, per_kv_head, batch, head_dim, item_bytes)
        self._spans = tuple(layout.span_bytes for layout in (*operands, out))
        self._scores, self._batch_invariant = scores, batch_invariant
        self._variant = Variant.of(scores, has_lse=has_lse)
        self._scales = scales
        if q.element.itemsize == 1:
            check_factor(scores, scales)
        self._v = v
        self._partial_bytes = 0
        self._tables: list[Any] = []

    def run(
        self,
        operands: Operands,
        out: ArrayView,
        lse: ArrayView | None,
        stream: object,
        scales: Sequence[ArrayView] = (),
    ) -> None:
        """Launch on these arrays; ``scales`` holds the scales that are arrays."""
        given = (*operands, *scales, out)
        handle = self.ordered(given, stream)
        if operands.k.is_empty:
            with in_order(out.framework, out.device, handle):
                fill(out, 0)
                if lse is not None:
                    fill(lse, -np.inf)
            return
        with self.backend.current():
            launch = self.prepared(lambda: self._prepare(operands, out, lse))
        arrays = given if lse is None else (*given, lse)
        named = {name: view.address for name, view in zip(self.names, arrays, strict=True)}
        allocate = self.workspace(operands.q)
        if allocate is None:
            launch.launch_at(self._addresses(**named), handle)
            return
        with self.backend.current(), in_order(operands.q.framework, out.device, handle):
            # Freed at once: in stream order it stays in use until the launches end.
            memory = allocate()
            named["workspace"] = address_of(memory)
            launch.launch_at(self._addresses(**named), handle)

    @property
    def names(self) -> tuple[str, ...]:
        """The names of a call's arrays, without the workspace."""
        lse = ("lse",) if self._variant.has_lse else ()
        return "q", "k", "v", *scale_names(self._scales), "out", *lse

    def bind_named(self, named: dict[str, int]) -> Binding | None:
        if self._launch is None:
            return None
        at = self._addresses(**named)
        is_bindable = is_apart(3, (at.q, at.k, at.v, at.out), self._spans)
        return (self._launch, at) if is_bindable else None

    def workspace(self, like: ArrayView) -> Allocator | None:
        """Return the allocator of a launch's workspace, or None; call it after ``run``."""
        if self._float8 is not None:
            return self._float8.allocator(like, self._partial_bytes)
        if self._partial_bytes:
            return allocator(like, (self._partial_bytes // _FLOAT32.itemsize,), _FLOAT32)
        return None

    def _addresses(self, *, v: int, workspace: int = 0, **named: int) -> Addresses:
        values, partials = v, workspace
        if self._float8 is not None:
            values, partials = workspace, workspace + self._float8.partials_at
        return Addresses(**named, v=v, values=values, partials=partials)

    # --- made once ------------------------------------------------------------------------------

    @cached_property
    def _config(self) -> TileConfig:
        return overridden(self._choose())

    @cached_property
    def _float8(self) -> Float8Workspace | None:
        """The workspace of V transposed before the launch; None if the kernel transposes it."""
        config = self._config
        is_ahead = config.element_bytes == 1 and not config.transposes_v
        return Float8Workspace.of(self._v) if is_ahead else None

    def _prepare(self, operands: Operands, out: ArrayView, lse: ArrayView | None) -> Launch:
        config, variant = self._config, self._variant
        q, k, v, o = (reachable(view) for view in (*operands, out))
        values = v
        if self._float8 is not None:
            # The tile is encoded over this array; each launch gets the address of its own one.
            values = self._float8.transposed(self._float8.allocator(v)(), v)
        tiles = attention_tiles(q, k, values, o, config)
        clusters = self.backend.limits.sms // config.cluster
        schedule = padded_schedule(self._sizes, self._scores, config, clusters)
        work = Work(
            ctas=schedule.clusters * config.cluster,
            schedule=self._upload(schedule.table),
            waves=len(schedule.table),
            split_tiles=len(schedule.splits) * config.cluster,
            splits=self._upload(schedule.splits),
            combined=attention_tiles(q, k, values, o, config.combined),
        )
        self._partial_bytes = schedule.partials * config.cluster * config.partial_bytes
        numbers = problem(self._sizes, self._scores)
        steps = attend_steps(tiles, variant, config, work, lse, numbers, self._scales)
        if self._float8 is not None:
            steps.insert(0, transpose_step(v, values, config))
        return LaunchSequence(*steps)

    def _choose(self) -> TileConfig:
        limits, sizes = self.backend.limits, self._sizes
        every = sizes._replace(batch=limits.sms) if self._batch_invariant else sizes
        config = config_on(limits, every, self._variant)
        clusters = limits.sms // config.cluster
        pays = stream_k_pays(sizes, config, self._scores, clusters) and not self._batch_invariant
        return replace(config.for_queries(sizes.queries), stream_k=pays)

    def _upload(self, table: npt.NDArray[Any]) -> int:
        """Upload a table for the operation's lifetime; return its address, 0 for no table."""
        if not table.size:
            return 0
        memory = self.backend.upload(table.tobytes())
        self._tables.append(memory)
        return memory.address
