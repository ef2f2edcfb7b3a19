#pragma once

#include <tmaasync/cluster.cuh>
#include <tmaasync/structured/partial_accumulators.cuh>

// Split-K reduced through the distributed shared memory of a cluster, deterministically and without
// a workspace: each of Cluster::kSplitK CTAs multiplies its own KRange for all columns of the tile.
// Then the first kSlices of them reduce and store a slice of the columns each: CTA i has
// kSliceColumns from i * kSliceColumns on.
namespace tmaasync {

// How many CTAs store a slice: as many as the tile has whole chunks for.
__device__ constexpr int count_slices(int splits, int columns, int chunk_columns) {
    int slices = splits;
    while (columns % (slices * chunk_columns) != 0) --slices;
    return slices;
}

// The synchronisations of a SplitKReduction, in which all threads of the cluster take part: the
// consumers in reduce(), and the producer in join(), which WarpSpecialized calls.
template <typename Cluster>
struct SplitKExchange {
    static constexpr int kSharingCtas = Cluster::kM * Cluster::kN;
    static constexpr bool kEndsAccesses = Cluster::kSplitK > 1;

    // Wait until every CTA has read its stages for the last time.
    __device__ __forceinline__ static void begin() { cluster_sync(); }

    // Wait until all partial sums have arrived. No CTA accesses another one's memory any more.
    __device__ __forceinline__ static void end() { cluster_sync(); }

    __device__ __forceinline__ static void join() {
        if constexpr (Cluster::kSplitK > 1) {
            begin();
            end();
        }
    }
};

// The reduction of Accumulators (MainLoop::Accumulators) of every consumer. A slice has whole
// chunks of kChunkColumns, in which the epilogue stores it. The roles are WarpSpecialized with
// SplitKExchange<Cluster>.
template <typename Accumulators, int kChunkColumns, typename Cluster, int kConsumers>
struct SplitKReduction {
    using Shape = AccumulatorShape<Accumulators>;
    using Register = typename Shape::Register;
    static constexpr int kRowBlocks = Shape::kRowBlocks;
    static constexpr int kSplits = Cluster::kSplitK;
    static constexpr int kSlices = count_slices(kSplits, Shape::kColumns, kChunkColumns);
    static constexpr int kSliceColumns = Shape::kColumns / kSlices;
    // The accumulators of the columns that this CTA stores.
    using Slice = Register[kRowBlocks][kSliceColumns / 2];

    static_assert(Shape::kColumns % kChunkColumns == 0, "a tile has whole chunks of columns");

    // Leave the sum of all CTAs' accumulators in `slice`, if this CTA has one. Called once, by all
    // consumers of all CTAs of the cluster. `scratch` is shared memory that nothing else uses from
    // now on: the stages of the ring, so that a cluster multiplies one tile. It is written once
    // every CTA has read its stages for the last time.
    template <typename Scratch>
    __device__ __forceinline__ static void reduce(
        Scratch& scratch, const Accumulators& accumulators, Slice& slice
    ) {
        static_assert(
            (kSplits - 1) * sizeof(PartialSlice) <= sizeof(Scratch),
            "the scratch memory holds the partial sums of all peers: use more stages"
        );
        auto* received = reinterpret_cast<PartialSlice*>(&scratch);
        Exchange::begin();
        send_slices(received, accumulators);
        keep_own_slice(slice, accumulators);
        Exchange::end();
        if (Cluster::split_rank() < kSlices) add_received(slice, received);
    }

private:
    using Exchange = SplitKExchange<Cluster>;

    // The partial sums of a slice that one CTA sends to another.
    using PartialSlice = PartialAccumulators<Slice, kConsumers * 128>;

    __device__ __forceinline__ static int consumer_thread() {
        return static_cast<int>(threadIdx.x) - 128;
    }

    // Where this CTA's partial sums go, in the shared memory of the owner of a slice. A CTA numbers
    // its peers in the order of their ranks.
    __device__ __forceinline__ static PartialSlice& remote_slice(
        PartialSlice* received, int owner
    ) {
        const int rank = Cluster::split_rank();
        const int sharing = Cluster::kM * Cluster::kN;
        auto& slice = received[rank < owner ? rank : rank - 1];
        return *map_shared_rank(&slice, owner * sharing + Cluster::Sharing::rank());
    }

    // Sends every slice to its owner. The CTAs start with different owners, because the writes of
    // all to one would queue up.
    __device__ __forceinline__ static void send_slices(
        PartialSlice* received, const Accumulators& accumulators
    ) {
#pragma unroll 1
        for (int step = 1; step < kSplits; ++step) {
            const int owner = (Cluster::split_rank() + step) % kSplits;
            if (owner >= kSlices) continue;
            auto& remote = remote_slice(received, owner);
            // Registers have no run-time index.
#pragma unroll
            for (int slice = 0; slice < kSlices; ++slice) {
                if (slice != owner) continue;
                remote.write(consumer_thread(), accumulators, slice * (kSliceColumns / 2));
            }
        }
    }

    __device__ __forceinline__ static void keep_own_slice(
        Slice& slice, const Accumulators& accumulators
    ) {
#pragma unroll
        for (int owner = 0; owner < kSlices; ++owner) {
            if (owner != Cluster::split_rank()) continue;
#pragma unroll
            for (int row_block = 0; row_block < kRowBlocks; ++row_block) {
#pragma unroll
                for (int i = 0; i < kSliceColumns / 2; ++i) {
                    const int first = owner * (kSliceColumns / 2);
                    slice[row_block][i] = accumulators[row_block][first + i];
                }
            }
        }
    }

    // Adds the peers' partial sums to this CTA's own, in the order of their ranks: deterministic.
    __device__ __forceinline__ static void add_received(
        Slice& slice, const PartialSlice* received
    ) {
        for (int peer = 0; peer < kSplits - 1; ++peer) {
            received[peer].add_to(consumer_thread(), slice);
        }
    }
};

}  // namespace tmaasync
