"""Attention with a user's score function: ALiBi, and a document mask."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from parity.backends import Backend, Emulate

from tmaasync import Kernel, Swizzle, create_tma_tile, emulate

SOURCE = """
#include <tmaasync/attention.cuh>
#include <tmaasync/tmaasync.cuh>

using namespace tmaasync;

constexpr int kRows = QTile::side(0), kKeys = KTile::side(0), kTileRows = CONSUMERS * kRows;
using Operands = AttentionOperands<QTile, KTile, KTile, kKeys, QTile::side(2)>;
using Mask = WindowMask<kKeys, false, false>;
using Roles = WarpSpecialized<CONSUMERS, RegisterSplit<24, 240>>;

// The producer's message: a tile of one head.
struct Tile {
    i32 head;
    i32 position;  // of its first query

    __device__ int first_row(int consumer) const { return position + consumer * kRows; }
};

struct Tiles {
    using Cluster = ClusterShape<>;
    i32 heads, length;

    __device__ int count() const { return heads * count_tiles(length, kTileRows); }
    __device__ Tile at(int index) const { return {index % heads, index / heads * kTileRows}; }
    __device__ KeyBlocks blocks() const { return Mask{length}.blocks(0, length); }
};

struct SharedMemory : AttentionPipelines<Operands, Tile, CONSUMERS, STAGES> {
    QTile::Shared output[CONSUMERS];
};
extern "C" __device__ const int attention_shared_bytes = sizeof(SharedMemory);

struct Variant : AttentionVariant {
    QTile::Shared& output;
    const QTile& o;
    const Tiles& tiles;
    const i32* documents;  // of every position
    float scale;
    int consumer;

    // Every block needs the document mask.
    __device__ KeyBlocks blocks(const Tile&) const { return tiles.blocks().all_masked(); }

    // The score function scales the scores: what is left is the exponential's power of 2.
    __device__ auto softmax(const Tile&) const { return Operands::Softmax{1.4426950408889634f}; }

    // ALiBi (Press et al. 2022): a bias in proportion to the distance, with a slope for each head.
    __device__ void transform_scores(
        const Tile& tile, int block, Operands::Scores& scores
    ) const {
        const float slope = exp2f(-8.0f * (tile.head + 1) / tiles.heads);
        const auto positions = RowPositions::from(tile.first_row(consumer));
        apply_to_scores(scores, positions, block * kKeys, [&](float score, int query, int key) {
            return score * scale - slope * abs(query - key);
        });
    }

    // The document mask: a query sees the keys of its own document.
    __device__ void mask_scores(const Tile& tile, int block, Operands::Scores& scores) const {
        const auto positions = RowPositions::from(tile.first_row(consumer));
        apply_to_scores(scores, positions, block * kKeys, [&](float score, int query, int key) {
            const bool exists = key < tiles.length && query < tiles.length;
            return exists && documents[key] == documents[query] ? score : masked_score();
        });
    }

    __device__ void store(
        const Tile& tile, Operands::Accumulators& rows, const float (&factors)[2]
    ) const {
        store_attention_rows<Operands::Output<QTile>>(output, rows, factors, consumer, [&] {
            o.async_store(output, {0, tile.head, tile.first_row(consumer)});
            commit_group();
        });
    }
};

