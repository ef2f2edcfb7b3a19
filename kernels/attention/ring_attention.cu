// Ring attention (context parallelism): attention of each rank's queries to the keys of all ranks.
// One warp of each CTA pushes the rank's keys and values into buffers of all ranks (ring.cuh),
// another one waits for what other ranks push, and the tensor cores multiply what has arrived. A
// tile attends to all its keys in registers: there are no partial outputs to combine. Tiles and
// constants are as in attention.cu, without packed sequences, FP8 and split-KV. In addition:
//
//   HAS_RIGHT     a causal mask: every rank has two chunks of the sequence (zigzag)
//   PushTile      rows of one KV head that one TMA store pushes, not swizzled
//   PUSH_STAGES   push tiles in flight in a CTA
//
// q and o are the rank's chunks, one and the same without a mask; k and v its own keys and values,
// of all chunks; buffered_k and buffered_v its buffer. `schedule` is the number of each cluster's
// span in each of `waves`, with a causal mask. Any grid covers the spans and pieces; all its CTAs
// are resident at once, since they wait for other ranks.
#include <tmaasync/structured/roles.cuh>

#include "../arrival_ring.cuh"
#include "pipeline.cuh"
#include "producer.cuh"
#include "ring.cuh"
#include "variant.cuh"

using namespace tmaasync;
using namespace tmaasync::kernels;
using namespace tmaasync::kernels::attention;

static_assert(!IS_PACKED && !SPLITS_KEYS && !kIsFp8 && !HAS_LEFT, "not in ring attention");

// A token: a block of keys and values has arrived.
using Arrivals = ArrivalRing<1>;

struct RingMemory : SharedMemory {
    PushRing push;
    Arrivals arrivals;

    __device__ void init() {
        push.init();
        arrivals.init();
        SharedMemory::init();
    }
};
extern "C" __device__ const int ring_attention_shared_bytes = sizeof(RingMemory);

// As in attention.cu; the warps that push and wait need more registers than a producer.
constexpr bool kClaims = CONSUMERS > 1 && (kHasWgmma || sizeof(RingMemory) > 99 * 1024);
using Registers = RegisterSplit<
    !kClaims         ? 0
    : CONSUMERS == 3 ? 32
                     : 40,
    !kClaims         ? 0
    : CONSUMERS == 3 ? 160
                     : 232>;
using Roles = WarpSpecialized<CONSUMERS, Registers, CLUSTER>;

// The producer, which takes a token before it loads a block of keys.
struct GatedProducer {
    const Problem& problem;
    const ChunkedTile<QTile>& q;
    const KTile& k;
    const VTile& v;
    Arrivals& arrivals;
    AttentionProducer<Pipelines> pipelines;
    Arrivals::State next = Arrivals::State::for_consumer();

    __device__ __forceinline__ void load(const Tile& tile) {
        const i32 kv_head = tile.head / problem.heads_per_kv_head;
        const auto load_queries = [&](auto& shared, SharedMemBarrier& full, int consumer) {
            load_rows(q, shared, full, tile, tile.position + consumer * kConsumerPositions);
        };
        pipelines.load(
            Task{{}, tile}, tile.blocks(problem), load_queries,
            [&](auto& ring, i32 block) {
                arrivals.take(next);
                load_block<1, false>(k, ring, problem, tile, tile.entry.keys, kv_head, block);
            },
            [&](auto& ring, i32 block) {
                load_block<1, false>(v, ring, problem, tile, tile.entry.keys, kv_head, block);
            }
        );
    }
};

// Pass a token to the producer for every block that it loads, in that order; called by one thread.
template <typename Scheduler>
__device__ void pass_tokens(Arrivals& arrivals, const RingRound& round, Scheduler schedule) {
    const Problem& problem = round.own.problem;
    auto next = Arrivals::State::for_producer();
    for (const Tile tile : schedule) {
        const i32 kv_head = tile.head / problem.heads_per_kv_head;
        const KeyBlocks blocks = tile.blocks(problem);
        // The rest of the last block is read too, though masked.
        i32 missing = min(blocks.end * BLOCK_N, round.own.buffered_keys());
        for (i32 block = blocks.end - 1; block >= blocks.first; --block) {
            arrivals.pass(next, [&] {
                missing = round.wait_for_rows(tile.entry.index, kv_head, block * BLOCK_N, missing);
            });
        }
    }
}

extern "C" __global__ void __launch_bounds__(Roles::kThreads, 1) ring_attention(
    const __grid_constant__ QTile first_q,
    const __grid_constant__ QTile second_q,
    const __grid_constant__ PushTile k,
    const __grid_constant__ PushTile v,
    const __grid_constant__ OTile first_o,
    const __grid_constant__ OTile second_o,
    float* lse,
    const __grid_constant__ KTile buffered_k,
    const __grid_constant__ VTile buffered_v,
    const TMATensorTileArray<PushTile> targets,
    const __grid_constant__ Signals signals,
    const __grid_constant__ Shards shards,
    u64* rounds,
    const i32* schedule,
    int waves,
    const __grid_constant__ Problem problem
) {
    auto& shared = dynamic_shared<RingMemory>();
    const RankProblem own(problem, signals);
    const auto round_of = [&](u32 caller) {
        const u32 epoch = enter_round(rounds, 2 * blockIdx.x + caller, 2 * gridDim.x);
        return RingRound(signals, shards, own, epoch);
    };
    const auto tiles = ring_schedule({own}, schedule, waves);
    Roles::run_with_helpers(
        shared,
        [&] {
            const ChunkedTile<QTile> q{first_q, second_q, own.second_row()};
            GatedProducer producer{problem,         q,
                                   buffered_k,      buffered_v,
                                   shared.arrivals, AttentionProducer<Pipelines>(shared)};
            load_tiles(producer, tiles);
        },
        [&](int helper) {
            if (helper > 1 || !elect()) return;
            wait_for_previous_grids();
            const RingRound round = round_of(helper);
            if (helper == 0) {
                pass_tokens(shared.arrivals, round, tiles);
            } else {
                if (blockIdx.x == 0) round.enter();
                round.push(shared.push, k, v, targets);
            }
        },
        [&](int index) {
            const ChunkedTile<OTile> o{first_o, second_o, own.second_row()};
            AttentionConsumer<Pipelines> consumer(shared, index);
            consumer.attend(
                Variant<ChunkedTile<OTile>>{{}, shared, problem, o, lse, nullptr, index}
            );
        },
        first_q, second_q, k, v, first_o, second_o, buffered_k, buffered_v
    );
}
