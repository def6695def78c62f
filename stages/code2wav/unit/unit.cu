// A residual unit of the codec decoder in one launch, on a Hopper GPU: a dilated convolution of seven taps, SnakeBeta,
// a pointwise convolution, what is added, and the SnakeBeta behind the unit.
//
// A unit of so few channels costs more in reading rows and weights again and again than in arithmetic. Here each warp
// group goes through tiles of 64 rows that follow each other. The rows that the taps read stand in a ring of its own in
// shared memory, where a tile's rows beyond those of the tile before are brought while that one is ended. Taps are
// other places in the ring. Both convolutions' weights are panels: of 96 channels all of them stay in shared memory, of
// 192 they come through it anew for each tile of all warp groups, and the warp that is the last to have used a panel
// brings another one into its place. What stands between the convolutions stays in registers.
//
// From the compiler's command line: CHANNELS, a multiple of 96; GROUPS, a block's warp groups; STAGES, panels that
// shared memory has room for.

#include "instructions.cuh"

constexpr int TAPS = 7, ROWS = 64, RING = 128, PART = 96, PARTS = CHANNELS / PART, WARPS = 4 * GROUPS;
constexpr int PITCH = CHANNELS * 2 + 16;  // rows that a warp reads at once stand in different banks
// A step is 16 inputs of 96 outputs; a sheet four steps, 64 inputs; a panel as many sheets as there are parts.
constexpr int SHEET_STEPS = 4, SHEET_BYTES = PART * 128, PANEL_STEPS = PARTS * SHEET_STEPS;
constexpr int PANEL_BYTES = PARTS * SHEET_BYTES, TAP_STEPS = CHANNELS / 16;
constexpr int PANELS = (TAPS + 1) * TAP_STEPS / SHEET_STEPS;
constexpr bool RESIDENT = STAGES == PANELS;
constexpr int TURNS = PANELS / STAGES;     // panels that stand in the same place one after the other
constexpr int AT_ONCE = RESIDENT ? 6 : 2;  // steps of the dilated convolution that begin together
constexpr int TAP_GROUPS = TAP_STEPS / AT_ONCE;
constexpr int RINGS_AT = STAGES * PANEL_BYTES, BARRIERS_AT = RINGS_AT + GROUPS * RING * PITCH;
constexpr int COUNTERS_AT = BARRIERS_AT + STAGES * 8;
static_assert(CHANNELS == PARTS * PART && PANELS * SHEET_STEPS == (TAPS + 1) * TAP_STEPS, "sizes");
static_assert(RESIDENT ? PARTS == 1 : STAGES * SHEET_STEPS == TAP_STEPS && TAP_GROUPS % 2 == 0,
              "a turn is a tap");
static_assert(TAP_GROUPS * AT_ONCE == TAP_STEPS && COUNTERS_AT + STAGES * 4 <= 232448, "groups, shared memory");

// The number of a step of a tap, where all parts of the same 64 inputs follow each other. In the pointwise convolution
// all inputs of a part do.
__device__ constexpr int dilated_step(int step, int part) {
    return (step / SHEET_STEPS * PARTS + part) * SHEET_STEPS + step % SHEET_STEPS;
}

// The turn in which a tap's weights, or behind the last tap's the pointwise ones, stand in shared memory, and the
// number that their first step has among those of a turn.
__device__ constexpr int turn_of(int tap) { return RESIDENT ? 0 : tap; }
__device__ constexpr int first_of(int tap) { return RESIDENT ? tap * TAP_STEPS : 0; }

// The weights on their way through shared memory.
struct Panels {
    const unsigned char* weights;
    u32 at;
    bool more;  // the block goes through all panels once more

    __device__ u32 barrier(int stage) const { return at + BARRIERS_AT + stage * 8; }
    __device__ u32 counter(int stage) const { return at + COUNTERS_AT + stage * 4; }

    // Once, by the whole block.
    __device__ void begin() const {
        if (threadIdx.x == 0) {
#pragma unroll
            for (int stage = 0; stage < STAGES; ++stage) {
                begin_barrier(barrier(stage), 1);
                reinterpret_cast<u32*>(shared + COUNTERS_AT)[stage] = 0;
            }
            publish_barriers();
        }
        __syncthreads();
        if (threadIdx.x == 0)
#pragma unroll 1
            for (int stage = 0; stage < STAGES; ++stage) bring(stage, 0);
    }

