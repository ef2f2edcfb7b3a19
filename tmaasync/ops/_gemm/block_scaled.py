"""The tiles, arguments and builds of the block-scaled GEMMs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from tmaasync._arrays import ArrayView
from tmaasync.kernel import Kernel
from tmaasync.ops._gemm.block_scales import ATOM_FACTORS, ATOM_ROWS, Format, cuda_type
from tmaasync.ops._gemm.tensor_memory import BlockScaledConfig
from tmaasync.ops._gemm.tiles import ScaledMatrices, operand_tile, output_tile, ragged_output
from tmaasync.ops._gemm.warp_scaled import WarpScaledConfig
from tmaasync.ops._operation import shipped_kernel
from tmaasync.ragged import RaggedTensorMap
from tmaasync.tile import TMATensorTile, create_tma_tile


class BlockScaledArguments(NamedTuple):
    """The kernel's parameters; an absent array is 0, and k counts bytes."""

    a: TMATensorTile
    b: TMATensorTile
    a_factors: TMATensorTile
    b_factors: TMATensorTile
    c: TMATensorTile
    scale_a: ArrayView | int
    scale_b: ArrayView | int
    alpha: float
    m: int
    n: int
    k: int


class BlockScaledGroupedArguments(NamedTuple):
    """The parameters of a grouped kernel; see `BlockScaledArguments`."""

    a: TMATensorTile
    b: TMATensorTile
    a_factors: TMATensorTile
    b_factors: TMATensorTile
    c: RaggedTensorMap
    scale_a: ArrayView | int
    scale_b: ArrayView | int
    alpha: float
    offsets: ArrayView
    groups: int
    rows: int
    n: int
    k: int
    broken_group: Any


def block_scaled_tiles(
    operands: Sequence[ArrayView], c: ArrayView, config: BlockScaledConfig | WarpScaledConfig
) -> ScaledMatrices[TMATensorTile]:
    """Return the tiles over [M, K] and [N, K] of bytes, and their factors as of `as_atoms`."""
    return ScaledMatrices(*_operand_tiles(operands, config), output_tile(c, config))


def block_scaled_grouped_tiles(
    operands: Sequence[ArrayView], c: ArrayView, config: BlockScaledConfig | WarpScaledConfig
) -> ScaledMatrices[Any]:
    """Return the tiles over [T, K] and [G, N, K] of bytes, their factors, and the map of [T, N]."""
    return ScaledMatrices(*_operand_tiles(operands, config), ragged_output(c, config))


def _operand_tiles(
    operands: Sequence[ArrayView], config: BlockScaledConfig | WarpScaledConfig
) -> tuple[TMATensorTile, TMATensorTile, TMATensorTile, TMATensorTile]:
    a, b, a_factors, b_factors = operands
    side, parts = config.b_tile
    is_one_column, is_one_row = b.shape[-2] <= config.block_n, a.shape[0] <= config.block_m
    atoms, words = config.factors // ATOM_FACTORS, a_factors.shape[-1]
    return (
        operand_tile(a, config.block_m, k_major=True, parts=1, is_read_once=is_one_column),
        operand_tile(b, side, k_major=True, parts=parts, is_read_once=is_one_row),
        create_tma_tile(a_factors, (1, atoms, words)),
        create_tma_tile(b_factors, (-(-config.block_n // ATOM_ROWS), atoms, words)),
    )


def block_scaled_kernel(
    tiles: Sequence[str],
    operands: tuple[str, str],
    form: Format,
    config: BlockScaledConfig | WarpScaledConfig,
    *,
    is_scaled: bool,
    is_grouped: bool = False,
) -> Kernel:
    """Return the kernel for these tile types and operands, with or without a factor of all."""
    names = ("ATile", "BTile", "AFactorTile", "BFactorTile", "CTile", "AElement", "BElement")
    named = dict(zip(names, (*tiles, *map(cuda_type, operands)), strict=True))
    constants = {**config.constants, "BLOCK": form.block, "IS_SCALED": is_scaled}
    source = config.grouped_source if is_grouped else config.scaled_source
    return shipped_kernel(source, named, constants)
