// What every kernel's library has of its own: the functions that its accesses and the C library's
// names lead to. Compiled once, and linked into each: most of a small kernel's work to compile.
#include <tmaasync_emulate/accesses.hpp>
#include <tmaasync_emulate/c_library.hpp>
