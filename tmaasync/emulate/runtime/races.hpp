// The race detector of one cluster: every access is checked against earlier ones.
//
// Two accesses race if one of them writes, they share a byte, and neither happens before the other.
// Ordinary accesses belong to the generic proxy; TMA and wgmma belong to the async proxy. An
// ordinary write happens before an asynchronous access only if a proxy fence lies between them (PTX
// ISA, memory consistency model: "proxy-preserved base causality order").
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <unordered_map>
#include <utility>
#include <vector>

#include "shadow.hpp"

namespace tmaasync_emulate {

// --- state shared by all clusters ----------------------------------------------------------------

struct Launch;

// A launch of several that run together: its clusters have the numbers from `first` on.
struct LaunchSpan {
    uint32_t first;
    uint32_t device;
    const Launch* launch;
};

// Accesses that happen before all of a launch, and before its device's next launch.
struct LaunchHistory {
    ClusterClocks before;
    ClusterClocks after;
};

// The writes that atomic operations on one address publish.
struct AtomicPlace {
    std::map<uint32_t, View> within;  // published to threads of the same cluster, by its index
    ClusterClocks seen;               // published to threads of any cluster
    ClusterClocks published;
};

// The kind of operation that changed a signal.
enum class PostedBy : uint8_t {
    kOther,  // an ordinary write, the host or inline PTX
    kPost,
    kPostReduce,
};

// The writes that a signal's posts publish, to the poster's device and to others. A wait for an
// epoch ends, in some run, with the first post that reaches it. So the waiter may rely on that post
// and earlier ones, and not on later ones that this run happens to see. Epochs only grow: a post of
// a lower epoch resets nothing.
class PostedEpochs {
public:
    struct Post {
        uint32_t epoch;
        ClusterClocks seen;  // writes before the post, and the post itself
        ClusterClocks published;
        uint32_t device;  // device of the poster
        AtomicPlace on_device;
        PostedBy by;
    };

    static bool is_reached(uint32_t seen, uint32_t epoch) {
        return static_cast<int32_t>(seen - epoch) >= 0;
    }

    // Notes the word's value before a post: an earlier post set it, or other writes of kernels or
    // the host. Returns the kind of that operation.
    PostedBy note_before(
        uint32_t value, const AtomicPlace& for_all, uint32_t device, const AtomicPlace& on_device
    ) {
        if (explains(value)) return posts_.back().by;
        posts_.clear();
        add(value, for_all, device, on_device, PostedBy::kOther);
        return PostedBy::kOther;
    }

    void add(
        uint32_t epoch,
        const AtomicPlace& for_all,
        uint32_t device,
        const AtomicPlace& on_device,
        PostedBy by
    ) {
        posts_.push_back({epoch, for_all.seen, for_all.published, device, on_device, by});
        if (posts_.size() > kKept) posts_.pop_front();
    }

    // Returns null unless posts alone have set the word.
    const Post* first_to_reach(uint32_t epoch, uint32_t value) const {
        if (!explains(value)) return nullptr;
        return &*std::find_if(posts_.begin(), posts_.end(), [&](const Post& post) {
            return is_reached(post.epoch, epoch);
        });
    }

    // The writes that posts up to this one published within a device; null if none came from there.
    const AtomicPlace* within(uint32_t device, const Post& last) const {
        const AtomicPlace* found = nullptr;
        for (const Post& post : posts_) {
            if (post.device == device) found = &post.on_device;
            if (&post == &last) break;
        }
        return found;
    }

private:
    bool explains(uint32_t value) const { return !posts_.empty() && posts_.back().epoch == value; }

    static constexpr std::size_t kKept = 64;
    std::deque<Post> posts_;
};

// The last atomic operations of a thread. Its next access to the same bytes happens after the
// earlier operations of others: a block that took the last ticket may reset the counter.
class LastAtomics {
public:
    void note(uintptr_t cell, uint32_t order) { done_[next_++ % kKept] = {cell, order}; }

