// The compiler's guard variables among the shared variables: flags that a constructor has run. CUDA
// runs no constructor for __shared__ variables, so an unwritten flag counts as "has run".
#pragma once

#include <dlfcn.h>
#include <elf.h>
#include <link.h>

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <map>
#include <mutex>
#include <set>
#include <string_view>
#include <tmaasync_emulate/calls.hpp>
#include <vector>

#include "host/process_mutex.hpp"

namespace tmaasync_emulate {

using Offsets = std::set<uint32_t>;

// Offsets of the guard variables from the first static shared variable, in the layout of
// tmaasync_emulate/cuda.hpp. `image` is the file of the kernel's library.
inline Offsets guards_in(const std::vector<char>& image) {
    const auto at = [&]<typename T>(std::type_identity<T>, uint64_t offset) {
        T value{};
        if (offset + sizeof(T) <= image.size()) std::memcpy(&value, &image[offset], sizeof(T));
        return value;
    };
    constexpr std::type_identity<ElfW(Ehdr)> kHeader;
    constexpr std::type_identity<ElfW(Shdr)> kSection;
    constexpr std::type_identity<ElfW(Sym)> kSymbol;
    const auto header = at(kHeader, 0);
    std::vector<uint64_t> guards;
    uint64_t dynamic_memory = 0;
    for (uint32_t i = 0; i < header.e_shnum; ++i) {
        const auto section = at(kSection, header.e_shoff + uint64_t{i} * header.e_shentsize);
        if (section.sh_type != SHT_SYMTAB) continue;
        const auto names =
            at(kSection, header.e_shoff + uint64_t{section.sh_link} * header.e_shentsize);
        for (uint64_t offset = 0; offset < section.sh_size; offset += sizeof(ElfW(Sym))) {
            const auto symbol = at(kSymbol, section.sh_offset + offset);
            if ((symbol.st_info & 0xf) != STT_TLS) continue;
            const uint64_t name_at = names.sh_offset + symbol.st_name;
            if (name_at >= image.size()) continue;
            const std::string_view name(&image[name_at]);
            if (name == "_ZN16tmaasync_emulate14dynamic_memoryE") dynamic_memory = symbol.st_value;
            const bool is_guard = name.starts_with("_ZGV") || name == "__tls_guard";
            if (is_guard) guards.push_back(symbol.st_value);
        }
    }
    Offsets offsets;
    for (const uint64_t guard : guards) {
        const uint64_t skipped = guard > dynamic_memory ? kMaxDynamicBytes : 0;
        offsets.insert(static_cast<uint32_t>(guard - skipped));
    }
    return offsets;
}

inline std::vector<char> contents_of(const char* path) {
    std::FILE* file = std::fopen(path, "rb");
    if (!file) return {};
    std::fseek(file, 0, SEEK_END);
    std::vector<char> image(static_cast<std::size_t>(std::ftell(file)));
    std::rewind(file);
    image.resize(std::fread(image.data(), 1, image.size(), file));
    std::fclose(file);
    return image;
}

// True for a guard variable of this function's library, whose file is read once.
inline bool is_guard(const void* kernel, uint32_t offset) {
    static auto& mutex = *new ProcessMutex;
    static std::map<const void*, Offsets> found;
    Dl_info library{};
    if (!dladdr(kernel, &library)) return false;
    const std::lock_guard lock(mutex);
    const auto [entry, is_new] = found.try_emplace(library.dli_fbase);
    if (is_new) entry->second = guards_in(contents_of(library.dli_fname));
    return entry->second.contains(offset);
}

}  // namespace tmaasync_emulate
