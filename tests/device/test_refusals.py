"""What a kernel asks of a tile that cannot do it ends the compilation, in words."""

from __future__ import annotations

import pytest

from tmaasync import CompileError, Kernel

TILE = "tmaasync::TMATensorTile<float, tmaasync::Shape<16, 32>, tmaasync::Box<16, 32>>"
SOURCE = """
#include <tmaasync/tmaasync.cuh>
using namespace tmaasync;
extern "C" __global__ void refused(const __grid_constant__ Tile tile) {{
    __shared__ Tile::Shared shared;
    __shared__ SharedMemBarrier full;
    {call};
}}
"""


@pytest.mark.parametrize(
    ("call", "said"),
    [
        ("tile.async_copy<2>(shared, full, {0, 0})", "cta_group 2 needs sm_100"),
        ("tile.async_copy_gather4(shared, full, 0, {1, 2, 3, 4})", "boxes of one row"),
        ("tile.async_copy(shared, full, {0, 0, 0})", "one coordinate per dimension"),
        ("cp_async_gs<12>(&shared, &tile)", "cp.async copies 4, 8 or 16 bytes"),
        ("cp_async_gs<4, CacheLevels::kL2>(&shared, &tile)", "past L1 cp.async copies 16 bytes"),
        ("cp_async_wait<-1>()", "0 or more groups"),
        ("wait_group<-1>()", "0 or more groups"),
        ("wait_group_read<-1>()", "0 or more groups"),
        (
            "tma_reduce_1d<ReduceOp::kAdd, ElementType::kS64>(nullptr, &shared, 16)",
            "lacks this reduction into global memory",
        ),
        (
            "tma_reduce_cluster<ReduceOp::kMax, ElementType::kU64>(&shared, full, &shared, 16, 1)",
            "lacks this reduction into shared memory",
        ),
    ],
)
def test_a_call_that_the_tile_does_not_have_is_refused(call: str, said: str) -> None:
    kernel = Kernel(SOURCE.format(call=call), "refused", types={"Tile": TILE})

    with pytest.raises(CompileError) as caught:
        kernel.compile()

    assert said in caught.value.log


OPERAND = """
#include <tmaasync/wgmma.cuh>
using namespace tmaasync;
extern "C" __global__ void operand(int* rows) { *rows = WgmmaOperand<Tile, Major::kK>::kExtent; }
"""


def tile_of(sides: tuple[int, int, int], box: tuple[int, int, int]) -> str:
    shapes = [
        f"tmaasync::{kind}<{', '.join(map(str, numbers))}>"
        for kind, numbers in (("Shape", sides), ("Box", box))
    ]
    return (
        f"tmaasync::TMATensorTile<tmaasync::float16, {', '.join(shapes)}, tmaasync::Swizzle::k128B>"
    )


@pytest.mark.parametrize(
    ("sides", "box", "is_operand"),
    [
        ((1, 64, 64), (1, 32, 64), True),
        ((2, 64, 64), (1, 64, 64), True),
        ((2, 64, 64), (1, 32, 64), True),
        ((2, 64, 64), (2, 32, 64), False),
    ],
)
def test_the_rows_of_an_operands_boxes_follow_one_another(
    sides: tuple[int, int, int], box: tuple[int, int, int], is_operand: bool
) -> None:
    kernel = Kernel(OPERAND, "operand", types={"Tile": tile_of(sides, box)})

    if is_operand:
        kernel.compile()
        return
    with pytest.raises(CompileError) as caught:
        kernel.compile()

    assert "boxes are cut along the last side, and one that has only" in caught.value.log


MULTIPLY = """
#include <tmaasync/structured.cuh>
using namespace tmaasync;
template <int kRows, int kColumns>
using Matrix = TMATensorTile<float16, Shape<kRows, kColumns>, Box<kRows, 64>, Swizzle::k128B>;
template <int kRows>
using KMajor = WgmmaOperand<Matrix<kRows, 64>, Major::kK>;
template <int kColumns>
using NMajor = WgmmaOperand<Matrix<64, kColumns>, Major::kMN>;

template <typename B, int kAtoms, int kColumns>
__device__ void multiply(const unsigned char* a, const unsigned char* b, float* sum) {
    float sums[1][kAtoms][kColumns / 2];
    const auto& left = *reinterpret_cast<const Matrix<64, 64>::Shared*>(a);
    const auto& right = *reinterpret_cast<const Matrix<64, B::kExtent>::Shared*>(b);
    wgmma<KMajor<64>, B>(sums, left, right, false);
    *sum = sums[0][0][0];
}
extern "C" __global__ void use(unsigned char* a, unsigned char* b, float* sum) { USED; }
"""


@pytest.mark.parametrize(
    ("used", "said"),
    [
        ("multiply<NMajor<128>, 2, 64>(a, b, sum)", ""),
        ("multiply<NMajor<192>, 2, 96>(a, b, sum)", "each instruction starts with a panel"),
        ("multiply<KMajor<64>, 2, 64>(a, b, sum)", "the operand has fewer rows than the atoms"),
        (
            "*sum = sizeof(MainLoop<KMajor<64>, KMajor<64>, 64, 128>::Accumulators)",
            "operand B has fewer columns",
        ),
        (
            "*sum = OutputChunk<Matrix<64, 128>, OutputMajor::kN>::kColumns",
            "a chunk is one box wide",
        ),
        ("*sum = AccumulatorShape<u32[1][64]>::kColumns", "hold two columns in a register"),
        (
            "*sum = SplitLastDimTMATensorTile<float16, 64, 72, Swizzle::k128B>::kBytes",
            "the depth is a multiple of the chunk",
        ),
    ],
)
def test_operands_and_chunks_of_other_sizes_are_refused(used: str, said: str) -> None:
    kernel = Kernel(MULTIPLY.replace("USED", used), "use")

    if not said:
        kernel.compile()
        return
    with pytest.raises(CompileError) as caught:
        kernel.compile()

    assert said in caught.value.log


RING = """
#include <tmaasync/structured/ring.cuh>
using namespace tmaasync;
using Wide = TMATensorTile<float, Shape<32, 32>>;
using Narrow = TMATensorTile<float, Shape<1, 4>>;
struct Stage { Wide::Shared a; };
struct Padded { Wide::Shared a; Narrow::Shared b; };
struct Declared { static constexpr int kBytes = Wide::kBytes + Narrow::kBytes; Padded tiles; };
using Stages = Ring<Stage, 4, ConsumerWarps<4>>;
"""
USE = 'extern "C" __global__ void use(Stages* ring) {{ {use} }}'


def test_the_bytes_of_a_stage_are_the_bytes_of_its_tiles() -> None:
    holds = "static_assert(Stages::kStageBytes == Wide::kBytes); static_assert("
    holds += "Ring<Declared, 2, ConsumerWarps<4>>::kStageBytes == Wide::kBytes + 16);"

    assert Kernel(RING + USE.format(use=holds), "use").compile().warnings == ()
