// The words of global memory that a repeated launch changes.
#pragma once

#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <new>
#include <unordered_map>

#include "abi.hpp"

namespace tmaasync_emulate {

class Undo {
public:
    // Called before each write.
    void keep(uintptr_t address, uint64_t bytes) {
        constexpr uintptr_t kBytes = sizeof(uint64_t);
        for (uintptr_t at = address / kBytes * kBytes; at < address + bytes; at += kBytes) {
            const auto [place, is_new] = words_.try_emplace(at);
            if (is_new) std::memcpy(&place->second, reinterpret_cast<const void*>(at), kBytes);
        }
    }

    // Called at the end of the launch.
    void hand_over(UndoLog& log) const {
        log.words = words_.size();
        log.word = nullptr;
        if (words_.empty()) return;
        log.word = static_cast<HeldWord*>(std::malloc(words_.size() * sizeof(HeldWord)));
        if (!log.word) throw std::bad_alloc();
        HeldWord* next = log.word;
        for (const auto& [address, word] : words_) *next++ = {address, word};
    }

private:
    std::unordered_map<uintptr_t, uint64_t> words_;
};

}  // namespace tmaasync_emulate
