// The functions that kernels call for wgmma and setmaxnreg.

#include "schedule/caller.hpp"
#include "wgmma/setmaxnreg.hpp"
#include "wgmma/wgmma.hpp"

namespace tmaasync_emulate {

void set_max_registers(bool claims, uint32_t registers) {
    set_registers(TMAASYNC_EMULATE_CALLER(), claims, registers);
}

void mma_fence() {
    fence_mmas(TMAASYNC_EMULATE_CALLER());
}

void mma_issue(const Mma& mma) {
    issue_mma(TMAASYNC_EMULATE_CALLER(), mma);
}

void mma_commit() {
    commit_mmas(TMAASYNC_EMULATE_CALLER());
}

void mma_wait(uint32_t pending) {
    wait_for_mmas(TMAASYNC_EMULATE_CALLER(), pending);
}

}  // namespace tmaasync_emulate