    bool is_after(uintptr_t cell, uint32_t order) const {
        return std::any_of(done_.begin(), done_.end(), [&](const Done& done) {
            return done.cell == cell && done.order > order;
        });
    }

private:
    static constexpr std::size_t kKept = 4;
    struct Done {
        uintptr_t cell = 0;
        uint32_t order = 0;
    };
    std::array<Done, kKept> done_{};
    std::size_t next_ = 0;
};

// The state of a search for races, in which all clusters run on one host thread.
struct GridRaces {
    uint64_t words_left;  // words left to record; after them the search is over
    uint32_t order = 0;   // number of the last access or issued operation
    GlobalShadow shadow{};
    // The last group of stores that a thread knows to be in global memory, by cluster and agent.
    std::map<std::pair<uint32_t, Agent>, Epoch> stored{};
    std::unordered_map<uintptr_t, AtomicPlace> atomics{};
    std::unordered_map<uintptr_t, PostedEpochs> posts{};  // indexed by the signal's address
    std::vector<LaunchSpan> spans{};                      // launches that run together

    bool is_over() const { return words_left == 0; }
    bool has_peers() const { return spans.size() > 1; }
    uint32_t device_of(uint32_t cluster) const {
        uint32_t device = 0;
        for (const LaunchSpan& span : spans) {
            if (span.first > cluster) break;
            device = span.device;
        }
        return device;
    }
    // Atomic operations publish to threads of their device, or at system scope to all devices.
    AtomicPlace& place_of(uintptr_t address, uint32_t device) {
        constexpr int kAddressBits = 48;
        return atomics[address | uintptr_t{device} << kAddressBits];
    }
    AtomicPlace& place_for_all(uintptr_t address) { return place_of(address, 0xffff); }
};

// --- a race --------------------------------------------------------------------------------------

struct RacedPlace {
    Space space;
    uint32_t rank;    // CTA of the shared memory
    uintptr_t start;  // offset or address of the cell
};

struct Race {
    Access first;
    Access second;
    RacedPlace place;
    bool lacks_proxy_fence = false;  // only a proxy fence is missing
    // Facts for the remedy: nothing had written the second access's bytes; the first access is a
    // store that its thread has waited for; only a relaxed arrival follows it.
    bool was_unwritten = false;
    bool is_stored = false;
    bool has_relaxed_arrival = false;
    // Facts for the remedy between devices: acquire and release at system scope order the accesses
    // (`is_known`). Then a proxy fence is missing, of the reader or of the writer.
    bool is_between_devices = false;
    bool is_known = false;
    bool lacks_acquire = false;
    bool lacks_reader_fence = false;
};

// --- the detector --------------------------------------------------------------------------------

// The agent that makes an access, and the accesses that happen before.
struct Actor {
    Agent agent;
    Epoch epoch;
    uint32_t thread;
    uintptr_t site;
    uint32_t order;
    Operation operation;
    const View* view;
    bool is_async;
    bool is_system = false;
    bool may_repeat = false;  // an ordinary store, whose value can be compared afterwards
    uint8_t pattern = 0;      // loads through a tensor map only: 1 + the swizzle
};

// A copy or wgmma that a thread issued. It happens after all that happened before its issue.
struct Issued {
    uint32_t thread = 0;
    uintptr_t site = 0;
    uint32_t order = 0;
    std::shared_ptr<const View> after;  // null without a detector

    Actor as(Agent agent, Epoch epoch, Operation operation) const {
        return {agent, epoch, thread, site, order, operation, after.get(), true};
    }
};

class Detector {
public:
    Detector(GridRaces& grid, uint32_t threads, uint32_t ctas, uint32_t window_bytes)
        : grid_(grid),
          threads_(threads),
          threads_of_cta_(threads / ctas),
          views_(threads),
          epochs_(threads, 1) {
        fenced_.resize(threads);
        fenced_for_clusters_.resize(threads);
        last_atomics_.resize(threads);
        acquired_.resize(threads);
        acquired_from_all_.resize(threads);
        for (uint32_t i = 0; i < ctas; ++i) windows_.emplace_back(window_bytes);
    }

