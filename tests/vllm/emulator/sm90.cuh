// In place of `stages/sm90.cuh`: the same functions for the emulator, and what the kernel uses of CUDA itself.
#pragma once

typedef unsigned int u32;
typedef unsigned long long u64;
typedef unsigned short bf16;

#define __device__ inline
#define __global__
#define __launch_bounds__(...)
#define threadIdx (emulator::current->thread)
#define blockIdx (emulator::current->block_index)
#define shared (emulator::current->shared)

struct alignas(8) uint2 {
    u32 x, y;
};
struct alignas(16) uint4 {
    u32 x, y, z, w;
};
struct alignas(8) float2 {
    float x, y;
};
struct alignas(16) float4 {
    float x, y, z, w;
};
inline uint2 make_uint2(u32 x, u32 y) { return {x, y}; }
inline uint4 make_uint4(u32 x, u32 y, u32 z, u32 w) { return {x, y, z, w}; }
inline float2 make_float2(float x, float y) { return {x, y}; }
inline float4 make_float4(float x, float y, float z, float w) { return {x, y, z, w}; }

inline float __uint_as_float(u32 bits) {
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}
inline u32 __float_as_uint(float value) {
    u32 bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}
inline void __nanosleep(u32) {}
inline float rsqrtf(float x) { return 1 / sqrtf(x); }
inline float __expf(float x) { return expf(x); }
inline float __fdividef(float a, float b) { return a / b; }
inline float __saturatef(float x) { return x > 0 ? fminf(x, 1) : 0; }
inline u32 max(u32 a, u32 b) { return a > b ? a : b; }
inline u32 min(u32 a, u32 b) { return a < b ? a : b; }
inline u32 atomicAdd(u32* at, u32 value) { return (*at += value) - value; }  // no other thread runs meanwhile

inline void __syncthreads() { emulator::meet(0, emulator::WARP * int(emulator::warps_run.size())); }
inline void __syncwarp() { emulator::collect(emulator::SYNC, emulator::ALL, 0, 0); }
inline bool __any_sync(u32 mask, bool vote) { return emulator::collect(emulator::BALLOT, mask, vote, 0) != 0; }
inline bool __all_sync(u32 mask, bool vote) { return emulator::collect(emulator::BALLOT, mask, !vote, 0) == 0; }
template <class T>
inline T __shfl_sync(u32 mask, T value, int source) {
    static_assert(sizeof(T) == 4, "one word");
    u32 word;
    memcpy(&word, &value, sizeof word);
    word = u32(emulator::collect(emulator::SHUFFLE, mask, word, source));
    memcpy(&value, &word, sizeof word);
    return value;
}
template <class T>
inline T __shfl_xor_sync(u32 mask, T value, int distance) {
    return __shfl_sync(mask, value, emulator::current->lane ^ distance);
}

template <class T>
inline T __shfl_up_sync(u32 mask, T value, int distance) {
    const int lane = emulator::current->lane;
    return __shfl_sync(mask, value, lane < distance ? lane : lane - distance);
}
template <class Both>
inline u32 reduced(u32 mask, u32 value, Both both) {
    for (int distance = 1; distance < emulator::WARP; distance *= 2)
        value = both(value, __shfl_xor_sync(mask, value, distance));
    return value;
}
inline u32 __reduce_add_sync(u32 mask, u32 value) {
    return reduced(mask, value, [](u32 a, u32 b) { return a + b; });
}
inline u32 __reduce_min_sync(u32 mask, u32 value) { return reduced(mask, value, min); }
inline u32 __reduce_max_sync(u32 mask, u32 value) { return reduced(mask, value, max); }

inline u32 address_of(const void* at) {
    return u32(static_cast<const unsigned char*>(at) - shared) + emulator::SHARED_AT;
}
inline float low(u32 pair) { return __uint_as_float(pair << 16); }
inline float high(u32 pair) { return __uint_as_float(pair & 0xffff0000); }
inline u32 bf16_of(float value) {
    const u32 bits = __float_as_uint(value);
    return value != value ? 0x7fff : (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
}
inline u32 pair_of(float low, float high) { return bf16_of(low) | bf16_of(high) << 16; }

inline void begin_barrier(u32 barrier, int arrivals) { emulator::begin_barrier(barrier, arrivals); }
inline void publish_barriers() {}
inline void expect_bytes(u32 barrier, int bytes) { emulator::arrive(barrier, bytes); }
inline void bring_bytes(u32 to, const void* from, int bytes, u32 barrier) {
    emulator::begin_copy(to, from, bytes, barrier);
}
inline void await_bytes(u32 barrier, u32 phase) { emulator::await(barrier, phase); }

// Products are ready at once.
inline void begin_products() {}
inline void close_products() {}
template <int OPEN>
inline void await_products() {}
template <int COUNT>
inline void pin(float (&)[COUNT]) {}
