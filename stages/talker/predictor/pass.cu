// One pass of the code predictor as a single launch: all layers and a head, on all multiprocessors of a Hopper GPU.
//
// A pass streams the layers' weights (31 MB each at the published sizes) past a few rows. What it costs beyond that is
// handing results from one product to the next, so the launch stays, and results go from block to block through the
// second-level cache. They announce themselves: whoever needs one looks at its place until it stands there, so that no
// block fences what it tells, nor counts or waits for all others. Places are cleared behind it for the layer after the
// next: there are two sets of them, which layers use in turn.
//
// A block's warps have three tasks: eight multiply and attend, three bring the weights of the products to come, one
// clears. A result is always added up in one order, so that a row's depends on nothing but the row.
#include "attention.cuh"
#include "team.cuh"

// Panels of weights that are on their way, with more rows and with few. A thread that brings them waits for one that
// another brings, so that none gets so far ahead that a barrier goes through two phases while somebody waits for one.
constexpr int FEW_ROWS = 16;
constexpr u32 PACE = 4, FEW_PACE = 5;
static_assert(PACE % SUPPLIERS != 0 && FEW_PACE % SUPPLIERS != 0 && SUPPLIERS * FEW_PACE < SLOTS, "pace");

struct Pass {
    const unsigned char *layers, *head;
    const bf16 *qk_norm, *cos, *sin;
    bf16* cache;
    const bf16* inputs;
    float* logits;
    unsigned char* told[2];
    unsigned char* handed;
    int rows, count, start, tokens;
    float eps;

    // Layers count from 1; the head is behind them.
    __device__ Told told_in(int layer) const {
        return {layer % 2 ? told[1] : told[0], u32(tokens + STEP - 1) / STEP * STEP};
    }

    __device__ void bring_weights() const;
    __device__ void clear() const;
    __device__ void work() const;
    __device__ void tell_logits(const float2 (&sums)[WIDE / 8], float scale, int row) const;
};

__device__ void Pass::bring_weights() const {
    WeightSupply supply = {tokens > FEW_ROWS ? PACE : FEW_PACE, threadIdx.x / WARP - WARPS, 0};
    const unsigned char* weights = layers + long(blockIdx.x) * LAYER_BYTES;
#pragma unroll 1
    for (int half = 0; half < 2 * LAYERS; ++half) {
        const bool attending = half % 2 == 0;
        const int wide = attending ? Qkv::PANEL_BYTES : GateUp::PANEL_BYTES;
        const int panels = attending ? Output::PANELS : Down::PANELS;
        supply.bring(weights, WIDE_PANELS, wide);
        weights += WIDE_PANELS * wide;
        supply.bring(weights, panels, Output::PANEL_BYTES);
        weights += panels * Output::PANEL_BYTES + (attending ? 0 : long(BLOCKS - 1) * LAYER_BYTES);
    }
    supply.bring(head + long(blockIdx.x) * Heads::BYTES, Heads::PANELS, Heads::PANEL_BYTES);
}

// When a block has seen all of a layer's x, every block has read all that was told in the layer before. A block's share
// of those places is cleared before it tells its part of this layer's middle, without all of which nobody tells or
// looks for anything of the next layer. What is left is the head's x, of the launch before.
__device__ void Pass::clear() const {
    await_launch();
#pragma unroll 1
    for (int layer = 0; layer <= LAYERS; ++layer) {
        await_bytes(barrier_at(READ), layer % 2);
        const Told before = told_in(layer);
        const u32 bytes = TOLD_BYTES * before.rows;
#pragma unroll 4
        for (u32 at = (blockIdx.x * WARP + threadIdx.x % WARP) * 16; at < bytes; at += BLOCKS * WARP * 16)
            mark_four(before.at + at);
        show_writes();
        arrive(barrier_at(CLEARED));
    }
}

// Of each row's last input.
__device__ void Pass::tell_logits(const float2 (&sums)[WIDE / 8], float scale, int row) const {
    if (row % count != count - 1) return;
    float2* out = reinterpret_cast<float2*>(logits + row / count * ENTRIES + blockIdx.x * Heads::COLUMNS);
#pragma unroll
    for (int i = 0; i < Heads::EIGHTS; ++i)
        out[4 * i + threadIdx.x % 4] = make_float2(sums[i].x * scale, sums[i].y * scale);
}

