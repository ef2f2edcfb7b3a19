"""Random attention over packed and padded arrays. A problem follows from its number alone."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Any

import numpy as np
from parity.attention_oracle import Array, Mask, dtype_of

_LENGTHS = (0, 1, 2, 3, 5, 7, 8, 13, 31, 61, 64, 67, 97, 127, 128, 131, 191, 257)
_LONG = (509, 1021, 1500, 2053)


@dataclass(frozen=True)
class Problem:
    """Sequences of queries and of keys; where they are padded, all are alike."""

    number: int
    queries: tuple[int, ...]
    keys: tuple[int, ...]
    heads: int
    kv_heads: int
    head_dim: int
    dtype: str
    mask: Mask
    softcap: float | None

    @property
    def options(self) -> dict[str, Any]:
        """Arguments by their names."""
        return {"causal": self.mask.causal, "window": self.mask.window, "softcap": self.softcap}

    def packed(self, rows: int, heads: int, seed: int) -> Array:
        rng = np.random.default_rng((self.number, seed))
        return rng.standard_normal((rows, heads, self.head_dim)).astype(dtype_of(self.dtype))


def draw(number: int, *, small: bool) -> Problem:
    """The problem of this number; small ones need few builds and little time."""
    rng = random.Random(number)
    lengths = _LENGTHS if small else (*_LENGTHS, *_LONG)
    size = rng.randint(1, 4 if small else 9)
    queries = tuple(rng.choice(lengths) for _ in range(size))
    keys = queries if rng.random() < 0.3 else tuple(rng.choice(lengths) for _ in range(size))
    kv_heads = rng.randint(1, 2)
    per_kv_head = rng.choice((1, 2) if small else (1, 2, 3, 4, 6, 8))
    variant = rng.randrange(3 if small else 7)
    return Problem(
        number=number,
        queries=queries,
        keys=keys,
        heads=kv_heads * per_kv_head,
        kv_heads=kv_heads,
        head_dim=64 if small else rng.choice((8, 40, 64, 64, 72, 96, 128, 128, 192, 256)),
        dtype="float16" if small else rng.choice(("bfloat16", "float16")),
        mask=_mask(rng, variant),
        softcap=rng.choice((2.0, 30.0)) if variant in {2, 6} else None,
    )


def _mask(rng: random.Random, variant: int) -> Mask:
    corner = rng.choice(("top_left", "bottom_right", True))
    left, right = rng.randint(0, 150), rng.randint(0, 150)
    return (
        Mask(),
        Mask(corner),
        Mask(corner, (left, None)),
        Mask(window=(left, right)),
        Mask(window=(None, right)),
        Mask("top_left", (left, right)),
        Mask(),
    )[variant]
