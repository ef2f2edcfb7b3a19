// Shadow memory: the latest accesses to each byte, in cells of eight bytes.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <optional>
#include <unordered_map>
#include <vector>

#include "abi.hpp"
#include "races/clocks.hpp"

namespace tmaasync_emulate {

// One access to one cell.
struct Access {
    Agent agent = kNoAgent;
    Epoch epoch = 0;
    uint32_t thread = 0;   // index in the cluster of the thread that made or issued it
    uint32_t cluster = 0;  // index in the grid
    uintptr_t site = 0;    // location in the kernel
    uint32_t order = 0;    // number among the accesses and issued operations of all threads
    uint8_t bytes = 0;     // one bit for each byte of the cell
    bool is_write : 1 = false;
    bool is_async : 1 = false;   // by the async proxy
    bool is_system : 1 = false;  // atomic for all devices
    uint8_t rank : 5 = 0;        // CTA of the thread, in its cluster
    Operation operation = Operation::kRead;
    // True for a write to bytes that threads of other clusters had read: their L1 may hold the old
    // bytes.
    bool had_readers : 1 = false;
    uint8_t pattern : 7 = 0;  // loads through a tensor map only: 1 + the swizzle
    // All bits have values, so that accesses can be compared as bytes.

    // A reduction is atomic where it adds to its target. It reads its source ordinarily.
    bool is_atomic() const {
        const bool is_reduction =
            operation == Operation::kTmaReduce || operation == Operation::kTmaPushReduce;
        return operation == Operation::kAtomic || operation == Operation::kBlockAtomic ||
               (is_reduction && is_write);
    }
    bool is_store() const { return is_write && !is_atomic(); }
    bool is_atomic_for(const Access& other) const {
        const bool is_near = cluster == other.cluster && rank == other.rank;
        return is_atomic() && (operation != Operation::kBlockAtomic || is_near);
    }
    bool conflicts_with(const Access& other) const {
        return (bytes & other.bytes) && (is_write || other.is_write) &&
               !(is_atomic_for(other) && other.is_atomic_for(*this));
    }
    bool is_cached_apart_from(const Access& other) const {
        return operation == Operation::kRead && cluster != other.cluster;
    }
    // True if every access that races with `other` races with this one too.
    bool stands_for(const Access& other) const {
        return agent == other.agent && epoch == other.epoch && cluster == other.cluster &&
               operation == other.operation && is_write == other.is_write &&
               is_async == other.is_async && (other.bytes & ~bytes) == 0;
    }
    bool repeats_for_warp(const Access& other) const {
        return cluster == other.cluster && thread / 32 == other.thread / 32 &&
               operation == other.operation && (other.bytes & ~bytes) == 0;
    }
};
static_assert(sizeof(Access) == 32);

constexpr uint32_t kCellBytes = 8;

// The accesses to eight bytes that a later one could still race with.
class Cell {
public:
    // Calls `report` for each access that conflicts. Then keeps the new access in place of all
    // those that happen before it: an access after the new one is after those too. The four warps
    // of a wgmma read the same bytes, and one of their reads is kept. An atomic operation replaces
    // no store: other atomic operations race with the store and not with the atomic operation.
    // Returns the access that it forgets, if no lane of its warp has made or makes the same.
    template <class IsBefore, class Conflicts, class Report>
    std::optional<Access> add(
        const Access& access, IsBefore is_before, Conflicts conflicts, Report report
    ) {
        uint8_t kept = 0;
        bool is_known = false, had_readers = false;
        for (uint8_t i = 0; i < count_; ++i) {
            const Access& old = accesses_[i];
            const bool ordered = is_before(old);
            if (!ordered && conflicts(old)) report(old);
            const bool is_covered = (old.bytes & ~access.bytes) == 0;
            if (ordered && is_covered && (access.is_write || !old.is_write)) {
                had_readers |= old.had_readers || old.is_cached_apart_from(access);
                if (!(access.is_atomic() && old.is_store())) continue;
            }
            is_known |= old.stands_for(access);
            if (kept != i) accesses_[kept] = old;
            ++kept;
        }
        count_ = kept;
        std::optional<Access> lost;
        if (is_known) return lost;
        if (count_ == accesses_.size()) {
            const auto [forgotten, is_repeated] = least_needed(access);
            if (!is_repeated) lost = accesses_[forgotten];
            for (uint8_t i = forgotten + 1; i < count_; ++i) accesses_[i - 1] = accesses_[i];
            --count_;
        }
        accesses_[count_] = access;
        if (access.is_write) {
            if (had_readers) accesses_[count_].had_readers = true;
            written_ |= access.bytes;
        }
        ++count_;
        return lost;
    }

    // Compares the access as `add` does, and keeps nothing.
    template <class IsBefore, class Report>
    void compare(const Access& access, IsBefore is_before, Report report) const {
        for (uint8_t i = 0; i < count_; ++i) {
            const Access& old = accesses_[i];
            if (old.conflicts_with(access) && !is_before(old)) report(old);
        }
    }

    template <class Act>
    void for_each(Act act) const {
        for (uint8_t i = 0; i < count_; ++i) act(accesses_[i]);
    }

    uint8_t written() const { return written_; }
    // The write of all eight bytes, if the cell holds no other write.
    const Access* only_write() const {
        const Access* found = nullptr;
        for (uint8_t i = 0; i < count_; ++i) {
            if (!accesses_[i].is_write) continue;
            if (found || accesses_[i].bytes != 0xff) return nullptr;
            found = &accesses_[i];
        }
        return found;
    }
    void clear() {
        count_ = 0;
        written_ = 0;
    }

