#include "races/detector.hpp"

namespace tmaasync_emulate {

Detector::Detector(
    GridRaces& grid, const Rules& rules, uint32_t threads, uint32_t ctas, uintptr_t windows
)
    : grid_(grid),
      rules_(rules),
      windows_(windows),
      threads_(threads),
      threads_of_cta_(threads / ctas),
      views_(threads),
      epochs_(threads, 1) {
    fenced_.resize(threads);
    fenced_for_clusters_.resize(threads);
    last_atomics_.resize(threads);
    acquired_.resize(threads);
    acquired_from_all_.resize(threads);
    for (uint32_t i = 0; i < ctas; ++i) shadows_.emplace_back(kWindowBytes);
}

// The happens-before set of a thread whose launch follows these accesses, proxies included.
static View view_after(const ClusterClocks& before) {
    View view;
    for (ClusterClocks* known :
         {&view.others, &view.others_acquired, &view.others_published, &view.others_fenced_for_all,
          &view.offered}) {
        known->join(before);
    }
    return view;
}

void Detector::reset(uint32_t cluster, LaunchHistory* history) {
    grid_.detectors.erase(cluster_);
    cluster_ = cluster;
    grid_.detectors[cluster] = this;
    first_reads_.reset(threads_);
    replicated_loads_.reset(threads_);
    device_ = grid_.device_of(cluster);
    history_ = history;
    agents_ = threads_;
    for (auto* views :
         {&views_, &fenced_, &fenced_for_clusters_, &acquired_, &acquired_from_all_}) {
        views->assign(threads_, {});
    }
    if (history) views_.assign(threads_, view_after(history->before));
    epochs_.assign(threads_, 1);
    last_atomics_.assign(threads_, {});
    for (WindowShadow& shadow : shadows_) shadow.clear();
    grid_.forget_lost(windows_, windows_ + shadows_.size() * kWindowStride);
    has_race_ = false;
}

void Detector::end_cluster() {
    if (!history_) return;
    Clock everything;
    for (Agent agent = 0; agent < agents_; ++agent) everything.set(agent, ~Epoch{0});
    history_->after.join(cluster_, everything);
    for (const View& view : views_) history_->after.join(view.others);
}

void Detector::report(Race race) {
    if (has_race_) return;
    if (race.rule == Rule::kNone) race.rule = rule_of(race);
    if (rules_.pardons(race.rule, race.second.site)) return;
    has_race_ = true;
    // The access that was issued first may have been executed last.
    if (race.first.cluster == race.second.cluster && race.second.order < race.first.order) {
        std::swap(race.first, race.second);
    }
    race_ = race;
}

View Detector::view_of(uint32_t thread) const {
    View view = views_[thread];
    view.seen.raise(thread, epochs_[thread]);
    view.issued_after.raise(thread, epochs_[thread]);
    return view;
}

Issued Detector::issue(uint32_t thread, uintptr_t site) {
    Issued issued{thread, site, ++grid_.order, std::make_shared<const View>(view_of(thread))};
    ++epochs_[thread];
    return issued;
}

void Detector::learn(uint32_t thread, const Clock& done) {
    views_[thread].seen.join(done);
    views_[thread].issued_after.join(done);
}

void Detector::release_relaxed(uint32_t thread, View& target) {
    target.join(fenced_[thread]);
    target.join_async_agents(views_[thread], threads_);
    target.tensor.join(views_[thread].tensor);
    target.arrivals.raise(thread, epochs_[thread]);
    ++epochs_[thread];
}

void Detector::finish_stores(uint32_t thread, Agent agent, Epoch epoch) {
    finish(thread, agent, epoch);
    Epoch& stored = grid_.stored[{cluster_, agent}];
    stored = std::max(stored, epoch);
}

void Detector::publish(uint32_t thread, Space space) {
    View& view = views_[thread];
    Clock& published = view.published[static_cast<int>(space)];
    published.join(view.seen);
    published.raise(thread, epochs_[thread]);
    ++epochs_[thread];
    if (space != Space::kGlobal) return;
    view.others_published.join(view.others);
}

void Detector::release_maps(uint32_t thread) {
    View& view = views_[thread];
    view.maps_released.join(view.seen);
    view.maps_released.raise(thread, epochs_[thread]);
    ++epochs_[thread];
}

void Detector::acquire_map(uint32_t thread, uintptr_t map) {
    View& view = views_[thread];
    view.maps_acquired.join(map, view.maps_released);
    Clock acquirer;
    acquirer.set(thread, epochs_[thread]);
    view.maps_acquired.join(map | kIsAcquired, acquirer);
}

static Issued reader_of(Issued issued, uintptr_t map) {
    View view = *issued.after;
    view.published[static_cast<int>(Space::kGlobal)] = view.maps_acquired.of(map);
    issued.after = std::make_shared<const View>(std::move(view));
    return issued;
}

void Detector::read_map(
    const Issued& issued, Agent agent, Epoch epoch, uintptr_t map, uint64_t bytes
) {
    const Issued reader = reader_of(issued, map);
    global(reader.as(agent, epoch, Operation::kMapRead), map, bytes, false);
}

void Detector::peek_at_map(const Issued& issued, uintptr_t map, uint64_t bytes) {
    const Issued reader = reader_of(issued, map);
    const Actor actor = reader.as(kNoAgent, 0, Operation::kMapRead);
    for_each_cell(map, bytes, [&](uintptr_t start, uint8_t mask) {
        compare(actor, grid_.shadow.at(start), {Space::kGlobal, 0, start}, mask);
    });
}

void Detector::fence(uint32_t thread, bool reaches_clusters, bool reaches_devices) {
    View& view = views_[thread];
    view.join(acquired_[thread]);
    if (reaches_devices) view.join(acquired_from_all_[thread]);
    fenced_[thread] = view_of(thread);
    if (reaches_clusters) {
        fenced_for_clusters_[thread] = fenced_[thread];
        view.fenced.join(fenced_[thread].seen);
        view.others_acquired.join(view.others);
    }
    if (reaches_devices) {
        view.fenced_for_all.join(fenced_[thread].seen);
        view.others_fenced_for_all.join(view.others);
    }
    ++epochs_[thread];
}

void Detector::acquire_at(uint32_t thread, uintptr_t address, Scope scope) {
    if (scope == Scope::kSystem && grid_.has_peers()) {
        const AtomicPlace& place = grid_.place_for_all(address);
        acquired_from_all_[thread].join_others(place.seen, place.published);
    }
    note_atomic(thread, address);
    read_place(thread, grid_.place_of(address, device_), scope != Scope::kCta);
}

void Detector::release_at(uint32_t thread, uintptr_t address, Scope scope) {
    AtomicPlace& place = grid_.place_of(address, device_);
    if (scope == Scope::kSystem && grid_.has_peers()) release_to_devices(thread, address);
    View& mine = views_[thread];
    if (!fenced_[thread].seen.is_empty()) place.within[cluster_].join(fenced_[thread]);
    if (scope == Scope::kCta) return;
    // Each thread may have fenced its own writes before the block's barrier.
    place.seen.join(mine.others);
    place.seen.join(cluster_, mine.fenced);
    const View& released = fenced_for_clusters_[thread];
    place.published.join(released.others_published);
    place.published.join(cluster_, released.published[static_cast<int>(Space::kGlobal)]);
}

PostedBy Detector::note_before_post(uintptr_t address, uint32_t value) {
    if (!grid_.has_peers()) return PostedBy::kOther;
    const AtomicPlace& on_device = grid_.place_of(address, device_);
    const AtomicPlace& for_all = grid_.place_for_all(address);
    return grid_.posts[address].note_before(value, for_all, device_, on_device);
}

void Detector::note_post(uintptr_t address, uint32_t epoch, PostedBy by) {
    if (!grid_.has_peers()) return;
    const AtomicPlace& on_device = grid_.place_of(address, device_);
    grid_.posts[address].add(epoch, grid_.place_for_all(address), device_, on_device, by);
}

void Detector::acquire_epoch(uint32_t thread, uintptr_t address, uint32_t value, uint32_t epoch) {
    const PostedEpochs* const posts = grid_.has_peers() ? &grid_.posts[address] : nullptr;
    const auto* const post = posts ? posts->first_to_reach(epoch, value) : nullptr;
    if (post) {
        note_atomic(thread, address);
        if (const AtomicPlace* const place = posts->within(device_, *post)) {
            read_place(thread, *place, true);
        }
        acquired_from_all_[thread].join_others(post->seen, post->published);
    } else {
        acquire_at(thread, address, Scope::kSystem);
    }
    fence(thread, true, true);
}

Actor Detector::ordinary(uint32_t thread, uintptr_t site, Operation operation, bool is_system) {
    return {
        thread,    epochs_[thread], thread, site,      ++grid_.order,
        operation, &views_[thread], false,  is_system,
    };
}

void Detector::shared(
    const Actor& actor, uint32_t rank, uint32_t offset, uint32_t bytes, bool writes
) {
    if (bytes > kFewBytes) {
        LastCell last;
        return shared(actor, rank, offset, bytes, writes, last);
    }
    if (grid_.is_over()) return;
    for_each_cell(offset, bytes, [&](uintptr_t start, uint8_t mask) {
        Cell& cell = shadows_[rank].at(static_cast<uint32_t>(start));
        check(actor, cell, {Space::kShared, rank, start}, mask, writes);
    });
}

void Detector::shared(
    const Actor& actor, uint32_t rank, uint32_t offset, uint32_t bytes, bool writes, LastCell& last
) {
    if (grid_.is_over()) return;
    for_each_cell(offset, bytes, [&](uintptr_t start, uint8_t mask) {
        Cell& cell = shadows_[rank].at(static_cast<uint32_t>(start));
        check_like(last, actor, cell, {Space::kShared, rank, start}, mask, writes);
    });
}

bool Detector::is_written(uint32_t rank, uint32_t offset, uint32_t bytes) {
    if (grid_.is_over()) return true;
    bool found = false;
    for_each_cell(offset, bytes, [&](uintptr_t start, uint8_t mask) {
        found |= (shadows_[rank].at(static_cast<uint32_t>(start)).written() & mask) != 0;
    });
    return found;
}

bool Detector::is_written_globally(uintptr_t address, uint64_t bytes) {
    bool found = false;
    for_each_cell(address, bytes, [&](uintptr_t start, uint8_t mask) {
        found |= (grid_.shadow.at(start).written() & mask) != 0;
    });
    return found;
}

const Access* Detector::load_at(uint32_t rank, uint32_t offset) {
    if (grid_.is_over()) return nullptr;
    const Access* const write = shadows_[rank].at(offset).only_write();
    return write && write->pattern ? write : nullptr;
}

bool Detector::is_all_written(uint32_t rank, uint32_t offset, uint32_t bytes) {
    bool all = true;
    for_each_cell(offset, bytes, [&](uintptr_t start, uint8_t mask) {
        all &= (~shadows_[rank].at(static_cast<uint32_t>(start)).written() & mask) == 0;
    });
    return all;
}

void Detector::global(const Actor& actor, uintptr_t address, uint64_t bytes, bool writes) {
    if (grid_.is_over()) return;
    if (bytes <= kFewBytes) {
        return for_each_cell(address, bytes, [&](uintptr_t start, uint8_t mask) {
            check(actor, grid_.shadow.at(start), {Space::kGlobal, 0, start}, mask, writes);
            if (actor.operation == Operation::kRead) {
                replicated_loads_.note(actor.thread, actor.site, start);
            }
        });
    }
    LastCell last;
    for_each_cell(address, bytes, [&](uintptr_t start, uint8_t mask) {
        Cell& cell = grid_.shadow.at(start);
        check_like(last, actor, cell, {Space::kGlobal, 0, start}, mask, writes);
    });
}

void Detector::read_place(uint32_t thread, const AtomicPlace& place, bool reaches_clusters) {
    View &mine = views_[thread], &acquired = acquired_[thread];
    if (reaches_clusters) {
        mine.others.join(place.seen);
        mine.others_published.join(place.published);
    }
    // This cluster's own writes, known through other clusters.
    const Clock own = place.seen.of(cluster_);
    acquired.seen.join(own);
    acquired.issued_after.join(own);
    if (const auto found = place.within.find(cluster_); found != place.within.end()) {
        acquired.join(found->second);
    }
}

void Detector::release_to_devices(uint32_t thread, uintptr_t address) {
    AtomicPlace& place = grid_.place_for_all(address);
    const View& mine = views_[thread];
    place.seen.join(mine.others_fenced_for_all);
    place.seen.join(cluster_, mine.fenced_for_all);
    place.published.join(mine.offered);
    place.published.join(cluster_, mine.published[static_cast<int>(Space::kGlobal)]);
}

bool Detector::conflict(const Access& old, const Access& access) const {
    if (old.conflicts_with(access)) return true;
    return old.is_atomic() && access.is_atomic() && (old.bytes & access.bytes) &&
           (old.is_write || access.is_write) && !(old.is_system && access.is_system) &&
           is_of_peer(old);
}

void Detector::check_like(
    LastCell& last,
    const Actor& actor,
    Cell& cell,
    const RacedPlace& place,
    uint8_t mask,
    bool writes
) {
    const bool is_plain = mask == kWholeCell && !grid_.lost;
    if (!is_plain) return check(actor, cell, place, mask, writes);
    if (last.repeats(cell)) return note_word();
    last.begin(cell);
    check(actor, cell, place, mask, writes);
    last.end(cell);
}

void Detector::check(
    const Actor& actor, Cell& cell, const RacedPlace& place, uint8_t mask, bool writes
) {
    note_word();
    const Access access = access_of(actor, mask, writes);
    const bool was_unwritten = writes && (cell.written() & mask) == 0;
    const auto is_ordered = [&](const Access& old) {
        return is_before(old, actor, place.space) || is_after_atomics(old, actor, place);
    };
    const auto conflicts = [&](const Access& old) { return conflict(old, access); };
    const auto report = [&](const Access& old) {
        report_pair(old, access, actor, place, was_unwritten);
    };
    const std::optional<Access> lost = cell.add(access, is_ordered, conflicts, report);
    grid_.lacked_room |= lost.has_value();
    if (!grid_.lost) return;
    const auto kept = grid_.lost->find(address_of(place));
    for (const Access& old : kept == grid_.lost->end() ? std::vector<Access>{} : kept->second) {
        if (conflicts(old) && !is_ordered(old)) report(old);
    }
    if (lost) (*grid_.lost)[address_of(place)].push_back(*lost);
}

bool Detector::is_after_atomics(
    const Access& old, const Actor& actor, const RacedPlace& place
) const {
    const bool is_atomic =
        old.operation == Operation::kAtomic || old.operation == Operation::kBlockAtomic;
    return is_atomic && actor.agent < threads_ &&
           last_atomics_[actor.thread].is_after(address_of(place), old.order);
}

void Detector::compare(
    const Actor& actor, const Cell& cell, const RacedPlace& place, uint8_t mask
) {
    const Access access = access_of(actor, mask, false);
    cell.compare(
        access, [&](const Access& old) { return is_before(old, actor, place.space); },
        [&](const Access& old) { report_pair(old, access, actor, place, false); }
    );
}

// True for an ordinary write before an access of the async proxy, and for an ordinary read before
// the response of a try_cancel (PTX ISA, "clusterlaunchcontrol.try_cancel").
static bool needs_proxy_fence(const Access& old, const Actor& actor) {
    const bool counts = old.is_write || actor.operation == Operation::kClusterResponse;
    return actor.is_async && !old.is_async && counts;
}

bool Detector::is_replicated(const Access& old, const Access& access, const RacedPlace& place) {
    const Access& read = old.is_write ? access : old;
    const Access& write = old.is_write ? old : access;
    const bool is_in_block = read.cluster == write.cluster && read.rank == write.rank;
    // In CUDA C++ a read next to an atomic operation breaks the rule of these.
    const bool is_kind = !write.is_atomic() || rules_.tolerates(Rule::kReplicatedLoad);
    return place.space == Space::kGlobal && is_in_block && read.operation == Operation::kRead &&
           is_kind && !write.is_async &&
           replicated_loads_.holds(write.thread, read.site, place.start);
}

void Detector::report_pair(
    const Access& old,
    const Access& access,
    const Actor& actor,
    const RacedPlace& place,
    bool was_unwritten
) {
    const bool is_peers = is_of_peer(old), knows = is_known(old, actor);
    const bool lacks_fence = needs_proxy_fence(old, actor) && knows;
    const auto stored = grid_.stored.find({old.cluster, old.agent});
    Race race{
        .first = old,
        .second = access,
        .place = place,
        .lacks_proxy_fence = lacks_fence,
        .was_unwritten = was_unwritten,
        .is_stored = stored != grid_.stored.end() && stored->second >= old.epoch,
        .has_relaxed_arrival =
            old.cluster == cluster_ && actor.view->arrivals.at(old.agent) >= old.epoch,
        .is_between_devices = is_peers,
        .is_known = knows,
        .lacks_acquire = knows && is_stale(old, actor),
        .lacks_reader_fence = actor.view->others_published.at(old.cluster, old.agent) < old.epoch,
    };
    if (is_replicated(old, access, place)) race.rule = Rule::kReplicatedLoad;
    if (keeps_first_read(race)) return;
    const bool is_pair = is_comparable(old.operation) && !is_peers;
    if (!actor.may_repeat || !is_pair) return report(race);
    if (repeated_) return;
    repeated_ = race;
    if (!is_of_one_instruction(old, access)) repeated_->rule = Rule::kSameValueStores;
}

bool Detector::is_of_one_instruction(const Access& old, const Access& access) const {
    const auto warp_of = [&](uint32_t thread) { return thread % threads_of_cta_ / 32; };
    return old.site == access.site && is_comparable(old.operation) &&
           old.cluster == access.cluster && old.rank == access.rank &&
           warp_of(old.thread) == warp_of(access.thread);
}

Access Detector::access_of(const Actor& actor, uint8_t mask, bool writes) const {
    return {
        .agent = actor.agent,
        .epoch = actor.epoch,
        .thread = actor.thread,
        .cluster = cluster_,
        .site = actor.site,
        .order = actor.order,
        .bytes = mask,
        .is_write = writes,
        .is_async = actor.is_async,
        .is_system = actor.is_system || actor.is_async,
        .rank = static_cast<uint8_t>(actor.thread / threads_of_cta_),
        .operation = actor.operation,
        .pattern = actor.pattern,
    };
}

bool Detector::is_known(const Access& old, const Actor& actor) const {
    if (old.cluster != cluster_) {
        return actor.view->others.at(old.cluster, old.agent) >= old.epoch;
    }
    // A thread's accesses are ordered among themselves, but not with its own copies.
    const bool is_thread = actor.agent < threads_;
    if (!actor.is_async && is_thread && old.agent == actor.agent) return true;
    const Clock& clock = actor.is_async ? actor.view->issued_after : actor.view->seen;
    return clock.at(old.agent) >= old.epoch;
}

// True if TMA sees a peer's write. Ordinary loads saw the signal, so the reader needs a proxy
// fence after it. An ordinary write needs a proxy fence of its writer too.
static bool is_visible_from_peer(const Access& old, const Actor& actor) {
    const View& view = *actor.view;
    const bool is_fenced = view.others_published.at(old.cluster, old.agent) >= old.epoch;
    return is_fenced && (old.is_async || view.offered.at(old.cluster, old.agent) >= old.epoch);
}

bool Detector::is_before(const Access& old, const Actor& actor, Space space) const {
    if (old.cluster == cluster_ && needs_proxy_fence(old, actor)) {
        return actor.view->published[static_cast<int>(space)].at(old.agent) >= old.epoch;
    }
    // Edits of tensor maps have fences of their own.
    const bool is_map = actor.operation == Operation::kMapRead;
    if (actor.is_async && old.is_write && !is_map && is_of_peer(old)) {
        return is_visible_from_peer(old, actor);
    }
    if (old.cluster != cluster_ && needs_proxy_fence(old, actor) && !is_map) {
        return actor.view->others_published.at(old.cluster, old.agent) >= old.epoch;
    }
    return is_known(old, actor) && !is_stale(old, actor);
}

}  // namespace tmaasync_emulate
