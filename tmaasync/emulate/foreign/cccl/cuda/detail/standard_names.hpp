// Names of cuda::std that every header of libcu++ provides, and that kernels use without an
// include: integers of fixed width, type traits, move and forward, numeric_limits, tuple, bit_cast.
#pragma once

#include <cuda/detail/standard_begin.hpp>

#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <cuda/detail/standard_traits.hpp>
#include <limits>
#include <type_traits>
#include <utility>

#include <cuda/detail/standard_end.hpp>
