// A product of a pass from its inputs to its stored outputs.
#pragma once
#include "meeting.cuh"

// Four neighbouring outputs of a row as they leave.
template <class P>
__device__ void store(void* out, int row, int column, float4 sum) {
    long at = long(row) * P::OUTPUTS + column;
    if constexpr (P::ending == LOGITS) {
        static_cast<float4*>(out)[at / 4] = sum;
    } else if constexpr (P::ending == GATED) {
        float first = sum.x * sum.y / (1 + __expf(-sum.x)), second = sum.z * sum.w / (1 + __expf(-sum.z));
        static_cast<u32*>(out)[at / 4] = pair_of(first, second);
    } else {
        static_cast<uint2*>(out)[at / 4] = rounded(sum);
    }
}

// Where a warp group's half of the columns of its block's sums goes.
enum Way { TO_OTHER_GROUP, STAYS, TO_NEIGHBOUR, TO_TEAM };

// A half of a warp group's columns: into shared memory, or added to what is there, and then left there, sent off or
// handed to the team.
template <class P, int HALF, Way WAY>
__device__ void move_half(const float (&sums)[P::COLUMNS / 2], u32 at, const Place& received, int neighbour,
                          float* handed = nullptr) {
    const int row = thread() / 32 % 4 * 16 + thread() % 32 / 4, column = thread() % 4 * 2;
    const int place = (row * P::PITCH + column) * 4;
    const u32 to = there(received.at, neighbour) + place, arrived = there(received.arrived, neighbour);
    handed += row * P::COLUMNS + column;
#pragma unroll
    for (int i = HALF * P::WIDTH / 2; i < (HALF + 1) * P::WIDTH / 2; i += 2) {
        const int below = i % 4 / 2 * 8, right = i / 4 * 8;
        const int offset = (below * P::PITCH + right - HALF * P::WIDTH) * 4;
        const u32 here = at + place + offset;
        float2 two = make_float2(sums[i], sums[i + 1]);
        if constexpr (WAY != TO_OTHER_GROUP) {
            const float2 before = shared_two(here);
            two.x += before.x, two.y += before.y;
        }
        if constexpr (WAY == TO_NEIGHBOUR) send(to + offset, two, arrived);
        else if constexpr (WAY == TO_TEAM) *reinterpret_cast<float2*>(handed + below * P::COLUMNS + right) = two;
        else store_two(here, two);
    }
}

// Add up what the block's warp groups have of 64 rows; the neighbour's half is sent. Returns where the own half stands.
// Group g ends up with half g: it gives the other group the other half first.
template <class P>
__device__ u32 gather(const float (&sums)[P::COLUMNS / 2], const float (&squares)[2][4], const Place& received,
                      int group, int rows) {
    const int rank = blockIdx.x % RANKS, lane = thread() % 32, row = thread() / 32 % 4 * 16 + lane / 4;
    const u32 given = address_of(shared) + SUMS_AT + group * HALF_BYTES,
              taken = address_of(shared) + SUMS_AT + (1 - group) * HALF_BYTES;
    float* known = reinterpret_cast<float*>(shared + SQUARES_AT);
    const bool idle = row - lane / 4 >= rows;  // a warp without rows
    if (idle) {
    } else if (group == 0) move_half<P, 1, TO_OTHER_GROUP>(sums, given, received, 1 - rank);
    else move_half<P, 0, TO_OTHER_GROUP>(sums, given, received, 1 - rank);
    if (lane % 4 == lane / 8) {  // the diagonal
        known[group * TILE_ROWS + row] = lane / 4 % 2 ? squares[0][1] : squares[0][0];
        known[group * TILE_ROWS + row + 8] = lane / 4 % 2 ? squares[1][3] : squares[1][2];
    }
    __syncthreads();
    if (idle) {
    } else if (group == rank) {
        if (group == 0) move_half<P, 0, STAYS>(sums, taken, received, 1 - rank);
        else move_half<P, 1, STAYS>(sums, taken, received, 1 - rank);
    } else {
        if (group == 0) move_half<P, 0, TO_NEIGHBOUR>(sums, taken, received, 1 - rank);
        else move_half<P, 1, TO_NEIGHBOUR>(sums, taken, received, 1 - rank);
        const int owned = row - lane / 4 + lane;  // 16 of a warp's lanes
        if (lane < 16)
            send(there(address_of(known + 2 * TILE_ROWS + owned), 1 - rank), known[owned] + known[TILE_ROWS + owned],
                 there(received.arrived, 1 - rank));
    }
    return address_of(shared) + SUMS_AT + (1 - rank) * HALF_BYTES;
}

// End and store the block's own half of `rows` rows from `first` on.
template <class P>
__device__ void finish(void* out, u32 received, u32 own, int first, int rows, float eps) {
    const float* squares = reinterpret_cast<const float*>(shared + SQUARES_AT);
    const int columns = blockIdx.x / RANKS * P::COLUMNS + blockIdx.x % RANKS * P::WIDTH;
#pragma unroll 1
    for (int item = thread(); item < rows * (P::WIDTH / 4); item += THREADS) {
        const int row = item / (P::WIDTH / 4), column = item % (P::WIDTH / 4) * 4, at = (row * P::PITCH + column) * 4;
        const float4 sum = shared_four(own + at) + shared_four(received + at);
        const float square = squares[row] + squares[TILE_ROWS + row] + squares[2 * TILE_ROWS + row];
        const float scale = rsqrtf(square / HIDDEN + eps);
        store<P>(out, first + row, columns + column, sum * make_float4(scale, scale, scale, scale));
    }
}

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

