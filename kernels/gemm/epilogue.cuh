#pragma once

// The epilogue of a tile config.
#include <tmaasync/epilogue.cuh>

#include "config.cuh"

namespace tmaasync {

using TileEpilogue =
    Epilogue<CTile, kOutputSliceColumns, C_IS_N_MAJOR ? OutputMajor::kN : OutputMajor::kM>;

}  // namespace tmaasync
