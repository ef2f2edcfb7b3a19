// Prefix sums over a group of lanes.
#pragma once

#include <cooperative_groups.h>

#include <cooperative_groups/detail/operators.hpp>
#include <cooperative_groups/detail/update.hpp>
#include <type_traits>

namespace cooperative_groups {

namespace detail {

template <typename Group, typename Target, typename T, typename Operation>
TMAASYNC_EMULATE_INLINE T
held_before(const Group& group, Target& target, T sum, Operation operation) {
    const unsigned last = group.size() - 1;
    T before{};
    if (group.thread_rank() == last) before = update(target, sum, operation);
    return group.shfl(before, last);
}

}  // namespace detail

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

// The last thread adds the total to an atomic object. Each scan continues from the object's old
// value.
template <typename Group, typename Target, typename V, typename Operation>
TMAASYNC_EMULATE_INLINE auto inclusive_scan_update(
    const Group& group, Target&& target, V value, Operation operation
) {
    const auto sum = inclusive_scan(group, value, operation);
    const auto before = detail::held_before(group, target, sum, operation);
    return operation(before, sum);
}
template <typename Group, typename Target, typename V>
TMAASYNC_EMULATE_INLINE V inclusive_scan_update(const Group& group, Target&& target, V value) {
    return inclusive_scan_update(group, target, value, plus<V>());
}

template <typename Group, typename Target, typename V, typename Operation>
TMAASYNC_EMULATE_INLINE auto exclusive_scan_update(
    const Group& group, Target&& target, V value, Operation operation
) {
    const auto sum = inclusive_scan(group, value, operation);
    const auto before = detail::held_before(group, target, sum, operation);
    const auto preceding = group.shfl_up(sum, 1);
    return group.thread_rank() == 0 ? before : operation(before, preceding);
}
template <typename Group, typename Target, typename V>
TMAASYNC_EMULATE_INLINE V exclusive_scan_update(const Group& group, Target&& target, V value) {
    return exclusive_scan_update(group, target, value, plus<V>());
}

}  // namespace cooperative_groups
