// One pass of the code predictor as a single launch: all layers and a head, on all multiprocessors of a Hopper GPU.
//
// A pass streams the layers' weights (31 MB each at the published sizes) past a few rows. What it costs beyond that is
// handing results from one product to the next, so the launch stays: blocks wait for one another through counters in
// global memory, and the weights of the products to come are on their way into shared memory meanwhile.
//
// Two blocks are a cluster, 64 clusters share each product's outputs. The four warp groups of a cluster split the
// inputs; each takes 64 rows at a time straight into the registers that the tensor cores read. A block adds up what its
// two groups have, sends the half of it that its neighbour owns, and ends the half that is its own: always in one
// order, so that a row's result depends on nothing but the row. Larger clusters would read less but need not all find
// room at once; teams of clusters do that for the products that are added (`team.cuh`). Code is as short as can be: what
// does not fit into the instruction cache is fetched anew in every layer.

#include "attention.cuh"
#include "team.cuh"

// Logits, float32 [rows, ENTRIES], of `count` inputs a row, x, bfloat16 [rows · count, HIDDEN], which are used up.
// Weights are packed as `pass_kernel.packed` says; cache is [LAYERS, 2, rows, KV_HEADS, POSITIONS, HEAD], `counters`
// are [MEETINGS, MOST_PARTS, COUNTER_WORDS] zeros, for this launch and the next. Teams work with `handed`, float32
// [BLOCKS, tiles · 64, 64] of any content, and `team_counters`, COUNTER_WORDS for each team, which are zeros at first.
extern "C" __global__ void __cluster_dims__(RANKS, 1, 1) __launch_bounds__(THREADS, 1)
    predictor_pass(const unsigned char* layers, const unsigned char* head, const bf16* qk_norm, const bf16* cos,
                   const bf16* sin, bf16* cache, bf16* x, bf16* qkv, bf16* attended, bf16* inner, float* logits,
                   float* handed, u32* counters, u32* team_counters, int rows, int count, int start, float eps) {
    Place wide(0, 0), output(OUTPUT_AT, 1), down(DOWN_AT, 2), received(RECEIVED_AT, 3);
    publish_barriers();
    __syncthreads();
    arrive_in_cluster();
    const unsigned char* weights = layers + long(blockIdx.x) * LAYER_BYTES;
    wide.bring<Qkv>(weights, Qkv::BYTES, 0, Qkv::BYTES);
    output.bring<Output>(weights + Qkv::BYTES, Output::BYTES, 0, Output::BYTES);
    down.bring<Down>(weights + LAYER_BYTES - Down::BYTES, Down::BYTES, 0, Down::BYTES);
    await_launch();

    if (blockIdx.x == 0) clear(counters, MEETINGS - 1, MEETINGS);  // the launch before could not
    // The blocks that make a key/value head's queries, keys and values share its rows.
    constexpr int HEAD_BLOCKS = BLOCKS / KV_HEADS, AT_ONCE = WARPS / GROUP * HEAD_BLOCKS;
    const int kv_head = blockIdx.x / HEAD_BLOCKS;
    const int first = threadIdx.x / 32 / GROUP * HEAD_BLOCKS + blockIdx.x % HEAD_BLOCKS;
    const int tokens = rows * count;
    const long cached = long(rows) * KV_HEADS * POSITIONS * HEAD;
    const Team team = {handed, team_counters};
    u32* meeting = counters;
    for (int layer = 0; layer < LAYERS; ++layer) {
        const unsigned char* next = weights + long(BLOCKS) * LAYER_BYTES;
        const unsigned char *gate_up = weights + Qkv::BYTES + Output::BYTES, *next_output = next + Qkv::BYTES,
                            *next_down = next + LAYER_BYTES - Down::BYTES;
        const bool last = layer == LAYERS - 1;
        const Attention attention = {qkv,
                                     qk_norm + layer * (HEADS + KV_HEADS) * HEAD,
                                     cos,
                                     sin,
                                     cache + 2 * layer * cached,
                                     cache + (2 * layer + 1) * cached,
                                     attended,
                                     start,
                                     count,
                                     eps};
        multiply_rows<Qkv>(x, HIDDEN, tokens, wide, received, qkv, eps);
        Past past;  // of earlier launches: the first is there when the blocks have met
        if (first < rows) attention.recall(past, first, kv_head);
        meet<GateUp>(meeting, KV_HEADS, kv_head, wide, gate_up, GateUp::BYTES, 0, GateUp::BYTES / 2);
#pragma unroll 1
        for (int row = first; row < rows; row += AT_ONCE) {
            if (row > first) attention.recall(past, row, kv_head);
            attention.attend(past, row, kv_head, threadIdx.x / 32 % GROUP);
        }
        meet_for<Output, GateUp>(meeting, wide, gate_up, GateUp::BYTES, GateUp::BYTES / 2, GATE_UP_SOON);
        add_rows<Output>(attended, tokens, output, received, x, team, wide, gate_up, GateUp::BYTES, GATE_UP_SOON);
        meet_for<GateUp, Output>(meeting, output, next_output, Output::BYTES, 0, last ? 0 : Output::BYTES);
        multiply_rows<GateUp>(x, HIDDEN, tokens, wide, received, inner, eps);
        const unsigned char* wide_next = last ? head + long(blockIdx.x) * Heads::BYTES : next;
        const int wide_bytes = last ? Heads::BYTES : Qkv::BYTES, soon = wide_bytes / 2;
        meet_for<Down, Qkv>(meeting, wide, wide_next, wide_bytes, 0, soon);
        add_rows<Down>(inner, tokens, down, received, x, team, wide, wide_next, wide_bytes, soon);
        meet_for<Qkv, Down>(meeting, down, next_down, Down::BYTES, 0, last ? 0 : Down::BYTES);
        weights = next;
    }
    multiply_rows<Heads>(x + (count - 1) * HIDDEN, count * HIDDEN, rows, wide, received, logits, eps);
    if (blockIdx.x == 0) clear(counters, 0, MEETINGS - 1);
    await_cluster();
}
