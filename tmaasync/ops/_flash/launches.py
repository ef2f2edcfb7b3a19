"""Launches of the attention kernels: fixed arguments, and addresses that differ by call."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from operator import attrgetter
from typing import Any, NamedTuple

from tmaasync._arrays import ArrayView
from tmaasync.kernel import BoundCall, Kernel, Launch
from tmaasync.ops._flash.abi import (
    BATCH_LIMITS,
    PAGED_WORK_ITEM,
    SCALES,
    VALUE_SIZES,
    WORK_ITEM,
    WORK_LIST,
    record,
)
from tmaasync.ops._flash.config import TileConfig, Variant
from tmaasync.ops._flash.float8 import UNSCALED, Scales
from tmaasync.ops._flash.tensor_memory import TensorMemoryConfig
from tmaasync.ops._flash.tiles import (
    COMBINE_THREADS,
    TRANSPOSED_KEYS,
    Maps,
    Tiles,
    attention_kernel,
    combine_kernel,
    cuda_types,
    transpose_kernel,
    transpose_tiles,
    work_list_kernel,
)
from tmaasync.ops._operation import LaunchSequence
from tmaasync.ops._report import Report

_TRANSPOSE_THREADS = 128
_WORK_LIST_THREADS = 1024


class Addresses(NamedTuple):
    """The addresses of a call's launches, named as the parameters; 0 means none.

    For packed arrays q, k, v and out are addresses of maps, which start below their arrays.
    """

    q: int
    k: int
    v: int
    out: int
    values: int
    lse: int = 0
    partials: int = 0
    scale_q: int = 0
    scale_k: int = 0
    scale_v: int = 0
    schedule: int = 0
    cu_seqlens_q: int = 0
    cu_seqlens_k: int = 0
    page_table: int = 0


class Sequences(NamedTuple):
    """The sequences of a packed batch, as parameters of the kernels.

    Attributes:
        page_table: A pointer, because rows of the table may be ``table_step`` entries apart.
        broken_sequence: Receives the number of an invalid sequence.
        limits: `BATCH_LIMITS`.
    """

    cu_seqlens_q: Any
    cu_seqlens_k: Any
    page_table: Any
    broken_sequence: Any
    limits: bytes


NO_SEQUENCES = Sequences(0, 0, 0, 0, record(BATCH_LIMITS))


Step = tuple[Launch, Callable[[Any], Sequence[int]]]
"""A launch of a sequence, and the function that picks its addresses from `Addresses`."""


def prepared_step(
    kernel: Kernel,
    ctas: int,
    threads: int,
    arguments: Any,
    differing: Iterable[str],
    *,
    cluster: int | None = None,
    stream: Any = None,
) -> Step:
    """Prepare a launch whose parameters of these names are addresses that differ by call.

    A launch takes new words for its first parameters: every call also sets those before the last
    that differs. Names that the kernel does not have are skipped.
    """
    launch = kernel.prepare(ctas, threads, arguments, cluster=cluster, pdl=True, stream=stream)
    launch.release()
    names = arguments._fields
    count = 1 + max(names.index(name) for name in differing if name in names)
    return launch, attrgetter(*names[:count])


# --- attention.cu, attention_combine.cu ---------------------------------------------------------


class AttentionArguments(NamedTuple):
    """The parameters of attention.cu, in order.

    Attributes:
        values: V; for FP8 without ``transposes_v``, transposed V.
        partials: Partial outputs of split tiles.
        scale_q: The array of q's scales (FP8), if any.
        scales: `SCALES`.
    """

    q: Any
    k: Any
    values: Any
    out: Any
    lse: Any
    partials: int
    scale_q: int
    scale_k: int
    scale_v: int
    schedule: Any
    cu_seqlens_q: Any
    cu_seqlens_k: Any
    page_table: Any
    waves: int
    problem: bytes
    scales: bytes
    limits: bytes


class TensorMemoryArguments(NamedTuple):
    """The parameters of attention_tensor_memory.cu, in order, named as `AttentionArguments`."""

    q: Any
    k: Any
    values: Any
    out: Any
    lse: Any
    partials: int
    schedule: Any
    cu_seqlens_q: Any
    cu_seqlens_k: Any
    page_table: Any
    waves: int
    problem: bytes
    limits: bytes

    @classmethod
    def of(cls, arguments: AttentionArguments) -> TensorMemoryArguments:
        return cls(*(getattr(arguments, name) for name in cls._fields))


class CombineArguments(NamedTuple):
    """The parameters of attention_combine.cu, in order."""

    out: Any
    lse: int
    partials: int
    schedule: Any
    cu_seqlens_q: Any
    cu_seqlens_k: Any
    page_table: Any
    broken_sequence: Any
    splits_per_tile: int
    problem: bytes
    limits: bytes


class Work(NamedTuple):
    """The schedule of a launch, and its number of CTAs.

    Attributes:
        ctas: CTAs of attention.cu.
        schedule: The spans of each wave; for packed arrays, the work list.
        waves: Number of waves; for packed arrays, splits per tile.
        split_tiles: Number of tiles whose keys are split.
        splits: `SPLIT_SPAN`s; for packed arrays, the work list.
        combined: The tiles or maps of the combine kernel.
        sequences: The batch, which kernels read if there is no work list.
    """

    ctas: int
    schedule: Any
    waves: int
    split_tiles: int
    splits: Any
    combined: Tiles | Maps
    sequences: Sequences = NO_SEQUENCES


def attend_steps(
    tiles: Tiles | Maps,
    variant: Variant,
    config: TileConfig,
    work: Work,
    lse: ArrayView | None,
    problem: bytes,
    scales: Scales = UNSCALED,
) -> list[Step]:
    """Prepare attention.cu and, if keys are split, the combine kernel."""
    q, k, v, out = tiles
    every = AttentionArguments(
        *(q, k, v, out),
        lse=0 if lse is None else lse,
        partials=0,
        scale_q=0,
        scale_k=0,
        scale_v=0,
        schedule=work.schedule,
        **_described(work.sequences),
        waves=work.waves,
        problem=problem,
        scales=record(
            SCALES, **{name: scale.fields for name, scale in zip("qkv", scales, strict=True)}
        ),
    )
    has_tensor_memory = isinstance(config, TensorMemoryConfig)
    attend = TensorMemoryArguments.of(every) if has_tensor_memory else every
    differing = {"out"}
    if lse is not None:
        differing.add("lse")
    if work.split_tiles:
        differing.add("partials")
    if variant.is_packed:
        differing.add("page_table" if config.one_tile_each else "schedule")
    of_scales = {"scale_q", "scale_k", "scale_v"} if config.element_bytes == 1 else set()
    kernel = attention_kernel(cuda_types(tiles), variant, config)
    cluster = config.cluster if config.cluster > 1 else None
    addressed = differing | of_scales
    steps = [prepared_step(kernel, work.ctas, config.threads, attend, addressed, cluster=cluster)]
    if work.split_tiles:
        steps.append(_combine_step(variant, config.combined, work, problem, differing))
    return steps


def _described(sequences: Sequences) -> dict[str, Any]:
    """Return the sequences' parameters that attention.cu and the combine kernel share."""
    return {
        "cu_seqlens_q": sequences.cu_seqlens_q,
        "cu_seqlens_k": sequences.cu_seqlens_k,
        "page_table": sequences.page_table,
        "limits": sequences.limits,
    }


