// Added products. Their inputs are most of what a pass reads from the second-level cache. So the four clusters of a team
// share their columns, and split the inputs by eight. Sums then go through global memory, and the team meets once more.
#pragma once
#include "products.cuh"

// End and store the rows that are this block's, every one of its team in turn: `handed` is what each block handed on.
template <class P>
__device__ void finish_team(void* out, const float* handed, long stride, int rows) {
    constexpr int FOURS = P::COLUMNS / 4;
    const int four = thread() % FOURS * 4, column = blockIdx.x / MEMBERS * P::COLUMNS + four;
#pragma unroll 1
    for (int row = thread() / FOURS * MEMBERS + blockIdx.x % MEMBERS; row < rows; row += THREADS / FOURS * MEMBERS) {
        const uint2 before = load<uint2>(static_cast<bf16*>(out) + long(row) * P::OUTPUTS + column);
        float4 sums[MEMBERS];
#pragma unroll
        for (int member = 0; member < MEMBERS; ++member)
            sums[member] = load<float4>(handed + member * stride + row * P::COLUMNS + four);
#pragma unroll
        for (int apart = 1; apart < MEMBERS; apart *= 2)
#pragma unroll
            for (int member = 0; member < MEMBERS; member += 2 * apart)
                sums[member] = sums[member] + sums[member + apart];
        store<P>(out, row, column, sums[0] + widened(before));
    }
}

// What the blocks of a team have for one another: room for sums, and a counter.
struct Team {
    float* handed;  // float32 [BLOCKS, tiles · 64, columns]
    u32* counters;
};

// out [rows, HIDDEN] += x · weightsᵀ. From byte `first` on, a team brings what `wide` is to hold when it meets: the
// meeting before leaves them to it, since what a block has asked for would be waited for here.
template <class P>
__device__ void add_rows(const bf16* x, int rows, Place& place, Place& received, bf16* out, const Team& team,
                         const Place& wide, const unsigned char* weights, int bytes, int first) {
    const long stride = long(rows + TILE_ROWS - 1) / TILE_ROWS * TILE_ROWS * P::COLUMNS;
    multiply_rows<P>(x, P::INPUTS, rows, place, received, team.handed + blockIdx.x * stride, 0);
    meet_team<Qkv>(team.counters, wide, weights, bytes, first, bytes);
    finish_team<P>(out, team.handed + blockIdx.x / MEMBERS * MEMBERS * stride, stride, rows);
}
