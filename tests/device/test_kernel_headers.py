"""Each header of the shipped kernels includes what it uses: it compiles alone, with no GPU.

What the host supplies, types and constants, stands before it as in any build of a kernel.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tmaasync._source.compile import Source, compile_source
from tmaasync._source.paths import include_dir, kernels_dir
from tmaasync.errors import CompileError
from tmaasync.kernel.source import preamble


def tile(dtype: str, *sides: int) -> str:
    shape = ", ".join(map(str, sides))
    return (
        f"tmaasync::TMATensorTile<{dtype}, tmaasync::Shape<{shape}>, tmaasync::Box<{shape}>, "
        "tmaasync::Swizzle::k128B>"
    )


def map_of(*sides: int) -> str:
    shape = ", ".join(map(str, sides))
    return (
        f"tmaasync::RaggedTensorMap<tmaasync::float16, tmaasync::Shape<{shape}>, "
        f"tmaasync::Box<{shape}>, tmaasync::Swizzle::k128B>"
    )


GEMM_TYPES = {
    "ATile": tile("tmaasync::bfloat16", 128, 64),
    "BTile": tile("tmaasync::bfloat16", 128, 64),
    "CTile": tile("tmaasync::bfloat16", 64, 64),
    "AScaleTile": tile("float", 1, 128),
    "BScaleTile": tile("float", 1, 4),
    "PushTile": tile("tmaasync::bfloat16", 16, 64),
    "Bias": "float",
}
GEMM_CONSTANTS = {
    "B_SCALE_COLUMNS": 128,
    "B_SCALES_ARE_K_MAJOR": False,
    "CONSUMERS": 2,
    "ROWS": 64,
    "BLOCK_N": 128,
    "STAGES": 4,
    "CLUSTER": 1,
    "GROUP_M": 16,
    "SPLIT_K": 1,
    "STORES_PARTIALS": False,
    "PING_PONG": False,
    "SIDE_BY_SIDE": False,
    "A_IS_K_MAJOR": True,
    "B_IS_K_MAJOR": True,
    "C_IS_N_MAJOR": True,
    "BIAS": 1,
    "ACTIVATION": 1,
    "IS_SCALED": True,
    "HAS_ADDEND": True,
    "PUSH_STAGES": 2,
    "EPILOGUE_BUFFERS": 2,
}
GEMM = preamble(GEMM_TYPES, GEMM_CONSTANTS)
SCALED = preamble(
    GEMM_TYPES | dict.fromkeys(("ATile", "BTile"), tile("tmaasync::float8_e4m3", 128, 128)),
    GEMM_CONSTANTS,
)
ON_PAIRS = {
    "STAGES": 4,
    "CTAS": 2,
    "GROUP_M": 8,
    "STORES_PARTIALS": False,
    "A_IS_K_MAJOR": True,
    "B_IS_K_MAJOR": True,
}
TENSOR_MEMORY = preamble(
    {
        "ATile": tile("tmaasync::bfloat16", 128, 64),
        "BTile": tile("tmaasync::bfloat16", 128, 64),
        "CTile": tile("tmaasync::bfloat16", 128, 64),
    },
    ON_PAIRS,
)
BLOCK_SCALED_TYPES = {
    **dict.fromkeys(("ATile", "BTile"), tile("unsigned char", 128, 128)),
    "CTile": tile("tmaasync::bfloat16", 128, 64),
    "AFactorTile": tile("unsigned", 1, 2, 128),
    "BFactorTile": tile("unsigned", 2, 2, 128),
    **dict.fromkeys(("AElement", "BElement"), "tmaasync::float4_e2m1"),
}
BLOCK_SCALED = preamble(BLOCK_SCALED_TYPES, {**ON_PAIRS, "BLOCK": 32, "IS_SCALED": True})
SCALED_BY_WARPS = preamble(
    {**BLOCK_SCALED_TYPES, "CTile": tile("tmaasync::bfloat16", 64, 64)},
    {"CONSUMERS": 2, "BLOCK_N": 128, "STAGES": 2, "BLOCK": 32, "IS_SCALED": True},
)
PROMOTED = preamble(
    {
        "ATile": tile("tmaasync::float8_e4m3", 128, 128),
        "BTile": tile("tmaasync::float8_e4m3", 64, 128),
        "CTile": tile("tmaasync::bfloat16", 128, 64),
        "AScaleTile": tile("float", 1, 128),
        "BScaleTile": tile("float", 1, 4),
    },
    {**ON_PAIRS, "B_SCALE_COLUMNS": 128, "B_SCALES_ARE_K_MAJOR": False},
)
ATTENTION = preamble(
    {
        "QTile": map_of(64, 1, 64),
        "KTile": map_of(128, 1, 64),
        "VTile": map_of(128, 1, 64),
        "OTile": map_of(64, 1, 64),
        "PushTile": tile("tmaasync::float16", 1, 64, 1, 64),
    },
    {
        "PUSH_STAGES": 4,
        "CONSUMERS": 2,
        "BLOCK_N": 128,
        "HEAD_DIM": 64,
        "STAGES": 2,
        "QUERY_BUFFERS": 2,
        "HEADS_PER_TILE": 1,
        "CLUSTER": 1,
        "SPLITS_KEYS": True,
        "ONE_TILE_EACH": True,
        "O_OVER_Q": False,
        "TRANSPOSES_V": False,
        "HAS_FEW_ROWS": False,
        "IS_PACKED": True,
        "PAGE_SIZE": 128,
        "HAS_LEFT": True,
        "HAS_RIGHT": True,
        "HAS_SOFTCAP": True,
        "HAS_LSE": True,
    },
)
ATTENTION_IN_TENSOR_MEMORY = preamble(
    {name: map_of(128, 1, 64) for name in ("QTile", "KTile", "VTile", "OTile")},
    {
        "CONSUMERS": 4,
        "BLOCK_N": 128,
        "HEAD_DIM": 64,
        "STAGES": 4,
        "HEADS_PER_TILE": 1,
        "CLUSTER": 1,
        "SPLITS_KEYS": False,
        "ONE_TILE_EACH": True,
        "IS_PACKED": True,
        "PAGE_SIZE": 128,
        "HAS_LEFT": True,
        "HAS_RIGHT": True,
        "HAS_SOFTCAP": True,
        "HAS_LSE": True,
    },
)
ATTENTION_BACKWARD = preamble(
    {"QTile": map_of(64, 1, 64), "KTile": map_of(64, 1, 64)},
    {
        "BLOCK_M": 64,
        "HEAD_DIM": 64,
        "STAGES": 2,
        "STARTS_LAST": True,
        "ALTERNATES": True,
        "TILES_DESCEND": True,
        "IS_PACKED": True,
        "HAS_LEFT": True,
        "HAS_RIGHT": True,
        "HAS_SOFTCAP": True,
        "IS_DETERMINISTIC": True,
        "ADDS_KEYS": False,
    },
)
SHARED = preamble(
    {name: tile("tmaasync::bfloat16", 32, 64) for name in ("PushTile", "Tile")},
    {"PUSH_STAGES": 2, "CONSUMER_WARPS": 4},
)
PREAMBLES = {
    ".": SHARED,
    "gemm": GEMM,
    "attention": ATTENTION,
    "attention_backward": ATTENTION_BACKWARD,
}
ON_TENSOR_MEMORY = {"gemm": TENSOR_MEMORY, "attention": ATTENTION_IN_TENSOR_MEMORY}
CONVOLUTION = preamble({"BTile": tile("tmaasync::bfloat16", 1, 1, 64, 64)}, {"STAGES": 4})
HEADERS = sorted(
    str(path.relative_to(kernels_dir()))
    for path in kernels_dir().rglob("*.cuh")
    if not path.is_relative_to(include_dir())
)


NO_WORD_ON_UNUSED_CONSTANTS = "--diag-suppress=177"  # no header needs all that the host passes


def compile_header(header: str, preamble: str, arch: str = "sm_90a") -> tuple[str, ...]:
    """Return the compiler's warnings."""
    source = Source(
        text=f'#include "{header}"\n',
        name=f"{Path(header).stem}.cu",
        include_dirs=(kernels_dir(),),
        options=(NO_WORD_ON_UNUSED_CONSTANTS, "--std=c++17"),
        preamble=preamble,
    )
    return compile_source(source, arch).warnings


