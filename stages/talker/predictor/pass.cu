// One pass of the code predictor as a single launch: all layers and a head, on all multiprocessors of a Hopper GPU.
//
// A pass streams the layers' weights (31 MB each at the published sizes) past a few rows. What it costs beyond that is
// handing results from one product to the next, so the launch stays. Rows go from block to block through global memory,
// in panels that are copied into shared memory as the tensor cores read them. A panel is copied when those who make it
// have been counted; sums of a team and queries announce themselves, which needs no fence. Nobody waits for all.
//
// A block's warps have three tasks: one brings the weights of the products to come, one brings panels, eight multiply
// and attend. Two blocks are a cluster, since copies then feed both; larger clusters need not all find room at once. A
// result is always added up in one order, so that a row's depends on nothing but the row. Code is as short as can be:
// what does not fit into the instruction cache is fetched anew in every layer.
#include "attention.cuh"
#include "team.cuh"

struct Pass {
    const unsigned char *layers, *head;
    const bf16 *qk_norm, *cos, *sin;
    bf16* cache;
    const bf16* inputs;
    unsigned char* x;
    bf16* qkv;
    unsigned char *attended, *inner;
    float *logits, *handed;
    u32* counters;
    int rows, count, start, tokens, tiles;
    float eps;

    // Layers count from 1: what is counted as layer 0's are the inputs.
    __device__ u32* counter(int layer, Meeting meeting, int part) const {
        return counters + (layer * MEETINGS + meeting) * MEETING_WORDS + part * COUNTER_WORDS;
    }

    // Zeros for the next launch.
    __device__ void clear(int first, int stop) const {
        if (blockIdx.x == 0)
            for (int i = first * COUNTED_PARTS + threadIdx.x; i < stop * COUNTED_PARTS; i += WORKERS)
                counters[i * COUNTER_WORDS] = 0;
    }

    __device__ void bring_weights() const;
    __device__ void bring_panels() const;
    __device__ void work() const;
};

__device__ void Pass::bring_weights() const {
    WeightSupply supply = {0, 0};
    const unsigned char* weights = layers + long(blockIdx.x) * LAYER_BYTES;
    supply.bring<Qkv>(weights, true);
    supply.bring<Output>(weights + Qkv::BYTES, true);
#pragma unroll 1
    for (int layer = 1;; ++layer) {
        supply.bring<GateUp>(weights + Qkv::BYTES + Output::BYTES);
        supply.bring<Down>(weights + LAYER_BYTES - Down::BYTES);
        if (layer == LAYERS) break;
        weights += long(BLOCKS) * LAYER_BYTES;
        supply.bring<Qkv>(weights);
        supply.bring<Output>(weights + Qkv::BYTES);
    }
    supply.bring<Heads>(head + long(blockIdx.x) * Heads::BYTES);
}

__device__ void Pass::bring_panels() const {
    PanelSupply supply = {tiles, panel_bytes(tokens), 0};
    await_launch();
#pragma unroll 1
    for (int layer = 1; layer <= LAYERS; ++layer) {
        supply.bring<Qkv>(x, 0, counter(layer - 1, DOWN_ADDED, 0));
        supply.bring<Output>(attended, member(), counter(layer, ATTENDED_TO, 0));
        supply.bring<GateUp>(x, 0, counter(layer, OUTPUT_ADDED, 0));
        supply.bring<Down>(inner, member(), counter(layer, GATED_UP, 0));
    }
    supply.bring<Heads>(x, 0, counter(LAYERS, DOWN_ADDED, 0));
}

