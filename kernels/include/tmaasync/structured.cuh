#pragma once

// The parts of a structured GEMM, above the ring: roles, tile schedulers, main loops, epilogues.
// They issue wgmma, which needs sm_90a. Attention adds <tmaasync/attention.cuh>.
#include <tmaasync/epilogue.cuh>
#include <tmaasync/epilogue_ops.cuh>
#include <tmaasync/mainloop.cuh>
#include <tmaasync/roles.cuh>
#include <tmaasync/scheduler.cuh>
#include <tmaasync/split_k.cuh>
#include <tmaasync/stream_k.cuh>
#include <tmaasync/tmaasync.cuh>
