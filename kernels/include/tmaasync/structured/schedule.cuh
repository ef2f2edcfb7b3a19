#pragma once

#include <tmaasync/operands/integers.cuh>

// Tile schedulers of persistent kernels: the tiles that a cluster computes, and their order. All
// have the same interface:
//
//   for (const auto tile : schedule)                           or, to look one tile ahead,
//   for (; !schedule.done(); schedule.step()) schedule.tile()
//
// The range-based loop copies the scheduler, so producer and consumers can share one.
//
//   StaticScheduler     any number of clusters takes the tiles round-robin (CUTLASS's
//                       PersistentTileSchedulerSm90)
//   DynamicScheduler    a cluster that finishes takes the next tile from an atomic counter
//                       (FlashAttention-3's DynamicPersistentTileScheduler)
//   ListScheduler       the host assigns a tile to each cluster in each wave, for example by
//                       longest processing time first (LPT, Graham 1969)
//   StreamKScheduler    all clusters have an equal share of the blocks along K, so that none is
//                       idle in the last wave (stream-K: Osama et al. 2023; CUTLASS's
//                       PersistentTileSchedulerSm90StreamK)
//   GroupedScheduler    the tiles of groups of rows that are packed back to back (CUTLASS's
//                       PersistentTileSchedulerSm90Group)
//   ClusterLaunchScheduler  on Blackwell, a cluster takes the tiles of clusters that it cancels
//                       (cluster_launch_scheduler.cuh; CUTLASS's PersistentTileSchedulerSm100)
//
// The first four and the last take the tiles of OutputTiles, or of a type with the same members.
namespace tmaasync {

// The range of `for (const auto tile : schedule)`, over a copy of the scheduler.
template <typename Scheduler>
class ScheduleIterator {
public:
    struct End {};

    __device__ __forceinline__ explicit ScheduleIterator(const Scheduler& scheduler)
        : scheduler_(scheduler) {}
    __device__ __forceinline__ bool operator!=(End) const { return !scheduler_.done(); }
    __device__ __forceinline__ void operator++() { scheduler_.step(); }
    __device__ __forceinline__ auto operator*() const { return scheduler_.tile(); }

private:
    Scheduler scheduler_;
};

// The base of a scheduler (CRTP).
template <typename Scheduler>
struct Schedule {
    __device__ __forceinline__ auto begin() const {
        return ScheduleIterator<Scheduler>(static_cast<const Scheduler&>(*this));
    }
    __device__ __forceinline__ auto end() const {
        return typename ScheduleIterator<Scheduler>::End{};
    }
};

}  // namespace tmaasync
