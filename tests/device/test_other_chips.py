"""Headers and kernels compile for Hopper and for Blackwell, but for those with one's tensor cores.

NVRTC and ptxas check every instruction against the target. Nothing is run.
"""

from __future__ import annotations

import re
import runpy
import sys
from collections.abc import Callable
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from device import test_attention_kernels as attention
from parity import test_im2col, test_tile_edits, test_tiles

from tmaasync import (
    BackendError,
    CompileError,
    Kernel,
    Swizzle,
    _arrays,
    create_tma_tile,
    create_tma_tile_im2col,
    emulate,
    ops,
)
from tmaasync._hardware import CHIP_LIMITS
from tmaasync._source.compile import Assembly, Source, assemble, compile_source
from tmaasync._source.includes import reached
from tmaasync._source.paths import include_dir
from tmaasync.kernel.observed import observe
from tmaasync.kernel.source import arch_for
from tmaasync.ops._copy import BULK_PIPELINE, TILED_PIPELINE, copy_kernel
from tmaasync.ops._flash import tiles as flash
from tmaasync.ops._flash.config import TileConfig, Variant
from tmaasync.ops._gemm.tiles import combine_kernel
from tmaasync.ops._ragged_tiles import RAGGED_PIPELINE, ragged_kernel, ragged_tiles

CAPABILITIES = [(9, 0), (10, 0), (10, 3), (12, 0)]
BLACKWELL = CAPABILITIES[1:]
# A kernel that compiles for one chip of a family does so for the other; Hopper has test_kernels.py.
OF_EACH_FAMILY = [(10, 0), (12, 0)]
HEADERS = sorted(path.relative_to(include_dir()) for path in include_dir().rglob("*.cuh"))
ISSUE_WGMMA = re.compile(r"(?<!has_)wgmma(_mma)?\.cuh")
ISSUE_TCGEN05 = re.compile(r"ptx/tcgen05_\w+\.cuh")
WITH_TCGEN05 = [(10, 0), (10, 3)]
EXAMPLES = sorted((Path(__file__).parents[2] / "examples").glob("[0-9][0-9]_*.py"))
STEPS_WITH_TCGEN05 = ("10", "11")
# For sm_120a too ptxas prints that other targets multicast faster.
ADVICE = "'.multicast::cluster' modifier"


def target(capability: tuple[int, int], suffix: str = "") -> str:
    return f"sm_{capability[0]}{capability[1]}{suffix}"


def warnings_of(log: str) -> list[str]:
    return [line for line in log.splitlines() if "warning" in line and ADVICE not in line]


# --- headers --------------------------------------------------------------------------------------


def that_issue(instructions: re.Pattern[str]) -> list[str]:
    """The headers that issue these, or include one that does, as the main loops do."""
    folders = (include_dir(),)
    return [
        str(header)
        for header in HEADERS
        if any(
            instructions.search(str(path))
            for path in (header, *reached(f"#include <{header}>\n", folders))
        )
    ]


# Instructions that came with Blackwell, as ptxas names them where a target lacks them.
NEWER = re.compile(
    r"due to errors|clusterlaunchcontrol|_cancel|_ctaid|cp_mask|[gr]4|cta_group|cluster::all|::w"
)


def complaints(headers: list[str], arch: str) -> list[str]:
    """What ptxas says of every function, but for instructions that newer chips have."""
    try:
        return warnings_of(emitted(headers, arch).log)
    except CompileError as error:
        errors = [line for line in error.log.splitlines() if "error" in line]
        assert errors
        return [line for line in errors if not NEWER.search(line)]


def emitted(headers: list[str], arch: str) -> Assembly:
    """Compile headers so that every function that is no template becomes machine code."""
    text = "#undef __forceinline__\n#define __forceinline__\n"
    text += "".join(f"#include <{header}>\n" for header in headers)
    source = Source(text=text, name="all.cu", options=("--relocatable-device-code=true",))
    return assemble(source, arch)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("capability", [(9, 0), *OF_EACH_FAMILY], ids=target)
def test_every_function_without_tensor_cores_assembles(capability: tuple[int, int]) -> None:
    others = {*that_issue(ISSUE_WGMMA), *that_issue(ISSUE_TCGEN05)}
    headers = sorted({*map(str, HEADERS)} - others)

    assert complaints(headers, target(capability, "a")) == []
    if capability in WITH_TCGEN05:  # which have every instruction
        assert emitted(headers, target(capability, "a")).ptx.count(".visible .func") > 100


def test_wgmma_assembles_for_hopper_alone() -> None:
    assert complaints(that_issue(ISSUE_WGMMA), "sm_90a") == []

    for capability in BLACKWELL:
        with pytest.raises(CompileError, match=r"exists on compute capability 9\.0 alone"):
            emitted(that_issue(ISSUE_WGMMA), target(capability, "a"))


