// The race detector of tensor memory: which operations of tcgen05 happen before which.
//
// Every tcgen05 operation but allocation is asynchronous. The loads and the stores of a warp are
// one agent each, and so are a thread's mma, cp and shift. PTX ISA, "Memory Consistency Model for
// tcgen05 operations": an operation happens before another if it has completed (tcgen05.wait, or
// a commit and a wait on its mbarrier), or if the tensor core executes the two in order and the
// second is issued after the first. Other threads learn of both by fences alone:
// tcgen05.fence::before_thread_sync, a barrier, tcgen05.fence::after_thread_sync.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <vector>

#include "races/detector.hpp"
#include "shared_memory/tensor_memory.hpp"

namespace tmaasync_emulate {

// The operations as far as their order differs.
enum class TensorKind : uint8_t { kLoad, kStore, kMma, kCopy, kCopyOfRow, kShift, kDealloc };

// An operation at its issue.
struct IssuedTensor {
    TensorKind kind = TensorKind::kLoad;
    Operation operation = Operation::kRead;
    Agent agent = kNoAgent;
    Epoch epoch = 0;
    Epoch thread_epoch = 0;  // of the issuing thread
    // An mma: its accumulators and shape. The next mma with the same happens after it.
    uint64_t accumulators = 0;
    Issued issued;
    std::shared_ptr<const TensorClocks> known;  // operations that happen before
};

// Lanes and columns that an operation accesses in the tensor memory of a CTA.
struct TensorPart {
    uint32_t rank;
    uint32_t groups;  // one bit for each 16 lanes
    uint32_t column;
    uint32_t columns;
};

// The bits of TensorPart::groups for a range of lanes.
inline uint32_t tensor_groups(uint32_t lane, uint32_t lanes) {
    const uint32_t first = lane / 16, end = (lane + lanes + 15) / 16;
    return ((1u << end) - 1) & ~((1u << first) - 1);
}

class TensorRaces {
public:
    TensorRaces(Detector& detector, uint32_t threads, uint32_t ctas)
        : detector_(detector), threads_(threads), ctas_(ctas) {}

    // Prepares for the next cluster.
    void reset();

    // Numbers an operation of a thread, and notes what happens before it.
    IssuedTensor issue(uint32_t thread, uintptr_t site, TensorKind kind, Operation operation);

    // The columns of an operation are checked against earlier ones. An mma that is a part of its
    // accumulators' pipeline passes `is_accumulator`.
    void touch(
        const IssuedTensor& tensor, const TensorPart& part, bool writes, bool is_accumulator = false
    );

    // Checks that all earlier accesses to the columns are over when they are deallocated.
    void free(uint32_t thread, uintptr_t site, const TensorPart& part);

    // tcgen05.wait::ld and wait::st in one lane: the operations of its warp so far have completed.
    // The first thread of a warp issues them.
    void wait(uint32_t thread, uint32_t first_of_warp, TensorKind kind);

    void fence_before(uint32_t thread);
    void fence_after(uint32_t thread);

    // The happens-before set that a commit of the thread publishes when it arrives.
    View commit(uint32_t thread);

    // The epoch of the thread's last mma, cp or shift, and its agent.
    Access last_of(uint32_t thread, uintptr_t site);

private:
    struct Stream {
        Agent agent = kNoAgent;
        Epoch epoch = 0;
    };
    // One operation's accesses to cells.
    struct Entry {
        Access access;
        Epoch thread_epoch;
        TensorKind kind;
        uint64_t accumulators;  // 0 unless the access is to an mma's accumulators
    };
    // The accesses to one column of 16 lanes that a later one could still race with.
    struct Cell {
        uint32_t count = 0;
        std::array<uint32_t, 7> entries{};

        bool operator==(const Cell&) const = default;
    };
    static constexpr uint32_t kGroups = kTensorLanes / 16;
    using Cells = std::vector<Cell>;
    static constexpr std::size_t kFewEntries = 4096;

    Stream& stream_of(uint32_t thread, TensorKind kind);
    Cells& cells_of(uint32_t rank);
    uint32_t new_entry(const Entry& entry);
    void drop_unused_entries();
    Entry entry_of(const IssuedTensor& tensor, bool writes, bool is_accumulator) const;

    bool is_pipelined(const Entry& old, const Entry& next) const;
    bool is_issued_before(const Entry& old, const IssuedTensor& tensor, const Entry& next) const;
    bool is_before(const Entry& old, const IssuedTensor& tensor, const Entry& next) const;
    bool is_over(const Entry& old, const IssuedTensor& tensor) const;
    void add(
        Cell& cell, uint32_t number, const IssuedTensor& tensor, uint32_t rank, uint32_t place
    );
    void report(
        const Entry& old, const Entry& next, const IssuedTensor& tensor, const RacedPlace& place
    );

    Detector& detector_;
    uint32_t threads_;
    uint32_t ctas_;
    std::vector<TensorClocks> known_;  // indexed by thread: happens before its next operation
    std::vector<Stream> cores_;        // indexed by thread: mma, cp and shift
    std::vector<Stream> loads_;        // indexed by the first thread of a warp
    std::vector<Stream> stores_;
    std::vector<Cells> cells_;  // indexed by CTA
    std::vector<Entry> entries_;
    std::size_t most_entries_ = kFewEntries;  // unused ones are dropped at this number
};

}  // namespace tmaasync_emulate