extern "C" __global__ void __launch_bounds__(Roles::kThreads, 1) attention(
    const __grid_constant__ QTile q,
    const __grid_constant__ KTile k,
    const __grid_constant__ KTile v,
    const __grid_constant__ QTile o,
    const i32* documents,
    int heads,
    int length,
    float scale
) {
    auto& shared = dynamic_shared<SharedMemory>();
    const Tiles tiles{heads, length};
    const auto produce = [&] {
        AttentionProducer<SharedMemory> producer(shared);
        for (const Tile tile : StaticScheduler<Tiles>(tiles)) {
            const auto load_queries = [&](auto& to, auto& full, int consumer) {
                q.async_copy(to, full, {0, tile.head, tile.first_row(consumer)});
            };
            const auto load = [&](const KTile& from, auto& ring, int block) {
                const auto stage = ring.acquire();
                from.async_copy(*stage, stage.full(), {0, tile.head, block * kKeys});
            };
            producer.load(
                tile, tiles.blocks(), load_queries,
                [&](auto& ring, int block) { load(k, ring, block); },
                [&](auto& ring, int block) { load(v, ring, block); }
            );
        }
        producer.end();
    };
    const auto consume = [&](int consumer) {
        AttentionConsumer<SharedMemory> rows(shared, consumer);
        auto& output = shared.output[consumer];
        rows.attend(Variant{{}, output, o, tiles, documents, scale, consumer});
    };
    Roles::run(shared, produce, consume, q, k, v, o);
}
"""
CONSUMERS, ROWS, KEYS, STAGES, HEAD_DIM = 2, 64, 64, 2, 64


def attend(backend: Backend, inputs: Any, documents: Any, ctas: int = 2) -> Any:
    """Run the kernel on q, k and v of [positions, heads, head_dim]."""
    q, k, v = (backend.array(array) for array in inputs)
    length, heads, head_dim = q.shape
    out = backend.array(np.full(q.shape, np.nan, np.float16))
    tiles = [
        create_tma_tile(array, (rows, 1, head_dim), swizzle=Swizzle.B128)
        for array, rows in zip((q, k, v, out), (ROWS, KEYS, KEYS, ROWS), strict=True)
    ]
    kernel = Kernel(
        SOURCE,
        "attention",
        types={"QTile": tiles[0], "KTile": tiles[1]},
        constants={"CONSUMERS": CONSUMERS, "STAGES": STAGES},
    )
    args = (*tiles, backend.array(documents), heads, length, head_dim**-0.5)
    kernel(grid=ctas, block=128 * (1 + CONSUMERS), args=args)
    return backend.host(out)


def expected(inputs: Any, documents: Any) -> Any:
    """Return the same in float64."""
    q, k, v = (array.astype(np.float64) for array in inputs)
    length, heads, head_dim = q.shape
    position = np.arange(length)
    slopes = 2.0 ** (-8 * np.arange(1, heads + 1) / heads)
    scores = np.einsum("qhd,khd->hqk", q, k) / math.sqrt(head_dim)
    scores -= slopes[:, None, None] * np.abs(position[:, None] - position)
    scores[:, documents[:, None] != documents] = -np.inf
    p = np.exp(scores - scores.max(-1, keepdims=True))
    return np.einsum("hqk,khd->qhd", p / p.sum(-1, keepdims=True), v)


def problem(lengths: tuple[int, ...], heads: int) -> tuple[Any, Any]:
    rng = np.random.default_rng(0)
    shape = (3, sum(lengths), heads, HEAD_DIM)
    documents = np.repeat(np.arange(len(lengths), dtype=np.int32), lengths)
    return rng.standard_normal(shape).astype(np.float16), documents


@pytest.mark.sampled(1)
@pytest.mark.on_the_cpu(0)
@pytest.mark.parametrize("lengths", [(70, 1, 200), (64, 64, 128), (33,)])
def test_alibi_and_a_document_mask(backend: Any, lengths: tuple[int, ...]) -> None:
    inputs, documents = problem(lengths, heads=3)

    got = attend(backend, inputs, documents)

    assert np.abs(got - expected(inputs, documents)).max() < 2e-3


@pytest.mark.sampled(1)
@pytest.mark.parametrize("seed", range(2))
def test_it_has_no_race_in_any_order(seed: int) -> None:
    inputs, documents = problem((70, 60), heads=2)

    with emulate.scheduled("adversarial", seed=seed, races=True):
        got = attend(Emulate(), inputs, documents, ctas=1)

    assert np.abs(got - expected(inputs, documents)).max() < 2e-3
