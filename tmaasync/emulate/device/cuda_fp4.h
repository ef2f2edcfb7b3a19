#pragma once

// Works like <cuda_fp8.h> here.
#include <cuda_fp8.h>

#pragma push_macro("__CUDA_ARCH__")
#pragma push_macro("__CUDACC__")
#pragma push_macro("__CUDACC_RTC__")
#undef __CUDA_ARCH__
#undef __CUDACC__
#undef __CUDACC_RTC__
#include_next <cuda_fp4.h>
#pragma pop_macro("__CUDACC_RTC__")
#pragma pop_macro("__CUDACC__")
#pragma pop_macro("__CUDA_ARCH__")
