#include "state/cluster.hpp"

namespace tmaasync_emulate {

Cluster::Cluster(const Launch& its_launch, Worker& its_worker)
    : launch(its_launch),
      worker(&its_worker),
      stacks(KeptStacks::take(launch.threads() * launch.cluster_ctas())),
      shared(KeptWindows::take(launch.cluster_ctas())),
      fibers(launch.threads() * launch.cluster_ctas()),
      ctas(launch.cluster_ctas()),
      mma_buffers(std::make_unique_for_overwrite<MmaBuffers>()) {
    for (Cta& cta : ctas) cta.barrier_at.assign((launch.window_bytes() + 7) / 8, -1);
    if (launch.trace) recorder = std::make_unique<Recorder>();
    if (!launch.races) return;
    detector = std::make_unique<Detector>(
        *launch.races, launch.rules, static_cast<uint32_t>(fibers.size()), launch.cluster_ctas(),
        windows()
    );
    tensor_races = std::make_unique<TensorRaces>(
        *detector, static_cast<uint32_t>(fibers.size()), static_cast<uint32_t>(ctas.size())
    );
}

Cluster::~Cluster() {
    if (stacks->are_guarded()) KeptStacks::give(std::move(stacks));
    KeptWindows::give(std::move(shared));
}

}  // namespace tmaasync_emulate
