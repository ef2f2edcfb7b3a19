"""ops.attention."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from tmaasync import _arrays
from tmaasync._arrays import ArrayView
from tmaasync._elements import Element, element
from tmaasync.kernel import Launch
from tmaasync.ops._allocation import (
    Allocator,
    address_of,
    allocator,
    allocator_of_all,
    empty,
    in_order,
)
from tmaasync.ops._call_cache import Binding, CallCache
from tmaasync.ops._flash.abi import (
    AttentionAddresses,
    AttentionArguments,
    CombineAddresses,
    CombineArguments,
    TransposeAddresses,
)
from tmaasync.ops._flash.config import Sizes, TileConfig, Variant, problem
from tmaasync.ops._flash.cost_model import choose_tile_config
from tmaasync.ops._flash.float8 import (
    UNSCALED,
    Float8Workspace,
    Scale,
    given_scales,
    prepared_transpose,
    scales_of,
)
from tmaasync.ops._flash.operands import Operands, check_output, reachable
from tmaasync.ops._flash.schedule import lpt_schedule
from tmaasync.ops._flash.scores import Scores
from tmaasync.ops._flash.split_kv import (
    StreamK,
    prepared_combine,
    stream_k_pays,
    stream_k_schedule,
)
from tmaasync.ops._flash.tiles import Tiles, attention_kernel, attention_tiles, cuda_types
from tmaasync.ops._layouts import Layout, is_apart
from tmaasync.ops._operation import LaunchSequence, Operation, overridden

__all__ = ["attention"]

_AXES = "[batch, positions, heads, head_dim]"
_FLOAT32 = element(np.float32)
_CALLS = CallCache()
_OUT, _LSE = 3, 4  # among the arrays of a call, after q, k and v


def attention(  # noqa: PLR0913 - what attention has
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
    out: Any = None,
    stream: object = None,
) -> Any:
    """Compute ``softmax(scale * q @ k.T + mask) @ v`` for every head, accumulated in fp32.

    On the arrays' GPU, or, in host memory, on the emulator. The columns of a head are contiguous;
    batch, positions and heads may have any strides that are multiples of 16 bytes. So slices of one
    array of queries, keys and values work as they are, and other orders after a transpose.

    Args:
        q: [batch, positions, heads, head_dim], bfloat16, float16 or float8_e4m3fn; head_dim a
            multiple of 8, for float8 of 16, up to 256.
        k: [batch, keys, kv_heads, head_dim]. GQA/MQA: the number of query heads must be a multiple
            of the number of KV heads; head h of q attends to head ``h // (heads // kv_heads)``.
        v: As k.
        causal: A query sees no keys after its own. ``True`` or ``"bottom_right"``: the last query
            is aligned with the last key. ``"top_left"``: query i sees keys up to i.
        scale: What the scores are multiplied by; by default ``1 / sqrt(head_dim)``.
        window: (left, right): how many keys before and after its own a query sees; None for a side
            without a limit. ``causal`` says how queries and keys are aligned; without it, the last
            query is aligned with the last key.
        softcap: Scores become ``softcap * tanh(score / softcap)``, before the mask.
        return_lse: Whether to return the log-sum-exp of the scores too.
        scales: For float8 operands, what the elements of q, k and v are multiplied by: each a
            number, None for 1, or an array of float32 on the same device, with one element or
            [batch, kv_heads].
        dtype: The element type of q, k and v, where the arrays cannot say it (float8 in bytes).
        out: An array like q to write to; for float8 operands bfloat16 or float16. By default a new
            contiguous one; for float8 operands bfloat16.
        stream: By default the current stream of the arrays' framework.

    Returns:
        The output, [batch, positions, heads, head_dim]; with ``return_lse`` a pair of it and the
        log-sum-exp, float32 [batch, heads, positions]. For a query that sees no key these are zeros
        and minus infinity.

    Raises:
        ArgumentError: An argument is not as described; every broken rule.
        ArrayTypeError: A type that the kernel does not have.
        BackendError: The GPU is older than sm_90; or, for host arrays, there is no C++ compiler.

    >>> import numpy as np
    >>> q = np.zeros((1, 3, 1, 8), np.float16)
    >>> v = np.arange(24, dtype=np.float16).reshape(1, 3, 1, 8)
    >>> attention(q, q, v, causal=True)[0, :, 0, 0]
    array([0., 4., 8.], dtype=float16)
    """
    key = (causal, scale, window, softcap, return_lse, out is None)
    if scales is not None or dtype is not None:
        return _scaled_attention((q, k, v), out, key, scales, dtype, stream)
    arrays = (q, k, v) if out is None else (q, k, v, out)
    done = _CALLS.run(arrays, key, stream)
    if done is not None:
        return (done[_OUT], done[_LSE]) if return_lse else done[_OUT]
    operands = Operands.of(q, k, v, _AXES, may_be_float8=True)
    return _attend(_Call(arrays, key, out, _Options(*key)), operands, stream)


def _scaled_attention(
    qkv: tuple[Any, Any, Any],
    out: Any,
    options: tuple[Any, ...],
    scales: Any,
    dtype: object,
    stream: object,
) -> Any:
    """Attend with float8 operands whose scales, or whose type, the caller gives."""
    numbers, given = given_scales(scales)
    key = (*options, *numbers, dtype)
    inputs = (*qkv, *given)
    arrays = inputs if out is None else (*inputs, out)
    done = _CALLS.run(arrays, key, stream)
    call = _Call(arrays, key, out, _Options(*options))
    if done is not None:
        results = done[len(inputs) :]
        return results[:2] if call.options.return_lse else results[0]
    operands = Operands.of(*qkv, _AXES, may_be_float8=True, dtype=dtype)
    if scales is None:
        return _attend(call, operands, stream)
    return _attend(call, operands, stream, *scales_of(numbers, given, operands))


class _Options(NamedTuple):
    causal: bool | str
    scale: float | None
    window: tuple[int | None, int | None] | None
    softcap: float | None
    return_lse: bool
    has_new_output: bool


class _Call(NamedTuple):
    """A call, and what calls like it are found by: its arrays, and the key of all else.

    The arrays are q, k, v, scales that are arrays, and the output if the caller gives it.
    """

    arrays: tuple[Any, ...]
    key: tuple[Any, ...]
    out: Any
    options: _Options


def _attend(
    call: _Call,
    operands: Operands,
    stream: object,
    scales: tuple[Scale, ...] = UNSCALED,
    scale_arrays: tuple[ArrayView, ...] = (),
) -> Any:
    """Attend where no call like it was made before, and have it found by its key."""
    options, q = call.options, operands.q
    scores = Scores.of(q.shape[-1], *options[:4])
    out = empty(q, q.shape, _output_element(operands)) if call.out is None else call.out
    target = _arrays.view(out, argument="out")
    check_output("out", target, operands)
    lse = empty(q, _lse_shape(q), _FLOAT32) if options.return_lse else None
    operation = _CALLS.operation(
        Attention,
        operands.layouts,
        Layout.of(reachable(target)),
        scores,
        has_lse=options.return_lse,
        scales=scales,
    )
    lse_view = None if lse is None else _arrays.view(lse)
    operation.run(operands, target, lse_view, stream, scale_arrays)
    if operation.is_bindable:
        workspace = operation.workspace(q)
        _CALLS.remember(
            call.arrays,
            call.key,
            operation,
            tuple(view.framework for view in (*operands, *scale_arrays, target)),
            target.device,
            new_arrays=allocator_of_all(_new_arrays(call, operands, workspace)),
            has_workspace=workspace is not None,
        )
    return out if lse is None else (out, lse)


def _new_arrays(
    call: _Call, operands: Operands, workspace: Allocator | None
) -> Iterator[Allocator]:
    """Yield what makes the arrays that the caller does not give."""
    if call.out is None:
        yield allocator(operands.q, operands.q.shape, _output_element(operands))
    if call.options.return_lse:
        yield allocator(operands.q, _lse_shape(operands.q), _FLOAT32)
    if workspace is not None:
        yield workspace


def _output_element(operands: Operands) -> Element:
    return element(operands.output_types[0])


def _lse_shape(q: ArrayView) -> tuple[int, ...]:
    batch, positions, heads, _ = q.shape
    return batch, heads, positions


# --- the operation ------------------------------------------------------------------------------


class _Addresses(NamedTuple):
    """Addresses that the launches of a call take; 0 where there is none.

    ``values`` is what attention.cu reads V from. The call's workspace has partial outputs; for FP8,
    V transposed, then descales, then partial outputs.
    """

    q: int
    k: int
    v: int
    out: int
    lse: int
    values: int
    descales: int
    partials: int
    scale_q: int
    scale_k: int
    scale_v: int

    def to_transpose(self) -> TransposeAddresses:
        scales = (self.scale_q, self.scale_k, self.scale_v)
        return TransposeAddresses(self.v, self.values, self.descales, *scales)

    def to_attend(self) -> AttentionAddresses:
        memory = self.descales or self.partials
        return AttentionAddresses(self.q, self.k, self.values, self.out, self.lse, memory)

    def to_attend_alone(self) -> tuple[int, ...]:
        """Return the addresses that change where nothing but the kernel itself is launched."""
        return self[: _LSE + 1] if self.lse else self[: _OUT + 1]

    def to_combine(self) -> CombineAddresses:
        return CombineAddresses(self.out, self.lse, self.partials)


class _Schedule(NamedTuple):
    """How many clusters run, and what each works on in each wave, at an address; 0: no table."""

    clusters: int
    waves: int = 0
    address: int = 0
    stream_k: StreamK | None = None


class Attention(Operation):
    """Attention over padded arrays of given layouts.

    A call is up to three launches: FP8 values are transposed; tiles are attended; and, where keys
    are split, partial outputs are combined.
    """

    def __init__(
        self,
        operands: Sequence[Layout],
        out: Layout,
        scores: Scores,
        *,
        has_lse: bool,
        scales: tuple[Scale, ...] = UNSCALED,
    ) -> None:
        super().__init__(out.device)
        q, k, _ = operands
        self._sizes = Sizes(
            queries=q.shape[1],
            keys=k.shape[1],
            heads=q.shape[2],
            heads_per_kv_head=q.shape[2] // k.shape[2],
            batch=q.shape[0],
            head_dim=q.shape[3],
            element_bytes=q.element.itemsize,
        )
        self._spans = tuple(layout.span_bytes for layout in (*operands, out))
        self._scores = scores
        self._has_lse = has_lse
        self._scales = scales
        is_float8 = q.element.itemsize == 1
        self._float8 = Float8Workspace.of(operands[2]) if is_float8 else None
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
        """Attend; ``scales`` are those that are arrays."""
        given = (*operands, *scales, out)
        handle = self.ordered(given, stream)
        if operands.k.is_empty:
            with in_order(out.framework, out.device, handle):
                _fill(out, 0)
                _fill(lse, -np.inf)
            return
        with self.backend.current():
            launch = self.prepared(lambda: self._prepare(operands, out, lse))
        addresses = [view.address for view in (given if lse is None else (*given, lse))]
        workspace = self.workspace(operands.q)
        if workspace is None:
            launch.launch_at(self._named(addresses), handle)
            return
        with self.backend.current(), in_order(operands.q.framework, out.device, handle):
            # Given back at once: in the order of the stream it is in use until the launches end.
            memory = workspace()
            launch.launch_at(self._named([*addresses, address_of(memory)]), handle)

    def bind(self, addresses: Sequence[int], *numbers: Any) -> Binding | None:
        """Return the launches on arrays at these addresses.

        Of q, k, v, scales that are arrays, the output, lse if it is wanted, and the workspace.
        """
        del numbers
        if self._launch is None:
            return None
        named = self._named(addresses)
        return (self._launch, named) if is_apart(_OUT, named, self._spans) else None

    def workspace(self, like: ArrayView) -> Allocator | None:
        """Return what makes the memory that a launch takes besides its arrays, after a ``run``."""
        if self._float8 is not None:
            return self._float8.allocator(like, self._partial_bytes)
        if self._partial_bytes:
            return allocator(like, (self._partial_bytes // _FLOAT32.itemsize,), _FLOAT32)
        return None

    def _named(self, addresses: Sequence[int]) -> _Addresses:
        q, k, v, *more = addresses
        rest = iter(more)
        scales = [0 if scale.steps is None else next(rest) for scale in self._scales]
        out, lse = next(rest), next(rest) if self._has_lse else 0
        workspace = next(rest, 0)
        values, descales, partials = v, 0, workspace
        if self._float8 is not None:
            values, descales = workspace, workspace + self._float8.descales_at
            partials = workspace + self._float8.partials_at
        return _Addresses(q, k, v, out, lse, values, descales, partials, *scales)

    # --- made once ------------------------------------------------------------------------------

    def _prepare(self, operands: Operands, out: ArrayView, lse: ArrayView | None) -> Launch:
        variant = Variant.of(self._scores, has_lse=self._has_lse)
        config = overridden(self._choose(variant))
        q, k, v, o = (reachable(view) for view in (*operands, out))
        values = v
        if self._float8 is not None:
            # The tile is encoded over this one; launches get the address of their own.
            values = self._float8.transposed(self._float8.allocator(v)(), v)
        tiles = attention_tiles(q, k, values, o, config)
        schedule = self._schedule(config, variant)
        attend = attention_kernel(cuda_types(tiles), variant, config).prepare(
            schedule.clusters * config.cluster,
            config.threads,
            AttentionArguments(
                *tiles,
                lse=0 if lse is None else lse,
                partials=0,
                schedule=schedule.address,
                waves=schedule.waves,
                problem=problem(self._sizes, self._scores),
            ),
            cluster=config.cluster if config.cluster > 1 else None,
            pdl=True,
        )
        attend.release()
        steps: list[tuple[Launch, Callable[[Any], Sequence[int]]]] = []
        if self._float8 is not None:
            transpose = prepared_transpose(v, values, self._scales, config)
            steps.append((transpose, _Addresses.to_transpose))
        steps.append((attend, _Addresses.to_attend))
        if schedule.stream_k is not None and schedule.stream_k.partials:
            combine = self._prepare_combine(schedule.stream_k, tiles, variant, config)
            steps.append((combine, _Addresses.to_combine))
        if len(steps) == 1:
            return LaunchSequence((attend, _Addresses.to_attend_alone))
        return LaunchSequence(*steps)

    def _choose(self, variant: Variant) -> TileConfig:
        sms = self.backend.limits.sms
        config = choose_tile_config(self._sizes, sms, variant)
        clusters = sms // config.cluster
        stream_k = stream_k_pays(self._sizes, config, self._scores, clusters)
        return replace(config, stream_k=stream_k)

    def _schedule(self, config: TileConfig, variant: Variant) -> _Schedule:
        clusters = self.backend.limits.sms // config.cluster
        if config.stream_k:
            stream_k = stream_k_schedule(self._sizes, config, clusters)
            waves, clusters = stream_k.table.shape
            return _Schedule(clusters, waves, self._upload(stream_k.table), stream_k)
        clusters = min(config.spans(self._sizes), clusters)
        if not variant.skips_blocks:
            return _Schedule(clusters)
        table = lpt_schedule(self._sizes, self._scores, config, clusters)
        return _Schedule(clusters, len(table), self._upload(table))

    def _prepare_combine(
        self,
        stream_k: StreamK,
        tiles: Tiles,
        variant: Variant,
        config: TileConfig,
    ) -> Launch:
        self._partial_bytes = stream_k.partials * config.cluster * config.partial_bytes
        arguments = CombineArguments(
            out=tiles[_OUT],
            lse=0,
            partials=0,
            schedule=self._upload(stream_k.splits),
            splits_per_tile=0,
            problem=problem(self._sizes, self._scores),
        )
        split_tiles = len(stream_k.splits) * config.cluster
        return prepared_combine(cuda_types(tiles), variant, config, split_tiles, arguments)

    def _upload(self, table: npt.NDArray[Any]) -> int:
        """Return the address of a copy that lives as long as the operation."""
        memory = self.backend.upload(table.tobytes())
        self._tables.append(memory)
        return memory.address


def _fill(view: ArrayView | None, value: float) -> None:
    if view is not None:
        owner: Any = view.owner
        owner[...] = value
