// In place of `stages/talker/predictor/hopper.cuh`: the same functions for the emulator.
#pragma once
#include "layout.cuh"

template <class T>
inline T load(const void* at) {
    T value;
    emulator::load(&value, at, sizeof value);
    return value;
}

constexpr u32 MARK = emulator::MARK;
inline bool is_there(uint2 value) { return value.x != MARK && value.y != MARK; }
inline bool is_there(uint4 value) {
    return is_there(make_uint2(value.x, value.y)) && is_there(make_uint2(value.z, value.w));
}

inline uint2 seen_two(const void* at) {
    uint2 two;
    emulator::look(&two, at, sizeof two);
    return two;
}
inline uint4 seen_four(const void* at) {
    uint4 four;
    emulator::look(&four, at, sizeof four);
    return four;
}

inline void announce(void* at, u32 one) { emulator::store(at, &one, 1); }
inline void announce(void* at, float one) { emulator::store(at, &one, 1); }
inline void announce(void* at, uint2 two) { emulator::store(at, &two, 2); }
inline void mark_four(void* at) {
    const uint4 marks = {MARK, MARK, MARK, MARK};
    emulator::store(at, &marks, 4);
}

inline void await_launch() {}  // one launch ends before the next begins
inline void show_writes() { emulator::show_writes(); }
inline void meet_workers() { emulator::meet(1, WORKERS); }
inline void meet_sharers(int which) { emulator::meet(2 + which, WARP * GROUP); }
inline void arrive(u32 barrier) { emulator::arrive(barrier, 0); }
inline bool has_passed(u32 barrier, u32 phase) { return emulator::has_passed(barrier, phase); }
inline void bring_once(u32 to, const void* from, int bytes, u32 barrier) { bring_bytes(to, from, bytes, barrier); }

template <int COUNT>
inline void give_registers() {}
template <int COUNT>
inline void take_registers() {}

inline u32 low_description(u32 at) { return 1 << 16 | at >> 4; }
template <int COUNT>
inline void multiply(float (&sums)[COUNT], uint4 left, u32 right) {
    emulator::multiply(sums, COUNT, &left.x, right);
}

inline float4 floats_of(uint4 bits) {
    return make_float4(__uint_as_float(bits.x), __uint_as_float(bits.y), __uint_as_float(bits.z),
                       __uint_as_float(bits.w));
}
inline float4 widened(uint2 four) { return make_float4(low(four.x), high(four.x), low(four.y), high(four.y)); }
inline uint2 rounded(float4 four) { return make_uint2(pair_of(four.x, four.y), pair_of(four.z, four.w)); }
inline float4 operator+(float4 a, float4 b) { return make_float4(a.x + b.x, a.y + b.y, a.z + b.z, a.w + b.w); }
inline float4 operator*(float4 a, float4 b) { return make_float4(a.x * b.x, a.y * b.y, a.z * b.z, a.w * b.w); }
inline float dot(float4 a, float4 b) { return a.x * b.x + a.y * b.y + a.z * b.z + a.w * b.w; }
inline float total_of_warp(float value) {
    for (int distance = 16; distance; distance /= 2) value += __shfl_xor_sync(ALL, value, distance);
    return value;
}

template <int COUNT>
inline void pin(uint4 (&)[COUNT]) {}
inline void pin(u32&) {}
