#include "schedule/events.hpp"

namespace tmaasync_emulate {

void add_event(const Cluster& cluster, const Fiber& fiber, Event event) {
    event.thread = static_cast<uint16_t>(fiber.index);
    event.address = cluster.launch.memory.address_in_library(fiber.site);
    if (cluster.launch.posts) cluster.recorder->tick();
    add_event(cluster, *fiber.cta, event);
}

void add_event(const Cluster& cluster, const Cta& cta, Event event) {
    event.rank = static_cast<uint16_t>(cta.rank);
    cluster.recorder->add(event);
}

}  // namespace tmaasync_emulate
