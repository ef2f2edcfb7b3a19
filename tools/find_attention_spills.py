"""Find which tiles of attention.cu spill registers with softcap, as NVRTC compiles them.

Prints every tile of the cost model, and the limits; --write lowers the limits of
tmaasync/ops/_flash/h200.toml to them. It raises none: an older NVRTC may spill where this one does
not. Limits are kept and not asked of the compiler in a call: that would compile the tiles that
spill, too, before the first launch.
"""

from __future__ import annotations

import argparse
import datetime
import re
from dataclasses import replace

import numpy as np

from tmaasync._arrays import view
from tmaasync.ops._flash.config import TileConfig, Variant
from tmaasync.ops._flash.cost_model import COEFFICIENTS, coefficients
from tmaasync.ops._flash.tiles import attention_kernel, attention_tiles, cuda_types, packed_maps

PADDED = Variant(has_left=True, has_right=True, has_softcap=True, has_lse=True)
PACKED = replace(PADDED, is_packed=True)


def spill_bytes(config: TileConfig) -> int:
    """Return what the worst variant spills: with every mask, packed or not."""
    array = view(np.zeros((512, 1, config.head_dim), np.float16))
    padded = view(np.zeros((1, 512, 1, config.head_dim), np.float16))
    builds = {
        PADDED: cuda_types(attention_tiles(padded, padded, padded, padded, config)),
        PACKED: cuda_types(packed_maps(array, array, array, array, config)),
    }
    programs = [
        attention_kernel(types, variant, config).compile("sm_90a")
        for variant, types in builds.items()
    ]
    return max(entry.spill_bytes for program in programs for entry in program.entries.values())


def find() -> dict[str, int]:
    """Return the limits below which no tile that a mask allows spills."""
    most_consumers, most_elements = 0, 0
    for head_dim, consumers, block_n in coefficients().tile_throughput_16_bits:
        if block_n > coefficients().masked_block_n:
            continue
        spilled = spill_bytes(TileConfig(head_dim, consumers, block_n))
        print(f"head_dim {head_dim:3d}, {consumers} x {block_n:3d}: {spilled} bytes")
        if not spilled:
            most_consumers = max(most_consumers, consumers)
            most_elements = max(most_elements, head_dim * block_n)
    return {"softcap_consumers": most_consumers, "softcap_block_elements": most_elements}


def write(limits: dict[str, int]) -> None:
    text = COEFFICIENTS.read_text()
    for name, limit in limits.items():
        if limit >= getattr(coefficients(), name):
            continue
        entry = rf"(\[attention\.{name}\]\nvalue = )\d+(.*?\ndate = )[\d-]+"
        found = rf"\g<1>{limit}\g<2>{datetime.date.today().isoformat()}"
        text = re.sub(entry, found, text, count=1, flags=re.DOTALL)
    COEFFICIENTS.write_text(text)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", action="store_true", help="lower the limits in the file")
    options = parser.parse_args()
    limits = find()
    print(limits)
    if options.write:
        write(limits)


if __name__ == "__main__":
    main()
