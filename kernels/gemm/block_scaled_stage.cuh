#pragma once

namespace tmaasync::kernels::gemm {

constexpr int kAtomRows = 128;  // of scale factors

// The operands of a K block, and their scale factors.
struct Stage {
    static constexpr int kBytes =
        ATile::kBytes + BTile::kBytes + AFactorTile::kBytes + BFactorTile::kBytes;

    ATile::Shared a;
    BTile::Shared b;
    AFactorTile::Shared a_factors;
    BFactorTile::Shared b_factors;
};

}  // namespace tmaasync::kernels::gemm
