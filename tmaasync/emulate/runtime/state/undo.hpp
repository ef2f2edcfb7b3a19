// The words of global memory, and the blocks of the kernels' heap, that a repeated launch changes.
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

    // Called before a block is freed, and after it is allocated.
    void keep_block(uintptr_t block, bool was_held) { blocks_.try_emplace(block, was_held); }

    // Called at the end of the launch.
    void hand_over(UndoLog& log) const {
        log.words = words_.size();
        log.word = copied<HeldWord>(words_);
        log.blocks = blocks_.size();
        log.block = copied<HeldBlock>(blocks_);
    }

private:
    template <typename Held, typename Map>
    static Held* copied(const Map& map) {
        if (map.empty()) return nullptr;
        auto* const all = static_cast<Held*>(std::malloc(map.size() * sizeof(Held)));
        if (!all) throw std::bad_alloc();
        Held* next = all;
        for (const auto& [address, held] : map) *next++ = {address, held};
        return all;
    }

    std::unordered_map<uintptr_t, uint64_t> words_;
    std::unordered_map<uintptr_t, bool> blocks_;
};

}  // namespace tmaasync_emulate