@pytest.mark.sampled(1)
@pytest.mark.parametrize("capability", CAPABILITIES, ids=target)
def test_tcgen05_assembles_for_chips_with_tensor_memory(capability: tuple[int, int]) -> None:
    headers = that_issue(ISSUE_TCGEN05)
    if capability in WITH_TCGEN05:
        assert warnings_of(emitted(headers, target(capability, "a")).log) == []
        return
    with pytest.raises(CompileError, match=r"tcgen05\.\w+' not supported"):
        emitted(headers, target(capability, "a"))


def test_one_header_depends_on_the_target() -> None:
    """So that a header compiles alone for every target if it does for one (test_headers.py)."""
    dependent = [name for name in HEADERS if "__CUDA_ARCH" in (include_dir() / name).read_text()]
    assert dependent == [Path("tmaasync/operands/target.cuh")]


# --- kernels --------------------------------------------------------------------------------------


def ragged_with(entry: str) -> Kernel:
    packed, padded = (
        _arrays.view(np.zeros((*lead, 16, 128), np.float16)) for lead in [(90,), (3, 40)]
    )
    is_loaded = entry == "ragged_store"
    map_, tile = ragged_tiles(packed, padded, RAGGED_PIPELINE, is_loaded=is_loaded)
    return ragged_kernel(entry, map_.cuda_type, tile.cuda_type, RAGGED_PIPELINE)


def tile_type(shape: tuple[int, int] = (16, 32)) -> str:
    return create_tma_tile(np.zeros((64, 64), np.float32), shape, swizzle=Swizzle.B128).cuda_type


def patches() -> str:
    return create_tma_tile_im2col(
        np.zeros((2, 9, 9, 64), np.float16), (32, 64), filter_shape=(3, 3)
    ).cuda_type


SPLIT = TileConfig(64, 2, 128, stream_k=True)
KERNELS: dict[str, Callable[[], Kernel]] = {
    "copy, tiled": lambda: copy_kernel(tile_type(), TILED_PIPELINE),
    "copy, bulk": lambda: copy_kernel(
        "tmaasync::BulkTile<unsigned char, 32768>", BULK_PIPELINE.within(99 * 1024)
    ),
    "ragged_store": lambda: ragged_with("ragged_store"),
    "ragged_load": lambda: ragged_with("ragged_load"),
    "split_k_combine": lambda: combine_kernel("float", "__half"),
    "attention_work": lambda: flash.work_list_kernel(attention.EVERYTHING, TileConfig(128, 2, 128)),
    "tiles": lambda: test_tiles.kernel_for(tile_type()),
    "map edits": lambda: test_tile_edits.kernel_for(tile_type((8, 32))),
    "im2col": lambda: test_im2col.kernel_for(patches()),
}
# They include <tmaasync/wgmma.cuh> for its layouts, and issue no wgmma.
WITH_LAYOUTS_OF_WGMMA: dict[str, Callable[[], Kernel]] = {
    "attention_combine": lambda: flash.combine_kernel(
        attention.attention_types(SPLIT, Variant()), Variant(), SPLIT
    ),
    "attention_values": lambda: attention.transpose_with(128),
}


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", KERNELS)
@pytest.mark.parametrize("capability", OF_EACH_FAMILY, ids=target)
def test_a_kernel_without_wgmma_compiles(name: str, capability: tuple[int, int]) -> None:
    kernel = KERNELS[name]()

    program = kernel.compile(arch_for(kernel._recipe.source, capability))

    entry = program.entries[kernel.name]
    assert entry.spill_bytes == 0
    assert warnings_of(program.log) == []
    assert (entry.shared_bytes or 0) <= CHIP_LIMITS[capability].shared_bytes


CLAIM = """
#include <tmaasync/warp.cuh>
extern "C" __global__ void __launch_bounds__(128, 1) claim(float* p) {
    tmaasync::claim_registers<232>();
    p[threadIdx.x] = 1;
}
"""
ARCH_SPECIFIC = {"registers": lambda: Kernel(CLAIM, "claim"), "map edits": KERNELS["map edits"]}


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", ARCH_SPECIFIC)
@pytest.mark.parametrize("capability", CAPABILITIES, ids=target)
def test_what_is_compiled_for_the_specific_target_needs_it(
    name: str, capability: tuple[int, int]
) -> None:
    kernel = ARCH_SPECIFIC[name]()

    assert arch_for(kernel._recipe.source, capability) == target(capability, "a")
    assert warnings_of(kernel.compile(target(capability, "a")).log) == []
    with pytest.raises(CompileError, match=f"Try arch='{target(capability)}a'"):
        kernel.compile(target(capability))