    bool equals(const Cell& other) const {
        return count_ == other.count_ && written_ == other.written_ &&
               std::memcmp(accesses_.data(), other.accesses_.data(), bytes_of_accesses()) == 0;
    }
    void take(const Cell& other) {
        count_ = other.count_;
        written_ = other.written_;
        std::memcpy(accesses_.data(), other.accesses_.data(), bytes_of_accesses());
    }
    bool has_atomics() const {
        return std::any_of(accesses_.begin(), accesses_.begin() + count_, [](const Access& access) {
            return access.is_atomic();
        });
    }

private:
    struct Forgotten {
        uint8_t index;
        bool is_repeated;  // by another lane of its warp
    };
    // The access that is forgotten when the cell is full: one that its warp repeated, else a read
    // or an atomic operation, else the oldest store.
    Forgotten least_needed(const Access& next) const {
        for (uint8_t i = 0; i < count_; ++i) {
            if (next.repeats_for_warp(accesses_[i])) return {i, true};
        }
        uint8_t found = count_;
        for (uint8_t i = 0; i < count_; ++i) {
            for (uint8_t j = i + 1; j < count_; ++j) {
                if (accesses_[j].repeats_for_warp(accesses_[i])) return {i, true};
            }
            if (found == count_ && !accesses_[i].is_store()) found = i;
        }
        return {found == count_ ? uint8_t{0} : found, false};
    }
    std::size_t bytes_of_accesses() const { return count_ * sizeof(Access); }

    uint8_t count_ = 0;  // first, so that most cells are read from one cache line
    uint8_t written_ = 0;
    std::array<Access, 6> accesses_;
};

// The change that one access made to the last cell. Neighbouring cells mostly have the same
// history, so the change repeats. A race-checked GEMM of 512 cubed takes 0.37 s of a core, and 0.46
// s without this (2026-11-23).
class LastCell {
public:
    // Repeats the change if the cell equals the last one; else returns false.
    bool repeats(Cell& cell) {
        if (!is_known_ || !cell.equals(before_)) return false;
        if (is_changed_) cell.take(after_);
        return true;
    }
    // The atomic operations that happen before an access depend on its address.
    void begin(const Cell& cell) {
        is_known_ = !cell.has_atomics();
        if (is_known_) before_.take(cell);
    }
    void end(const Cell& cell) {
        is_changed_ = is_known_ && !cell.equals(before_);
        if (is_changed_) after_.take(cell);
    }

private:
    bool is_known_ = false;
    bool is_changed_ = false;
    Cell before_;
    Cell after_;
};

// The cells of one CTA's window, allocated on first use.
class WindowShadow {
public:
    explicit WindowShadow(uint32_t bytes) : pages_((bytes / kCellBytes + kPage - 1) / kPage) {}

    Cell& at(uint32_t offset) {
        const uint32_t index = offset / kCellBytes;
        auto& page = pages_[index / kPage];
        if (!page) page = std::make_unique<std::array<Cell, kPage>>();
        return (*page)[index % kPage];
    }

    void clear() {
        for (auto& page : pages_) {
            if (!page) continue;
            for (Cell& cell : *page) cell.clear();
        }
    }

private:
    static constexpr uint32_t kPage = 128;
    std::vector<std::unique_ptr<std::array<Cell, kPage>>> pages_;
};

// The cells of global memory, for the whole grid.
class GlobalShadow {
public:
    Cell& at(uintptr_t address) {
        const uintptr_t index = address / kCellBytes, number = index / kPage;
        // Threads mostly stride by a power of two, which a multiplication spreads over the slots.
        Found& found = found_[number * 0x9e3779b97f4a7c15 >> (64 - kFoundBits)];
        if (number != found.number) {
            auto& page = pages_[number];
            if (!page) page = std::make_unique<Page>();
            found = {number, page.get()};
        }
        return (*found.page)[index % kPage];
    }

    void clear(uintptr_t address, uint64_t bytes) {
        const uintptr_t first = address / kCellBytes, end = (address + bytes - 1) / kCellBytes + 1;
        for (uintptr_t number = first / kPage; number * kPage < end; ++number) {
            const auto page = pages_.find(number);
            if (page == pages_.end()) continue;
            for (uintptr_t i = std::max(first, number * kPage);
                 i < std::min(end, (number + 1) * kPage); ++i) {
                (*page->second)[i % kPage].clear();
            }
        }
    }

    // Calls act(address) for every cell in which something was written.
    template <typename Act>
    void for_each_written(Act act) const {
        for (const auto& [number, page] : pages_) {
            for (uintptr_t i = 0; i < kPage; ++i) {
                if ((*page)[i].written()) act((number * kPage + i) * kCellBytes);
            }
        }
    }

private:
    static constexpr uintptr_t kPage = 64;
    using Page = std::array<Cell, kPage>;
    static constexpr int kFoundBits = 10;
    struct Found {
        uintptr_t number = ~uintptr_t{0};
        Page* page = nullptr;
    };
    std::unordered_map<uintptr_t, std::unique_ptr<Page>> pages_;
    std::array<Found, 1 << kFoundBits> found_;  // the pages that were asked for last
};

// Calls act(first address, mask of the bytes) for each cell of a range.
template <class Act>
void for_each_cell(uintptr_t start, uint64_t bytes, Act act) {
    const uintptr_t end = start + bytes;
    for (uintptr_t cell = start / kCellBytes * kCellBytes; cell < end; cell += kCellBytes) {
        const uintptr_t low = std::max(cell, start) - cell;
        const uintptr_t high = std::min(cell + kCellBytes, end) - cell;
        const auto mask = static_cast<uint8_t>((1u << high) - (1u << low));
        act(cell, mask);
    }
}

}  // namespace tmaasync_emulate
