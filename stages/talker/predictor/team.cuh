// Rows of x: a team owns a panel's columns, and each of its blocks every eighth row.
#pragma once
#include "products.cuh"

__device__ int team() { return blockIdx.x / MEMBERS; }
__device__ int member() { return blockIdx.x % MEMBERS; }

// Two columns of a row, and those eight behind them, become what the next product multiplies. 16 threads in a row have a
// team's columns of it.
__device__ void tell_row(Row to, int row, u32 column, uint2 four, bool inside = true) {
    const float4 value = widened(four);
    float square = dot(value, value);
#pragma unroll
    for (int distance = PANEL / 4 / 2; distance; distance /= 2) square += __shfl_xor_sync(ALL, square, distance);
    if (!inside) return;
    unsigned char* word = word_of(to.x, HIDDEN, row, column);
    announce(word, four.x);
    announce(word + 8, four.y);
    if (column % PANEL == 0) announce(to.squares + row * SQUARES_BYTES + 4 * (column / PANEL), square);
}

// The block's rows become what `made` says of a row and two columns of the panel and those eight behind them.
template <class Made>
__device__ void settle_rows(Row to, int tokens, Made made) {
    constexpr int FOURS = PANEL / 4;
    const int thread = thread_anew(), four = thread % FOURS;
    const u32 column = team() * PANEL + four / 4 * STEP + four % 4 * 2;
#pragma unroll 1
    for (int first = 0; first < tokens; first += WORKERS / FOURS * MEMBERS) {
        const int row = first + thread / FOURS * MEMBERS + member();
        const bool inside = row < tokens;
        tell_row(to, row, column, inside ? made(row, column) : make_uint2(0, 0), inside);
    }
}

// x and what the team's blocks have of its columns, each from its part of the inputs: always in one order. `handed` is
// float32 [MEMBERS, rows, PANEL].
__device__ void add_rows(Row to, unsigned char* x, const unsigned char* handed, int tokens, u32 rows, u32 turn) {
    settle_rows(to, tokens, [=](int row, u32 column) {
        const unsigned char* word = word_of(x, HIDDEN, row, column);
        const uint2 before = make_uint2(load<u32>(word), load<u32>(word + 8));
        const unsigned char* from = handed + 4 * row * PANEL + thread_anew() % (PANEL / 4) * 16;
        const auto lacks = [turn](uint4 part) {
            return ((part.x ^ turn) | (part.y ^ turn) | (part.z ^ turn) | (part.w ^ turn)) & 1;
        };
        // What is looked for too early is looked for again: when the block's own part has come back, so have others.
        while (lacks(seen_four(from + member() * rows * (4 * PANEL)))) {
        }
        uint4 parts[MEMBERS];
#pragma unroll
        for (int each = 0; each < MEMBERS; ++each) parts[each] = seen_four(from + each * rows * (4 * PANEL));
        for (;;) {
            u32 any = 0;
#pragma unroll
            for (int each = 0; each < MEMBERS; ++each) any |= lacks(parts[each]);
            if (!any) break;
#pragma unroll
            for (int each = 0; each < MEMBERS; ++each)
                see_again(parts[each], from + each * rows * (4 * PANEL), lacks(parts[each]));
        }
        float4 sums[MEMBERS];
#pragma unroll
        for (int each = 0; each < MEMBERS; ++each) sums[each] = floats_of(parts[each]);
#pragma unroll
        for (int apart = 1; apart < MEMBERS; apart *= 2)
#pragma unroll
            for (int each = 0; each < MEMBERS; each += 2 * apart) sums[each] = sums[each] + sums[each + apart];
        return rounded(sums[0] + widened(before));
    });
}