__device__ void Pass::work() const {
    // The blocks that make a key/value head's queries, keys and values share its rows.
    constexpr int AT_ONCE = WARPS / GROUP * HEAD_BLOCKS, LAST = LAYERS * MEETINGS + DOWN_ADDED;
    const int kv_head = blockIdx.x / HEAD_BLOCKS, in_group = threadIdx.x / 32 % GROUP;
    const int first = threadIdx.x / 32 / GROUP * HEAD_BLOCKS + blockIdx.x % HEAD_BLOCKS;
    const long stride = long(tiles) * TILE_ROWS * PANEL, cached = long(rows) * KV_HEADS * POSITIONS * HEAD;
    float* handed_to_team = handed + team() * MEMBERS * stride;
    const Results results = {qkv, inner, logits, handed_to_team + member() * stride, tokens, count, eps};
    Demand demand = {tiles, panel_bytes(tokens), 0, 0, 0};
    await_launch();
    clear(LAST, LAST + 1);  // the launch before could not
    settle_rows(x, tokens, [this](int row, int four) {
        return widened(load<uint2>(inputs + long(row) * HIDDEN + team() * PANEL + four));
    });
    ::count(counter(0, DOWN_ADDED, team()));
#pragma unroll 1
    for (int layer = 1; layer <= LAYERS; ++layer) {
        bf16 *keys = cache + 2 * (layer - 1) * cached, *values = keys + cached;
        const bf16* norms = qk_norm + (layer - 1) * (HEADS + KV_HEADS) * HEAD;
        const Attention attention = {qkv, norms, cos, sin, keys, values, attended, start, count, eps};
        Past past;  // of earlier launches: the first is there when its query is
        if (first < rows) attention.recall(past, first, kv_head);
        demand.multiply_rows<Qkv>(results);
#pragma unroll 1
        for (int row = first; row < rows; row += AT_ONCE) {
            if (row > first) attention.recall(past, row, kv_head);
            attention.attend(past, row, kv_head, in_group);
        }
        ::count(counter(layer, ATTENDED_TO, kv_head));
        if (in_group == 0)
            for (int row = first; row < rows; row += AT_ONCE) attention.forget(row, kv_head);
        demand.multiply_rows<Output>(results);
        add_rows(x, handed_to_team, tokens, stride);
        ::count(counter(layer, OUTPUT_ADDED, team()));
        demand.multiply_rows<GateUp>(results);
        ::count(counter(layer, GATED_UP, blockIdx.x / (BLOCKS / Down::PARTS)));
        demand.multiply_rows<Down>(results);
        add_rows(x, handed_to_team, tokens, stride);
        ::count(counter(layer, DOWN_ADDED, team()));
    }
    demand.multiply_rows<Heads>(results);
    meet_workers();  // all panels of x have come, so that nobody looks at any other counter again
    clear(0, LAST);
}

// Logits, float32 [rows, ENTRIES], of `count` inputs a row, bfloat16 [rows · count, HIDDEN]. Weights are packed as
// `pass_kernel.packed` says; cache is [LAYERS, 2, rows, KV_HEADS, POSITIONS, HEAD]. x, attended and inner are room for
// the panels of HIDDEN, ATTENDED and INNER columns. In qkv, bfloat16 [rows · count, QKV], and handed, float32 [BLOCKS,
// tiles · 64, 64], all bits are set before a launch and behind it; `counters`, COUNTER_WORDS for each of COUNTED_PARTS
// of (LAYERS + 1) · MEETINGS, are zeros before the first.
extern "C" __global__ void __cluster_dims__(RANKS, 1, 1) __launch_bounds__(THREADS, 1)
    predictor_pass(const unsigned char* layers, const unsigned char* head, const bf16* qk_norm, const bf16* cos,
                   const bf16* sin, bf16* cache, const bf16* inputs, unsigned char* x, bf16* qkv,
                   unsigned char* attended, unsigned char* inner, float* logits, float* handed, u32* counters, int rows,
                   int count, int start, float eps) {
    const int tokens = rows * count, tiles = (tokens + TILE_ROWS - 1) / TILE_ROWS;
    const Pass pass = {layers,   head,  qk_norm, cos,    sin,      cache, inputs, x,     qkv,
                       attended, inner, logits,  handed, counters, rows,  count,  start, tokens,
                       tiles,    eps};
    begin_barriers(tokens);
    if (threadIdx.x < WORKERS) pass.work();
    else if (threadIdx.x < WORKERS + 32) pass.bring_panels();
    else if (threadIdx.x == WORKERS + 32) pass.bring_weights();
    __syncwarp();
    arrive_in_cluster();  // what the neighbour sends may still be on its way
    await_cluster();
}
