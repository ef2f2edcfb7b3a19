"""The headers for the GPU, whose inline PTX is translated, do what their twins for the CPU do."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
from parity.backends import Emulate
from parity.test_structured import SOURCE, Gemm, Output, operand_tile, operands
from parity.test_tma import SHUTTLE
from parity.tile_oracle import loaded, stored

from tmaasync import Kernel, create_tma_tile, emulate
from tmaasync._source.paths import include_dir

TWINS = Path(emulate.__file__).with_name("device") / "tmaasync"
# The emulator looks for hangs itself, and operands of wgmma_mma.cuh are texts.
FROM_TWINS = ("instrument/*.cuh", "ptx/wgmma_mma.cuh", "ptx/grid_workspace.cuh")


@pytest.fixture(scope="module")
def headers(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The headers under another name, so that none has a twin for the CPU."""
    folder = tmp_path_factory.mktemp("headers")
    taken = {path for pattern in FROM_TWINS for path in TWINS.glob(pattern)}
    for path in (include_dir() / "tmaasync").rglob("*.cuh"):
        name = path.relative_to(include_dir() / "tmaasync")
        twin = TWINS / name
        text = renamed((twin if twin in taken else path).read_text())
        target = folder / "translated" / renamed(str(name))
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text)
    return folder


def renamed(text: str) -> str:
    return re.sub(r"\btmaasync\b", "translated", text)


def test_the_headers_for_the_gpu_have_inline_ptx(headers: Path) -> None:
    counts = {path.stem: path.read_text().count("asm") for path in headers.rglob("ptx/*.cuh")}

    assert sum(count > 0 for count in counts.values()) > 18
    assert counts["mbarrier"] > 10
    assert counts["cp_async_bulk_tensor"] > 20


@pytest.mark.parametrize("races", [False, True])
def test_boxes_of_every_rank(headers: Path, races: bool) -> None:
    shuttle = Kernel(renamed(SHUTTLE), "shuttle", include_dirs=[headers])
    for rank in range(1, 6):
        shape, box = (3, 4, 5, 6, 100)[5 - rank :], (2, 1, 3, 4, 32)[5 - rank :]
        rng = np.random.default_rng(rank)
        host = rng.integers(-(2**31), 2**31, shape, np.int32)
        wanted, total = np.full(shape, 7, np.int32), np.full(shape, 9, np.int32)
        arrays = [host, wanted.copy(), total.copy()]
        tiles = [create_tma_tile(array, box) for array in arrays]
        start = [int(rng.integers(-side, extent)) for side, extent in zip(box, shape, strict=True)]
        end = [int(rng.integers(0, extent)) for extent in shape]
        start[-1], end[-1] = start[-1] // 4 * 4, end[-1] // 4 * 4
        places = np.array([*start[::-1], *end[::-1]], np.int32)

        with emulate.scheduled("random", seed=rank, races=races):
            shuttle(1, 1, (*tiles, 0, rank, places, tiles[0].tile_bytes, np.uint64(0)))

        image = loaded(host, start, box, box)
        stored(wanted, image, end, box, box, lambda old, given: given)
        stored(total, image, end, box, box, lambda old, given: old + given)
        assert np.array_equal(arrays[1], wanted), rank
        assert np.array_equal(arrays[2], total), rank


def test_a_gemm_of_the_structured_headers(headers: Path) -> None:
    gemm = Gemm(ping_pong=True)
    (m, n, k), backend = gemm.shape, Emulate()
    a, b = operands(gemm)
    c = Output(backend, gemm)
    tiles = {
        "ATile": operand_tile(backend, a, gemm.block_m, gemm.depth, True),
        "BTile": operand_tile(backend, b, gemm.columns, gemm.depth, True),
        "CTile": c.tile(),
    }
    types = "".join(f"using {name} = {renamed(tile.cuda_type)};\n" for name, tile in tiles.items())
    includes = "#include <translated/tile.cuh>\n#include <translated/types.cuh>\n"
    text = f"{includes}{types}{renamed(SOURCE.read_text())}"
    constants = {"A_MAJOR": 0, "B_MAJOR": 0, "C_MAJOR": 0, "PING_PONG": 1, "EPILOGUE": 0}
    sizes = {"CONSUMERS": 2, "ROWS": gemm.rows, "BLOCK_N": gemm.columns, "STAGES": 3}
    kernel = Kernel(
        text, "structured_gemm", constants={**constants, **sizes}, include_dirs=[headers]
    )
    columns, rows, ends = np.zeros(n, np.float32), np.zeros(m, np.float32), np.array([m], np.int32)
    arguments = (*tiles.values(), c.tile(), columns, rows, rows.copy(), np.float32(1))

    for seed in range(2):
        with emulate.scheduled("random", seed=seed, races=True):
            kernel(2, 384, (*arguments, m, n, k, ends, 1))

    assert np.array_equal(c.values(), a.astype(np.float64) @ b.astype(np.float64).T)
