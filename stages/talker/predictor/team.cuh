// Rows of x: a team owns a panel's columns, and each of its blocks every eighth row.
#pragma once
#include "products.cuh"

__device__ int team() { return blockIdx.x / MEMBERS; }
__device__ int member() { return blockIdx.x % MEMBERS; }

// A row that is normalised where it is multiplied.
struct Row {
    unsigned char *x, *squares;
};

// The block's rows become what `made` says of a row and the first of four columns of the panel.
template <class Made>
__device__ void settle_rows(Row to, int tokens, Made made) {
    constexpr int FOURS = PANEL / 4;
    const int four = threadIdx.x % FOURS * 4;
#pragma unroll 1
    for (int first = 0; first < tokens; first += WORKERS / FOURS * MEMBERS) {
        const int row = first + threadIdx.x / FOURS * MEMBERS + member();
        const bool inside = row < tokens;
        const uint2 kept = rounded(inside ? made(row, four) : make_float4(0, 0, 0, 0));
        const float4 value = widened(kept);
        float square = dot(value, value);
#pragma unroll
        for (int distance = FOURS / 2; distance; distance /= 2) square += __shfl_xor_sync(ALL, square, distance);
        if (!inside) continue;
        announce(word_of(to.x, HIDDEN, row, team() * PANEL + four), kept.x);
        announce(word_of(to.x, HIDDEN, row, team() * PANEL + four + 2), kept.y);
        if (four == 0) announce(to.squares + row * SQUARES_BYTES + 4 * team(), square);
    }
}

// x and what the team's blocks have of its columns, each from its part of the inputs: always in one order. `handed` is
// float32 [MEMBERS, rows, PANEL].
__device__ void add_rows(Row to, unsigned char* x, const unsigned char* handed, int tokens, u32 rows, u32 turn) {
    settle_rows(to, tokens, [=](int row, int four) {
        const uint2 before = make_uint2(load<u32>(word_of(x, HIDDEN, row, team() * PANEL + four)),
                                        load<u32>(word_of(x, HIDDEN, row, team() * PANEL + four + 2)));
        const unsigned char* from = handed + 4 * (row * PANEL + four);
        uint4 parts[MEMBERS];
        u32 there;
        do {
            there = 1;
#pragma unroll
            for (int each = 0; each < MEMBERS; ++each) parts[each] = seen_four(from + each * rows * (4 * PANEL));
#pragma unroll
            for (int each = 0; each < MEMBERS; ++each) {
                const uint4 part = parts[each];
                there &= ~(part.x ^ turn) & ~(part.y ^ turn) & ~(part.z ^ turn) & ~(part.w ^ turn);
            }
        } while (!there);
        float4 sums[MEMBERS];
#pragma unroll
        for (int each = 0; each < MEMBERS; ++each) sums[each] = floats_of(parts[each]);
#pragma unroll
        for (int apart = 1; apart < MEMBERS; apart *= 2)
#pragma unroll
            for (int each = 0; each < MEMBERS; each += 2 * apart) sums[each] = sums[each] + sums[each + apart];
        return sums[0] + widened(before);
    });
}
