#pragma once

#include <tmaasync/fragment.cuh>
#include <tmaasync/ptx/ldmatrix.cuh>
#include <tmaasync/ptx/stmatrix.cuh>
#include <tmaasync/structured/ring.cuh>
#include <tmaasync/warp.cuh>

// The values of an attention kernel on their way to the consumers: one ring that TMA fills; for FP8
// values as they lie in memory, two, and warps that transpose each block from one to the other
// (as in FlashAttention-3, section 3.3), because wgmma takes FP8 values only with the keys
// contiguous.
namespace tmaasync {

// The warps of the producer that issue no loads.
constexpr int kTransposerWarps = 3;

// Next to a stage of loaded values: whether there are no more.
struct ValuesEnd {
    bool is_end;
};

// `loaded()` is what TMA fills, `read()` what the consumers read.
template <typename Operands, int kStages, typename Consumers, typename Group, bool kTransposes>
struct ValueRingsOf {
    using Loaded = Ring<typename Operands::ValueTile::Shared, kStages, Consumers, Group>;
    using Read = Loaded;

    Loaded ring;

    __device__ __forceinline__ Loaded& loaded() { return ring; }
    __device__ __forceinline__ Read& read() { return ring; }
    __device__ __forceinline__ void init() { ring.init(); }
};

template <typename Operands, int kStages, typename Consumers, typename Group>
struct ValueRingsOf<Operands, kStages, Consumers, Group, true> {
    struct alignas(1024) Transposed {
        unsigned char bytes[Operands::kHeadDim * Operands::kKeys];
    };
    using Tile = typename Operands::ValueTile;
    using Loaded =
        Ring<typename Tile::Shared, kStages, ConsumerWarps<kTransposerWarps>, Group, ValuesEnd>;
    // Two: one is read while the other is written.
    using Read = Ring<Transposed, 2, Consumers, ProducerThreads<32 * kTransposerWarps>>;

    Loaded loaded_ring;
    Read read_ring;

    __device__ __forceinline__ Loaded& loaded() { return loaded_ring; }
    __device__ __forceinline__ Read& read() { return read_ring; }
    __device__ __forceinline__ void init() {
        loaded_ring.init();
        read_ring.init();
        for (auto& side : loaded_ring.side) side = {false};
    }
};

// One of kTransposerWarps warps: transposes its share of each block, until the producer ends.
// Every sixteen keys come in the order of column_of_k, in which a thread holds their probabilities.
template <typename Pipelines>
class ValueTransposer {
    using Operands = typename Pipelines::Operands;
    using Rings = typename Pipelines::ValueRings;
    using Values = WgmmaBuffer<
        typename Operands::Element,
        Operands::ValueTile::kSwizzle,
        Major::kK,
        Operands::kKeys,
        Operands::kHeadDim>;
    using Transposed = typename Operands::V;

public:
    __device__ __forceinline__ explicit ValueTransposer(Pipelines& pipelines, int warp)
        : loaded_(pipelines.values.loaded().consumer()),
          transposed_(pipelines.values.read().template thread_producer<Writes::kStores>()),
          warp_(warp) {}

    __device__ __forceinline__ void run() {
        while (true) {
            loaded_.wait();
            if (loaded_.peek_side().is_end) return;
            transpose_block(loaded_.peek().bytes);
            loaded_.release(loaded_.index());
            loaded_.step();
        }
    }

private:
    static constexpr int kSixteens = Operands::kKeys / 16;
    static constexpr int kColumnBlocks = Operands::kHeadDim / 32;

    __device__ __forceinline__ void transpose_block(const unsigned char* values) {
        const auto transposed = transposed_.acquire();
        transpose(ptx::shared_address(values), ptx::shared_address(transposed->bytes));
    }

    // A warp takes sixteen keys of 32 columns at a time. ldmatrix with .trans gives a lane two
    // columns of two neighbouring keys; of keys 0 and 8 on, its bytes are the four keys that
    // column_of_k puts next to each other.
    __device__ __forceinline__ void transpose(u32 values, u32 transposed) const {
        const int lane = lane_index();
        // Lane l names row l % 8 of the 8x8 matrix l / 8: keys 0 and 8 on, then 16 columns on.
        const int key = lane % 16, from_column = lane / 16 * 16;
        // A row of the transposed matrices is a column: even ones and odd ones. The last four of
        // each are exchanged, so that the eight rows of a matrix lie in different banks.
        const int pair = lane % 8;
        const int to_column = lane / 16 * 16 + 2 * pair + (pair / 4 ^ lane / 8 % 2);
        const bool is_exchanged = lane / 4 >= 4;
        const u32 first = is_exchanged ? 0x7531 : 0x6420;
        const u32 second = is_exchanged ? 0x6420 : 0x7531;
#pragma unroll 1
        for (int sixteen = warp_; sixteen < kSixteens; sixteen += kTransposerWarps) {
#pragma unroll
            for (int block = 0; block < kColumnBlocks; ++block) {
                const u32 from = Values::offset_bytes(16 * sixteen + key, 32 * block + from_column);
                const u32 to = Transposed::offset_bytes(32 * block + to_column, 16 * sixteen);
                u32 m[4];
                ptx::ldmatrix_x4_trans(values + from, m[0], m[1], m[2], m[3]);
                ptx::stmatrix_x4(
                    transposed + to, __byte_perm(m[0], m[1], first),
                    __byte_perm(m[0], m[1], second), __byte_perm(m[2], m[3], first),
                    __byte_perm(m[2], m[3], second)
                );
            }
        }
    }

    RingConsumer<typename Rings::Loaded, Proxy::kGeneric> loaded_;
    RingProducer<typename Rings::Read, ThreadStage<typename Rings::Read, Writes::kStores>>
        transposed_;
    int warp_;
};

// The work of a producer warp that issues no loads: transposes values, if the kernel does. `warp`
// counts these warps from 0.
template <typename Pipelines>
__device__ __forceinline__ void transpose_values(Pipelines& pipelines, int warp) {
    if constexpr (Pipelines::Operands::kTransposesValues) {
        ValueTransposer<Pipelines>(pipelines, warp).run();
    }
}

}  // namespace tmaasync