    // Prepares for the next cluster.
    void reset(uint32_t cluster, LaunchHistory* history) {
        cluster_ = cluster;
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
        for (WindowShadow& window : windows_) window.clear();
        has_race_ = false;
    }

    // Called at the cluster's end. All that it did and knew happens before its device's next
    // launch.
    void end_cluster() {
        if (!history_) return;
        Clock everything;
        for (Agent agent = 0; agent < agents_; ++agent) everything.set(agent, ~Epoch{0});
        history_->after.join(cluster_, everything);
        for (const View& view : views_) history_->after.join(view.others);
    }

    Agent new_agent() { return agents_++; }
    // Takes a pair of stores to the same bytes by two lanes of a warp in one instruction. The pair
    // is a race if the values differ (CUDA C++ Programming Guide, "SIMT Architecture").
    std::optional<Race> take_repeated() { return std::exchange(repeated_, {}); }

    bool has_race() const { return has_race_; }
    const Race& race() const { return race_; }
    // Reports a race. Only the first one counts.
    void report(Race race) {
        if (has_race_) return;
        has_race_ = true;
        // The access that was issued first may have been executed last.
        if (race.first.cluster == race.second.cluster && race.second.order < race.first.order) {
            std::swap(race.first, race.second);
        }
        race_ = race;
    }

    // --- happens-before ---

    // Everything that happens before the thread's next access.
    View view_of(uint32_t thread) const {
        View view = views_[thread];
        view.seen.raise(thread, epochs_[thread]);
        view.issued_after.raise(thread, epochs_[thread]);
        return view;
    }

    Issued issue(uint32_t thread, uintptr_t site) {
        Issued issued{thread, site, ++grid_.order, std::make_shared<const View>(view_of(thread))};
        ++epochs_[thread];
        return issued;
    }

    // Marks the thread's accesses so far, for others to `learn`.
    Epoch mark(uint32_t thread) { return epochs_[thread]++; }
    void learn(uint32_t thread, const Clock& done) {
        views_[thread].seen.join(done);
        views_[thread].issued_after.join(done);
    }

    // An arrival with release: publishes the thread's happens-before set in `target`.
    void release(uint32_t thread, View& target) {
        target.join(view_of(thread));
        ++epochs_[thread];
    }
    // A relaxed arrival publishes the accesses before the thread's last fence. A fence after a
    // relaxed wait acquires them (PTX ISA, release and acquire patterns).
    void release_relaxed(uint32_t thread, View& target) {
        target.join(fenced_[thread]);
        target.join_async_agents(views_[thread], threads_);
        target.arrivals.raise(thread, epochs_[thread]);
        ++epochs_[thread];
    }
    void acquire(uint32_t thread, const View& source) { views_[thread].join(source); }
    void acquire_relaxed(uint32_t thread, const View& source) {
        views_[thread].join_relaxed(source);
        acquired_[thread].join(source);
    }
    // A wait for an agent's asynchronous work up to an epoch.
    void finish(uint32_t thread, Agent agent, Epoch epoch) {
        views_[thread].seen.raise(agent, epoch);
        views_[thread].issued_after.raise(agent, epoch);
    }

    // A wait until an agent's stores have reached global memory.
    void finish_stores(uint32_t thread, Agent agent, Epoch epoch) {
        finish(thread, agent, epoch);
        Epoch& stored = grid_.stored[{cluster_, agent}];
        stored = std::max(stored, epoch);
    }

    // fence.proxy.async
    void publish(uint32_t thread, Space space) {
        View& view = views_[thread];
        Clock& published = view.published[static_cast<int>(space)];
        published.join(view.seen);
        published.raise(thread, epochs_[thread]);
        ++epochs_[thread];
        if (space != Space::kGlobal) return;
        view.others_published.join(view.others);
    }

