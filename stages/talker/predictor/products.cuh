// A product of a pass from its inputs to its results.
#pragma once
#include "hopper.cuh"

__device__ u32 barrier_at(int index) { return address_of(shared) + BARRIERS_AT + 8 * index; }

// Rows that are normalised where they are multiplied.
struct Row {
    unsigned char *x, *squares;
};

// What the blocks tell one another in a step.
struct Told {
    unsigned char* at;
    u32 rows;  // that there is room for

    __device__ unsigned char* part(u32 offset) const { return at + offset * rows; }
    __device__ Row row_at(u32 x, u32 squares) const { return {part(x), part(squares)}; }
};

// Where two neighbouring columns of a row stand, for the product that multiplies it. The two that are eight columns
// behind them stand eight bytes behind them.
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

// The squares of a row's columns, as the teams tell them: four teams' a thread. They are asked for when the row is
// there, and so are, too.
struct Squares {
    const unsigned char* at;
    bool inside;
    uint4 four;

    __device__ Squares(const unsigned char* squares, int row, int tokens)
        : at(squares + row * SQUARES_BYTES + thread_anew() % 4 * 16), inside(row < tokens) {
        four = make_uint4(0, 0, 0, 0);
        ask();
    }

    __device__ void ask() {
        if (inside) four = seen_four(at);
    }

    __device__ float total() {
        while (!__all_sync(ALL, is_there(four))) ask();
        const float4 each = floats_of(four);
        float sum = each.x + each.y + (each.z + each.w);
        sum += __shfl_xor_sync(ALL, sum, 1);
        return sum + __shfl_xor_sync(ALL, sum, 2);
    }
};

constexpr int MOST_HELD = 3;

// A working warp's side of a product: x · weightsᵀ. The two groups take panels in turn, and each ends every other
// eight rows.
struct Demand {
    int tokens, group;
    u32 number;  // panels so far

    __device__ int first_row(int tile) const { return tile * TILE_ROWS + thread_anew() % GROUP_THREADS / WARP * STEP; }
    __device__ int ended_row(int tile) const { return first_row(tile) + thread_anew() % WARP / 4 + 8 * group; }

    // The group's part of a tile's sums. Weights are not needed again behind the last tile.
    template <int COLUMNS, int MOST_PANELS>
    __device__ void multiply(float (&sums)[COLUMNS / 2], const Inputs& inputs, int tile, bool last) const {
        const int first = first_row(tile), panels = inputs.panels / GROUPS, lane = thread_anew() % WARP;
        const u32 step = first / STEP * inputs.row_steps + inputs.first_step;
        multiply_tile<COLUMNS, MOST_PANELS / GROUPS>(sums, inputs.x + step * STEP_BYTES, panels, first);
        if (last && lane < panels) arrive(barrier_at(EMPTY) + 8 * ((number + group + lane * GROUPS) % SLOTS));
    }

    // Of all inputs of normalised rows, which may be a step's x; returns what they are to be scaled by.
    template <int COLUMNS>
    __device__ float multiply_rows(float2 (&ended)[COLUMNS / 8], const Inputs& inputs, const unsigned char* squares,
                                   int tile, bool last, bool reads, float eps) const {
        float sums[COLUMNS / 2];
        multiply<COLUMNS, WIDE_PANELS>(sums, inputs, tile, last);
        if (last && reads && threadIdx.x % WARP == 0) arrive(barrier_at(READ));
        Squares asked(squares, ended_row(tile), tokens);
        add_groups<COLUMNS>(ended, sums, tile);
        return rsqrtf(asked.total() / HIDDEN + eps);
    }

