#include "races/view.hpp"

namespace tmaasync_emulate {

View::View() = default;
View::View(const View&) = default;
View::View(View&&) noexcept = default;
View& View::operator=(const View&) = default;
View& View::operator=(View&&) noexcept = default;
View::~View() = default;

void View::join(const View& other) {
    seen.join(other.seen);
    join_relaxed(other);
}

void View::join_others(const ClusterClocks& done, const ClusterClocks& published) {
    others.join(done);
    offered.join(published);
}

void View::join_relaxed(const View& other) {
    issued_after.join(other.issued_after);
    for (int space = 0; space < 2; ++space) published[space].join(other.published[space]);
    maps_released.join(other.maps_released);
    maps_acquired.join(other.maps_acquired);
    arrivals.join(other.arrivals);
    fenced.join(other.fenced);
    others.join(other.others);
    others_acquired.join(other.others_acquired);
    others_published.join(other.others_published);
    fenced_for_all.join(other.fenced_for_all);
    others_fenced_for_all.join(other.others_fenced_for_all);
    offered.join(other.offered);
    tensor.join(other.tensor);
}

void View::join_async_agents(const View& other, Agent first) {
    seen.join(other.seen, first);
    issued_after.join(other.issued_after, first);
}

}  // namespace tmaasync_emulate
