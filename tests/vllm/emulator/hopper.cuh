// In place of `stages/talker/predictor/hopper.cuh`: the same functions for the emulator.
#pragma once
#include "values.cuh"

static_assert(MARK == emulator::MARK, "what the emulator knows of the kernel");

template <class T>
inline T load(const void* at) {
    T value;
    emulator::load(&value, at, sizeof value);
    return value;
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

inline void see_again(uint4& four, const void* at, bool wanted) {
    if (wanted) four = seen_four(at);
}
inline void announce(void* at, u32 one) { emulator::store(at, &one, 1); }
inline void announce(void* at, float one) { emulator::store(at, &one, 1); }
inline void announce(void* at, float2 two) { emulator::store(at, &two, 2); }
inline void announce(void* at, uint4 four) { emulator::store(at, &four, 4); }
inline void mark_four(void* at) {
    const uint4 marks = {MARK, MARK, MARK, MARK};
    emulator::store(at, &marks, 4);
}

inline void await_launch() {}  // one launch ends before the next begins
inline void show_writes() { emulator::show_writes(); }
inline float power_of_two(float exponent) { return exp2f(exponent); }
inline u32 thread_anew() { return threadIdx.x; }
inline void show_writes_to_copies() {}
inline void meet_workers() { emulator::meet(1, WORKERS); }
inline void meet_sharers(int which) { emulator::meet(2 + which, WARP * GROUP); }
inline void arrive(u32 barrier) { emulator::arrive(barrier, 0); }
inline bool has_passed(u32 barrier, u32 phase) { return emulator::has_passed(barrier, phase); }
inline void bring_once(u32 to, const void* from, int bytes, u32 barrier) { bring_bytes(to, from, bytes, barrier); }

template <int COUNT>
inline void give_registers() {}
template <int COUNT>
inline void take_registers() {}

template <int COUNT>
inline void multiply(float (&sums)[COUNT], uint4 left, u32 right) {
    emulator::multiply(sums, COUNT, &left.x, right);
}

template <int COUNT>
inline void pin(uint4 (&)[COUNT]) {}
inline void pin(u32&) {}
