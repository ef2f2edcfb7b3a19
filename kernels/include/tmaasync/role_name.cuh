#pragma once

#include <tmaasync/instrument/role.cuh>
#include <tmaasync/operands/integers.cuh>

namespace tmaasync {

// Characters of a role's name.
constexpr int kMaxRoleCharacters = 27;

// Name the role of the calling warp, by one or all of its lanes: set_role("producer"). Reports of
// the emulator, hang reports of debug builds and timelines name the warp by its role. In other
// builds the call is nothing.
template <int kSize>
__device__ __forceinline__ void set_role(const char (&name)[kSize]) {
    static_assert(kSize - 1 <= kMaxRoleCharacters, "the name of a role has at most 27 characters");
    instrument::note_role(name, instrument::kNoNumber);
}

// Name the role of a warp where several have the same one: set_role("consumer", 1).
template <int kSize>
__device__ __forceinline__ void set_role(const char (&name)[kSize], u32 number) {
    static_assert(kSize - 1 <= kMaxRoleCharacters, "the name of a role has at most 27 characters");
    instrument::note_role(name, number);
}

}  // namespace tmaasync
