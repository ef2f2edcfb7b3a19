// Functions that every kernel's library links for itself: its accesses and the C library's names
// lead to them. They are compiled once, because they took most of a small kernel's compile time.
#define TMAASYNC_EMULATE_DEFINES_BUILT_INS

#include <tmaasync_emulate/accesses.hpp>
#include <tmaasync_emulate/built_ins.hpp>
#include <tmaasync_emulate/c_library.hpp>
#include <tmaasync_emulate/special_function_unit.hpp>
