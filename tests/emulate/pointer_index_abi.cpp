// The index of pointers as test_pointer_index.py calls it.
#include <state/pointer_index.hpp>

using namespace tmaasync_emulate;

extern "C" PointerIndex* index_new() {
    return new PointerIndex;
}
extern "C" void index_free(PointerIndex* index) {
    delete index;
}
extern "C" uint64_t index_searches(const PointerIndex* index) {
    return index->searches();
}
// Writes the reach of the address, in a launch with one array that may hold pointers.
extern "C" void index_around(
    PointerIndex* index,
    uint64_t start,
    uint64_t array_bytes,
    uint64_t address,
    uint64_t bytes,
    uint64_t* out
) {
    const Reach reach = index->around({{start, array_bytes, 1}}, address, bytes);
    out[0] = reach.start;
    out[1] = reach.end;
}