    __device__ void bring(int stage, int turn) const {
        const unsigned char* from = weights + (turn * STAGES + stage) * PANEL_BYTES;
        expect_bytes(barrier(stage), PANEL_BYTES);
        bring_bytes(at + stage * PANEL_BYTES, from, PANEL_BYTES, barrier(stage));
    }

    __device__ void wait(int stage, int turn) const { await_bytes(barrier(stage), turn % 2); }

    // This warp has used a panel. The last one brings another.
    __device__ void release(int stage, int turn) const {
        if (RESIDENT) return;
        if (threadIdx.x % 32 == 0 && count_up(counter(stage), WARPS - 1) == WARPS - 1 && (more || turn + 1 < TURNS))
            bring(stage, (turn + 1) % TURNS);
        __syncwarp();
    }

    // What a warp group does that has no tile left while others have.
    __device__ void pass_by() const {
#pragma unroll 1
        for (int turn = 0; turn < TURNS; ++turn)
#pragma unroll 1
            for (int stage = 0; stage < STAGES; ++stage) wait(stage, turn), release(stage, turn);
    }

    // A step begins: the first of a panel's waits for it.
    __device__ void enter(int step, int turn) const {
        if (step % PANEL_STEPS == 0) wait(step / PANEL_STEPS, turn);
    }

    // All steps from `first` to `stop` have ended.
    __device__ void leave(int first, int stop, int turn) const {
#pragma unroll
        for (int stage = first / PANEL_STEPS; stage < stop / PANEL_STEPS; ++stage) release(stage, turn);
    }

    // Where the weights of a step stand, as tensor cores are told it: rows of 128 bytes, in groups of eight, their
    // 16-byte pieces permuted. `base` is what `base` returns.
    __device__ static u64 right(u32 base, int step) {
        const int offset = step / SHEET_STEPS * SHEET_BYTES + step % SHEET_STEPS * 32;
        return u64(1) << 62 | u64(64) << 32 | (base + (offset >> 4));
    }

    // So that the compiler does not keep in registers what follows from it.
    __device__ u32 base() const {
        u32 base = 1 << 16 | at >> 4;
        forget(base);
        return base;
    }
};

// The rows that a warp group's tile reads: row r of x stands at r modulo RING.
struct Ring {
    u32 at;
    const bf16* x;

    // Rows `first` to `stop`, by the whole warp group.
    __device__ void bring(int first, int stop) const {
        constexpr int PIECES = CHANNELS / 8;
        const bf16* from = x + long(first) * CHANNELS;
#pragma unroll 1
        for (int item = threadIdx.x % 128; item < (stop - first) * PIECES; item += 128) {
            const int row = first + item / PIECES, piece = item % PIECES;
            bring_piece(at + (row & (RING - 1)) * PITCH + piece * 16, from + long(item) * 8);
        }
    }

    // Inputs of some steps of a tap, of a warp's 16 rows: `row` is this lane's.
    __device__ void take_steps(u32 (&left)[AT_ONCE][4], int row, int first) const {
        const u32 from = at + (row & (RING - 1)) * PITCH + threadIdx.x % 32 / 16 * 16 + first * 32;
#pragma unroll
        for (int step = 0; step < AT_ONCE; ++step) take(left[step], from + step * 32);
    }
};

// Eight neighbouring columns' constants.
struct Eight {
    float of[8];

    __device__ explicit Eight(const float* at) {
        const float4 a = constant_four(at), b = constant_four(at + 4);
        of[0] = a.x, of[1] = a.y, of[2] = a.z, of[3] = a.w, of[4] = b.x, of[5] = b.y, of[6] = b.z, of[7] = b.w;
    }
};

// A convolution's constants are three rows of CHANNELS: biases, and of the SnakeBeta behind it twice its frequency and
// half its height. x + sin²(x · frequency) · height is x + half · (1 - cos(x · twice)).
struct Constants {
    const float* at;

    __device__ Eight bias(int column) const { return Eight(at + column); }
    __device__ Eight twice(int column) const { return Eight(at + CHANNELS + column); }
    __device__ Eight half(int column) const { return Eight(at + 2 * CHANNELS + column); }
};

// Of two neighbours, the first of which is number `first` of the eight. What the hardware's cosine loses of a large
// angle is less than what bfloat16 has lost of it before.
__device__ u32 snake(const float* pair, const Eight& twice, const Eight& half, int first) {
    float bent[2];
#pragma unroll
    for (int i = 0; i < 2; ++i)
        bent[i] = fmaf(-half.of[first + i], __cosf(pair[i] * twice.of[first + i]), pair[i] + half.of[first + i]);
    return pair_of(bent[0], bent[1]);
}

