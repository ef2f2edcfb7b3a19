#pragma once

// Everything above the PTX wrappers, but neither wgmma, which needs sm_90a (<tmaasync/wgmma.cuh>),
// nor the parts of structured kernels above the ring (<tmaasync/structured.cuh>,
// <tmaasync/attention.cuh>).
#include <tmaasync/barrier.cuh>
#include <tmaasync/bulk_tile.cuh>
#include <tmaasync/check.cuh>
#include <tmaasync/cluster.cuh>
#include <tmaasync/copy/copy.cuh>
#include <tmaasync/copy/strided.cuh>
#include <tmaasync/cp_async.cuh>
#include <tmaasync/gather4_tile.cuh>
#include <tmaasync/global.cuh>
#include <tmaasync/grid.cuh>
#include <tmaasync/im2col.cuh>
#include <tmaasync/im2col_w.cuh>
#include <tmaasync/pipeline.cuh>
#include <tmaasync/ragged.cuh>
#include <tmaasync/role_name.cuh>
#include <tmaasync/shared.cuh>
#include <tmaasync/signal.cuh>
#include <tmaasync/split.cuh>
#include <tmaasync/structured/ring.cuh>
#include <tmaasync/structured/store_ring.cuh>
#include <tmaasync/swizzle.cuh>
#include <tmaasync/tile.cuh>
#include <tmaasync/tile_array.cuh>
#include <tmaasync/tma.cuh>
#include <tmaasync/warp.cuh>
