// The rule that a race breaks.
#include "races/detector.hpp"

namespace tmaasync_emulate {

Rule rule_of(const Race& race) {
    const Access &first = race.first, &second = race.second;
    if (race.is_between_devices) return Rule::kNone;
    if (first.operation == Operation::kBarrierInit) {
        return race.lacks_proxy_fence ? Rule::kInitWithoutFence : Rule::kNone;
    }
    if (race.place.space == Space::kRegisters) return Rule::kWgmmaRegisters;
    const bool is_map = second.operation == Operation::kMapRead;
    if (race.lacks_proxy_fence && second.operation == Operation::kClusterResponse) {
        return Rule::kResponseWithoutProxyFence;
    }
    const bool is_tcgen05 =
        second.operation == Operation::kTcgen05Mma || second.operation == Operation::kTcgen05Copy;
    if (race.lacks_proxy_fence) {
        if (is_tcgen05) return Rule::kTcgen05ProxyFence;
        return is_map ? Rule::kMapWithoutAcquire : Rule::kWriteWithoutProxyFence;
    }
    if (race.lacks_acquire) return Rule::kPollWithoutAcquire;
    const auto is_plain = [](const Access& access) {
        return access.operation == Operation::kRead || access.operation == Operation::kWrite;
    };
    const auto is_of_block = [](const Access& access) {
        return access.operation == Operation::kBlockAtomic;
    };
    if (first.is_atomic() && second.is_atomic()) {
        return is_of_block(first) || is_of_block(second) ? Rule::kBlockScopeAtomic : Rule::kNone;
    }
    const bool has_atomic = first.is_atomic() || second.is_atomic();
    const bool has_plain = is_plain(first) || is_plain(second);
    return has_atomic && has_plain ? Rule::kPlainAccessToAtomic : Rule::kNone;
}

}  // namespace tmaasync_emulate
