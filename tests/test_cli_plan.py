"""``tmaasync plan``: the figures of a product, against counts and against the compiled kernel."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from command_line import assert_refused, run, told

from tmaasync import _arrays
from tmaasync.ops._gemm.config import TileConfig
from tmaasync.ops._gemm.tiles import gemm_kernel, gemm_tiles


@pytest.mark.parametrize("sides", [(5120, 5120, 5120), (4095, 1000, 64), (65, 65, 65), (3, 3, 3)])
@pytest.mark.parametrize("sms", [132, 114, 7])
def test_blocks_and_rounds_are_those_that_one_counts(sides: tuple[int, int, int], sms: int) -> None:
    document = told("plan", *map(str, sides), f"--sms={sms}")

    m, n, _ = sides if not document["multiplies_transposes"] else (sides[1], sides[0], 0)
    rows, columns = document["block"]["m"], document["block"]["n"]
    beside = document["cluster"] if document["side_by_side"] else 1
    below = document["cluster"] // beside
    pairs = len(range(0, m, rows * below)) * len(range(0, n, columns * beside))
    at_once = sms // document["cluster"]
    rounds = [pairs - done for done in range(0, pairs, at_once)]
    assert document["blocks"] == pairs * document["cluster"]
    assert document["rounds"] == len(rounds)
    assert document["last_round"] == rounds[-1] * document["cluster"]
    area = len(rounds) * sms * rows * columns
    assert document["useful"] == pytest.approx(m * n / area)
    assert 0 < document["useful"] <= 1


def test_the_blocks_are_those_of_the_documentation() -> None:
    document = told("plan", "5120", "5120", "5120")

    assert (document["block"]["n"], document["rounds"], document["blocks"]) == (160, 5, 640)
    assert document["block"]["m"] == 256
    assert (document["cluster"], document["side_by_side"]) == (2, True)


def test_the_shared_memory_is_what_the_compiler_says() -> None:
    document = told("plan", "16", "1024", "512")
    config = TileConfig(
        document["consumers"], document["block"]["n"], m_major=True, split_k=document["split"]
    )
    a, b, c = (
        _arrays.view(np.zeros(shape, ml_dtypes.bfloat16))
        for shape in ((1024, 512), (16, 512), (16, 1024))
    )
    tiles = gemm_tiles(a, b, c, config, False, True)

    program = gemm_kernel([tile.cuda_type for tile in tiles], False, True, config).compile()

    assert document["multiplies_transposes"]
    assert program.entries["gemm"].shared_bytes == document["shared_bytes"]


def test_few_rows_are_multiplied_as_transposes() -> None:
    assert "the output, AB swapped" in run("plan", "16", "14336", "4096").output
    assert "of the output," in run("plan", "4096", "14336", "4096").output


@pytest.mark.parametrize(
    ("arguments", "copied"),
    [
        (("128", "128", "64"), []),
        (("128", "128", "65"), ["a", "b"]),
        (("128", "128", "65", "--layout", "nn"), ["a"]),
        (("16", "128", "65", "--layout", "nn"), ["a"]),
        (("128", "127", "64", "--layout", "nn"), ["b"]),
        (("128", "128", "64", "--layout", "nn", "--dtype", "int8"), ["b"]),
    ],
)
def test_operands_that_are_copied_first_are_named(
    arguments: tuple[str, ...], copied: list[str]
) -> None:
    assert told("plan", *arguments)["copied_operands"] == copied
    assert ("staging copies" in run("plan", *arguments).output) == bool(copied)


@pytest.mark.parametrize(
    ("dtype", "output", "depth"),
    [
        ("float16", "float16", 64),
        ("float8_e4m3fn", "bfloat16", 128),
        ("int8", "int32", 128),
        ("tf32", "float32", 32),
    ],
)
def test_types_have_their_output_and_depth(dtype: str, output: str, depth: int) -> None:
    document: dict[str, Any] = told("plan", "512", "512", "512", "--dtype", dtype)

    assert (document["output"], document["block"]["k"]) == (output, depth)
    assert document["shared_bytes"] <= 227 * 1024


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("0", "1", "1"), "M is 0; it must be 1 or more"),
        (("1", "1", "9999999999"), "a side is 9999999999; the kernel counts to"),
        (("1", "1", "x"), "Invalid value for 'K'"),
        (("1", "1"), "Missing argument 'K'"),
        (("1", "1", "1", "1"), "Got unexpected extra argument"),
        (("1", "1", "1", "--no-such"), "No such option"),
        (("1", "1", "1", "--layout", "xx"), "layout is xx; it must be one of"),
        (("1", "1", "1", "--dtype", "float32"), "a holds float32; the tensor cores"),
        (("1", "1", "1", "--dtype", "float64"), "a holds float64; the kernel multiplies"),
        (("1", "1", "1", "--dtype", "half-ish"), "dtype is 'half-ish'; it names no element type"),
        (("1", "1", "1", "--sms", "1"), "sms is 1; it must be 2 or more"),
    ],
)
def test_bad_input_is_one_sentence_and_exit_code_2(
    arguments: tuple[str, ...], sentence: str
) -> None:
    assert_refused(sentence, "plan", *arguments)
