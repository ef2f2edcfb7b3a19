"""``tmaasync plan``: the figures of a GEMM, against counts and against the compiled kernel."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from command_line import assert_refused, json_of, run

from tmaasync import _arrays
from tmaasync.ops._gemm.config import TileConfig
from tmaasync.ops._gemm.tiles import gemm_kernel, gemm_tiles


@pytest.mark.parametrize("sides", [(5120, 5120, 5120), (4095, 1000, 64), (65, 65, 65), (3, 3, 3)])
@pytest.mark.parametrize("sms", [132, 114, 7])
def test_tiles_and_waves_are_counted_right(sides: tuple[int, int, int], sms: int) -> None:
    document = json_of("plan", *map(str, sides), f"--sms={sms}")

    m, n, _ = sides if not document["swap_ab"] else (sides[1], sides[0], 0)
    rows, columns = document["tile"]["m"], document["tile"]["n"]
    along_n = document["cluster"] if document["side_by_side"] else 1
    along_m = document["cluster"] // along_n
    pairs = len(range(0, m, rows * along_m)) * len(range(0, n, columns * along_n))
    at_once = sms // document["cluster"]
    waves = [pairs - done for done in range(0, pairs, at_once)]
    assert document["ctas"] == pairs * document["cluster"]
    assert document["waves"] == len(waves)
    assert document["last_wave"] == waves[-1] * document["cluster"]
    area = len(waves) * sms * rows * columns
    assert document["useful"] == pytest.approx(m * n / area)
    assert 0 < document["useful"] <= 1


def test_the_tile_is_the_one_of_the_documentation() -> None:
    document = json_of("plan", "5120", "5120", "5120")

    assert (document["tile"]["n"], document["waves"], document["ctas"]) == (160, 5, 640)
    assert document["tile"]["m"] == 256
    assert (document["cluster"], document["side_by_side"]) == (2, True)


def test_the_shared_memory_is_what_the_compiler_says() -> None:
    document = json_of("plan", "16", "1024", "512")
    config = TileConfig(
        document["consumers"], document["tile"]["n"], m_major=True, split_k=document["split_k"]
    )
    a, b, c = (
        _arrays.view(np.zeros(shape, ml_dtypes.bfloat16))
        for shape in ((1024, 512), (16, 512), (16, 1024))
    )
    tiles = gemm_tiles(a, b, c, config, False, True)

    program = gemm_kernel([tile.cuda_type for tile in tiles], False, True, config).compile()

    assert document["swap_ab"]
    assert program.entries["gemm"].shared_bytes == document["shared_bytes"]


def test_few_rows_swap_ab() -> None:
    assert "of the output, swap AB" in run("plan", "16", "14336", "4096").output
    assert "of the output, K in" in run("plan", "4096", "14336", "4096").output


@pytest.mark.parametrize(
    ("arguments", "staged"),
    [
        (("128", "128", "64"), []),
        (("128", "128", "65"), ["a", "b"]),
        (("128", "128", "65", "--layout", "nn"), ["a"]),
        (("16", "128", "65", "--layout", "nn"), ["a"]),
        (("128", "127", "64", "--layout", "nn"), ["b"]),
        (("128", "128", "64", "--layout", "nn", "--dtype", "int8"), ["b"]),
    ],
)
def test_operands_with_staging_copies_are_named(
    arguments: tuple[str, ...], staged: list[str]
) -> None:
    assert json_of("plan", *arguments)["staged_operands"] == staged
    assert ("staging copies" in run("plan", *arguments).output) == bool(staged)


@pytest.mark.parametrize(
    ("dtype", "output", "depth"),
    [
        ("float16", "float16", 64),
        ("float8_e4m3fn", "bfloat16", 128),
        ("int8", "int32", 128),
        ("tf32", "float32", 32),
        ("fp16", "float16", 64),
        ("fp8", "bfloat16", 128),
        ("e5m2", "bfloat16", 128),
    ],
)
def test_types_have_their_output_and_depth(dtype: str, output: str, depth: int) -> None:
    document: dict[str, Any] = json_of("plan", "512", "512", "512", "--dtype", dtype)

    assert (document["output"], document["tile"]["k"]) == (output, depth)
    assert document["shared_bytes"] <= 227 * 1024


@pytest.mark.parametrize("dtype", ["float32", "fp32"])
def test_float32_is_referred_to_tf32_in_words_of_the_command(dtype: str) -> None:
    ran = run("plan", "128", "128", "128", "--dtype", dtype)

    assert ran.stderr.endswith("Pass --dtype tf32.\n")
    assert "precision=" not in ran.stderr


def test_split_k_and_warpgroups_are_named() -> None:
    output = run("plan", "64", "256", "16384").output

    assert "split-K 8 in a cluster" in output
    assert "consumer + 1 producer" in output


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("0", "1", "1"), "M is 0; it must be 1 or more"),
        (("1", "1", "9999999999"), "a side is 9999999999; the kernel counts to"),
        (("1", "1", "x"), "Invalid value for 'K'"),
        (("1", "1"), "Missing argument 'K'"),
        (("1", "1", "1", "1"), "Got unexpected extra argument"),
        (("1", "1", "1", "--absent"), "No "),
        (("1", "1", "1", "--layout", "xx"), "layout is xx; it must be one of"),
        (("1", "1", "1", "--dtype", "float32"), "dtype is float32; the tensor cores"),
        (
            ("1", "1", "1", "--dtype", "float64"),
            "dtype is float64; ops.matmul multiplies bf16, fp16",
        ),
        (("1", "1", "1", "--dtype", "half-ish"), "dtype is 'half-ish'; it names no element type"),
        (("1", "1", "1", "--sms", "1"), "sms is 1; it must be 2 or more"),
    ],
)
def test_bad_input_is_one_sentence_and_exit_code_2(
    arguments: tuple[str, ...], sentence: str
) -> None:
    assert_refused(sentence, "plan", *arguments)