    // The group's part of the sums, from the warp's 16 rows on. Where there are no rows, anything is multiplied.
    template <int COLUMNS, int MOST_PANELS>
    __device__ void multiply_tile(float (&sums)[COLUMNS / 2], const unsigned char* x, int panels, int first) const {
        // Panels are taken in pairs, of which so many are in registers.
        constexpr int PAIR = 2 * PANEL_STEPS, PAIRS = (MOST_PANELS + 1) / 2;
        constexpr int HELD = PAIRS < MOST_HELD ? PAIRS : MOST_HELD, ASKED = PAIRS <= 2 ? PAIRS : 1;
        const int lane = thread_anew() % WARP;
        const bool any = first < tokens, upper = first + lane / 4 < tokens, lower = first + lane / 4 + 8 < tokens;
        // Begun, so that they are not taken for something that was there before: registers would be kept for them.
        uint4 left[HELD][PAIR];
        if (!any)
#pragma unroll
            for (int pair = 0; pair < HELD; ++pair)
#pragma unroll
                for (int step = 0; step < PAIR; ++step) left[pair][step] = make_uint4(0, 0, 0, 0);
        x += (group * PANEL_STEPS * WARP + lane) * 16;
        const auto take = [&](int pair) {
#pragma unroll
            for (int step = 0; step < PAIR; ++step) {
                const int panel = pair * 2 + step / PANEL_STEPS;
                const int there = panel * GROUPS * PANEL_STEPS + step % PANEL_STEPS;
                left[pair % HELD][step] = panel < panels ? seen_four(x + there * STEP_BYTES) : make_uint4(0, 0, 0, 0);
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
        if (any) {
            await_step(x, panels, upper, lower);
#pragma unroll
            for (int pair = 0; pair < ASKED; ++pair) take(pair);
        }
        await_weights(panels);
        // Of many panels a pair is looked for until it is there: then others will be.
        if (any) {
            while (lacks(0)) take(0);
#pragma unroll
            for (int pair = ASKED; pair < HELD; ++pair) take(pair);
        }
#pragma unroll
        for (int i = 0; i < COLUMNS / 2; ++i) sums[i] = 0;
        u32 slot = (number + group) % SLOTS;
#pragma unroll
        for (int pair = 0; pair < PAIRS; ++pair) {
            uint4(&steps)[PAIR] = left[pair % HELD];
            if (pair * 2 >= panels) break;
            if (pair > 0 && any)
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

    // One step of the last two panels is there, each warp and block another: what is looked for too early is looked for
    // again, and much that is looked for again and again keeps those waiting who are to tell it.
    __device__ static void await_step(const unsigned char* x, int panels, bool upper, bool lower) {
        const int step = panels * PANEL_STEPS - 1 - (blockIdx.x + thread_anew() / WARP) % (2 * PANEL_STEPS);
        const int there = step / PANEL_STEPS * GROUPS * PANEL_STEPS + step % PANEL_STEPS;
        uint4 four;
        do four = seen_four(x + there * STEP_BYTES);
        while (__any_sync(ALL, (upper && max(four.x, four.z) == MARK) || (lower && max(four.y, four.w) == MARK)));
    }

    // The group's weights are there.
    __device__ void await_weights(int panels) const {
        const int lane = thread_anew() % WARP;
        const u32 each = number + lane * GROUPS + group, full = barrier_at(FULL) + 8 * (each % SLOTS);
        while (!__all_sync(ALL, lane >= panels || has_passed(full, each / SLOTS % 2))) {
        }
    }

    // What both groups have of the rows that this one ends: two columns of every eight. `turn` is another than before:
    // a place is used again when all have met once more.
    template <int COLUMNS>
    __device__ void add_groups(float2 (&ended)[COLUMNS / 8], const float (&sums)[COLUMNS / 2], int turn) const {
        float4* place = reinterpret_cast<float4*>(shared + EXCHANGE_AT + turn % 2 * EXCHANGE_BYTES);
        float4* told = place + group * GROUP_THREADS + thread_anew() % GROUP_THREADS;
        const float4* heard = place + (1 - group) * GROUP_THREADS + thread_anew() % GROUP_THREADS;
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
__device__ void tell_qkv(const float2 (&sums)[Qkv::EIGHTS], float scale, unsigned char* qkv, int row) {
    unsigned char* out = qkv + 2 * (row * QKV + blockIdx.x * Qkv::COLUMNS) + thread_anew() % 4 * 4;
#pragma unroll
    for (int i = 0; i < Qkv::EIGHTS; ++i) announce(out + 16 * i, pair_of(sums[i].x * scale, sums[i].y * scale));
}

__device__ float gated(float2 sums, float scale) {
    const float gate = sums.x * scale;
    return __fdividef(gate * (sums.y * scale), 1 + __expf(-gate));
}

// Of every eight gates and what they open two each stand beside one another.
__device__ void tell_gated(const float2 (&sums)[GateUp::EIGHTS], float scale, unsigned char* inner, int row) {
    const int column = blockIdx.x * (GateUp::COLUMNS / 2) + thread_anew() % 4 * 2;
#pragma unroll
    for (int i = 0; i < GateUp::EIGHTS; i += 2)
        announce(word_of(inner, INNER, row, column + 4 * i), pair_of(gated(sums[i], scale), gated(sums[i + 1], scale)));
}

// A block's part of a sum, told to the one that adds it up. The lowest bits say whether the turn is odd, as the last of
// every launch is: so what stands there from before is never taken for it, and need not be cleared.
__device__ u32 in_turn(float part, u32 turn) { return (__float_as_uint(part) & ~1u) | turn; }
__device__ void hand(const float2 (&sums)[NARROW / 8], unsigned char* handed, int row, u32 turn) {
    unsigned char* out = handed + row * (4 * NARROW) + thread_anew() % 4 * 16;
#pragma unroll
    for (int i = 0; i < NARROW / 8; i += 2) {
        const float2 one = sums[i], two = sums[i + 1];
        announce(out + 32 * i, make_uint4(in_turn(one.x, turn), in_turn(one.y, turn), in_turn(two.x, turn),
                                          in_turn(two.y, turn)));
    }
}
