#pragma once

#include <tmaasync/barrier.cuh>

namespace tmaasync {

// A range over the next stages of a producer or consumer, for a range-based for loop.
template <typename Owner>
class [[nodiscard]] StageRange {
public:
    struct End {};

    class Iterator {
    public:
        __device__ __forceinline__ Iterator(Owner& owner, int count, const WaitLocation& location)
            : owner_(owner), count_(count), location_(location) {}
        __device__ __forceinline__ bool operator!=(End) const { return iteration_ < count_; }
        __device__ __forceinline__ void operator++() { ++iteration_; }
        __device__ __forceinline__ auto operator*() const {
            return owner_.acquire_next(iteration_, location_);
        }

    private:
        Owner& owner_;
        int count_;
        int iteration_ = 0;
        WaitLocation location_;
    };

    __device__ __forceinline__ StageRange(Owner& owner, int count, const WaitLocation& location)
        : first_(owner, count, location) {}
    __device__ __forceinline__ Iterator begin() const { return first_; }
    __device__ __forceinline__ End end() const { return {}; }

private:
    Iterator first_;
};

}  // namespace tmaasync
