// Arithmetic on a few values, and what they look like: nothing here knows an instruction.
#pragma once
#include "layout.cuh"

// Results announce themselves: where one is to come stands a mark, which no result is, since arithmetic makes another
// NaN.
constexpr u32 MARK = 0xffffffff;
__device__ bool is_there(uint2 value) { return value.x != MARK && value.y != MARK; }
__device__ bool is_there(uint4 value) {
    return is_there(make_uint2(value.x, value.y)) && is_there(make_uint2(value.z, value.w));
}

// Describes rows of 128 bytes to the tensor cores, in groups of eight, their 16-byte pieces exchanged: the low word,
// which says where they stand.
__device__ u32 low_description(u32 at) { return 1 << 16 | at >> 4; }

__device__ float4 floats_of(uint4 bits) {
    return make_float4(__uint_as_float(bits.x), __uint_as_float(bits.y), __uint_as_float(bits.z),
                       __uint_as_float(bits.w));
}

__device__ float4 widened(uint2 four) { return make_float4(low(four.x), high(four.x), low(four.y), high(four.y)); }

__device__ uint2 rounded(float4 four) { return make_uint2(pair_of(four.x, four.y), pair_of(four.z, four.w)); }

__device__ float4 operator+(float4 a, float4 b) { return make_float4(a.x + b.x, a.y + b.y, a.z + b.z, a.w + b.w); }

__device__ float4 operator*(float4 a, float4 b) { return make_float4(a.x * b.x, a.y * b.y, a.z * b.z, a.w * b.w); }

__device__ float dot(float4 a, float4 b) { return a.x * b.x + a.y * b.y + a.z * b.z + a.w * b.w; }

__device__ float total_of_warp(float value) {
#pragma unroll
    for (int distance = 16; distance; distance /= 2) value += __shfl_xor_sync(ALL, value, distance);
    return value;
}
