"""Structs that the host shares with the attention kernels: each dtype is its struct."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from struct_claims import claims

from tmaasync._source.compile import Source, compile_source
from tmaasync._source.paths import kernels_dir
from tmaasync.errors import CompileError
from tmaasync.ops._flash import abi
from tmaasync.ops._flash.backward import BACKWARD_PROBLEM

HEADER = kernels_dir() / "attention" / "abi.cuh"
HEAD_DIM = 96
STRUCTS: dict[str, np.dtype[Any]] = {
    "Problem": abi.PROBLEM,
    "KeySplit": abi.KEY_SPLIT,
    "BatchLimits": abi.BATCH_LIMITS,
    "ScheduledSpan": abi.SCHEDULED_SPAN,
    "SplitSpan": abi.SPLIT_SPAN,
    "RaggedSequence": abi.RAGGED_SEQUENCE,
    "PagedSequence<1>": abi.PAGED_SEQUENCE,
    "EntryWith<RaggedSequence>": abi.ENTRY,
    "EntryWith<PagedSequence<1>>": abi.PAGED_ENTRY,
    "WorkItem<RaggedSequence>": abi.WORK_ITEM,
    "WorkItem<PagedSequence<1>>": abi.PAGED_WORK_ITEM,
    f"PartialOutput<64, {HEAD_DIM}>": abi.partial_output(HEAD_DIM),
    "Scale": abi.SCALE,
    "Scales": abi.SCALES,
    "ValueSizes": abi.VALUE_SIZES,
}
LISTS = {
    "WorkListWith<RaggedSequence>": abi.WORK_ITEM,
    "WorkListWith<PagedSequence<1>>": abi.PAGED_WORK_ITEM,
}


def probe_of_backward() -> Source:
    header = kernels_dir() / "attention_backward" / "abi.cuh"
    dtype = BACKWARD_PROBLEM
    found = claims("BackwardProblem", dtype, dtype.itemsize)
    checks = (f'static_assert({one}, "{one}");' for one in found)
    namespace = "namespace tmaasync::kernels::attention_backward {"
    text = "\n".join([f'#include "{header}"', namespace, *checks, "}"])
    return Source(text=text + "\n", name="abi_probe.cu")


def probe(structs: dict[str, np.dtype[Any]]) -> Source:
    """A source that compiles if all claims hold; a work list starts with its first item."""
    found = [one for name, dtype in structs.items() for one in claims(name, dtype, dtype.itemsize)]
    head = abi.WORK_LIST.itemsize
    for name, item in LISTS.items():
        found += [*claims(name, abi.WORK_LIST, head + item.itemsize)]
        found.append(f"__builtin_offsetof({name}, items) == {head}")
    checks = (f'static_assert({one}, "{one}");' for one in found)
    namespace = "namespace tmaasync::kernels::attention {"
    text = "\n".join([f'#include "{HEADER}"', namespace, *checks, "}"])
    return Source(text=text + "\n", name="abi_probe.cu")


def test_every_field_lies_where_the_device_has_it() -> None:
    assert compile_source(probe(STRUCTS), "sm_90a").warnings == ()
    assert compile_source(probe_of_backward(), "sm_90a").warnings == ()


def test_the_test_above_would_notice() -> None:
    exchanged = np.dtype([(name, "<i4") for name in ("end", "first", "slot")])
    longer = np.dtype([("entry_step", "<i4"), ("head_step", "<i4"), ("number", "<f8")])

    with pytest.raises(CompileError) as caught:
        compile_source(probe({"KeySplit": exchanged, "Scale": longer}), "sm_90a")

    for claim in ("__builtin_offsetof(KeySplit, end) == 0", "sizeof(Scale) == 16"):
        assert claim in caught.value.log


def test_records_are_filled_by_name() -> None:
    data = abi.record(abi.SCALES, q=(1, 2, 0.5), v=(3, 4, 2.0))

    filled = np.frombuffer(data, abi.SCALES)[0]
    assert filled["q"].tolist() == (1, 2, 0.5)
    assert filled["k"].tolist() == (0, 0, 0.0)
    assert filled["v"].tolist() == (3, 4, 2.0)
