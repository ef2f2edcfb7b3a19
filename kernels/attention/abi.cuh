#pragma once

// What attention_values.cu makes of scales, and attention.cu multiplies by.
#include <tmaasync/tmaasync.cuh>

namespace tmaasync {

// Of a head of keys of an entry, where elements have 8 bits.
struct alignas(8) Factors {
    float scores;
    float values;
};

}  // namespace tmaasync
