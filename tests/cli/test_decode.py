"""``tmaasync decode``: the same map from every form in which people have it."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest
from command_line import assert_refused, json_of, run

from tmaasync import DataType, Im2colSpec, Swizzle, TensorMapSpec

SPEC = TensorMapSpec(
    0x7F0012345670, DataType.BFLOAT16, (5, 1000), (2048,), (4, 64), swizzle=Swizzle.B128
)
DATA = SPEC.encode()
WORDS = struct.unpack("<16Q", DATA)


@pytest.mark.parametrize(
    "text",
    [
        DATA.hex(),
        f"0x{DATA.hex()}",
        " ".join(map(hex, WORDS)),
        "{" + ", ".join(f"{word:#018x}" for word in WORDS) + "}",
        " ".join(f"{word:08x}" for word in struct.unpack("<32I", DATA)),
        DATA.hex(" "),
        "\n".join(DATA[start : start + 16].hex() for start in range(0, 128, 16)),
    ],
    ids=["digits", "0x", "words", "braces", "half words", "bytes", "lines"],
)
def test_a_map_is_read_from_text_and_from_a_file_of_it(text: str, tmp_path: Path) -> None:
    file = tmp_path / "map.txt"
    file.write_text(text + "\n")

    for document in (json_of("decode", text), json_of("decode", str(file))):
        assert document["address"] == 0x7F0012345670
        assert document["dtype"] == "BFLOAT16"
        assert (document["shape"], document["strides_bytes"]) == ([5, 1000], [2048])
        assert (document["box_shape"], document["box_bytes"]) == ([4, 64], 512)
        assert document["swizzle"] == "B128"


def test_a_file_of_the_bytes_themselves_is_read(tmp_path: Path) -> None:
    file = tmp_path / "map.bin"
    file.write_bytes(DATA)

    assert json_of("decode", str(file)) == json_of("decode", DATA.hex())


def test_the_table_has_every_field() -> None:
    lines = [line.split() for line in run("decode", DATA.hex()).output.splitlines()]

    assert ["shape", "5", "x", "1000"] in lines
    assert ["address", "0x7f0012345670"] in lines
    assert ["kind", "tiled"] in lines


def test_an_im2col_map_shows_its_corners() -> None:
    spec = Im2colSpec(
        0, DataType.FLOAT16, (2, 9, 9, 64), (10368, 1152, 128), (-1, -1), (-1, -1), 64, 128
    )

    document = json_of("decode", spec.encode().hex())

    assert document["kind"] == "im2col"
    assert document["lower_corner"] == [-1, -1]
    assert (document["channels_per_pixel"], document["pixels_per_column"]) == (64, 128)


def test_what_the_hardware_punishes_is_shown() -> None:
    """Rows of 28 bytes: a store writes the four bytes after each."""
    data = TensorMapSpec(0, DataType.FLOAT32, (8, 7), (32,), (8, 8)).encode().hex()

    (hazard,) = json_of("decode", data)["hazards"]

    assert hazard["argument"] == "shape[1]"
    assert "4 bytes beyond each row" in hazard["rule"]
    assert "Hazards" in run("decode", data).output


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        (DATA.hex()[:-2], "data is 127 bytes long; a tensor map has 128 bytes"),
        ("", "data is 0 bytes long"),
        ("ff" * 128, "data is not a tensor map of sm_90"),
        ("absent.bin", "data is 'absent.bin'; it must be hexadecimal digits, or a file"),
        ("x" * 5000, "data is 'xxxx"),
        (".", "data is '.'; it must be hexadecimal digits, or a file that can be read (Is a dir"),
        ("short.bin", "data is 100 bytes long"),
        ("empty.bin", "data is 0 bytes long"),
    ],
)
def test_bad_input_is_one_sentence_and_exit_code_2(
    given: str, sentence: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("short.bin").write_bytes(b"\xfe" * 100)
    Path("empty.bin").touch()

    assert_refused(sentence, "decode", given)
