// Rows of x, in panels: a team owns a panel's columns, and each of its blocks every eighth row.
#pragma once
#include "products.cuh"

__device__ int team() { return blockIdx.x / (RANKS * MEMBERS) * RANKS + blockIdx.x % RANKS; }
__device__ int member() { return blockIdx.x / RANKS % MEMBERS; }

// The block's rows become what `made` says of a row and the first of four columns of the panel.
template <class Made>
__device__ void settle_rows(unsigned char* x, int tokens, Made made) {
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
        reinterpret_cast<uint2*>(piece_of(x, TEAMS, row, team() * PANEL + four))[four % 8 / 4] = kept;
        unsigned char* panel = x + long(row / TILE_ROWS * TEAMS + team()) * PANEL_BYTES;
        if (four == 0) reinterpret_cast<float*>(panel)[row % TILE_ROWS] = square;
    }
}

// x += what the team's blocks have of its columns, each from its part of the inputs: always in one order. `handed` is
// float32 [MEMBERS, stride]; values announce themselves, and marks stand there again behind it.
__device__ void add_rows(unsigned char* x, float* handed, int tokens, long stride) {
    if (tokens > FEW_ROWS) fence_is_near();  // what comes from the team would queue behind weights
    settle_rows(x, tokens, [=](int row, int four) {
        const uint2 before = load<uint2>(piece_of(x, TEAMS, row, team() * PANEL + four) + four % 8 * 2);
        uint4* from = reinterpret_cast<uint4*>(handed + row * PANEL + four);
        uint4 parts[MEMBERS];
        bool there;
        do {
            there = true;
#pragma unroll
            for (int each = 0; each < MEMBERS; ++each) parts[each] = seen_four(from + each * stride / 4);
#pragma unroll
            for (int each = 0; each < MEMBERS; ++each) there = is_there(parts[each]) && there;
        } while (!there);
        fence_is_near();
        float4 sums[MEMBERS];
#pragma unroll
        for (int each = 0; each < MEMBERS; ++each) {
            mark_four(from + each * stride / 4);
            sums[each] = floats_of(parts[each]);
        }
#pragma unroll
        for (int apart = 1; apart < MEMBERS; apart *= 2)
#pragma unroll
            for (int each = 0; each < MEMBERS; each += 2 * apart) sums[each] = sums[each] + sums[each + apart];
        return sums[0] + widened(before);
    });
}
