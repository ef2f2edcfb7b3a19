"""How fast TMA reads, by the granule in which L2 fetches. Writes section "reads".

Arrays of keys, [entries, positions, heads, head dimension] in bfloat16 and larger than L2, are read
once, head by head, in boxes of 128 rows by 128 bytes. ``tmaasync`` is what `create_tma_tile` does
by default; ``loads`` are instructions of 16 bytes a thread over all of it in order.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from race import captured, race, record, tera_per_second

from tmaasync import Kernel, L2Promotion, Swizzle, create_tma_tile

# Entries, positions, heads; and the buffers of a CTA.
CASES = ((16, 8192, 8), (33, 4096, 4), (64, 4096, 8))
STAGES = (2, 6)
COLUMNS, ROWS, THREADS = 128, 128, 32
GRANULES = {"none": L2Promotion.NONE, "64": L2Promotion.B64, "256": L2Promotion.B256}

_LAUNCHES = 10
_SOURCE = Path(__file__).with_suffix(".cu")


def reader(keys: torch.Tensor, stages: int, **options: Any) -> Callable[[], None]:
    tile = create_tma_tile(keys, (1, ROWS, 1, COLUMNS), swizzle=Swizzle.B128, **options)
    kernel = Kernel(_SOURCE, "tiles", types={"Tile": tile}, constants={"STAGES": stages})
    entries, positions, heads, _ = keys.shape
    sms = torch.cuda.get_device_properties(0).multi_processor_count
    grid = min(entries * heads, sms)
    return lambda: kernel(grid, THREADS, (tile, positions, heads, entries))


def loader(keys: torch.Tensor) -> Callable[[], None]:
    tile = create_tma_tile(keys, (1, 1, 1, COLUMNS))
    kernel = Kernel(_SOURCE, "loads", types={"Tile": tile}, constants={"STAGES": 1})
    kept = torch.zeros(4, dtype=torch.int32, device="cuda")
    values = keys.view(torch.int32).view(-1)
    return lambda: kernel(4096, 512, (values, values.numel() // 4, kept))


def measure(entries: int, positions: int, heads: int, stages: int, rounds: int) -> dict[str, Any]:
    keys = torch.randn(entries, positions, heads, COLUMNS, device="cuda").bfloat16()
    runs = {"tmaasync": reader(keys, stages), "loads": loader(keys)}
    for name, granule in GRANULES.items():
        runs[name] = reader(keys, stages, l2_promotion=granule)
    graphs = {name: captured([run] * _LAUNCHES) for name, run in runs.items()}
    size_bytes = keys.numel() * keys.element_size()
    row = {"case": f"{entries} x {positions}, {heads} heads, {stages} stages", "bytes": size_bytes}
    row |= race(graphs, rounds=rounds, reference="256", works_per_call=_LAUNCHES)
    row["read_tb_per_s"] = tera_per_second(row, size_bytes, 3)
    return row


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=7)
    rounds = parser.parse_args().rounds
    rows = []
    for case in CASES:
        for stages in STAGES:
            rows.append(measure(*case, stages, rounds))
            figures = "  ".join(
                f"{name} {throughput:.3f}" for name, throughput in rows[-1]["read_tb_per_s"].items()
            )
            print(f"{rows[-1]['case']:32s} {figures} TB/s", flush=True)
    print(record("reads", rows))


if __name__ == "__main__":
    main()
