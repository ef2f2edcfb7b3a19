// What every header of libcu++ brings of cuda::std, and kernels use without including it: integers
// of fixed width, type traits, move and forward, numeric_limits, tuple, bit_cast.
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
