// Prefix sums over a group of lanes.
#pragma once

#include <cooperative_groups.h>

#include <cooperative_groups/detail/operators.hpp>
#include <type_traits>

namespace cooperative_groups {

template <typename Group, typename T, typename Operation>
TMAASYNC_EMULATE_INLINE auto inclusive_scan(const Group& group, T value, Operation operation) {
    using Result = ::std::decay_t<decltype(operation(value, value))>;
    Result sum(value);
    for (unsigned delta = 1; delta < group.size(); delta *= 2) {
        const Result before = group.shfl_up(sum, delta);
        if (group.thread_rank() >= delta) sum = operation(before, sum);
    }
    return sum;
}
template <typename Group, typename T>
TMAASYNC_EMULATE_INLINE T inclusive_scan(const Group& group, T value) {
    return inclusive_scan(group, value, plus<T>());
}

// The first thread gets a zero.
template <typename Group, typename T, typename Operation>
TMAASYNC_EMULATE_INLINE auto exclusive_scan(const Group& group, T value, Operation operation) {
    const auto sum = inclusive_scan(group, value, operation);
    const auto before = group.shfl_up(sum, 1);
    return group.thread_rank() == 0 ? ::std::decay_t<decltype(before)>{} : before;
}
template <typename Group, typename T>
TMAASYNC_EMULATE_INLINE T exclusive_scan(const Group& group, T value) {
    return exclusive_scan(group, value, plus<T>());
}

}  // namespace cooperative_groups
