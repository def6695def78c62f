// Attention over the at most 16 positions of a frame: a warp for each query head of a row.
#pragma once
#include "panels.cuh"

// One row's keys and values of a key/value head, a warp's.
struct Past {
    uint4 key[8];     // of position lane / 2, one half of the head
    uint2 value[16];  // of each position, four columns

    // What was cached by earlier launches; zeros for later positions.
    __device__ void take(const bf16* keys, const bf16* values, int start) {
        const int lane = threadIdx.x % 32;
#pragma unroll
        for (int i = 0; i < 8; ++i)
            key[i] = lane / 2 < start ? reinterpret_cast<const uint4*>(keys)[(lane * HEAD / 2 + i * 8) / 8]
                                      : make_uint4(0, 0, 0, 0);
#pragma unroll
        for (int i = 0; i < POSITIONS; ++i)
            value[i] = i < start ? reinterpret_cast<const uint2*>(values)[i * HEAD / 4 + lane] : make_uint2(0, 0);
    }
};

// A head, four columns a lane, normalised and rotated.
__device__ float4 rotated(float4 x, float4 weight, float4 cos, float4 sin, float eps) {
    const float scale = rsqrtf(total_of_warp(dot(x, x)) / HEAD + eps);
    x.x *= scale * weight.x, x.y *= scale * weight.y, x.z *= scale * weight.z, x.w *= scale * weight.w;
    float4 other;
    other.x = __shfl_xor_sync(ALL, x.x, 16), other.y = __shfl_xor_sync(ALL, x.y, 16);
    other.z = __shfl_xor_sync(ALL, x.z, 16), other.w = __shfl_xor_sync(ALL, x.w, 16);
    return make_float4(x.x * cos.x + other.x * sin.x, x.y * cos.y + other.y * sin.y, x.z * cos.z + other.z * sin.z,
                       x.w * cos.w + other.w * sin.w);
}

struct Attention {
    bf16* qkv;  // of each key/value head its queries, key and value; they announce themselves
    const bf16 *qk_norm, *cos, *sin;
    bf16 *keys, *values;
    unsigned char* attended;  // panels
    int start, count;
    float eps;

    __device__ void recall(Past& past, int row, int kv_head) const {
        const long cached = (long(row) * KV_HEADS + kv_head) * POSITIONS * HEAD;
        past.take(keys + cached, values + cached, start);
    }

    // `count` positions of a row from `start` on, in one query head. The first of those that share a key stores it.
    __device__ void attend(Past& past, int row, int kv_head, int member) const {
        const int lane = threadIdx.x % 32, head = kv_head * GROUP + member;
        float* asked = reinterpret_cast<float*>(shared + SCRATCH_AT) + threadIdx.x / 32 * SCRATCH_FLOATS;
        uint2* new_key = reinterpret_cast<uint2*>(asked + 2 * HALF_PITCH);
        const long cached = (long(row) * KV_HEADS + kv_head) * POSITIONS * HEAD + lane * 4;
#pragma unroll 1
        for (int position = start; position < start + count; ++position) {
            const int token = row * count + position - start;
            const float4 angle_cos = widened(load<uint2>(cos + position * HEAD + lane * 4));
            const float4 angle_sin = widened(load<uint2>(sin + position * HEAD + lane * 4));
            const float4 key_norm = widened(load<uint2>(qk_norm + (HEADS + kv_head) * HEAD + lane * 4));
            const float4 query_norm = widened(load<uint2>(qk_norm + head * HEAD + lane * 4));
            const bf16* source = asked_of(token, kv_head);
            uint2 value, raw_key, raw_query;
            do {
                value = seen_two(source + (GROUP + 1) * HEAD);
                raw_key = seen_two(source + GROUP * HEAD);
                raw_query = seen_two(source + member * HEAD);
            } while (!is_there(value) || !is_there(raw_key) || !is_there(raw_query));
            fence_is_near();
            const uint2 key = rounded(rotated(widened(raw_key), key_norm, angle_cos, angle_sin, eps));
            const float4 query = rotated(widened(raw_query), query_norm, angle_cos, angle_sin, eps);
            new_key[lane] = key;
            *reinterpret_cast<float4*>(asked + lane / 16 * HALF_PITCH + lane % 16 * 4) = query;
            if (member == 0) {
                *reinterpret_cast<uint2*>(keys + cached + position * HEAD) = key;
                *reinterpret_cast<uint2*>(values + cached + position * HEAD) = value;
            }
            __syncwarp();
            if (lane / 2 == position)
#pragma unroll
                for (int i = 0; i < 8; ++i) past.key[i] = reinterpret_cast<const uint4*>(new_key)[lane % 2 * 8 + i];
#pragma unroll
            for (int i = 0; i < POSITIONS; ++i)
                if (i == position) past.value[i] = value;
            const float4 sum = look(past, asked + lane % 2 * HALF_PITCH, position);
            unsigned char* piece = piece_of(attended, ATTENDED / PANEL, token, head * HEAD + lane * 4);
            reinterpret_cast<uint2*>(piece)[lane % 2] = rounded(sum);
            __syncwarp();
        }
    }

    // Marks for the next layer: all who share a key have read it.
    __device__ void forget(int row, int kv_head) const {
        for (int token = row * count; token < (row + 1) * count; ++token)
            for (int part = 0; part < GROUP + 2; ++part)
                mark_two(asked_of(token, kv_head) + part * HEAD);
    }

    __device__ bf16* asked_of(int token, int kv_head) const {
        return qkv + long(token) * QKV + kv_head * (GROUP + 2) * HEAD + threadIdx.x % 32 * 4;
    }

    // Four columns of the attention over positions up to `last`; `asked` is the half of the query that the lane takes.
    __device__ float4 look(const Past& past, const float* asked, int last) const {
        const int lane = threadIdx.x % 32;
        float4 products = make_float4(0, 0, 0, 0);
#pragma unroll
        for (int i = 0; i < 8; ++i) {
            const float4* query = reinterpret_cast<const float4*>(asked + 8 * i);
            products = products + query[0] * widened(make_uint2(past.key[i].x, past.key[i].y));
            products = products + query[1] * widened(make_uint2(past.key[i].z, past.key[i].w));
        }
        float score = products.x + products.y + (products.z + products.w);
        score = (score + __shfl_xor_sync(ALL, score, 1)) * rsqrtf(HEAD);
        if (lane / 2 > last) score = -1e30f;
        float largest = score;
#pragma unroll
        for (int distance = 2; distance < 32; distance *= 2)
            largest = fmaxf(largest, __shfl_xor_sync(ALL, largest, distance));
        const float share = __expf(score - largest);
        const float whole = total_of_warp(share) / 2;
        float4 sum = make_float4(0, 0, 0, 0);
#pragma unroll
        for (int i = 0; i < POSITIONS; ++i) {
            const float part = __shfl_sync(ALL, share, 2 * i);
            sum = sum + make_float4(part, part, part, part) * widened(past.value[i]);
        }
        return sum * make_float4(1 / whole, 1 / whole, 1 / whole, 1 / whole);
    }
};
