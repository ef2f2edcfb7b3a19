#pragma once

#include <tmaasync/cluster.cuh>
#include <tmaasync/operands/integers.cuh>

// Who fills the stages of a ring, and who reads them.
namespace tmaasync {

// The number of warps of a CTA that consume a ring; each warp releases every stage.
template <int kConsumerWarps>
struct ConsumerWarps {
    static_assert(kConsumerWarps >= 1 && kConsumerWarps <= 32, "a CTA has 1 to 32 warps");
    static constexpr int kWarps = kConsumerWarps;
};

// Bytes that copies write into a stage: Stage::kBytes, or the size of a stage without padding.
template <typename Stage, typename = void>
struct StageBytes {
    static_assert(
        __has_unique_object_representations(Stage),
        "the stage has padding, which no copy fills: declare `static constexpr int kBytes` in it, "
        "the sum of kBytes of its tiles"
    );
    static constexpr u32 kBytes = sizeof(Stage);
};
template <typename Stage>
struct StageBytes<Stage, decltype(static_cast<void>(Stage::kBytes))> {
    static constexpr u32 kBytes = Stage::kBytes;
    static_assert(kBytes <= sizeof(Stage), "Stage::kBytes exceeds the size of the stage");
};

// CTAs that multicast into each other's rings: groups of kSharingCtas adjacent CTAs, with
// kGroupsPerCluster groups per cluster. With Multicast<1> only the own CTA fills a ring.
template <int kSharingCtas, int kGroupsPerCluster = 1>
struct Multicast {
    static constexpr int kCtas = kSharingCtas;
    static constexpr int kGroups = kGroupsPerCluster;
    // Arrivals on a full barrier: the one thread that issues the TMA loads.
    static constexpr int kProducerThreads = 1;
    static constexpr bool kIsLoadedByTma = true;
    template <typename Stage>
    static constexpr u32 kStageBytes = StageBytes<Stage>::kBytes;
    static_assert(
        kCtas >= 1 && kGroups >= 1 && kCtas * kGroups <= 16, "a cluster has 1 to 16 CTAs"
    );

    // The cluster rank of the first CTA in this CTA's group, and this CTA's rank in the group.
    __device__ __forceinline__ static u32 first_rank() {
        if constexpr (kGroups == 1) return 0;
        return block_rank_in_cluster() / kCtas * kCtas;
    }
    __device__ __forceinline__ static u32 rank() {
        if constexpr (kCtas == 1) return 0;
        if constexpr (kGroups == 1) return block_rank_in_cluster();
        return block_rank_in_cluster() % kCtas;
    }
    __device__ __forceinline__ static u16 cta_mask() {
        return static_cast<u16>(((1u << kCtas) - 1) << first_rank());
    }
};

// Used instead of Multicast: the threads of a CTA that fill its ring with cp.async or ordinary
// stores. Each thread arrives on every stage.
template <int kThreads>
struct ProducerThreads : Multicast<1> {
    static_assert(kThreads >= 1 && kThreads <= 1024, "a CTA has 1 to 1024 threads");
    static constexpr int kProducerThreads = kThreads;
    static constexpr bool kIsLoadedByTma = false;
    // No bytes are expected, and the stage may have padding.
    template <typename Stage>
    static constexpr u32 kStageBytes = 0;
};

// How a producer thread writes into a stage: only with cp.async, which arrives when the copies
// have landed, or with ordinary stores.
enum class Writes { kCpAsync, kStores };

// The reader of a stage: the generic proxy (ordinary loads, ldmatrix), or only the async proxy
// (wgmma and TMA stores, for whose completion the warp has waited). kMixed: the async proxy reads
// data that peers multicast, the generic proxy only data of the own producer, such as scales.
enum class Proxy { kGeneric, kAsync, kMixed };

}  // namespace tmaasync