@pytest.mark.sampled(1)
@pytest.mark.parametrize("name", WITH_LAYOUTS_OF_WGMMA)
@pytest.mark.parametrize("capability", OF_EACH_FAMILY, ids=target)
def test_a_kernel_that_uses_layouts_of_wgmma_alone_compiles_by_name_of_the_target(
    name: str, capability: tuple[int, int]
) -> None:
    program = WITH_LAYOUTS_OF_WGMMA[name]().compile(target(capability))

    assert warnings_of(program.log) == []


@pytest.mark.sampled(2)
@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_an_example_compiles_or_needs_other_tensor_cores(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "argv", [str(path)])
    with observe(launches=False) as seen, pytest.raises(SystemExit, match="wrong"):
        runpy.run_path(str(path), run_name="__main__")
    (kernel,) = seen.kernels

    if path.stem.startswith(STEPS_WITH_TCGEN05):
        capability = (10, 0)
        with pytest.raises(BackendError, match="needs tcgen05"):
            arch_for(kernel.source, (12, 0))
    else:
        capability = OF_EACH_FAMILY[EXAMPLES.index(path) % 2]
    program = compile_source(kernel.source, arch_for(kernel.source, capability))
    assert warnings_of(program.log) == []


ONES = np.ones((512, 512), np.float16)
HEADS = np.ones((1, 256, 2, 128), np.float16)
FLOAT8 = ONES.astype(ml_dtypes.float8_e4m3fn)
SCALES = np.ones((512, 4), np.float32)
WITH_MMA_OF_WARPS: dict[str, Callable[[], object]] = {
    "matmul": lambda: ops.matmul(ONES, ONES),
    "matmul, epilogue": lambda: ops.matmul(ONES, ONES.T, bias=ONES[0], activation="gelu", c=ONES),
    "grouped_matmul": lambda: ops.grouped_matmul(
        ONES, np.stack([ONES, ONES]), np.array([256, 512], np.int32)
    ),
    "scaled_matmul": lambda: ops.scaled_matmul(FLOAT8, FLOAT8.T, SCALES, SCALES[:4]),
    "conv2d": lambda: ops.conv2d(HEADS.reshape(1, 32, 16, 128), np.ones((128, 3, 3, 128), "f2")),
    "attention": lambda: ops.attention(HEADS, HEADS, HEADS),
    "attention, causal": lambda: ops.attention(HEADS, HEADS, HEADS, causal=True),
    "attention, 64": lambda: ops.attention(*3 * (HEADS[..., :64].copy(),)),
    "attention, 256": lambda: ops.attention(*3 * (HEADS.reshape(1, 256, 1, 256),)),
}


@pytest.mark.sampled(1)
@pytest.mark.parametrize("name", WITH_MMA_OF_WARPS)
def test_a_kernel_whose_warps_multiply_compiles_without_spills(name: str) -> None:
    arch = "sm_120a"
    with emulate.chip(arch), observe(launches=False) as seen:
        WITH_MMA_OF_WARPS[name]()

    assert seen.kernels
    for kernel in seen.kernels:
        program = compile_source(kernel.source, arch)
        assert [entry.spill_bytes for entry in program.entries.values()] == [0]
        assert warnings_of(program.log) == []


@pytest.mark.sampled(1)
@pytest.mark.parametrize("queries", [1, 4096])
@pytest.mark.parametrize("head_dim", [64, 128, 192, 256])
def test_attention_in_float8_spills_nothing_where_fp8_is_converted(
    head_dim: int, queries: int
) -> None:
    arch, is_long = "sm_100a", queries > 1
    k = np.ones((1, 4096, 16, head_dim), ml_dtypes.float8_e4m3fn)
    with emulate.chip(arch), observe(launches=False) as seen:
        ops.attention(k[:, :queries].copy(), k, k, causal=is_long, return_lse=is_long)

    assert "attention" in {kernel.name for kernel in seen.kernels}
    for kernel in seen.kernels:
        program = compile_source(kernel.source, arch)
        assert max(entry.spill_bytes for entry in program.entries.values()) == 0
        assert warnings_of(program.log) == []


@pytest.mark.sampled(1)
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("head_dim", [64, 128])
def test_the_attention_backward_spills_one_register_at_most(head_dim: int, causal: bool) -> None:
    arch = "sm_100a"
    q, lse = np.ones((1, 512, 16, head_dim), np.float16), np.ones((1, 16, 512), np.float32)
    k = q[:, :, :2].copy()
    with emulate.chip(arch), observe(launches=False) as seen:
        ops.attention_backward(q, q, k, k, q, lse, causal=causal)

    for kernel in seen.kernels:
        program = compile_source(kernel.source, arch)
        assert max(entry.spill_bytes for entry in program.entries.values()) <= 8  # and reloads it
        assert warnings_of(program.log) == []
