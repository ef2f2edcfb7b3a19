"""The cases of attention that benchmarks and tools race: padded, FP8 and packed."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

TOKENS = 16384


@dataclass(frozen=True)
class Case:
    positions: int
    head_dim: int
    heads: int
    kv_heads: int
    causal: bool
    batch: int
    queries: int = 0
    dtype: torch.dtype = torch.bfloat16

    @property
    def rows(self) -> int:
        return self.queries or self.positions

    @property
    def label(self) -> str:
        mask = "causal" if self.causal else "full"
        heads = f"{self.heads}" if self.kv_heads == self.heads else f"{self.heads}/{self.kv_heads}"
        parts = [f"{self.batch} x {self.positions}", f"{heads} heads of {self.head_dim}", mask]
        if self.queries:
            parts.append(f"decode of {self.queries} {'query' if self.queries == 1 else 'queries'}")
        if self.dtype == torch.float16:
            parts.append("float16")
        return ", ".join(parts)

    @property
    def flops(self) -> float:
        seen = self.rows * self.positions
        if self.causal:
            seen -= self.rows * (self.rows - 1) // 2
        return 4.0 * self.batch * self.heads * self.head_dim * seen

    def arrays(self) -> list[torch.Tensor]:
        shapes = ((self.rows, self.heads), *[(self.positions, self.kv_heads)] * 2)
        return [
            torch.randn(self.batch, rows, heads, self.head_dim, device="cuda").to(self.dtype)
            for rows, heads in shapes
        ]


def cases(*, short: bool) -> list[Case]:
    lengths = (1024, 4096, 16384) if short else (512, 1024, 2048, 4096, 8192, 16384)
    found = []
    for head_dim, causal in ((128, False), (128, True), (64, False), (64, True)):
        heads = 2048 // head_dim
        found += [
            Case(length, head_dim, heads, heads, causal, TOKENS // length) for length in lengths
        ]
    if short:
        return found
    found += [Case(32768, 128, 16, 16, causal, 1) for causal in (False, True)]
    found += [Case(length, 128, 64, 8, True, 2) for length in (2048, 8192)]
    found += [Case(length, 128, 64, 8, False, 2) for length in (2048, 8192)]
    found += [Case(8192, 128, 64, 8, False, 16, queries=count) for count in (1, 16)]
    found += [Case(32768, 128, 64, 8, False, 1, queries=count) for count in (1, 16)]
    found += [Case(8192, 128, 64, 8, False, 20, queries=1)]  # one wave, and some more
    found += [Case(4096, 128, 16, 16, True, 4, dtype=torch.float16)]
    found += [Case(4096, 256, 8, 8, causal, 4) for causal in (False, True)]
    return found


def float8_cases(*, short: bool) -> list[Case]:
    lengths = (1024, 4096, 16384) if short else (1024, 2048, 4096, 8192, 16384)
    found = [
        Case(length, head_dim, 2048 // head_dim, 2048 // head_dim, causal, TOKENS // length)
        for head_dim in (128, 64, 256)
        for causal in (False, True)
        for length in lengths
    ]
    return [*found, *float8_decode_cases()]


def float8_decode_cases() -> list[Case]:
    of_16 = [Case(8192, 128, 64, 8, False, 16, queries=count) for count in (1, 16)]
    return [*of_16, Case(32768, 128, 64, 8, False, 1, queries=1)]


@dataclass(frozen=True)
class Batch:
    name: str
    lengths: tuple[int, ...]
    causal: bool
    heads: int = 16
    kv_heads: int = 16
    head_dim: int = 128

    @property
    def flops(self) -> float:
        seen = sum(n * (n + 1) // 2 if self.causal else n * n for n in self.lengths)
        return 4.0 * self.heads * self.head_dim * seen

    @property
    def label(self) -> str:
        return f"{self.name}, {'causal' if self.causal else 'full'}"

    @property
    def ends(self) -> np.ndarray:
        """The offsets of the sequences, from 0 on: cu_seqlens."""
        return np.concatenate([[0], np.cumsum(self.lengths)]).astype(np.int32)

    def alike(self) -> Case:
        """Return equal lengths with as many tokens, which take about as many FLOPs."""
        total, squares = sum(self.lengths), sum(n * n for n in self.lengths)
        length = round(squares / total)
        batch = max(1, round(total / length))
        return Case(length, self.head_dim, self.heads, self.kv_heads, self.causal, batch)


def batches() -> list[Batch]:
    uniform = tuple(int(n) for n in np.random.default_rng(0).integers(1, 4097, 16))
    lengths = {
        "16 sequences of 1 to 4096": uniform,
        "one sequence of 16384 and 64 of 256": (16384, *[256] * 64),
        "sequences of 16384 / 1, 2, ... 16": tuple(16384 // i for i in range(1, 17)),
        "64 sequences of 512": (512,) * 64,
    }
    return [Batch(name, each, causal) for name, each in lengths.items() for causal in (False, True)]