// Of a part's columns a thread has three times eight neighbours, in two rows that are eight apart: weights are so
// packed. Where its columns begin, and where in its sums it has a pair of them.
__device__ int column(int part, int third) { return part * PART + third * 32 + threadIdx.x % 4 * 8; }
__device__ constexpr int place(int third, int row, int pair) { return 16 * third + 4 * pair + 2 * row; }

// sums = the dilated convolution of a warp's 16 rows and those behind them; `row` is this lane's.
__device__ void convolve(float (&sums)[PARTS][48], const Panels& panels, const Ring& ring, const Constants& constants,
                         int row, int dilation) {
#pragma unroll
    for (int part = 0; part < PARTS; ++part)
#pragma unroll
        for (int third = 0; third < 3; ++third) {
            const Eight bias = constants.bias(column(part, third));
#pragma unroll
            for (int i = 0; i < 16; ++i) sums[part][place(third, 0, 0) + i] = bias.of[i / 4 * 2 + i % 2];
        }
    u32 left[2][AT_ONCE][4];
    ring.take_steps(left[0], row, 0);
#pragma unroll(RESIDENT ? TAPS : 1)
    for (int tap = 0; tap < TAPS; ++tap) {
        const int turn = turn_of(tap), begin = first_of(tap);
#pragma unroll
        for (int group = 0; group < TAP_GROUPS; ++group) {
            const int first = group * AT_ONCE, parity = tap * TAP_GROUPS + group & 1;
#pragma unroll
            for (int step = first; step < first + AT_ONCE; ++step) panels.enter(begin + dilated_step(step, 0), turn);
            const u32 base = panels.base();
            begin_products();
#pragma unroll
            for (int step = first; step < first + AT_ONCE; ++step)
#pragma unroll
                for (int part = 0; part < PARTS; ++part)
                    multiply(sums[part], left[parity][step - first],
                             panels.right(base, begin + dilated_step(step, part)));
            close_products();
            await_products<1>();
            if (group > 0) panels.leave((first - AT_ONCE) * PARTS, first * PARTS, turn);
            else if (tap > 0) panels.leave((TAP_STEPS - AT_ONCE) * PARTS, TAP_STEPS * PARTS, turn - 1);
            // Behind the last tap there is nothing to take, and no harm in it.
            if (group + 1 < TAP_GROUPS) ring.take_steps(left[1 - parity], row, first + AT_ONCE);
            else ring.take_steps(left[1 - parity], row += dilation, 0);
        }
    }
    await_products<0>();
#pragma unroll
    for (int part = 0; part < PARTS; ++part) pin(sums[part]);
    panels.leave((TAP_STEPS - AT_ONCE) * PARTS, TAP_STEPS * PARTS, turn_of(TAPS - 1));
}

// What the pointwise convolution multiplies: a tile's columns as they are.
__device__ void activate(u32 (&hidden)[TAP_STEPS][4], const float (&sums)[PARTS][48], const Constants& constants) {
#pragma unroll
    for (int part = 0; part < PARTS; ++part)
#pragma unroll
        for (int third = 0; third < 3; ++third) {
            const Eight twice = constants.twice(column(part, third)), half = constants.half(column(part, third));
#pragma unroll
            for (int pair = 0; pair < 4; ++pair)
#pragma unroll
                for (int row = 0; row < 2; ++row)
                    hidden[part * 6 + third * 2 + pair / 2][pair % 2 * 2 + row] =
                        snake(sums[part] + place(third, row, pair), twice, half, 2 * pair);
        }
}

// sums = `added`, from this thread's first row on, plus a part of the pointwise convolution.
__device__ void mix(float (&sums)[48], const u32 (&hidden)[TAP_STEPS][4], const Panels& panels,
                    const Constants& constants, int part, const bf16* added) {
#pragma unroll
    for (int third = 0; third < 3; ++third) {
        const Eight bias = constants.bias(column(part, third));
#pragma unroll
        for (int row = 0; row < 2; ++row) {
            const uint4 eight = load_eight(added + row * 8 * CHANNELS + column(part, third));
            const u32 pairs[4] = {eight.x, eight.y, eight.z, eight.w};
#pragma unroll
            for (int pair = 0; pair < 4; ++pair) {
                sums[place(third, row, pair)] = bias.of[2 * pair] + low(pairs[pair]);
                sums[place(third, row, pair) + 1] = bias.of[2 * pair + 1] + high(pairs[pair]);
            }
        }
    }
    const int turn = turn_of(TAPS), begin = first_of(TAPS) + part * TAP_STEPS, stop = begin + TAP_STEPS;
#pragma unroll
    for (int step = begin; step < stop; ++step) panels.enter(step, turn);
    const u32 base = panels.base();
    begin_products();
#pragma unroll
    for (int step = begin; step < stop; ++step) multiply(sums, hidden[step - begin], panels.right(base, step));
    close_products();
    await_products<0>();
    pin(sums);
    panels.leave(begin, stop, turn);
}

