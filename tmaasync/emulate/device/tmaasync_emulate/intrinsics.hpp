// CUDA's functions on the CPU. Each header has a section of CUDA's guides.
#pragma once

#include <tmaasync_emulate/atomics.hpp>
#include <tmaasync_emulate/cluster.hpp>
#include <tmaasync_emulate/conversions.hpp>
#include <tmaasync_emulate/integers.hpp>
#include <tmaasync_emulate/mathematics.hpp>
#include <tmaasync_emulate/memory.hpp>
#include <tmaasync_emulate/rounding.hpp>
#include <tmaasync_emulate/simd.hpp>
#include <tmaasync_emulate/warp.hpp>
