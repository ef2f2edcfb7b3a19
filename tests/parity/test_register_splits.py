"""Splits of registers run: a block that claims what it has never hangs."""

from __future__ import annotations

from typing import Any

import numpy as np
from tiles.test_registers import kernel, mixed

from tmaasync import RegisterSplit

SPLITS = [
    RegisterSplit.fit(producers=1, consumers=1),
    RegisterSplit.fit(producers=1, consumers=2),
    RegisterSplit.fit(producers=1, consumers=2).off,
    RegisterSplit(1, 1, 56, 256),
    RegisterSplit(1, 2, 40, 232),
    RegisterSplit(1, 3, 32, 160),
    *(
        RegisterSplit.fit(producers=producers, consumers=consumers)
        for producers, consumers in ((2, 2), (1, 3), (2, 3), (1, 5), (3, 4), (1, 7), (4, 4))
    ),
]


def test_every_warpgroup_gets_what_it_claims(backend: Any) -> None:
    is_device = type(backend).__name__ == "Cuda"
    blocks = 300 if is_device else 2
    # On the host registers are the compiler's matter, so that one split stands for all.
    for split in SPLITS if is_device else SPLITS[1:2]:
        values = np.random.default_rng(split.threads).integers(
            0, 2**32, (blocks, 16, split.threads), np.uint32
        )
        held = backend.array(values)

        kernel(split)(blocks, split.threads, (held,))

        assert np.array_equal(backend.host(held), mixed(values, split)), split