// Sums to `raw`, unless it is null, and through SnakeBeta to `out`, both from this thread's first row on.
__device__ void store(const float (&sums)[48], const Constants& constants, int part, bf16* raw, bf16* out) {
#pragma unroll
    for (int third = 0; third < 3; ++third) {
        const int to = column(part, third);
        const Eight twice = constants.twice(to), half = constants.half(to);
#pragma unroll
        for (int row = 0; row < 2; ++row) {
            u32 plain[4], bent[4];
#pragma unroll
            for (int pair = 0; pair < 4; ++pair) {
                const float* at = sums + place(third, row, pair);
                plain[pair] = pair_of(at[0], at[1]), bent[pair] = snake(at, twice, half, 2 * pair);
            }
            const int offset = row * 8 * CHANNELS + to;
            if (raw) store_eight(raw + offset, make_uint4(plain[0], plain[1], plain[2], plain[3]));
            store_eight(out + offset, make_uint4(bent[0], bent[1], bent[2], bent[3]));
        }
    }
}

// `tiles` · ROWS rows of the unit. x has 6 · dilation rows of context in front of each stream's rows, `out` has
// `context`; `added` and `raw` have none, and may be the same. Weights and constants are as `unit_kernel` packs them.
extern "C" __global__ void __launch_bounds__(32 * WARPS, 1)
    residual_unit(const unsigned char* weights, const float* constants, const bf16* x, const bf16* added, bf16* raw,
                  bf16* out, const int* owners, int tiles, int frame_tiles, int dilation, int context) {
    Panels panels = {weights, address_of(shared), true};
    panels.begin();
    await_input();

    const int group = __shfl_sync(0xffffffff, threadIdx.x / 128, 0), lane = threadIdx.x % 32;
    const int warp_row = threadIdx.x / 32 % 4 * 16, groups = gridDim.x * GROUPS, block = blockIdx.x * GROUPS;
    const Ring ring = {address_of(shared) + RINGS_AT + group * RING * PITCH, x};
    const Constants dilated = {constants}, pointwise = {constants + 3 * CHANNELS};
    const int halo = (TAPS - 1) * dilation, first = (block + group) * tiles / groups;
    const int stop = (block + group + 1) * tiles / groups;
    int passes = stop - first;
#pragma unroll 1
    for (int other = block; !RESIDENT && other < block + GROUPS; ++other)
        passes = max(passes, (other + 1) * tiles / groups - other * tiles / groups);

    int owner = first < stop ? load_int(owners + first / frame_tiles) : 0, row = first * ROWS + owner * halo;
    if (first < stop) ring.bring(row, row + ROWS + halo);
#pragma unroll 1
    for (int pass = 0, tile = first; pass < passes; ++pass, ++tile) {
        panels.more = pass + 1 < passes;
        if (tile >= stop) {
            panels.pass_by();
            continue;
        }
        const int next_owner = tile + 1 < stop ? load_int(owners + (tile + 1) / frame_tiles) : 0;
        await_pieces();
        meet(group);
        float sums[PARTS][48];
        convolve(sums, panels, ring, dilated, row + warp_row + lane % 16, dilation);
        meet(group);
        const long m = tile * ROWS + warp_row + lane / 4, kept = m + long(owner + 1) * context;
        if (tile + 1 < stop) {
            const int next = (tile + 1) * ROWS + next_owner * halo, known = next == row + ROWS ? halo : 0;
            ring.bring(next + known, next + ROWS + halo);
            row = next, owner = next_owner;
        }
        u32 hidden[TAP_STEPS][4];
        activate(hidden, sums, dilated);
#pragma unroll
        for (int part = 0; part < PARTS; ++part) {
            mix(sums[part], hidden, panels, pointwise, part, added + m * CHANNELS);
            store(sums[part], pointwise, part, raw ? raw + m * CHANNELS : nullptr, out + kept * CHANNELS);
        }
    }
}
