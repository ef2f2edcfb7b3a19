// Copies between GPUs, and signals between them.
#include <tmaasync/tmaasync.cuh>

using namespace tmaasync;

constexpr int kStages = 8;
// A stage is loaded again when this number of later stores has been issued.
constexpr int kLaterStores = kStages / 2;
// Tiles that a CTA claims by one atomic operation. With 1 four CTAs store 147 GB/s, with 4 they
// store 183 (two H200s, 2026-11-24).
constexpr int kClaimed = 4;

using StageState = PipelineState<kStages>;

struct MoveMemory {
    Tile::Shared tiles[kStages];
    SharedMemBarrier full[kStages];
    // Rows of the tile in each stage, or -1 after the last tile. Indexed at run time, so kept here.
    int rows[kStages];
};
extern "C" __device__ const int move_shared_bytes = sizeof(MoveMemory);

enum Kind { kPull, kPush, kPushAndAdd };

// For each peer: how many batches of kClaimed tiles are claimed, and how many CTAs have finished.
struct Counters {
    int claimed;
    int finished;
};

// One thread per CTA moves tiles between `rank` and its peer number blockIdx.y: the sender's array
// goes to the sender's slot in the receiver's inbox, or is added to the receiver's own slot.
//
// Each CTA claims its next tiles from an atomic counter. With static_schedule all CTAs move equally
// many tiles, and those that the full link serves more slowly finish last.
extern "C" __global__ void move(
    const TMATensorTileArray<Tile> own,
    const TMATensorTileArray<Tile> inboxes,
    Counters* counters,
    int rank,
    int ranks,
    int tiles,
    int kind,
    bool static_schedule
) {
    auto& shared = dynamic_shared<MoveMemory>();
    for (auto& full : shared.full) full.init(1);
    fence_barrier_init();
    const int peer = (rank + 1 + blockIdx.y) % ranks;
    const int from = kind == kPull ? peer : rank;
    const int to = kind == kPull ? rank : peer;
    const Tile& source = own[from];
    const Tile& target = inboxes[to];
    const int slot_row = (kind == kPushAndAdd ? to : from) * tiles * Tile::side(0);
    Counters& counter = counters[blockIdx.y];

    int next_batch = blockIdx.x;
    const auto claim = [&] {
        if (!static_schedule) return kClaimed * atomicAdd(&counter.claimed, 1);
        const int first = kClaimed * next_batch;
        next_batch += gridDim.x;
        return first;
    };
    int tile = claim();
    const auto load = [&](int stage) {
        shared.rows[stage] = tile < tiles ? tile * Tile::side(0) : -1;
        if (tile >= tiles) return;
        auto& full = shared.full[stage];
        full.expect_bytes(Tile::kBytes);
        source.async_copy(shared.tiles[stage], full, {0, shared.rows[stage]});
        if (++tile % kClaimed == 0) tile = claim();
    };
    for (int stage = 0; stage < kStages; ++stage) load(stage);
    auto state = StageState::for_consumer();
    for (int number = 0; shared.rows[state.index] >= 0; ++number, state.step()) {
        shared.full[state.index].wait(state.phase);
        const Coordinates<2> at{0, slot_row + shared.rows[state.index]};
        if (kind == kPushAndAdd) {
            target.async_reduce<ReduceOp::kAdd>(shared.tiles[state.index], at);
        } else {
            target.async_store(shared.tiles[state.index], at);
        }
        commit_group();
        if (number >= kLaterStores) {
            wait_group_read<kLaterStores>();
            load((number - kLaterStores) % kStages);
        }
    }
    wait_group<0>();
    // The last CTA leaves zeros for the next launch.
    __threadfence();
    if (atomicAdd(&counter.finished, 1) == static_cast<int>(gridDim.x) - 1) counter = {0, 0};
}

// A signal to a peer and back.
extern "C" __global__ void ping(const Signals signals, u32 rounds) {
    const u32 other = 1 - signals.rank;
    for (u32 epoch = 1; epoch <= rounds; ++epoch) {
        if (signals.rank == 0) signals.post(other, 0, epoch);
        signals.wait(0, epoch);
        if (signals.rank == 1) signals.post(other, 0, epoch);
    }
}

extern "C" __global__ void barriers(const Signals signals, u32 rounds) {
    for (u32 epoch = 1; epoch <= rounds; ++epoch) signals.sync_ranks(0, epoch);
}

struct HandMemory {
    Tile::Shared sent;
    Tile::Shared received;
    SharedMemBarrier full;
};
extern "C" __device__ const int hand_over_shared_bytes = sizeof(HandMemory);

// Every block of each rank stores a tile of its own numbers to the next rank by TMA, posts, waits
// for the tile of the rank before, and reads it: by TMA, or with ordinary loads. `wrong` counts
// the elements that are not of the round.
extern "C" __global__ void hand_over(
    const Signals signals,
    const TMATensorTileArray<Tile> tiles,
    const int* mine,
    u32 rounds,
    bool by_tma,
    int* wrong
) {
    auto& shared = dynamic_shared<HandMemory>();
    constexpr int kElements = Tile::side(0) * Tile::side(1);
    const u32 next = (signals.rank + 1) % signals.ranks;
    const u32 before = (signals.rank + signals.ranks - 1) % signals.ranks;
    const u32 arrived = 2 * blockIdx.x, free = arrived + 1;
    const int row = blockIdx.x * Tile::side(0);
    if (threadIdx.x == 0) {
        shared.full.init(1);
        fence_barrier_init();
    }
    __syncthreads();
    int found_wrong = 0;
    for (u32 epoch = 1; epoch <= rounds; ++epoch) {
        for (int i = threadIdx.x; i < kElements; i += blockDim.x) {
            shared.sent.data()[i] = epoch * 16 + signals.rank + i;
        }
        fence_async_view_proxy();
        __syncthreads();
        if (threadIdx.x == 0) {
            signals.wait(free, epoch - 1);  // the next rank has read the tile of the round before
            tiles[next].async_store(shared.sent, {0, row});
            commit_group();
            wait_group<0>();
            signals.post(next, arrived, epoch);
            signals.wait(arrived, epoch);
            if (by_tma) {
                shared.full.expect_bytes(Tile::kBytes);
                tiles[signals.rank].async_copy(shared.received, shared.full, {0, row});
                shared.full.wait((epoch - 1) % 2);
            }
        }
        __syncthreads();
        for (int i = threadIdx.x; i < kElements; i += blockDim.x) {
            const int value = by_tma ? static_cast<int>(shared.received.data()[i])
                                     : mine[row * Tile::side(1) + i];
            found_wrong += value != static_cast<int>(epoch * 16 + before + i);
        }
        __syncthreads();
        if (threadIdx.x == 0) signals.post(before, free, epoch);
    }
    if (found_wrong) atomicAdd(wrong, found_wrong);
}
