// One pass of the code predictor as a single launch: all layers and a head, on all multiprocessors of a Hopper GPU.
//
// A pass streams the layers' weights (31 MB each at the published sizes) past a few rows. What it costs beyond that is
// handing results from one product to the next, so the launch stays: blocks meet at a barrier in global memory, and the
// weights of the products to come are on their way into shared memory meanwhile.
//
// Two blocks are a cluster, 64 clusters share each product's outputs. The four warp groups of a cluster split the
// inputs; each takes 64 rows at a time straight into the registers that the tensor cores read. A block adds up what its
// two groups have, sends the half of it that its neighbour owns, and ends the half that is its own: always in one
// order, so that a row's result depends on nothing but the row. Larger clusters would read less but need not all find
// room at once; with many rows, teams of clusters do that for the products that are added (`team.cuh`), with the same
// packed weights and the same result to the last bit. Code is as short as can be: what does not fit into the
// instruction cache is fetched anew in every layer.

#include "attention.cuh"
#include "team.cuh"

// Logits, float32 [rows, ENTRIES], of `count` inputs a row, x, bfloat16 [rows · count, HIDDEN], which are used up.
// Weights are packed as `pass_kernel.packed` says; cache is [LAYERS, 2, rows, KV_HEADS, POSITIONS, HEAD], `counters`
// are 5 · LAYERS zeros, and zeros again for the next launch. Teams need `handed`, float32 [BLOCKS, tiles · 64, 64] of
// any content, and `team_counters`, TEAM_WORDS for each team, which are zeros at first.
extern "C" __global__ void __cluster_dims__(RANKS, 1, 1) __launch_bounds__(THREADS, 1)
    predictor_pass(const unsigned char* layers, const unsigned char* head, const bf16* qk_norm, const bf16* cos,
                   const bf16* sin, bf16* cache, bf16* x, bf16* qkv, bf16* attended, bf16* inner, float* logits,
                   float* handed, u32* counters, u32* team_counters, int rows, int count, int start, float eps) {
    Place wide(0, 0), output(OUTPUT_AT, 1), down(DOWN_AT, 2), received(RECEIVED_AT, 3);
    publish_barriers();
    cluster_barrier();
    const unsigned char* weights = layers + long(blockIdx.x) * LAYER_BYTES;
    wide.bring<Qkv>(weights, Qkv::BYTES, 0, Qkv::BYTES);
    output.bring<Output>(weights + Qkv::BYTES, Output::BYTES, 0, Output::BYTES);
    down.bring<Down>(weights + LAYER_BYTES - Down::BYTES, Down::BYTES, 0, Down::BYTES);
    await_launch();

    const int tokens = rows * count, items = rows * KV_HEADS, first = threadIdx.x / 32 / GROUP * BLOCKS + blockIdx.x;
    const long cached = long(rows) * KV_HEADS * POSITIONS * HEAD;
    constexpr int AT_ONCE = WARPS / GROUP * BLOCKS;
    const Team team = {handed, team_counters};
    int met = 0;
    for (int layer = 0; layer < LAYERS; ++layer) {
        const unsigned char* next = weights + long(BLOCKS) * LAYER_BYTES;
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
        const unsigned char* gate_up = weights + Qkv::BYTES + Output::BYTES;
        Past past;  // of earlier launches: the first is there when the blocks have met
        if (first < items) attention.recall(past, first);
        meet<GateUp>(counters, met, wide, gate_up, GateUp::BYTES, 0, GateUp::BYTES / 2);
#pragma unroll 1
        for (int item = first; item < items; item += AT_ONCE) {
            if (item > first) attention.recall(past, item);
            attention.attend(past, item / KV_HEADS, item % KV_HEADS, threadIdx.x / 32 % GROUP);
        }
        meet<GateUp>(counters, met, wide, gate_up, GateUp::BYTES, GateUp::BYTES / 2, GATE_UP_SOON);
        add_rows<Output>(attended, tokens, output, received, x, team, wide, gate_up, GateUp::BYTES, GATE_UP_SOON);
        meet<Output>(counters, met, output, next + Qkv::BYTES, Output::BYTES, 0, last ? 0 : Output::BYTES);
        multiply_rows<GateUp>(x, HIDDEN, tokens, wide, received, inner, eps);
        const unsigned char* wide_next = last ? head + long(blockIdx.x) * Heads::BYTES : next;
        const int wide_bytes = last ? Heads::BYTES : Qkv::BYTES, soon = TEAM == 1 ? wide_bytes : wide_bytes / 2;
        meet<Qkv>(counters, met, wide, wide_next, wide_bytes, 0, soon);
        add_rows<Down>(inner, tokens, down, received, x, team, wide, wide_next, wide_bytes, soon);
        meet<Down>(counters, met, down, next + LAYER_BYTES - Down::BYTES, Down::BYTES, 0, last ? 0 : Down::BYTES);
        weights = next;
    }
    multiply_rows<Heads>(x + (count - 1) * HIDDEN, count * HIDDEN, rows, wide, received, logits, eps);
}
