#include "races/tensor_races.hpp"

namespace tmaasync_emulate {

void TensorRaces::reset() {
    known_.clear();
    cores_.clear();
    loads_.clear();
    stores_.clear();
    cells_.clear();
    entries_.clear();
    most_entries_ = kFewEntries;
}

TensorRaces::Stream& TensorRaces::stream_of(uint32_t thread, TensorKind kind) {
    if (known_.empty()) {
        known_.resize(threads_);
        cores_.resize(threads_);
        loads_.resize(threads_);
        stores_.resize(threads_);
    }
    Stream& stream = kind == TensorKind::kLoad    ? loads_[thread]
                     : kind == TensorKind::kStore ? stores_[thread]
                                                  : cores_[thread];
    if (stream.agent == kNoAgent) stream.agent = detector_.new_agent();
    return stream;
}

IssuedTensor TensorRaces::issue(
    uint32_t thread, uintptr_t site, TensorKind kind, Operation operation
) {
    Stream& stream = stream_of(thread, kind);
    IssuedTensor tensor;
    tensor.kind = kind;
    tensor.operation = operation;
    tensor.agent = stream.agent;
    tensor.epoch = ++stream.epoch;
    tensor.thread_epoch = detector_.epoch_of(thread);
    tensor.known = std::make_shared<const TensorClocks>(known_[thread]);
    tensor.issued = detector_.issue(thread, site);
    known_[thread].issued.raise(tensor.agent, tensor.epoch);
    return tensor;
}

TensorRaces::Cells& TensorRaces::cells_of(uint32_t rank) {
    if (cells_.empty()) cells_.resize(ctas_);
    if (cells_[rank].empty()) cells_[rank].resize(std::size_t{kGroups} * kTensorColumns);
    return cells_[rank];
}

TensorRaces::Entry TensorRaces::entry_of(
    const IssuedTensor& tensor, bool writes, bool is_accumulator
) const {
    const Actor actor = tensor.issued.as(tensor.agent, tensor.epoch, tensor.operation);
    return {
        detector_.access_of(actor, 0xff, writes), tensor.thread_epoch, tensor.kind,
        is_accumulator ? tensor.accumulators : 0
    };
}

uint32_t TensorRaces::new_entry(const Entry& entry) {
    if (entries_.size() >= most_entries_) {
        drop_unused_entries();
        most_entries_ = std::max(kFewEntries, 2 * entries_.size());
    }
    entries_.push_back(entry);
    return static_cast<uint32_t>(entries_.size() - 1);
}

// Numbers the entries that cells refer to anew, in the same order.
void TensorRaces::drop_unused_entries() {
    const auto for_each_number = [&](const auto& act) {
        for (Cells& cells : cells_) {
            for (Cell& cell : cells) {
                for (uint32_t i = 0; i < cell.count; ++i) act(cell.entries[i]);
            }
        }
    };
    std::vector<uint32_t> numbers(entries_.size());
    for_each_number([&](uint32_t number) { numbers[number] = 1; });
    uint32_t kept = 0;
    for (std::size_t old = 0; old < entries_.size(); ++old) {
        if (!numbers[old]) continue;
        entries_[kept] = entries_[old];
        numbers[old] = kept++;
    }
    entries_.resize(kept);
    for_each_number([&](uint32_t& number) { number = numbers[number]; });
}

void TensorRaces::touch(
    const IssuedTensor& tensor, const TensorPart& part, bool writes, bool is_accumulator
) {
    Cells& cells = cells_of(part.rank);
    const uint32_t number = new_entry(entry_of(tensor, writes, is_accumulator));
    // Neighbouring cells mostly have the same history, so the change repeats.
    Cell before, after;
    bool is_known = false;
    for (uint32_t group = 0; group < kGroups; ++group) {
        if (!(part.groups >> group & 1)) continue;
        Cell* const row = &cells[group * kTensorColumns];
        for (uint32_t column = part.column; column < part.column + part.columns; ++column) {
            if (is_known && row[column] == before) {
                row[column] = after;
                continue;
            }
            before = row[column];
            add(row[column], number, tensor, part.rank, group * 16 << kTensorLaneShift | column);
            after = row[column];
            is_known = true;
        }
    }
}

void TensorRaces::add(
    Cell& cell, uint32_t number, const IssuedTensor& tensor, uint32_t rank, uint32_t place
) {
    const Entry& next = entries_[number];
    uint32_t kept = 0;
    for (uint32_t i = 0; i < cell.count; ++i) {
        const Entry& old = entries_[cell.entries[i]];
        const bool is_ordered = is_before(old, tensor, next);
        if (!is_ordered && old.access.conflicts_with(next.access)) {
            report(old, next, tensor, {Space::kTensor, rank, place});
        }
        if (is_ordered && (next.access.is_write || !old.access.is_write)) continue;
        cell.entries[kept++] = cell.entries[i];
    }
    if (kept == cell.entries.size()) {
        std::copy(cell.entries.begin() + 1, cell.entries.end(), cell.entries.begin());
        --kept;
    }
    std::fill(cell.entries.begin() + kept, cell.entries.end(), 0);
    cell.entries[kept] = number;
    cell.count = kept + 1;
}

bool TensorRaces::is_pipelined(const Entry& old, const Entry& next) const {
    switch (next.kind) {
        case TensorKind::kMma:
            if (old.kind == TensorKind::kCopy || old.kind == TensorKind::kCopyOfRow ||
                old.kind == TensorKind::kShift) {
                return true;
            }
            return old.kind == TensorKind::kMma && old.accumulators &&
                   old.accumulators == next.accumulators;
        case TensorKind::kShift:
            return old.kind == TensorKind::kMma;
        case TensorKind::kCopyOfRow:
            return old.kind == TensorKind::kShift;
        default:
            return false;
    }
}

bool TensorRaces::is_issued_before(
    const Entry& old, const IssuedTensor& tensor, const Entry& next
) const {
    if (old.access.agent == next.access.agent) return old.access.epoch < next.access.epoch;
    return tensor.known->issued.at(old.access.agent) >= old.access.epoch;
}

// A load's registers are honoured by every later use, so a deallocation need not wait for it.
bool TensorRaces::is_over(const Entry& old, const IssuedTensor& tensor) const {
    const View& view = *tensor.issued.after;
    if (view.seen.at(old.access.agent) >= old.access.epoch) return true;
    return old.kind == TensorKind::kLoad && view.seen.at(old.access.thread) >= old.thread_epoch;
}

bool TensorRaces::is_before(const Entry& old, const IssuedTensor& tensor, const Entry& next) const {
    if (next.kind == TensorKind::kDealloc) return is_over(old, tensor);
    if (old.access.agent == next.access.agent && old.access.epoch == next.access.epoch) return true;
    if (tensor.known->completed.at(old.access.agent) >= old.access.epoch) return true;
    return is_pipelined(old, next) && is_issued_before(old, tensor, next);
}

void TensorRaces::report(
    const Entry& old, const Entry& next, const IssuedTensor& tensor, const RacedPlace& place
) {
    const Agent agent = old.access.agent;
    const Epoch epoch = old.access.epoch;
    const View& view = *tensor.issued.after;
    const bool is_pair = is_pipelined(old, next);
    const Clock& offered = is_pair ? view.tensor.issued : view.tensor.completed;
    // A barrier orders the two for the threads, but tcgen05 needs its fences around the barrier.
    const bool is_synchronised = is_pair ? view.seen.at(old.access.thread) >= old.thread_epoch
                                         : view.seen.at(agent) >= epoch;
    Race race{.first = old.access, .second = next.access, .place = place};
    race.lacks_tensor_after = offered.at(agent) >= epoch;
    race.lacks_tensor_before = !race.lacks_tensor_after && is_synchronised;
    race.is_issued_before = is_issued_before(old, tensor, next) || is_synchronised ||
                            view.seen.at(old.access.thread) >= old.thread_epoch;
    if (race.lacks_tensor_after || race.lacks_tensor_before) race.rule = Rule::kTcgen05Fence;
    detector_.report(race);
}

void TensorRaces::free(uint32_t thread, uintptr_t site, const TensorPart& part) {
    const IssuedTensor tensor =
        issue(thread, site, TensorKind::kDealloc, Operation::kTcgen05Dealloc);
    touch(tensor, part, true);
    // The next owner of the columns comes after this.
    Cells& cells = cells_of(part.rank);
    for (uint32_t group = 0; group < kGroups; ++group) {
        Cell* const row = &cells[group * kTensorColumns];
        std::fill(row + part.column, row + part.column + part.columns, Cell{});
    }
}

void TensorRaces::wait(uint32_t thread, uint32_t first_of_warp, TensorKind kind) {
    const Stream& stream = stream_of(first_of_warp, kind);
    known_[thread].completed.raise(stream.agent, stream.epoch);
    detector_.finish(thread, stream.agent, stream.epoch);
}

void TensorRaces::fence_before(uint32_t thread) {
    stream_of(thread, TensorKind::kMma);
    detector_.own_view(thread).tensor.join(known_[thread]);
}

void TensorRaces::fence_after(uint32_t thread) {
    stream_of(thread, TensorKind::kMma);
    known_[thread].join(detector_.own_view(thread).tensor);
}

View TensorRaces::commit(uint32_t thread) {
    const Stream stream = stream_of(thread, TensorKind::kMma);
    View published;
    detector_.release(thread, published);
    published.seen.raise(stream.agent, stream.epoch);
    published.issued_after.raise(stream.agent, stream.epoch);
    published.tensor.join(known_[thread]);
    published.tensor.completed.raise(stream.agent, stream.epoch);
    return published;
}

Access TensorRaces::last_of(uint32_t thread, uintptr_t site) {
    const Stream stream = stream_of(thread, TensorKind::kMma);
    return {.agent = stream.agent, .epoch = stream.epoch, .thread = thread, .site = site};
}

}  // namespace tmaasync_emulate
