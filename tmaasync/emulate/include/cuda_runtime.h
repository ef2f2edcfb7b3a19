#pragma once

// Stand-in for CUDA's header of the same name: of all that it declares, kernels use the types.
#include <device_types.h>
#include <vector_functions.h>
#include <vector_types.h>
