// A product of a pass from its inputs to its results.
#pragma once
#include "hopper.cuh"

__device__ u32 barrier_at(int index) { return address_of(shared) + BARRIERS_AT + 8 * index; }

// What the blocks tell one another in a layer.
struct Told {
    unsigned char* at;
    u32 rows;  // that there is room for

    __device__ unsigned char* part(u32 offset) const { return at + offset * rows; }
};

// Where two neighbouring columns of a row stand, for the product that multiplies it.
__device__ unsigned char* word_of(unsigned char* part, u32 columns, u32 row, u32 column) {
    const u32 step = row / STEP * (columns / STEP) + column / STEP, thread = row % 8 * 4 + column % 8 / 2;
    return part + step * STEP_BYTES + thread * 16 + (row % STEP / 8 + column % STEP / 8 * 2) * 4;
}

// A thread that brings weights, panels in turn with others: one alone is too slow. What blocks tell one another comes
// late while many weights are on their way, so no more than `pace` panels are.
struct WeightSupply {
    u32 pace, which, number;  // panels so far

    __device__ void bring(const unsigned char* from, int panels, int bytes) {
#pragma unroll 1
        for (; panels > 0; --panels, from += bytes, ++number) {
            if (number % SUPPLIERS != which) continue;
            const u32 slot = number % SLOTS, full = barrier_at(FULL) + 8 * slot;
            if (number >= SLOTS) await_bytes(barrier_at(EMPTY) + 8 * slot, (number / SLOTS - 1) % 2);
            if (number >= pace)
                await_bytes(barrier_at(FULL) + 8 * ((number - pace) % SLOTS), (number - pace) / SLOTS % 2);
            expect_bytes(full, bytes);
            bring_once(address_of(shared) + slot * SLOT_BYTES, from, bytes, full);
        }
    }
};

// What a block multiplies: of every row so many panels from some step on.
struct Inputs {
    const unsigned char* x;
    int row_steps, first_step, panels;
};

// The squares of a row's columns, as the teams tell them: four teams' a thread.
__device__ float total_of_squares(const unsigned char* squares, int row, int tokens) {
    const unsigned char* at = squares + row * SQUARES_BYTES + threadIdx.x % 4 * 16;
    uint4 four = make_uint4(0, 0, 0, 0);
    do
        if (row < tokens) four = seen_four(at);
    while (!__all_sync(ALL, is_there(four)));
    const float4 each = floats_of(four);
    float sum = each.x + each.y + (each.z + each.w);
    sum += __shfl_xor_sync(ALL, sum, 1);
    return sum + __shfl_xor_sync(ALL, sum, 2);
}

constexpr int MOST_HELD = 3;

// A working warp's side of a product: x · weightsᵀ. The two groups take panels in turn, and each ends every other
// eight rows.
struct Demand {
    int tokens, group;
    u32 number;  // panels so far

    __device__ int first_row(int tile) const { return tile * TILE_ROWS + threadIdx.x % GROUP_THREADS / WARP * STEP; }
    __device__ int ended_row(int tile) const { return first_row(tile) + threadIdx.x % WARP / 4 + 8 * group; }

    // Two columns of every eight of a tile's rows that the thread ends. Weights are not needed again behind the last
    // tile. `turn` is another than before.
    template <int COLUMNS, int MOST_PANELS>
    __device__ void multiply(float2 (&ended)[COLUMNS / 8], const Inputs& inputs, int tile, bool last, int turn) const {
        float sums[COLUMNS / 2];
        const int first = first_row(tile), panels = inputs.panels / GROUPS, lane = threadIdx.x % WARP;
        const u32 step = first / STEP * inputs.row_steps + inputs.first_step;
        multiply_tile<COLUMNS, MOST_PANELS / GROUPS>(sums, inputs.x + step * STEP_BYTES, panels, first);
        if (last && lane < panels) arrive(barrier_at(EMPTY) + 8 * ((number + group + lane * GROUPS) % SLOTS));
        add_groups<COLUMNS>(ended, sums, turn);
    }

