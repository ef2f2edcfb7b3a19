// The stacks of CUDA threads.
#pragma once

#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <new>
#include <tmaasync_emulate/calls.hpp>

#include "host/context.hpp"
#include "host/kept.hpp"

namespace tmaasync_emulate {

// Stacks of equal size. Each has a guard page below it, as long as the process has mappings left:
// Linux allows 65,530, and a stack with its guard page takes two.
class Stacks {
public:
    explicit Stacks(std::size_t count) : count_(count), mapped_bytes_((count + 1) * kStackBytes) {
        constexpr int kFlags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
        mapped_ = mmap(nullptr, mapped_bytes_, PROT_READ | PROT_WRITE, kFlags, -1, 0);
        if (mapped_ == MAP_FAILED) throw std::bad_alloc();
        const auto start = reinterpret_cast<std::uintptr_t>(mapped_) + kStackBytes - 1;
        first_ = reinterpret_cast<std::byte*>(start & ~(kStackBytes - 1));
        const bool is_guarded = guarded() + count <= kMostGuarded;
        guarded_ = is_guarded ? count : 0;
        guarded() += guarded_;
        if (!is_guarded) return;
        const auto guard_bytes = static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
        for (std::size_t i = 0; i < count; ++i) {
            if (mprotect(at(i), guard_bytes, PROT_NONE) == 0) continue;
            release();
            throw std::bad_alloc();
        }
    }
    ~Stacks() { release(); }
    Stacks(const Stacks&) = delete;
    Stacks& operator=(const Stacks&) = delete;

    std::size_t size() const { return count_; }
    bool are_guarded() const { return guarded_ > 0; }
    std::byte* at(std::size_t index) const { return first_ + index * kStackBytes; }

    // The thread's stack: accesses are not checked.
    Reach reach_of(std::size_t index) const {
        const auto start = reinterpret_cast<std::uintptr_t>(at(index));
        const auto guard_bytes = static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
        return {start + guard_bytes, start + kStackBytes - kStackWords * sizeof(void*)};
    }

    // True if the address lies in a guard page.
    bool is_guard(std::uintptr_t address) const {
        const auto start = reinterpret_cast<std::uintptr_t>(first_);
        const auto page_bytes = static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
        return start <= address && address < start + mapped_bytes_ - kStackBytes &&
               address % kStackBytes < page_bytes;
    }

    void set_owner(std::size_t index, Thread* owner) const {
        *(reinterpret_cast<Thread**>(at(index + 1)) - 1) = owner;
    }

private:
    static constexpr std::size_t kMostGuarded = 24'000;

    static std::atomic<std::size_t>& guarded() {
        static std::atomic<std::size_t> stacks{0};
        return stacks;
    }

    void release() {
        guarded() -= guarded_;
        munmap(mapped_, mapped_bytes_);
    }

    std::size_t count_;
    void* mapped_;
    std::byte* first_;
    std::size_t mapped_bytes_;
    std::size_t guarded_ = 0;
};

// 1024 stacks take 128 MiB if each has been used to its full depth, and mostly 8 MiB.
using KeptStacks = Kept<Stacks, 1024>;

}  // namespace tmaasync_emulate
