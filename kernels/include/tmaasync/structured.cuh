#pragma once

// The parts of structured kernels, in the folder `structured`: rings, roles, tile schedulers, main
// loops, epilogues. Attention adds <tmaasync/attention.cuh>.
#include <tmaasync/structured/cluster_launch_scheduler.cuh>
#include <tmaasync/structured/cluster_shape.cuh>
#include <tmaasync/structured/count_tiles.cuh>
#include <tmaasync/structured/dynamic_scheduler.cuh>
#include <tmaasync/structured/epilogue.cuh>
#include <tmaasync/structured/epilogue_ops.cuh>
#include <tmaasync/structured/grouped_scheduler.cuh>
#include <tmaasync/structured/k_range.cuh>
#include <tmaasync/structured/list_scheduler.cuh>
#include <tmaasync/structured/mainloop.cuh>
#include <tmaasync/structured/mma_order.cuh>
#include <tmaasync/structured/output_chunk.cuh>
#include <tmaasync/structured/output_tiles.cuh>
#include <tmaasync/structured/partial_accumulators.cuh>
#include <tmaasync/structured/register_split.cuh>
#include <tmaasync/structured/ring.cuh>
#include <tmaasync/structured/ring_consumer.cuh>
#include <tmaasync/structured/ring_groups.cuh>
#include <tmaasync/structured/ring_producer.cuh>
#include <tmaasync/structured/ring_stages.cuh>
#include <tmaasync/structured/roles.cuh>
#include <tmaasync/structured/row_groups.cuh>
#include <tmaasync/structured/schedule.cuh>
#include <tmaasync/structured/sequence_tiles.cuh>
#include <tmaasync/structured/shifted_rows.cuh>
#include <tmaasync/structured/split_k.cuh>
#include <tmaasync/structured/stage_range.cuh>
#include <tmaasync/structured/static_scheduler.cuh>
#include <tmaasync/structured/store_coordinates.cuh>
#include <tmaasync/structured/store_ring.cuh>
#include <tmaasync/structured/stream_k.cuh>
#include <tmaasync/structured/stream_k_scheduler.cuh>
#include <tmaasync/structured/visitors.cuh>
#include <tmaasync/tmaasync.cuh>