    // The group's part of the sums, from the warp's 16 rows on. Where there are no rows, anything is multiplied.
    template <int COLUMNS, int MOST_PANELS>
    __device__ void multiply_tile(float (&sums)[COLUMNS / 2], const unsigned char* x, int panels, int first) const {
        // Panels are taken in pairs, of which so many are in registers.
        constexpr int PAIR = 2 * PANEL_STEPS, PAIRS = (MOST_PANELS + 1) / 2;
        constexpr int HELD = PAIRS < MOST_HELD ? PAIRS : MOST_HELD;
        const int lane = threadIdx.x % WARP;
        const bool any = first < tokens, upper = first + lane / 4 < tokens, lower = first + lane / 4 + 8 < tokens;
        uint4 left[HELD][PAIR];
        x += (group * PANEL_STEPS * WARP + lane) * 16;
        const auto take = [&](int pair) {
#pragma unroll
            for (int step = 0; step < PAIR; ++step) {
                const int panel = pair * 2 + step / PANEL_STEPS;
                if (step % PANEL_STEPS == 0 && panel >= panels) break;
                const int there = panel * GROUPS * PANEL_STEPS + step % PANEL_STEPS;
                left[pair % HELD][step] = seen_four(x + there * STEP_BYTES);
            }
        };
        const auto lacks = [&](int pair) {
            u32 above = 0, below = 0;
#pragma unroll
            for (int step = 0; step < PAIR; ++step) {
                const uint4& four = left[pair % HELD][step];
                if (step % PANEL_STEPS == 0 && pair * 2 + step / PANEL_STEPS >= panels) break;
                above = max(above, max(four.x, four.z)), below = max(below, max(four.y, four.w));
            }
            static_assert(MARK == 0xffffffff, "the largest");
            return __any_sync(ALL, (upper && above == MARK) || (lower && below == MARK));
        };
        if (any) take(0);
        await_weights(panels);
        // What is looked for too early is looked for twice, which takes long: where the first pair has come, others
        // will.
        if (any) {
            while (lacks(0)) take(0);
#pragma unroll
            for (int pair = 1; pair < HELD; ++pair) take(pair);
        }
#pragma unroll
        for (int i = 0; i < COLUMNS / 2; ++i) sums[i] = 0;
        u32 slot = (number + group) % SLOTS;
#pragma unroll
        for (int pair = 0; pair < PAIRS; ++pair) {
            uint4(&steps)[PAIR] = left[pair % HELD];
            if (pair * 2 >= panels) break;
            if (any)
                while (lacks(pair)) take(pair);
#pragma unroll
            for (int panel = 0; panel < 2; ++panel) {
                if (pair * 2 + panel >= panels) break;
                const u32 right = low_description(address_of(shared) + slot * SLOT_BYTES);
                pin(sums), pin(steps);
                begin_products();
#pragma unroll
                for (int step = 0; step < PANEL_STEPS; ++step)
                    ::multiply(sums, steps[panel * PANEL_STEPS + step], right + (step * 2 * STEP >> 4));
                close_products();
                slot = slot + GROUPS < SLOTS ? slot + GROUPS : slot + GROUPS - SLOTS;
                pin(slot);
            }
            if (pair > 0 && pair - 1 + HELD < PAIRS) {
                await_products<2>();
                pin(left[(pair - 1) % HELD]);
                if (any) take(pair - 1 + HELD);
            }
        }
        await_products<0>();
        pin(sums);
#pragma unroll
        for (int pair = 0; pair < HELD; ++pair) pin(left[pair]);
    }

    // The group's weights are there.
    __device__ void await_weights(int panels) const {
        const int lane = threadIdx.x % WARP;
        const u32 each = number + lane * GROUPS + group, full = barrier_at(FULL) + 8 * (each % SLOTS);
        while (!__all_sync(ALL, lane >= panels || has_passed(full, each / SLOTS % 2))) {
        }
    }

    // What both groups have of the rows that this one ends. A place is used again when all have met once more.
    template <int COLUMNS>
    __device__ void add_groups(float2 (&ended)[COLUMNS / 8], const float (&sums)[COLUMNS / 2], int turn) const {
        float4* place = reinterpret_cast<float4*>(shared + EXCHANGE_AT + turn % 2 * EXCHANGE_BYTES);
        float4* told = place + group * GROUP_THREADS + threadIdx.x % GROUP_THREADS;
        const float4* heard = place + (1 - group) * GROUP_THREADS + threadIdx.x % GROUP_THREADS;
        const auto of = [&](int i, bool below) {
            return below ? make_float2(sums[4 * i + 2], sums[4 * i + 3]) : make_float2(sums[4 * i], sums[4 * i + 1]);
        };
#pragma unroll
        for (int i = 0; i < COLUMNS / 8; i += 2) {
            const float2 one = of(i, group == 0), two = of(i + 1, group == 0);
            told[WORKERS * i / 2] = make_float4(one.x, one.y, two.x, two.y);
            ended[i] = of(i, group == 1), ended[i + 1] = of(i + 1, group == 1);
        }
        meet_workers();
#pragma unroll
        for (int i = 0; i < COLUMNS / 8; i += 2) {
            const float4 four = heard[WORKERS * i / 2];
            ended[i].x += four.x, ended[i].y += four.y;
            ended[i + 1].x += four.z, ended[i + 1].y += four.w;
        }
    }
};

// Queries, keys and values of a row, told to those who attend.
__device__ void tell_qkv(const float2 (&sums)[WIDE / 8], float scale, unsigned char* qkv, int row) {
    unsigned char* out = qkv + 2 * (row * QKV + blockIdx.x * Qkv::COLUMNS) + threadIdx.x % 4 * 4;
#pragma unroll
    for (int i = 0; i < Qkv::EIGHTS; ++i) announce(out + 16 * i, pair_of(sums[i].x * scale, sums[i].y * scale));
}

__device__ float gated(float2 sums, float scale) {
    const float gate = sums.x * scale;
    return __fdividef(gate * (sums.y * scale), 1 + __expf(-gate));
}

// Of every eight gates and what they open two each stand beside one another.
__device__ void tell_gated(const float2 (&sums)[WIDE / 8], float scale, unsigned char* inner, int row) {
    const int column = blockIdx.x * (GateUp::COLUMNS / 2) + threadIdx.x % 4 * 2;
#pragma unroll
    for (int i = 0; i < GateUp::EIGHTS; i += 2)
        announce(word_of(inner, INNER, row, column + 4 * i), pair_of(gated(sums[i], scale), gated(sums[i + 1], scale)));
}

// A block's part of a sum, told to the one that adds it up. The lowest bits say whether the turn is odd, as the last of
// every launch is: so what stands there from before is never taken for it, and need not be cleared.
__device__ u32 in_turn(float part, u32 turn) { return (__float_as_uint(part) & ~1u) | turn; }
__device__ void hand(const float2 (&sums)[NARROW / 8], unsigned char* handed, int row, u32 turn) {
    unsigned char* out = handed + row * (4 * NARROW) + threadIdx.x % 4 * 8;
#pragma unroll
    for (int i = 0; i < NARROW / 8; ++i)
        announce(out + 32 * i, make_uint2(in_turn(sums[i].x, turn), in_turn(sums[i].y, turn)));
}
