#pragma once

// The integer names of the PTX ISA. Nothing is included, so that every header compiles alone.
namespace tmaasync {

using u16 = unsigned short;
using u32 = unsigned int;
using u64 = unsigned long long;
using i32 = int;
using i64 = long long;

static_assert(sizeof(u16) == 2 && sizeof(u32) == 4 && sizeof(u64) == 8, "PTX integer widths");

}  // namespace tmaasync