__device__ void Pass::work() const {
    // The blocks that make a key/value head's queries, keys and values share its rows.
    constexpr int AT_ONCE = WARPS / GROUP * HEAD_BLOCKS;
    const int kv_head = blockIdx.x / HEAD_BLOCKS, in_group = threadIdx.x / WARP % GROUP;
    const int sharers = Attention::sharers();
    const int first = sharers * HEAD_BLOCKS + blockIdx.x % HEAD_BLOCKS;
    const long cached = long(rows) * KV_HEADS * POSITIONS * HEAD;
    const int tiles = (tokens + TILE_ROWS - 1) / TILE_ROWS;
    Demand demand = {tokens, __shfl_sync(ALL, int(threadIdx.x) / GROUP_THREADS, 0), 0};
    await_launch();
    Told now = told_in(1);
    settle_rows({now.part(X_AT), now.part(X_SQUARES_AT)}, tokens, [this](int row, int four) {
        return widened(load<uint2>(inputs + row * HIDDEN + team() * PANEL + four));
    });
#pragma unroll 1
    for (int half = 0;; ++half) {
        const int layer = half / 2;
        const bool attending = half % 2 == 0, ending = half == 2 * LAYERS;
        const Row x = {now.part(attending ? X_AT : MIDDLE_AT),
                       now.part(attending ? X_SQUARES_AT : MIDDLE_SQUARES_AT)};
        const Attention attention = {qk_norm + layer * (HEADS + KV_HEADS) * HEAD, cos, sin, cache + 2 * layer * cached,
                                     cache + (2 * layer + 1) * cached, start, count, eps};
        const bool attends = attending && !ending && first < rows, recalls = in_group == 0 && threadIdx.x % WARP == 0;
        const Inputs whole = {x.x, HIDDEN / STEP, 0, WIDE_PANELS};
        if (attends && recalls) attention.recall(first, kv_head);
#pragma unroll 1
        for (int tile = 0; tile < tiles; ++tile) {
            const int row = demand.ended_row(tile);
            float2 sums[WIDE / 8];
            demand.multiply<WIDE, WIDE_PANELS>(sums, whole, tile, tile == tiles - 1, tile);
            const float scale = rsqrtf(total_of_squares(x.squares, row, tokens) / HIDDEN + eps);
            if (row < tokens) {
                if (ending) tell_logits(sums, scale, row);
                else if (attending) tell_qkv(sums, scale, now.part(QKV_AT), row);
                else tell_gated(sums, scale, now.part(INNER_AT), row);
            }
            __syncwarp();
        }
        demand.number += WIDE_PANELS;
        if (attending && threadIdx.x % WARP == 0) arrive(barrier_at(READ));
        if (ending) break;
        if (attends) {
            u32 recalled = layer * ((rows - first + AT_ONCE - 1) / AT_ONCE);
#pragma unroll 1
            for (int row = first; row < rows; row += AT_ONCE, ++recalled) {
                if (row > first) {
                    meet_sharers(sharers);
                    if (recalls) attention.recall(row, kv_head);
                }
                await_bytes(barrier_at(RECALLED + sharers), recalled % 2);
                attention.attend(now.part(QKV_AT), now.part(ATTENDED_AT), row, kv_head, in_group);
            }
        }
        const int columns = attending ? ATTENDED : INNER, panels = attending ? Output::PANELS : Down::PANELS;
#pragma unroll 1
        for (int tile = 0; tile < tiles; ++tile) {
            float2 sums[NARROW / 8];
            const Inputs part = {now.part(attending ? ATTENDED_AT : INNER_AT), columns / STEP,
                                 member() * panels * PANEL_STEPS, panels};
            demand.multiply<NARROW, NARROW_PANELS>(sums, part, tile, tile == tiles - 1, tiles + tile);
            const int row = demand.ended_row(tile);
            if (row < tokens) hand(sums, handed + blockIdx.x * now.rows * (4 * PANEL), row, half % 2);
            __syncwarp();
        }
        demand.number += panels;
        if (attending) await_bytes(barrier_at(CLEARED), layer % 2);
        const Told next = attending ? now : told_in(layer);
        const Row sum = {next.part(attending ? MIDDLE_AT : X_AT),
                         next.part(attending ? MIDDLE_SQUARES_AT : X_SQUARES_AT)};
        add_rows(sum, x.x, handed + team() * MEMBERS * now.rows * (4 * PANEL), tokens, now.rows, half % 2);
        now = next;
    }
}

__device__ void begin_barriers() {
    if (threadIdx.x == 0) {
#pragma unroll 1
        for (int slot = 0; slot < SLOTS; ++slot) {
            begin_barrier(barrier_at(FULL + slot), 1);
            begin_barrier(barrier_at(EMPTY + slot), WARPS / GROUPS);
        }
#pragma unroll 1
        for (int sharers = 0; sharers < WARPS / GROUP; ++sharers) begin_barrier(barrier_at(RECALLED + sharers), 1);
        begin_barrier(barrier_at(READ), WARPS);
        begin_barrier(barrier_at(CLEARED), WARP);
        publish_barriers();
    }
    __syncthreads();
}

// Logits, float32 [rows, ENTRIES], of `count` inputs a row, bfloat16 [rows · count, HIDDEN]. Weights are packed as
// `pass_kernel.packed` says; cache is [LAYERS, 2, rows, KV_HEADS, POSITIONS, HEAD]. `even` and `odd` are TOLD_BYTES for
// each of rows · count, rounded up to 16, and `handed` is float32 [BLOCKS, as many, PANEL]; all bits of them were set
// before the first launch.
extern "C" __global__ void __launch_bounds__(THREADS, 1)
    predictor_pass(const unsigned char* layers, const unsigned char* head, const bf16* qk_norm, const bf16* cos,
                   const bf16* sin, bf16* cache, const bf16* inputs, float* logits, unsigned char* even,
                   unsigned char* odd, unsigned char* handed, int rows, int count, int start, float eps) {
    const Pass pass = {layers, head, qk_norm, cos, sin, cache, inputs, logits, {even, odd}, handed, rows, count, start,
                       rows * count, eps};
    begin_barriers();
    if (threadIdx.x < WORKERS) {
        take_registers<REGISTERS>();
        pass.work();
    } else {
        give_registers<FEW_REGISTERS>();
        const int warp = threadIdx.x / WARP - WARPS;
        if (warp == SUPPLIERS) pass.clear();
        else if (threadIdx.x % WARP == 0) pass.bring_weights();
    }
}