// Rounds of inputs, as many as there are registers for: of two rows, eight apart, eight neighbours in each 32.
template <class P>
struct Left {
    uint4 rounds[P::AHEAD][2 * P::ROUND_PANELS][2];

    __device__ void take(const bf16* from, int stride, int rows, int round) {
#pragma unroll
        for (int block = 0; block < 2 * P::ROUND_PANELS; ++block)
#pragma unroll
            for (int half = 0; half < 2; ++half)
                rounds[round % P::AHEAD][block][half] =
                    8 * half < rows ? load<uint4>(from + 8 * half * stride + (2 * P::ROUND_PANELS * round + block) * 32)
                                    : make_uint4(0, 0, 0, 0);
    }

    __device__ void take_first(const bf16* from, int stride, int rows) {
#pragma unroll
        for (int round = 0; round < P::AHEAD; ++round) take(from, stride, rows, round);
    }
};

template <class P>
__device__ void multiply_round(float (&sums)[P::COLUMNS / 2], const uint4 (&left)[2 * P::ROUND_PANELS][2], u64 right) {
    forget(right);
#pragma unroll
    for (int step = 0; step < 4 * P::ROUND_PANELS; ++step) {
        const uint4 a = left[step / 2][0], b = left[step / 2][1];
        const u64 there = right + (step / 4 * PANEL_BYTES + step % 4 * 32 >> 4);
        if (step % 2 == 0) multiply(sums, a.x, b.x, a.y, b.y, there);
        else multiply(sums, a.z, b.z, a.w, b.w, there);
    }
}

// sums [64, columns] = left · rightᵀ of a warp group, and in `squares` what `square` makes of the rows.
template <class P>
__device__ void multiply_tile(float (&sums)[P::COLUMNS / 2], float (&squares)[2][4], Left<P>& left, const bf16* from,
                              int stride, int rows, u64 right) {
#pragma unroll
    for (int i = 0; i < P::COLUMNS / 2; ++i) sums[i] = 0;
#pragma unroll
    for (int i = 0; i < 4; ++i) squares[0][i] = squares[1][i] = 0;
#pragma unroll
    for (int round = 0; round < P::ROUNDS; ++round) {
        pin(sums);
        begin_products();
        multiply_round<P>(sums, left.rounds[round % P::AHEAD], right + (round * P::ROUND_PANELS * PANEL_BYTES >> 4));
        close_products();
        if constexpr (P::ending != ADDED)
#pragma unroll
            for (int block = 0; block < 2 * P::ROUND_PANELS; ++block) {
                const uint4 a = left.rounds[round % P::AHEAD][block][0], b = left.rounds[round % P::AHEAD][block][1];
                square(squares[0], squares[1], a.x, b.x, a.y, b.y);
                square(squares[0], squares[1], a.z, b.z, a.w, b.w);
            }
        await_products<0>();
        pin(sums);
        if (round + P::AHEAD < P::ROUNDS) left.take(from, stride, rows, round + P::AHEAD);
    }
}

// Describes a warp group's weights, which have come to `place`, to the tensor cores.
template <class P>
__device__ u64 right_of(const Place& place, int group) {
    constexpr u64 EIGHTS = u64(P::EIGHT_BYTES) >> 4 << 32;
    // Rows of 128 bytes, in groups of eight, their 16-byte pieces permuted as the hardware wants it.
    return u64(1) << 62 | EIGHTS | u64(1) << 16 | (place.at + group * P::PANELS * PANEL_BYTES) >> 4;
}

// out [rows, outputs] = x · weightsᵀ, ended as the product ends. Of an added product the block's part alone, handed on:
// float32 [tiles · 64, columns]. Behind it `place` may be filled anew, or when the team has met.
template <class P>
__device__ void multiply_rows(const bf16* x, int stride, int rows, Place& place, Place& received, void* out,
                              float eps) {
    const int group = __shfl_sync(ALL, threadIdx.x / 128, 0), part = GROUPS * (blockIdx.x % P::PARTS) + group;
    const int lane = threadIdx.x % 32, row = threadIdx.x / 32 % 4 * 16 + lane / 4;
    const u64 right = right_of<P>(place, group);
    const bf16* from = x + long(row) * stride + part * P::PANELS * PANEL + lane % 4 * 8;
#pragma unroll 1
    for (int first = 0; first < rows; first += TILE_ROWS, from += TILE_ROWS * stride) {
        const int count = min(rows - first, TILE_ROWS);
        Left<P> left;
        left.take_first(from, stride, count - row);
        if (first == 0) place.wait();
        float sums[P::COLUMNS / 2], squares[2][4];
        multiply_tile<P>(sums, squares, left, from, stride, count - row, right);
        if constexpr (P::ending == ADDED) {
            if (first > 0) __syncthreads();  // what is overwritten now has been read
            hand_on<P>(sums, received, static_cast<float*>(out) + first * P::COLUMNS, group, count);
        } else {
            await_cluster();  // what is overwritten now has been read
            received.expect((count + 15) / 16 * 16 * 4 * (P::WIDTH + 1));
            const u32 own = gather<P>(sums, squares, received, group, count);
            received.wait();
            __syncthreads();
            finish<P>(out, received.at, own, first, count, eps);
            arrive_in_cluster();
        }
    }
}