@pytest.mark.sampled(8)
@pytest.mark.parametrize("header", HEADERS)
def test_a_header_compiles_alone(header: str) -> None:
    if "block_scaled" in header:
        assert compile_header(header, BLOCK_SCALED, "sm_100a") == ()
    elif header == "gemm/scaled_warps.cuh":
        assert compile_header(header, SCALED_BY_WARPS, "sm_120a") == ()
    elif header == "gemm/scaled_wgmma.cuh":
        assert compile_header(header, SCALED) == ()
    elif "promoted" in header:
        assert compile_header(header, PROMOTED, "sm_100a") == ()
    elif "tensor_memory" in header:
        assert compile_header(header, ON_TENSOR_MEMORY[Path(header).parent.name], "sm_100a") == ()
    elif header == "gemm/filter_chunks.cuh":
        assert compile_header(header, CONVOLUTION) == ()
    else:
        assert compile_header(header, PREAMBLES[str(Path(header).parent)]) == ()


def test_every_family_has_headers_and_a_preamble() -> None:
    assert {str(Path(header).parent) for header in HEADERS} == set(PREAMBLES)


@pytest.mark.parametrize("header", HEADERS)
def test_a_header_includes_its_own_family_or_what_all_share(header: str) -> None:
    text = (kernels_dir() / header).read_text()

    included = re.findall(r'#include "([^"]+)"', text)

    assert not [name for name in included if not re.fullmatch(r"(\.\./)?\w+\.cuh", name)]
    assert re.findall(r"#include <(?!tmaasync/)", text) == []


def test_a_header_that_leaves_out_an_include_does_not_compile(tmp_path: Path) -> None:
    text = (kernels_dir() / "gemm" / "producer.cuh").read_text()
    bare = tmp_path / "producer.cuh"
    bare.write_text(re.sub(r'#include "\w+\.cuh"\n', "", text))

    with pytest.raises(CompileError, match="TileLoop"):
        compile_header(str(bare), GEMM)