def _combine_step(
    variant: Variant,
    config: TileConfig,
    work: Work,
    problem: bytes,
    differing: set[str],
) -> Step:
    combine = CombineArguments(
        out=work.combined[3],
        lse=0,
        partials=0,
        schedule=work.splits,
        **_described(work.sequences),
        broken_sequence=work.sequences.broken_sequence,
        splits_per_tile=config.kv_splits if variant.is_packed else 0,
        problem=problem,
    )
    kernel = combine_kernel(cuda_types(work.combined), variant, config)
    ctas = work.split_tiles * config.consumers
    return prepared_step(kernel, ctas, COMBINE_THREADS, combine, differing)


# --- attention_values.cu ------------------------------------------------------------------------


class TransposeArguments(NamedTuple):
    """The parameters of attention_values.cu, in order."""

    v: Any
    values: Any
    sizes: bytes


def transpose_step(v: ArrayView, transposed: ArrayView, config: TileConfig) -> Step:
    """Prepare the kernel that transposes V; ``config`` is the tile config of attention.cu."""
    tiles = transpose_tiles(v, transposed, config)
    batch, keys, kv_heads, _ = v.shape
    sizes = record(VALUE_SIZES, keys=keys, kv_heads=kv_heads)
    arguments = TransposeArguments(*tiles, sizes=sizes)
    ctas = -(-keys // TRANSPOSED_KEYS) * kv_heads * batch
    kernel = transpose_kernel(cuda_types(tiles), config)
    return prepared_step(kernel, ctas, _TRANSPOSE_THREADS, arguments, Addresses._fields)


# --- attention_work.cu --------------------------------------------------------------------------


class WorkListArguments(NamedTuple):
    """The parameters of attention_work.cu, in order; ``schedule`` receives the work list."""

    cu_seqlens_q: Any
    cu_seqlens_k: Any
    schedule: Any
    page_table: Any
    broken_sequence: Any
    section_keys: int
    heads_at_once: int
    limits: bytes
    problem: bytes


def work_list_step(variant: Variant, config: TileConfig, arguments: WorkListArguments) -> Step:
    kernel = work_list_kernel(variant, config)
    return prepared_step(kernel, 1, _WORK_LIST_THREADS, arguments, Addresses._fields)


def work_list_bytes(tiles: int, *, is_paged: bool) -> int:
    """Return the bytes of a work list for this many tiles of one head."""
    item = PAGED_WORK_ITEM if is_paged else WORK_ITEM
    return WORK_LIST.itemsize + tiles * item.itemsize


class PackedLaunch:
    """A launch that makes the work list, if any, then the launches that process it."""

    def __init__(
        self,
        make_list: Step | None,
        attend: LaunchSequence,
        report: Report,
    ) -> None:
        self._make_list = LaunchSequence() if make_list is None else LaunchSequence(make_list)
        self._attend = attend
        self._report = report

    def launch_at(self, addresses: Sequence[int], stream: int) -> None:
        self._report.refuse("an earlier call")
        self._make_list.launch_at(addresses, stream)
        self._attend.launch_at(addresses, stream)
        if self._report.waits:
            self._report.refuse("this call")

    def attend_at(self, addresses: Sequence[int], stream: int) -> None:
        """Launch attention with an existing work list."""
        self._report.refuse("an earlier call")
        self._attend.launch_at(addresses, stream)

    def bind(self, addresses: Sequence[int], stream: int) -> BoundCall:
        make_list = self._make_list.bind(addresses, stream)
        attend = self._attend.bind(addresses, stream)
        refuse = self._report.refuse

        def call() -> None:
            refuse("an earlier call")
            make_list()
            attend()

        return call


def describe_sequence(call: str, sequence: int, leaves: str = "leaves its array") -> str:
    """Return the message about a sequence that the kernels left out in ``call``."""
    return (
        f"cu_seqlens_q or cu_seqlens_k of {call} is wrong about sequence {sequence}: it or one "
        f"before it runs backwards, or it is longer than max_seqlen or {leaves}. It was left out. "
        "Pass check=True to learn which."
    )


def describe_paged_sequence(call: str, sequence: int) -> str:
    leaves = "leaves its array, ends after 2**31 - 2 keys or has pages in page_table that k lacks"
    return describe_sequence(call, sequence, leaves)
