#pragma once

// The conversions of CUDA's header of the same name are inline PTX where __CUDA_ARCH__ is defined,
// and C++ elsewhere. The headers that it includes come first, because they have no inline PTX.
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <nv/target>

#pragma push_macro("TMAASYNC_EMULATE_TARGET")
#pragma push_macro("__CUDA_ARCH__")
#pragma push_macro("__CUDACC__")
#pragma push_macro("__CUDACC_RTC__")
#undef __CUDA_ARCH__
#undef __CUDACC__
#undef __CUDACC_RTC__
#undef TMAASYNC_EMULATE_TARGET
#define TMAASYNC_EMULATE_TARGET TMAASYNC_HOST
#include_next <cuda_fp8.h>
#pragma pop_macro("__CUDACC_RTC__")
#pragma pop_macro("__CUDACC__")
#pragma pop_macro("__CUDA_ARCH__")
#pragma pop_macro("TMAASYNC_EMULATE_TARGET")
