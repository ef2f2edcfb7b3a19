#include "verify/sync_order.hpp"

#include <algorithm>
#include <cstdlib>
#include <cstring>

#include "schedule/scheduler.hpp"
#include "schedule/worker.hpp"

namespace tmaasync_emulate {

static uint64_t index_in_launch(const Cluster& cluster) {
    return cluster.index - cluster.launch.first_cluster;
}

uint64_t cta_number(const Cluster& cluster, const Cta& cta) {
    const uint64_t in_launch = index_in_launch(cluster) * cluster.ctas.size() + cta.rank;
    return cluster.launch.first_cta + in_launch;
}

SyncOrder::SyncOrder(Interleaving& given, uint64_t threads)
    : given_(given), agents_(static_cast<Agent>(threads)), known_(threads), counts_(threads) {
    for (uint64_t i = 0; i < given.holds; ++i) held_.push_back({given.hold[i]});
    given_.operations = given_.phases = given_.signature = 0;
}

void SyncOrder::hand_over() {
    given_.pairs = pairs_.size();
    given_.pair = nullptr;
    if (pairs_.empty()) return;
    const std::size_t bytes = pairs_.size() * sizeof(UnorderedPair);
    given_.pair = static_cast<UnorderedPair*>(std::malloc(bytes));
    if (!given_.pair) throw std::bad_alloc();
    std::memcpy(given_.pair, pairs_.data(), bytes);
}

void SyncOrder::begin_after(const Launch& previous, const Launch& launch) {
    const auto end_of = [](const Launch& one) { return one.first_thread + one.all_threads(); };
    Clock all;
    for (uint64_t thread = previous.first_thread; thread < end_of(previous); ++thread) {
        all.join(known_[thread]);
        all.raise(static_cast<Agent>(thread), static_cast<Epoch>(counts_[thread]));
    }
    for (uint64_t thread = launch.first_thread; thread < end_of(launch); ++thread) {
        known_[thread] = all;
    }
}

// --- operations of threads ----------------------------------------------------------------------

uint64_t SyncOrder::thread_of(const Fiber& fiber) const {
    const Cluster& cluster = *fiber.cluster;
    const uint64_t in_launch = index_in_launch(cluster) * cluster.fibers.size() + fiber.number;
    return cluster.launch.first_thread + in_launch;
}

uint64_t call_of(const Fiber& fiber) {
    return fiber.cluster->launch.memory.library.holds(fiber.site, 1) ? fiber.site - 1 : 0;
}

SyncEvent SyncOrder::event_of(const Fiber& fiber, uint64_t number) const {
    return {SyncKind::kOperation, 0, thread_of(fiber), number, call_of(fiber)};
}

SyncOrder::Held* SyncOrder::held(const SyncEvent& event) {
    const auto found = std::find_if(held_.begin(), held_.end(), [&](const Held& one) {
        return !one.is_done && is_same(one.hold.event, event);
    });
    return found == held_.end() ? nullptr : &*found;
}

void SyncOrder::happen(const SyncEvent& event) {
    for (Held& one : held_) one.is_done |= is_same(one.hold.until, event);
}

// The first one reverses a pair, and the others keep an order.
bool SyncOrder::give_up_one() {
    const auto found = std::find_if(held_.rbegin(), held_.rend(), [](const Held& one) {
        return !one.is_done && one.is_awaited;
    });
    if (found == held_.rend()) return false;
    return found->is_done = true;
}

void SyncOrder::hold(Fiber& fiber) {
    if (held_.empty()) return;
    const SyncEvent next = event_of(fiber, counts_[thread_of(fiber)] + 1);
    while (Held* const one = held(next)) {
        one->is_awaited = true;
        spin(fiber, {.instruction = "a held operation"});
    }
}

Synced SyncOrder::count(Fiber& fiber) {
    const uint64_t thread = thread_of(fiber), number = ++counts_[thread];
    ++given_.operations;
    Synced synced{event_of(fiber, number), known_[thread]};
    happen(synced.event);
    return synced;
}

std::shared_ptr<const Synced> SyncOrder::issue(Fiber& fiber) {
    hold(fiber);
    auto issued = std::make_shared<Synced>(count(fiber));
    issued->event.kind = SyncKind::kLanding;
    return issued;
}

// --- pairs --------------------------------------------------------------------------------------

// Runs with the same words in another order have the same signature.
void SyncOrder::sign(uint64_t a, uint64_t b, uint64_t c, uint64_t d) {
    given_.signature += hash_of(a, b, c, d);
}

// Lanes of a warp do the same at a barrier: one pair stands for all.
void SyncOrder::add_pair(const UnorderedPair& pair, uint64_t phase) {
    const auto warp_of = [](const SyncEvent& event) {
        return event.kind == SyncKind::kPhase ? event.owner : event.owner / 32;
    };
    const bool is_new = pair.kind >= Unordered::kAccess ||
                        known_pairs_
                            .insert(
                                {static_cast<uint64_t>(pair.kind), pair.cta, pair.barrier, phase,
                                 warp_of(pair.first), warp_of(pair.second)}
                            )
                            .second;
    if (!is_new || pairs_.size() == kMostPairs) return;
    pairs_.push_back(pair);
}

// --- barriers -----------------------------------------------------------------------------------

// The first of the events that may also come after this one; null if there is none.
static const SyncEvent* first_unordered(const std::vector<SyncEvent>& earlier, const Synced& now) {
    const auto found = std::find_if(earlier.begin(), earlier.end(), [&](const SyncEvent& one) {
        return !is_before(one, now);
    });
    return found == earlier.end() ? nullptr : &*found;
}

// An arrival counts in the present phase in every interleaving if it happens after the last phase.
void SyncOrder::check_phase_is_known(BarrierKey key, const Phases& phases, const Synced& arrival) {
    if (phases.completed == 0 || arrival.before.at(phases.agent) >= phases.completed) return;
    if (const SyncEvent* earlier = first_unordered(phases.arrived_before[0], arrival)) {
        add_pair(
            {Unordered::kArrival, key.offset, key.cta, 0, *earlier, arrival.event}, phases.completed
        );
    }
}

void SyncOrder::land(BarrierKey key, const Synced& arrival) {
    Phases& phases = phases_[key];
    check_phase_is_known(key, phases, arrival);
    phases.arrived.push_back(arrival.event);
    const SyncEvent& event = arrival.event;
    if (!phases.joined.shares(arrival.before)) phases.gathered.join(arrival.before);
    phases.joined = arrival.before;
    phases.gathered.raise(static_cast<Agent>(event.owner), static_cast<Epoch>(event.number));
    sign(
        key.cta << 32 | key.offset, phases.completed, arrival.event.owner,
        arrival.event.number << 2 | static_cast<uint64_t>(arrival.event.kind)
    );
    happen(arrival.event);
}

void SyncOrder::arrive(BarrierKey key, const Synced& arrival) {
    land(key, arrival);
    Phases& phases = phases_[key];
    if (!phases.expected.empty()) join(phases.arrivals, arrival);
}

void SyncOrder::expect(Fiber& fiber, BarrierKey key) {
    const Synced expected = count(fiber);
    Phases& phases = phases_[key];
    check_phase_is_known(key, phases, expected);
    phases.expected.push_back(expected.event);
}

void SyncOrder::complete(BarrierKey key) {
    Phases& phases = phases_[key];
    const SyncEvent completion{SyncKind::kPhase, key.offset, key.cta, phases.completed, 0};
    for (const SyncEvent& wait : phases.passed) {
        if (is_known(phases.gathered, wait)) continue;
        add_pair(
            {Unordered::kMissedPhase, key.offset, key.cta, 0, wait, completion}, phases.completed
        );
    }
    for (const SyncEvent& expected : phases.expected) {
        if (is_known(phases.arrivals, expected)) continue;
        add_pair(
            {Unordered::kExpectation, key.offset, key.cta, 0, expected, completion},
            phases.completed
        );
    }
    if (phases.agent == kNoAgent) phases.agent = agents_++;
    ++phases.completed;
    ++given_.phases;
    phases.gathered.set(phases.agent, phases.completed);
    phases.published = std::move(phases.gathered);
    phases.gathered = phases.arrivals = phases.joined = {};
    phases.arrived_before[1] = std::move(phases.arrived_before[0]);
    phases.arrived_before[0] = std::move(phases.arrived);
    phases.arrived.clear();
    phases.expected.clear();
    phases.passed.clear();
    happen(completion);
}

void SyncOrder::pass(Fiber& fiber, BarrierKey key) {
    const Synced wait = count(fiber);
    Phases& phases = phases_[key];
    const bool may_be_early =
        phases.completed > 1 && wait.before.at(phases.agent) + 1 < phases.completed;
    const SyncEvent* const earlier =
        may_be_early ? first_unordered(phases.arrived_before[1], wait) : nullptr;
    if (earlier) {
        add_pair(
            {Unordered::kWait, key.offset, key.cta, 0, *earlier, wait.event}, phases.completed
        );
    }
    phases.passed.push_back(wait.event);
    sign(
        key.cta << 32 | key.offset, ~uint64_t{phases.completed}, wait.event.owner, wait.event.number
    );
    join_published(fiber, key);
}

void SyncOrder::join_published(const Fiber& fiber, BarrierKey key) {
    learn(fiber, phases_[key].published);
}

// --- threads that execute together --------------------------------------------------------------

void SyncOrder::learn(const Fiber& fiber, const Clock& published) {
    Clock& known = known_[thread_of(fiber)];
    if (!learned_before_.shares(known) || !learned_.shares(published)) {
        learned_before_ = learned_after_ = known;
        learned_ = published;
        learned_after_.join(published);
    }
    known = learned_after_;
}

void SyncOrder::publish(const Fiber& fiber, Clock& target) const {
    const uint64_t thread = thread_of(fiber);
    target.join(known_[thread]);
    target.raise(static_cast<Agent>(thread), static_cast<Epoch>(counts_[thread]));
}

void SyncOrder::join_lanes(const Meeting& meeting) {
    Clock all;
    for (uint32_t lane = 0; lane < 32; ++lane) {
        if (meeting.arrived >> lane & 1) publish(*meeting.fibers[lane], all);
    }
    for (uint32_t lane = 0; lane < 32; ++lane) {
        if (meeting.arrived >> lane & 1) known_[thread_of(*meeting.fibers[lane])] = all;
    }
}

void SyncOrder::arrive_at_cluster(const Fiber& fiber) {
    publish(fiber, gathered_[fiber.cluster->index]);
}

void SyncOrder::complete_cluster(const Cluster& cluster) {
    completed_[cluster.index] = std::exchange(gathered_[cluster.index], {});
}

void SyncOrder::wait_for_cluster(const Fiber& fiber) {
    learn(fiber, completed_[fiber.cluster->index]);
}

static uint64_t warpgroup_of(const Fiber& fiber) {
    return cta_number(*fiber.cluster, *fiber.cta) << 8 | fiber.index / kGroupThreads;
}

void SyncOrder::commit_mmas(const Fiber& fiber) {
    publish(fiber, mmas_[{warpgroup_of(fiber), fiber.mmas.commits}]);
}

// A group of wgmmas is complete after all four warps have issued it.
void SyncOrder::wait_for_mmas(const Fiber& fiber, std::size_t group) {
    learn(fiber, mmas_[{warpgroup_of(fiber), group}]);
}

// --- copies -------------------------------------------------------------------------------------

bool SyncOrder::is_landing_held(const Flight& flight) {
    const Synced* synced = flight.synced.get();
    if (flight.kind == Flight::Kind::kTensor)
        synced = flight.target->tensor.queue.front().synced.get();
    Held* const one = synced ? held(synced->event) : nullptr;
    if (one) one->is_awaited = true;
    return one;
}

std::size_t SyncOrder::next_landing(Cluster& cluster) {
    for (std::size_t i = 0; i < cluster.flights.size(); ++i) {
        if (!is_landing_held(cluster.flights[i])) return i;
    }
    return kNone;
}

}  // namespace tmaasync_emulate