    // fence.proxy.tensormap::generic, .release and .acquire
    void release_maps(uint32_t thread) {
        View& view = views_[thread];
        view.maps_released.join(view.seen);
        view.maps_released.raise(thread, epochs_[thread]);
        ++epochs_[thread];
    }
    // The acquire covers the map that it names, and no other.
    void acquire_map(uint32_t thread, uintptr_t map) {
        View& view = views_[thread];
        view.maps_acquired.join(map, view.maps_released);
    }

    // TMA reads the map of a copy. It sees those ordinary writes that two fences made visible.
    void read_map(const Issued& issued, Agent agent, Epoch epoch, uintptr_t map, uint64_t bytes) {
        const Issued reader = reader_of(issued, map);
        global(reader.as(agent, epoch, Operation::kMapRead), map, bytes, false);
    }

    // TMA reads the map of a prefetch. No thread can wait for it, so it does not race with a later
    // edit.
    void peek_at_map(const Issued& issued, uintptr_t map, uint64_t bytes) {
        const Issued reader = reader_of(issued, map);
        const Actor actor = reader.as(kNoAgent, 0, Operation::kMapRead);
        for_each_cell(map, bytes, [&](uintptr_t start, uint8_t mask) {
            compare(actor, grid_.shadow.at(start), {Space::kGlobal, 0, start}, mask);
        });
    }

    bool knows(uint32_t thread, Agent agent, Epoch epoch) const {
        return agent == thread || views_[thread].seen.at(agent) >= epoch;
    }
    bool knows_arrival(uint32_t thread, Agent agent, Epoch epoch) const {
        return knows(thread, agent, epoch) || views_[thread].arrivals.at(agent) >= epoch;
    }
    Epoch epoch_of(uint32_t thread) const { return epochs_[thread]; }
    bool is_published(uint32_t thread, Agent agent, Epoch epoch) const {
        return views_[thread].published[static_cast<int>(Space::kShared)].at(agent) >= epoch;
    }

    // --- fences and atomic operations, which are relaxed themselves ---

