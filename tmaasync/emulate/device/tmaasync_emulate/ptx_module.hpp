// The parts of a PTX module that no asm statement has: parameters of bytes, and the functions of
// CUDA's system that compilers call. tmaasync/emulate/frontend/ptx/module writes calls of them.
#pragma once

#include <tmaasync_emulate/inline_ptx.hpp>

namespace tmaasync_emulate::inline_ptx {

// A kernel's parameter of the type .b8 name[kBytes].
template <std::size_t kBytes, std::size_t kAlignment>
struct __attribute__((aligned(kAlignment))) Bytes {
    unsigned char bytes[kBytes];
};

template <typename T>
TMAASYNC_EMULATE_INLINE TMAASYNC_EMULATE_UNSEEN T packed_at(const unsigned char* memory) {
    T value;
    __builtin_memcpy(&value, memory, sizeof(T));
    return value;
}

// One conversion of a format and its argument, which has the alignment of its size.
template <typename T>
TMAASYNC_EMULATE_UNSEEN int print_one(
    char* to, std::size_t room, const char* format, const unsigned char*& packed
) {
    const auto address = (reinterpret_cast<std::uint64_t>(packed) + sizeof(T) - 1) & -sizeof(T);
    packed = reinterpret_cast<const unsigned char*>(address) + sizeof(T);
    return std::snprintf(to, room, format, packed_at<T>(packed - sizeof(T)));
}

// vprintf(format, arguments): the arguments lie one after the other (CUDA C++ Programming Guide,
// "Formatted Output").
__attribute__((noinline)) TMAASYNC_EMULATE_UNSEEN inline void print_packed(
    unsigned char* result, unsigned char* format_at, unsigned char* arguments_at
) {
    const char* format = packed_at<const char*>(format_at);
    auto packed = packed_at<const unsigned char*>(arguments_at);
    char text[1024];
    std::size_t used = 0;
    while (*format && used + 1 < sizeof(text)) {
        if (*format != '%' || format[1] == '%') {
            text[used++] = *format;
            format += *format == '%' ? 2 : 1;
            continue;
        }
        char one[32] = "%";
        std::size_t length = 1;
        while (*++format && !std::strchr("diouxXcsfFeEgGaAp", *format) && length < 24) {
            if (*format == '*') {
                length += print_one<int>(one + length, sizeof(one) - length, "%d", packed);
            } else {
                one[length++] = *format;
            }
        }
        if (!*format) break;
        one[length++] = *format;
        char* const to = text + used;
        const std::size_t room = sizeof(text) - used;
        const bool is_long = std::strpbrk(one, "ljzt") != nullptr;
        const int written =
            std::strchr("fFeEgGaA", *format)   ? print_one<double>(to, room, one, packed)
            : *format == 's' || *format == 'p' ? print_one<const void*>(to, room, one, packed)
            : is_long                          ? print_one<long long>(to, room, one, packed)
                                               : print_one<int>(to, room, one, packed);
        used += written < 0 ? 0 : static_cast<std::size_t>(written);
        ++format;
    }
    const int count =
        printf("%.*s", static_cast<int>(used < sizeof(text) ? used : sizeof(text) - 1), text);
    __builtin_memcpy(result, &count, sizeof(count));
}

// __assertfail(message, file, line, function, bytes of a character)
[[noreturn]] __attribute__((noinline)) TMAASYNC_EMULATE_UNSEEN inline void fail_assertion(
    unsigned char* message, unsigned char*, unsigned char*, unsigned char*, unsigned char*
) {
    const Mention facts[] = {text_at("assert"), text_at(packed_at<const char*>(message))};
    fail_at(__builtin_return_address(0), FaultKind::kAssertion, facts, 2);
}

inline void allocate_packed(unsigned char* result, unsigned char* bytes) {
    void* const memory = ::malloc(packed_at<std::uint64_t>(bytes));
    __builtin_memcpy(result, &memory, sizeof(memory));
}
inline void release_packed(unsigned char* memory) {
    ::free(packed_at<void*>(memory));
}

}  // namespace tmaasync_emulate::inline_ptx
