// Random numbers that a seed determines.
#pragma once

#include <cstdint>

namespace tmaasync_emulate {

// The finaliser of SplitMix64 (Steele, Lea and Flood, OOPSLA 2014).
inline uint64_t mixed(uint64_t word) {
    word = (word ^ word >> 30) * 0xbf58476d1ce4e5b9;
    word = (word ^ word >> 27) * 0x94d049bb133111eb;
    return word ^ word >> 31;
}

class Random {
public:
    explicit Random(uint64_t seed) : state_(seed) {}

    uint64_t next() { return mixed(state_ += 0x9e3779b97f4a7c15); }
    uint32_t below(uint64_t limit) { return static_cast<uint32_t>(next() % limit); }
    bool one_in(uint32_t chances) { return below(chances) == 0; }

private:
    uint64_t state_;
};

}  // namespace tmaasync_emulate