    // A fence at device scope also orders accesses that other clusters see.
    void fence(uint32_t thread, bool reaches_clusters, bool reaches_devices) {
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

    // Acquires the writes that others released at the address, and releases this thread's if it
    // writes. Writes of other clusters are known without a fence after the atomic operation, as in
    // CUDA's sample threadFenceReduction, unless this SM's L1 may hold older bytes (`is_stale`).
    void atomic(uint32_t thread, uintptr_t address, bool writes, Scope scope) {
        const bool reaches_clusters = scope != Scope::kCta;
        AtomicPlace& place = grid_.place_of(address, device_);
        if (scope == Scope::kSystem && grid_.has_peers()) signal_devices(thread, address, writes);
        note_atomic(thread, address);
        read_place(thread, place, reaches_clusters);
        if (!writes) return;
        View& mine = views_[thread];
        if (!fenced_[thread].seen.is_empty()) place.within[cluster_].join(fenced_[thread]);
        if (!reaches_clusters) return;
        // Each thread may have fenced its own writes before the block's barrier.
        place.seen.join(mine.others);
        place.seen.join(cluster_, mine.fenced);
        const View& released = fenced_for_clusters_[thread];
        place.published.join(released.others_published);
        place.published.join(cluster_, released.published[static_cast<int>(Space::kGlobal)]);
    }

    // --- signals ---

    // Returns the kind of operation that changed the signal last.
    PostedBy note_before_post(uintptr_t address, uint32_t value) {
        if (!grid_.has_peers()) return PostedBy::kOther;
        const AtomicPlace& on_device = grid_.place_of(address, device_);
        const AtomicPlace& for_all = grid_.place_for_all(address);
        return grid_.posts[address].note_before(value, for_all, device_, on_device);
    }
    void note_post(uintptr_t address, uint32_t epoch, PostedBy by) {
        if (!grid_.has_peers()) return;
        const AtomicPlace& on_device = grid_.place_of(address, device_);
        grid_.posts[address].add(epoch, grid_.place_for_all(address), device_, on_device, by);
    }

    // Called when the signal has reached an epoch: acquires the writes that its posts released.
    void acquire_epoch(uint32_t thread, uintptr_t address, uint32_t value, uint32_t epoch) {
        const PostedEpochs* const posts = grid_.has_peers() ? &grid_.posts[address] : nullptr;
        const auto* const post = posts ? posts->first_to_reach(epoch, value) : nullptr;
        if (post) {
            note_atomic(thread, address);
            if (const AtomicPlace* const place = posts->within(device_, *post)) {
                read_place(thread, *place, true);
            }
            acquired_from_all_[thread].others.join(post->seen);
            acquired_from_all_[thread].offered.join(post->published);
        } else {
            atomic(thread, address, false, Scope::kSystem);
        }
        fence(thread, true, true);
    }

    // --- accesses ---

    Actor ordinary(uint32_t thread, uintptr_t site, Operation operation, bool is_system = false) {
        return {
            thread,    epochs_[thread], thread, site,      ++grid_.order,
            operation, &views_[thread], false,  is_system,
        };
    }

    void shared(const Actor& actor, uint32_t rank, uint32_t offset, uint32_t bytes, bool writes) {
        if (bytes > kFewBytes) {
            LastCell last;
            return shared(actor, rank, offset, bytes, writes, last);
        }
        if (grid_.is_over()) return;
        for_each_cell(offset, bytes, [&](uintptr_t start, uint8_t mask) {
            Cell& cell = windows_[rank].at(static_cast<uint32_t>(start));
            check(actor, cell, {Space::kShared, rank, start}, mask, writes);
        });
    }

    // Checks a part of an access. Earlier parts had the same `last`.
    void shared(
        const Actor& actor,
        uint32_t rank,
        uint32_t offset,
        uint32_t bytes,
        bool writes,
        LastCell& last
    ) {
        if (grid_.is_over()) return;
        for_each_cell(offset, bytes, [&](uintptr_t start, uint8_t mask) {
            Cell& cell = windows_[rank].at(static_cast<uint32_t>(start));
            check_like(last, actor, cell, {Space::kShared, rank, start}, mask, writes);
        });
    }

    // True if any of the bytes was ever written, as far as writes are recorded.
    bool is_written(uint32_t rank, uint32_t offset, uint32_t bytes) {
        if (grid_.is_over()) return true;
        bool found = false;
        for_each_cell(offset, bytes, [&](uintptr_t start, uint8_t mask) {
            found |= (windows_[rank].at(static_cast<uint32_t>(start)).written() & mask) != 0;
        });
        return found;
    }

    bool is_written_globally(uintptr_t address, uint64_t bytes) {
        bool found = false;
        for_each_cell(address, bytes, [&](uintptr_t start, uint8_t mask) {
            found |= (grid_.shadow.at(start).written() & mask) != 0;
        });
        return found;
    }

    // Called when memory is allocated anew: all earlier accesses happen before.
    void forget_global(uintptr_t address, uint64_t bytes) { grid_.shadow.clear(address, bytes); }

    // The load through a tensor map that wrote the cell, if nothing else has written it since.
    const Access* load_at(uint32_t rank, uint32_t offset) {
        if (grid_.is_over()) return nullptr;
        const Access* const write = windows_[rank].at(offset).only_write();
        return write && write->pattern ? write : nullptr;
    }

    bool is_all_written(uint32_t rank, uint32_t offset, uint32_t bytes) {
        bool all = true;
        for_each_cell(offset, bytes, [&](uintptr_t start, uint8_t mask) {
            all &= (~windows_[rank].at(static_cast<uint32_t>(start)).written() & mask) == 0;
        });
        return all;
    }

    void global(const Actor& actor, uintptr_t address, uint64_t bytes, bool writes) {
        if (grid_.is_over()) return;
        if (bytes <= kFewBytes) {
            return for_each_cell(address, bytes, [&](uintptr_t start, uint8_t mask) {
                check(actor, grid_.shadow.at(start), {Space::kGlobal, 0, start}, mask, writes);
            });
        }
        LastCell last;
        for_each_cell(address, bytes, [&](uintptr_t start, uint8_t mask) {
            Cell& cell = grid_.shadow.at(start);
            check_like(last, actor, cell, {Space::kGlobal, 0, start}, mask, writes);
        });
    }

private:
    // The happens-before set of a thread whose launch follows these accesses, proxies included.
    static View view_after(const ClusterClocks& before) {
        View view;
        for (ClusterClocks* known :
             {&view.others, &view.others_acquired, &view.others_published,
              &view.others_fenced_for_all, &view.offered}) {
            known->join(before);
        }
        return view;
    }

    void note_atomic(uint32_t thread, uintptr_t address) {
        last_atomics_[thread].note(address / kCellBytes * kCellBytes, ++grid_.order);
    }

    // Acquires the writes that others released at the address on this device.
    void read_place(uint32_t thread, const AtomicPlace& place, bool reaches_clusters) {
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

    // Publishes and acquires writes between devices through an atomic operation at system scope.
    // Release and acquire are fences at that scope, and both are needed.
    void signal_devices(uint32_t thread, uintptr_t address, bool writes) {
        AtomicPlace& place = grid_.place_for_all(address);
        View &mine = views_[thread], &acquired = acquired_from_all_[thread];
        acquired.others.join(place.seen);
        acquired.offered.join(place.published);
        if (!writes) return;
        place.seen.join(mine.others_fenced_for_all);
        place.seen.join(cluster_, mine.fenced_for_all);
        place.published.join(mine.offered);
        place.published.join(cluster_, mine.published[static_cast<int>(Space::kGlobal)]);
    }

    bool is_of_peer(const Access& access) const {
        return access.cluster != cluster_ && grid_.has_peers() &&
               grid_.device_of(access.cluster) != device_;
    }

    // Operations that are atomic for one device alone are not atomic for its peers.
    bool conflict(const Access& old, const Access& access) const {
        if (old.conflicts_with(access)) return true;
        return old.is_atomic() && access.is_atomic() && (old.bytes & access.bytes) &&
               (old.is_write || access.is_write) && !(old.is_system && access.is_system) &&
               is_of_peer(old);
    }

    static Issued reader_of(Issued issued, uintptr_t map) {
        View view = *issued.after;
        view.published[static_cast<int>(Space::kGlobal)] = view.maps_acquired.of(map);
        issued.after = std::make_shared<const View>(std::move(view));
        return issued;
    }

    void check_like(
        LastCell& last,
        const Actor& actor,
        Cell& cell,
        const RacedPlace& place,
        uint8_t mask,
        bool writes
    ) {
        if (mask != kWholeCell) return check(actor, cell, place, mask, writes);
        if (last.repeats(cell)) return note_word();
        last.begin(cell);
        check(actor, cell, place, mask, writes);
        last.end(cell);
    }

    void note_word() {
        if (!grid_.is_over()) --grid_.words_left;
    }

    void check(const Actor& actor, Cell& cell, const RacedPlace& place, uint8_t mask, bool writes) {
        note_word();
        const Access access = access_of(actor, mask, writes);
        const bool was_unwritten = writes && (cell.written() & mask) == 0;
        cell.add(
            access,
            [&](const Access& old) {
                return is_before(old, actor, place.space) || is_after_atomics(old, actor, place);
            },
            [&](const Access& old) { return conflict(old, access); },
            [&](const Access& old) { report_pair(old, access, actor, place, was_unwritten); }
        );
    }

    bool is_after_atomics(const Access& old, const Actor& actor, const RacedPlace& place) const {
        const bool is_atomic =
            old.operation == Operation::kAtomic || old.operation == Operation::kBlockAtomic;
        return is_atomic && place.space == Space::kGlobal && actor.agent < threads_ &&
               last_atomics_[actor.thread].is_after(place.start, old.order);
    }

    void compare(const Actor& actor, const Cell& cell, const RacedPlace& place, uint8_t mask) {
        const Access access = access_of(actor, mask, false);
        cell.compare(
            access, [&](const Access& old) { return is_before(old, actor, place.space); },
            [&](const Access& old) { report_pair(old, access, actor, place, false); }
        );
    }

    void report_pair(
        const Access& old,
        const Access& access,
        const Actor& actor,
        const RacedPlace& place,
        bool was_unwritten
    ) {
        const bool is_peers = is_of_peer(old), knows = is_known(old, actor);
        const bool lacks_fence = needs_proxy_fence(old, actor) && knows;
        const auto stored = grid_.stored.find({old.cluster, old.agent});
        const Race race{
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
            .lacks_reader_fence =
                actor.view->others_published.at(old.cluster, old.agent) < old.epoch,
        };
        if (!actor.may_repeat || !is_of_one_instruction(old, access)) return report(race);
        if (!repeated_) repeated_ = race;
    }

    bool is_of_one_instruction(const Access& old, const Access& access) const {
        const auto warp_of = [&](uint32_t thread) { return thread % threads_of_cta_ / 32; };
        return old.site == access.site && old.operation == Operation::kWrite &&
               old.cluster == access.cluster && old.rank == access.rank &&
               warp_of(old.thread) == warp_of(access.thread);
    }

    Access access_of(const Actor& actor, uint8_t mask, bool writes) const {
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

    // True for an ordinary write before an access of the async proxy.
    static bool needs_proxy_fence(const Access& old, const Actor& actor) {
        return actor.is_async && !old.is_async && old.is_write;
    }

    bool is_known(const Access& old, const Actor& actor) const {
        if (old.cluster != cluster_) {
            return actor.view->others.at(old.cluster, old.agent) >= old.epoch;
        }
        // A thread's accesses are ordered among themselves, but not with its own copies.
        const bool is_thread = actor.agent < threads_;
        if (!actor.is_async && is_thread && old.agent == actor.agent) return true;
        const Clock& clock = actor.is_async ? actor.view->issued_after : actor.view->seen;
        return clock.at(old.agent) >= old.epoch;
    }

    bool is_before(const Access& old, const Actor& actor, Space space) const {
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

    // True for an ordinary read of another cluster's write to bytes that were read before: without
    // a fence after the flag, L1 may still hold the old bytes. TMA reads L2.
    bool is_stale(const Access& old, const Actor& actor) const {
        return old.had_readers && old.cluster != cluster_ && actor.operation == Operation::kRead &&
               actor.view->others_acquired.at(old.cluster, old.agent) < old.epoch;
    }

    // True if TMA sees a peer's write. Ordinary loads saw the signal, so the reader needs a proxy
    // fence after it. An ordinary write needs a proxy fence of its writer too.
    static bool is_visible_from_peer(const Access& old, const Actor& actor) {
        const View& view = *actor.view;
        const bool is_fenced = view.others_published.at(old.cluster, old.agent) >= old.epoch;
        return is_fenced && (old.is_async || view.offered.at(old.cluster, old.agent) >= old.epoch);
    }

    static constexpr uint64_t kFewBytes = 2 * kCellBytes;
    static constexpr uint8_t kWholeCell = 0xff;

    GridRaces& grid_;
    uint32_t device_ = 0;
    LaunchHistory* history_ = nullptr;
    uint32_t threads_;
    uint32_t threads_of_cta_;
    uint32_t cluster_ = 0;
    Agent agents_ = 0;
    std::vector<View> views_;   // indexed by thread
    std::vector<View> fenced_;  // published by the thread's next atomic operation
    std::vector<View> fenced_for_clusters_;
    std::vector<View> acquired_;           // gained by the thread's next fence
    std::vector<View> acquired_from_all_;  // gained by its next fence at system scope
    std::vector<LastAtomics> last_atomics_;
    std::vector<Epoch> epochs_;
    std::vector<WindowShadow> windows_;
    bool has_race_ = false;
    std::optional<Race> repeated_;
    Race race_{};
};

}  // namespace tmaasync_emulate
