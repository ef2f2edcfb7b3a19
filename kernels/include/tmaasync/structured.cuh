#pragma once

// All parts of a structured GEMM: the ring, roles, tile schedulers, main loops and epilogues. They
// need sm_90a.
#include <tmaasync/epilogue.cuh>
#include <tmaasync/epilogue_ops.cuh>
#include <tmaasync/mainloop.cuh>
#include <tmaasync/ring.cuh>
#include <tmaasync/roles.cuh>
#include <tmaasync/scheduler.cuh>
#include <tmaasync/split_k.cuh>
#include <tmaasync/tmaasync.cuh>
#include <tmaasync/wgmma.cuh>
