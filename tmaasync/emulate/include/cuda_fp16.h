#pragma once

// CUDA's header of the same name, as a host's compiler reads it, and then the functions that it
// declares for the device only.
#pragma push_macro("__CUDACC__")
#pragma push_macro("__CUDACC_RTC__")
#undef __CUDACC__
#undef __CUDACC_RTC__
#include_next <cuda_fp16.h>
#pragma pop_macro("__CUDACC_RTC__")
#pragma pop_macro("__CUDACC__")

#include <tmaasync_emulate/half.hpp>
