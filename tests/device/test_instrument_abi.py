"""Structs and enums that the host shares with the headers: signals, hangs and traces."""

from __future__ import annotations

import enum
import struct
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from struct_claims import claims

from tmaasync import signal
from tmaasync._signal import pads, reports
from tmaasync._source import names
from tmaasync._source.compile import Source, compile_source
from tmaasync.errors import CompileError
from tmaasync.kernel import hangs
from tmaasync.trace.chip import layout

HEADERS = ("signal", "instrument/draining", "instrument/role", "instrument/trace_records")


def argument_of_signals() -> np.dtype[Any]:
    formats = signal._ARGUMENT
    codes = {"Q": "<u8", "I": "<u4"}
    fields, before = [], "<"
    for name, code in formats.items():
        assert struct.calcsize(before) % struct.calcsize(f"<{code[-1]}") == 0
        count = (int(code[:-1]),) if code[:-1] else ()
        fields.append((name, codes[code[-1]], count))
        before += code
    dtype = np.dtype(fields)
    assert dtype.itemsize == signal._STRUCT.size
    return dtype


STRUCTS: dict[str, np.dtype[Any]] = {
    "Signals": argument_of_signals(),
    "instrument::SignalRecord": reports.RECORD,
    "instrument::SignalRecords": reports.RECORDS,
    "instrument::WaitRecord": hangs.WAIT_RECORD,
    "instrument::HangState": hangs.HANG_STATE,
    "instrument::TraceRecord": layout.RECORD_DTYPE,
    "instrument::TraceClocks": layout.CLOCKS_DTYPE,
    "instrument::TraceWarp": layout.WARP_DTYPE,
    "instrument::TraceBuffer": layout.BUFFER_DTYPE,
}
CONSTANTS = {
    "kMaxRanks": pads.MAX_RANKS,
    "kRecordsOfRank": reports.RECORDS_OF_RANK,
    "kWritten": reports.WRITTEN,
    "kRecordsOfCluster": hangs._RECORDS_OF_CLUSTER,
    "kRecordsOfOthers": hangs._RECORDS_OF_OTHERS,
    "kNoNumber": names._NO_NUMBER,
}


def kinds(members: type[enum.IntEnum]) -> Iterator[str]:
    for member in members:
        name = "".join(word.capitalize() for word in member.name.split("_"))
        yield f"int(instrument::TraceKind::k{name}) == {member.value}"


def probe(structs: dict[str, np.dtype[Any]]) -> Source:
    found = [one for name, dtype in structs.items() for one in claims(name, dtype, dtype.itemsize)]
    found += kinds(layout.RecordKind)
    found += [f"instrument::{name} == {value}" for name, value in CONSTANTS.items()]
    checks = (f'static_assert({one}, "{one}");' for one in found)
    includes = (f"#include <tmaasync/{name}.cuh>" for name in HEADERS)
    text = "\n".join(["#define TMAASYNC_DEBUG 1", *includes, "namespace tmaasync {", *checks, "}"])
    return Source(text=text + "\n", name="abi_probe.cu")


def test_every_field_lies_where_the_device_has_it() -> None:
    assert compile_source(probe(STRUCTS), "sm_90a").warnings == ()


def test_the_test_above_would_notice() -> None:
    fields: Any = reports.RECORD.fields
    exchanged = np.dtype([(name, fields[name][0]) for name in ("state", "seen", *[*fields][1:4])])

    with pytest.raises(CompileError) as caught:
        compile_source(probe({"instrument::SignalRecord": exchanged}), "sm_90a")

    assert "__builtin_offsetof(instrument::SignalRecord, seen) == 4" in caught.value.log
