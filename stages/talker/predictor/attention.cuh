// Attention over the at most 16 positions of a frame: a warp for each query head of a row.
#pragma once
#include "products.cuh"

// A head, four columns a lane, normalised and rotated.
__device__ float4 rotated(float4 x, float4 weight, float4 cos, float4 sin, float eps) {
    const float scale = rsqrtf(total_of_warp(dot(x, x)) / HEAD + eps);
    x.x *= scale * weight.x, x.y *= scale * weight.y, x.z *= scale * weight.z, x.w *= scale * weight.w;
    float4 other;
    other.x = __shfl_xor_sync(ALL, x.x, 16), other.y = __shfl_xor_sync(ALL, x.y, 16);
    other.z = __shfl_xor_sync(ALL, x.z, 16), other.w = __shfl_xor_sync(ALL, x.w, 16);
    return x * cos + other * sin;
}

// Lanes add up what they have of twice so many sums, and each goes on with one half of them: in the end two have one.
template <int HALF>
__device__ void add_lanes(float (&sums)[POSITIONS]) {
    const bool upper = threadIdx.x & 2 * HALF;
#pragma unroll
    for (int i = 0; i < HALF; ++i) {
        const float given = __shfl_xor_sync(ALL, upper ? sums[i] : sums[i + HALF], 2 * HALF);
        sums[i] = (upper ? sums[i + HALF] : sums[i]) + given;
    }
    if constexpr (HALF > 1) add_lanes<HALF / 2>(sums);
}

// Nearly so long it takes until others see what is told.
constexpr int TELLING_NS = 150;

__device__ uint2 two_at(const bf16* from) { return *reinterpret_cast<const uint2*>(from); }

// The warps of a key/value head's queries share keys and values of a row in shared memory.
struct Attention {
    const bf16 *qk_norm, *cos, *sin;
    bf16 *keys, *values;
    int start, count;
    float eps;

    static __device__ int sharers() { return threadIdx.x / WARP / GROUP; }
    static __device__ unsigned char* near_keys(int sharers) { return shared + CACHED_AT + sharers * 2 * CACHED_BYTES; }
    static __device__ long cached(int row, int kv_head) { return (long(row) * KV_HEADS + kv_head) * POSITIONS * HEAD; }

    // What earlier passes cached of a row, if it is one, comes to shared memory, for those sharers. By one thread.
    __device__ void recall(int row, bool is_one, int kv_head, int sharers) const {
        const u32 barrier = barrier_at(RECALLED + sharers), to = address_of(near_keys(sharers));
        const int bytes = is_one ? start * 2 * HEAD : 0;
        expect_bytes(barrier, 2 * bytes);
        if (bytes == 0) return;
        bring_bytes(to, keys + cached(row, kv_head), bytes, barrier);
        bring_bytes(to + CACHED_BYTES, values + cached(row, kv_head), bytes, barrier);
    }

    // `count` positions of a row from `start` on, in one query head. `qkv` has of each key/value head its queries, key
    // and value. All of the warps that share a key make it; the first keeps it for later passes.
    __device__ void attend(const unsigned char* qkv, unsigned char* attended, int row, int kv_head, int member) const {
        const int lane = threadIdx.x % WARP, head = kv_head * GROUP + member;
        unsigned char* near = near_keys(sharers());
#pragma unroll 1
        for (int position = start; position < start + count; ++position) {
            const int token = row * count + position - start, at = position * HEAD + lane * 4;
            const unsigned char* source = qkv + 2 * (token * QKV + kv_head * (GROUP + 2) * HEAD + lane * 4);
            const uint2 raw_cos = two_at(cos + at), raw_sin = two_at(sin + at);
            const uint2 key_norm = two_at(qk_norm + (HEADS + kv_head) * HEAD + lane * 4);
            const uint2 query_norm = two_at(qk_norm + head * HEAD + lane * 4);
            uint2 value, raw_key, raw_query;
            // What is looked for too early is looked for again.
            __nanosleep(TELLING_NS);
            do {
                value = seen_two(source + 2 * (GROUP + 1) * HEAD);
                raw_key = seen_two(source + 2 * GROUP * HEAD);
                raw_query = seen_two(source + 2 * member * HEAD);
            } while (!__all_sync(ALL, is_there(value) && is_there(raw_key) && is_there(raw_query)));
            const float4 angle_cos = widened(raw_cos), angle_sin = widened(raw_sin);
            const uint2 key = rounded(rotated(widened(raw_key), widened(key_norm), angle_cos, angle_sin, eps));
            const float4 query = rotated(widened(raw_query), widened(query_norm), angle_cos, angle_sin, eps);
            *reinterpret_cast<uint2*>(near + 2 * at) = key;
            *reinterpret_cast<uint2*>(near + CACHED_BYTES + 2 * at) = value;
            if (member == 0) {
                *reinterpret_cast<uint2*>(keys + cached(row, kv_head) + at) = key;
                *reinterpret_cast<uint2*>(values + cached(row, kv_head) + at) = value;
            }
            __syncwarp();
            const uint2 sum = rounded(look(near, query, position));
            announce(word_of(attended, ATTENDED, token, head * HEAD + lane * 4), sum.x);
            announce(word_of(attended, ATTENDED, token, head * HEAD + lane * 4 + 2), sum.y);
            __syncwarp();
        }
    }

    // Four columns of the attention over positions up to `last`, given the same four of the query. All keys are read before
    // any is used, and all values: what costs here is waiting.
    static __device__ float4 look(const unsigned char* near, float4 query, int last) {
        const int lane = threadIdx.x % WARP;
        const unsigned char* at = near + lane * 8;
        float scores[POSITIONS];
        uint2 values[POSITIONS];
#pragma unroll
        for (int i = 0; i < POSITIONS; ++i)
            scores[i] = dot(query, widened(*reinterpret_cast<const uint2*>(at + i * 2 * HEAD)));
#pragma unroll
        for (int i = 0; i < POSITIONS; ++i) {
            values[i] = *reinterpret_cast<const uint2*>(at + CACHED_BYTES + i * 2 * HEAD);
            if (i > last) values[i] = make_uint2(0, 0);  // NaN may stand there
        }
        add_lanes<POSITIONS / 2>(scores);
        float score = (scores[0] + __shfl_xor_sync(ALL, scores[0], 1)) * rsqrtf(HEAD);
        if (lane / 2 > last) score = -1e30f;  // whatever stands there
        float largest = score;
#pragma unroll
        for (int distance = 2; distance < WARP; distance *= 2)
            largest = fmaxf(largest, __shfl_xor_sync(ALL, largest, distance));
        const float share = __expf(score - largest);
        float whole = 0;
        float4 sum = make_float4(0, 0, 0, 0);
#pragma unroll
        for (int i = 0; i < POSITIONS; ++i) {
            const float part = __shfl_sync(ALL, share, 2 * i);
            whole += part;
            sum = sum + make_float4(part, part, part, part) * widened(values[i]);
        }
        const float scale = __fdividef(1, whole);
        return sum * make_float4(scale, scale, scale, scale);
    }
};
