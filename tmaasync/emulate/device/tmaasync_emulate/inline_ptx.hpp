// The instructions of inline PTX. tmaasync/emulate/frontend/ptx translates asm statements to calls
// of these functions; the build includes this header before sources that have any.
#pragma once

// First: it leaves out libstdc++'s special functions.
#include <tmaasync_emulate/cuda.hpp>

#include <tmaasync_emulate/inline_ptx/comparisons.hpp>
#include <tmaasync_emulate/inline_ptx/convert.hpp>
#include <tmaasync_emulate/inline_ptx/copies.hpp>
#include <tmaasync_emulate/inline_ptx/floats.hpp>
#include <tmaasync_emulate/inline_ptx/integers.hpp>
#include <tmaasync_emulate/inline_ptx/matrices.hpp>
#include <tmaasync_emulate/inline_ptx/memory.hpp>
#include <tmaasync_emulate/inline_ptx/registers.hpp>
#include <tmaasync_emulate/inline_ptx/tensor.hpp>
#include <tmaasync_emulate/inline_ptx/threads.hpp>
