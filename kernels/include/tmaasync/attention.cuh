#pragma once

// The parts of attention kernels, in the folder `attention`, and the structured parts below them.
#include <tmaasync/attention/consumer.cuh>
#include <tmaasync/attention/mask.cuh>
#include <tmaasync/attention/mmas.cuh>
#include <tmaasync/attention/ones.cuh>
#include <tmaasync/attention/paged.cuh>
#include <tmaasync/attention/pipelines.cuh>
#include <tmaasync/attention/query_ring.cuh>
#include <tmaasync/attention/row_softmax.cuh>
#include <tmaasync/attention/softmax.cuh>
#include <tmaasync/attention/store_rows.cuh>
#include <tmaasync/attention/value_ring.cuh>
#include <tmaasync/attention/variant.cuh>
#include <tmaasync/structured.cuh>
