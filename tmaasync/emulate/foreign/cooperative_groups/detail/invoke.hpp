// One thread of a group calls a function.
#pragma once

#include <cooperative_groups/detail/tiles.hpp>
#include <utility>

namespace cooperative_groups {

template <typename Group, typename Function, typename... Arguments>
TMAASYNC_EMULATE_INLINE void invoke_one(
    const Group& group, Function&& function, Arguments&&... arguments
) {
    if (group.thread_rank() != 0) return;
    ::std::forward<Function>(function)(::std::forward<Arguments>(arguments)...);
}

// The result goes to all threads of a group of lanes.
template <typename Group, typename Function, typename... Arguments>
TMAASYNC_EMULATE_INLINE auto invoke_one_broadcast(
    const Group& group, Function&& function, Arguments&&... arguments
) {
    using Result = decltype(function(::std::forward<Arguments>(arguments)...));
    Result result{};
    if (group.thread_rank() == 0) {
        result = ::std::forward<Function>(function)(::std::forward<Arguments>(arguments)...);
    }
    return group.shfl(result, 0);
}

}  // namespace cooperative_groups
