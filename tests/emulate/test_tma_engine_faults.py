"""What the emulator's TMA engine refuses, with its rule."""

from __future__ import annotations

import pytest
from emulate.engine_library import Copy, Engine, FaultError, copy_of, descriptor_of
from strategies import ordinary_im2col, ordinary_tiled

from tmaasync.modes import Interleave, ReduceOp

TILED = {"tiled_load": (), "tiled_store": (), "tiled_reduce": (ReduceOp.ADD,)}


@pytest.mark.parametrize("name", TILED)
def test_a_tiled_copy_is_refused_with_its_rule(engine: Engine, name: str) -> None:
    def refused(copy: Copy, reason: str) -> None:
        with pytest.raises(FaultError, match=reason):
            copy.run(engine, name, *TILED[name])

    def at(*start: int) -> Copy:
        spec = ordinary_tiled(shape=(1, 64, 64), strides_bytes=(8192, 128))
        return copy_of(spec, start)

    for offset in (16, 64, 127):
        copy = at(0, 0, 0)
        copy.shared_offset = offset
        refused(copy, f"shared address is {offset:#x}; .*multiple of 128")
    refused(
        at(0, 0, 3), "innermost coordinate is 3, or 6 bytes of FLOAT16; .* Step by multiples of 8"
    )
    copy = at(0, 0, 0)
    copy.observer.array_bytes -= 16
    verb, last = "reads" if name == "tiled_load" else "writes", copy.memory.ctypes.data + 63 * 128
    refused(copy, f"{verb} 128 bytes at {last:#x}, outside every array")
    refused(copy_of(ordinary_im2col(), (0, 0, 0, 0)), "a tiled copy was given an im2col map")
    for dim, start in enumerate([(0, 0, -8), (0, -1, 0), (-1, 0, 0)]):
        if name != "tiled_load":
            refused(copy := at(*start), f"coordinate {dim} below 0")
            assert (copy.memory == at(*start).memory).all()


def test_an_im2col_copy_needs_an_im2col_map(engine: Engine) -> None:
    copy = copy_of(ordinary_tiled(), (0, 0, 0), offsets=(0,))

    with pytest.raises(FaultError, match="an im2col copy was given a tiled map"):
        copy.run(engine, "im2col_load")


@pytest.mark.parametrize("channel", [1, 4])
def test_the_channel_is_a_multiple_of_16_bytes(engine: Engine, channel: int) -> None:
    copy = copy_of(ordinary_im2col(), (0, 0, 0, channel), offsets=(0, 0))

    with pytest.raises(FaultError, match=f"innermost coordinate is {channel}, .*16 bytes"):
        copy.run(engine, "im2col_load")


def test_offsets_have_as_many_bits_as_the_rank_leaves_them(engine: Engine) -> None:
    copy = copy_of(ordinary_im2col(), (0, 0, 0, 0), offsets=(0, 256))

    with pytest.raises(FaultError, match="im2col offset 0 is 256; at rank 4 it must be below 256"):
        copy.run(engine, "im2col_load")


def test_interleaved_im2col_is_refused_because_nothing_says_what_it_does(engine: Engine) -> None:
    spec = ordinary_im2col(interleave=Interleave.B16, shape=(1, 16, 28, 28))

    with pytest.raises(FaultError, match=r"interleaved; .*not established"):
        copy_of(spec, (0, 0, 0, 0), offsets=(0, 0)).run(engine, "im2col_load")


# --- the headers --------------------------------------------------------------------------------


def test_an_edited_map_keeps_to_16_bytes(engine: Engine) -> None:
    descriptor = descriptor_of(ordinary_tiled(box_shape=(1, 64, 64)))
    descriptor[440 // 8] = 64 - 2

    with pytest.raises(FaultError, match="takes 126 bytes; it must be a multiple of 16"):
        engine.decode(descriptor)
