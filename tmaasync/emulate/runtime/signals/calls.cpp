// The functions that kernels call for signals.

#include "schedule/caller.hpp"
#include "signals/signals.hpp"

namespace tmaasync_emulate {

uint32_t load_acquire_system(const uint32_t* word) {
    return acquire_word(TMAASYNC_EMULATE_CALLER(), word);
}

void store_release_system(uint32_t* word, uint32_t value) {
    release_word(TMAASYNC_EMULATE_CALLER(), word, [=](uint32_t) { return value; });
}

void add_release_system(uint32_t* word, uint32_t value) {
    release_word(TMAASYNC_EMULATE_CALLER(), word, [=](uint32_t old) { return old + value; });
}

void post_signal(uint32_t* word, uint32_t rank, uint32_t signal, uint32_t epoch) {
    Fiber& fiber = TMAASYNC_EMULATE_CALLER();
    const auto change = [&](uint32_t old) {
        check_epoch_increases(fiber, {rank, signal, epoch}, old);
        return epoch;
    };
    release_word(fiber, word, change, {rank, signal, PostedBy::kPost});
}

void add_to_signal(uint32_t* word, uint32_t rank, uint32_t signal, uint32_t value) {
    const auto change = [=](uint32_t old) { return old + value; };
    release_word(TMAASYNC_EMULATE_CALLER(), word, change, {rank, signal, PostedBy::kPostReduce});
}

void wait_for_signal(const uint32_t* word, uint32_t rank, uint32_t signal, uint32_t epoch) {
    wait_for_epoch(TMAASYNC_EMULATE_CALLER(), word, {rank, signal, epoch});
}

}  // namespace tmaasync_emulate
