// Added products of many rows. Their inputs are most of what a pass reads from the second-level cache, since every
// cluster reads all of them for 16 columns. The clusters of a team share their columns, and split the inputs instead.
// Sums then go through global memory, which costs the time of one more meeting.
#pragma once
#include "products.cuh"

// Add up what the block's warp groups have of 64 rows, for the team: `handed`, float32 [64, columns].
template <class P>
__device__ void hand_on(const float (&sums)[P::COLUMNS / 2], const Place& received, float* handed, int group,
                        int rows) {
    const u32 given = address_of(shared) + SUMS_AT + group * HALF_BYTES,
              taken = address_of(shared) + SUMS_AT + (1 - group) * HALF_BYTES;
    const bool idle = thread() / 32 % 4 * 16 >= rows;  // a warp without rows
    if (idle) {
    } else if (group == 0) move_half<P, 1, TO_OTHER_GROUP>(sums, given, received, 0);
    else move_half<P, 0, TO_OTHER_GROUP>(sums, given, received, 0);
    __syncthreads();
    if (idle) {
    } else if (group == 0) move_half<P, 0, TO_TEAM>(sums, taken, received, 0, handed);
    else move_half<P, 1, TO_TEAM>(sums, taken, received, 0, handed);
}

// A part of the inputs of an added product, as a block of a team: `handed`, float32 [blocks, tiles · 64, columns], is
// what the team is to add up. Behind it `place` may be filled anew when the team has met.
template <class P>
__device__ void multiply_part(const bf16* x, int stride, int rows, Place& place, const Place& received, float* handed) {
    const int group = __shfl_sync(ALL, threadIdx.x / 128, 0), part = GROUPS * (blockIdx.x % MEMBERS) + group;
    const int lane = threadIdx.x % 32, row = threadIdx.x / 32 % 4 * 16 + lane / 4;
    const u64 right = right_of<P>(place, group);
    const bf16* from = x + long(row) * stride + part * P::PANELS * PANEL + lane % 4 * 8;
#pragma unroll 1
    for (int first = 0; first < rows; first += TILE_ROWS, from += TILE_ROWS * stride) {
        const int count = min(rows - first, TILE_ROWS);
        Left<P> left;
        left.take_first(from, stride, count - row);
        if (first == 0) place.wait();
        float sums[1][P::COLUMNS / 2], squares[2][4];
        multiply_tile<P>(sums, squares, left, from, stride, count - row, right);
        if (first > 0) __syncthreads();  // what is overwritten now has been read
        hand_on<P>(sums[0], received, handed + first * P::COLUMNS, group, count);
    }
}

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
        store<P>(out, row, column, sums[0], before);
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
    if constexpr (P::TEAMED) {
        const long stride = long(rows + TILE_ROWS - 1) / TILE_ROWS * TILE_ROWS * P::COLUMNS;
        multiply_part<P>(x, P::INPUTS, rows, place, received, team.handed + blockIdx.x * stride);
        meet_team<Qkv>(team.counters, wide, weights, bytes, first, bytes);
        finish_team<P>(out, team.handed + blockIdx.x / MEMBERS * MEMBERS * stride, stride, rows);
    } else {
        multiply_rows<P>(x, P::INPUTS, rows, place, received, out, 0);
    }
}
