// The rule that a race breaks, and reads that begin a loop over atomicCAS().
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
    if (race.lacks_proxy_fence) {
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

bool Detector::may_begin_exchange(const Race& race) {
    const auto is_read = [](const Access& access) { return access.operation == Operation::kRead; };
    const Access& read = is_read(race.first) ? race.first : race.second;
    const Access& other = is_read(race.first) ? race.second : race.first;
    // Not a red.async, whose agent is an mbarrier's.
    const bool is_of_thread = !other.is_async && other.agent == other.thread;
    if (!is_read(read) || !other.is_atomic() || !is_of_thread) return false;
    const auto found = grid_.detectors.find(read.cluster);
    return found != grid_.detectors.end() && found->second->await_exchange(read.thread, race);
}

bool Detector::await_exchange(uint32_t thread, const Race& race) {
    if (has_ended_[thread]) return false;
    for (const auto& [reader, known] : first_reads_) {
        if (reader == thread && address_of(known.place) == address_of(race.place)) return true;
    }
    first_reads_.emplace_back(thread, race);
    return true;
}

void Detector::exchange(uint32_t thread, uintptr_t address) {
    if (first_reads_.empty()) return;
    std::erase_if(first_reads_, [&](const auto& one) {
        const auto& [reader, race] = one;
        return reader == thread && address_of(race.place) == address / kCellBytes * kCellBytes;
    });
}

void Detector::end_thread(uint32_t thread) {
    has_ended_[thread] = true;
    for (const auto& [reader, race] : first_reads_) {
        if (reader == thread) return report(race);
    }
}

}  // namespace tmaasync_emulate
