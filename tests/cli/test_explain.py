"""``tmaasync explain``: the rules that an array breaks, and what would be legal."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from command_line import assert_refused, json_of, run
from hypothesis import given, settings
from hypothesis import strategies as st

from tmaasync import Swizzle, create_tma_tile, plan_copy
from tmaasync.errors import TensorMapError


def broken(document: dict[str, Any]) -> list[str]:
    return [violation["argument"] for violation in document["violations"]]


def test_rows_off_16_bytes_are_padded() -> None:
    document = json_of(
        "explain", "100x33", "--strides", "66,2", "--box", "64x64", "--swizzle", "128B"
    )

    assert not document["legal"]
    (violation,) = document["violations"]
    assert violation == {
        "argument": "strides_bytes[0]",
        "value": "66",
        "rule": "it must be a multiple of 16 bytes",
        "remedy": "Pad that dimension to 80 bytes",
    }
    assert document["nearest"]["strides_bytes"] == [80]
    assert document["load"]["mechanism"] == "loop"
    assert {refusal["mechanism"] for refusal in document["load"]["refused"]} >= {"bulk", "tensor"}


def test_a_legal_array_is_moved_by_tma_as_it_is() -> None:
    document = json_of("explain", "100x64", "--dtype", "bfloat16", "--swizzle", "128B")

    assert document["legal"]
    assert (document["violations"], document["changes"]) == ([], [])
    assert document["load"]["mechanism"] == "tensor"
    assert "TMA moves boxes of 64x64" in run("explain", "100x64", "--swizzle", "128B").output


def test_every_broken_rule_is_listed() -> None:
    document = json_of(
        "explain", "100x64", "--box", "300x64", "--swizzle", "64B", "--address", "0x1008"
    )

    assert set(broken(document)) == {"address", "box_shape[0]", "box_shape[1]"}
    nearest = document["nearest"]
    assert (nearest["address"], nearest["box_shape"]) == (0x1000, [150, 64])


def test_an_array_contiguous_along_another_side_is_turned() -> None:
    document = json_of("explain", "100x64", "--strides", "2,208", "--box", "32x64")

    assert broken(document)[0] == "array.strides[1]"
    assert document["nearest"]["shape"] == [64, 100]
    assert document["nearest"]["strides_bytes"] == [208]
    assert document["nearest"]["box_shape"] == [64, 32]


def test_an_array_contiguous_along_no_side_has_nothing_near() -> None:
    document = json_of("explain", "100x64", "--strides", "1024,4")

    assert document["nearest"] is None
    assert document["load"]["mechanism"] in ("cp_async", "loop")
    assert "none; correct the lengths first" in run("explain", "100x64", "--strides", "64,4").output


def test_full_adds_why_faster_mechanisms_are_refused() -> None:
    arguments = ("explain", "100x33")

    assert "why not tensor" not in run(*arguments).output
    assert "why not tensor" in run(*arguments, "--full").output


def test_a_negative_stride_is_said_as_it_is() -> None:
    document = json_of("explain", "64x64", "--strides=-128,2")

    assert broken(document) == ["strides_bytes[0]"]
    assert document["load"]["mechanism"] == "cp_async"


def test_an_array_of_too_many_dimensions_has_no_load_either() -> None:
    document = json_of("explain", "2x2x2x2x2x8")

    assert broken(document) == ["shape"]
    assert document["load"]["refused"].startswith("array.shape is (2, 2, 2, 2, 2, 8)")


_ITEMSIZE = np.dtype(np.float16).itemsize


@settings(max_examples=30)
@given(
    rows=st.integers(1, 80),
    columns=st.integers(1, 80),
    padding=st.integers(0, 9),
    box=st.tuples(st.sampled_from([1, 64, 256, 257]), st.sampled_from([8, 20, 32, 64])),
    swizzle=st.sampled_from(["none", "32B", "64B", "128B"]),
)
def test_the_verdict_agrees_with_a_real_array(
    rows: int, columns: int, padding: int, box: tuple[int, int], swizzle: str
) -> None:
    """NumPy makes the array, and the library judges it."""
    array = np.zeros((rows, columns + padding), np.float16)[:, :columns]
    mode = Swizzle.NONE if swizzle == "none" else Swizzle[f"B{swizzle[:-1]}"]

    document = json_of(
        "explain", f"{rows}x{columns}", f"--box={box[0]}x{box[1]}", f"--swizzle={swizzle}",
        f"--strides={array.strides[0]},{_ITEMSIZE}", f"--address={array.ctypes.data}",
    )  # fmt: skip

    rules = document["violations"] + document["hazards"]
    said = {rule["argument"] for rule in rules if "store writes" not in rule["rule"]}
    is_refused = False
    try:
        create_tma_tile(array, box, box_shape=box, swizzle=mode)
    except TensorMapError:
        is_refused = True
    assert is_refused == bool(said)
    if not is_refused:
        plan = plan_copy(array, "shared", tile_shape=box, swizzle=mode)
        assert document["load"]["mechanism"] == plan.mechanism


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["100xa"], "shape is '100xa'; it must be integers"),
        (["0x3"], "shape is 0x3; every side must be 1 or more"),
        (["100x3", "--strides", "3"], "strides is 3; the array has 2 dimensions"),
        (
            ["100x3", "--swizzle", "96B"],
            "swizzle is '96B'; no mode has this name. Pass one of none, 32B",
        ),
        (["100x3", "--interleave", "64B"], "interleave is '64B'; no mode has this name"),
        (["100x3", "--oob-fill", "one"], "oob_fill is 'one'; no mode has this name"),
        (["100x3", "--box", "64 64"], "box is '64 64'; it must be integers"),
        (["100x3", "--element-strides", "1.5,1"], "element_strides is '1.5,1'; it must be"),
        (["100x3", "--address", "here"], "address is here; it must be an integer"),
        (["100x3", "--address=-16"], "address is -16; it must be an integer"),
        (["100x3", "--dtype", "complex64"], "dtype is complex64; TMA has no complex numbers"),
        (["100x3", "--dtype", "float5"], "dtype is 'float5'; it names no element type"),
        (["99999999999999999999x3"], "shape is 99999999999999999999x3; no array is that large"),
    ],
)
def test_bad_input_is_one_sentence_and_exit_code_2(arguments: list[str], sentence: str) -> None:
    assert_refused(sentence, "explain", *arguments)


def test_remedies_are_options_of_the_command() -> None:
    ran = run("explain", "100x33", "--dtype", "int4")
    table = run("explain", "100x64", "--swizzle", "64B", "--box", "64x64").output.partition("load:")

    assert ran.stderr.endswith("yourself and pass --dtype uint8.\n")
    assert "--swizzle 64B" in table[0]
    assert "Swizzle." not in table[0]


@pytest.mark.parametrize("short", ["bf16", "fp16", "half", "fp32", "e4m3", "fp8", "tf32"])
def test_short_names_of_types_are_taken(short: str) -> None:
    assert json_of("explain", "128x128", "--dtype", short, "--box", "8x64")["legal"]
