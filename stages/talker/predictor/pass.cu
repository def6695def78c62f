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
// room at once. Code is as short as can be: what does not fit into the instruction cache is fetched anew in every
// layer.

#include "attention.cuh"
#include "products.cuh"

// Logits, float32 [rows, ENTRIES], of `count` inputs a row, x, bfloat16 [rows · count, HIDDEN], which are used up.
// Weights are packed as `pass_kernel.packed` says; cache is [LAYERS, 2, rows, KV_HEADS, POSITIONS, HEAD], `counters`
// are 5 · LAYERS zeros, and zeros again for the next launch.
extern "C" __global__ void __cluster_dims__(RANKS, 1, 1) __launch_bounds__(THREADS, 1)
    predictor_pass(const unsigned char* layers, const unsigned char* head, const bf16* qk_norm, const bf16* cos,
                   const bf16* sin, bf16* cache, bf16* x, bf16* qkv, bf16* attended, bf16* inner, float* logits,
                   u32* counters, int rows, int count, int start, float eps) {
    Place wide(0, 0), output(OUTPUT_AT, 1), down(DOWN_AT, 2), received(RECEIVED_AT, 3);
    publish_barriers();
    cluster_barrier();
    const unsigned char* weights = layers + long(blockIdx.x) * LAYER_BYTES;
    wide.bring(weights, Qkv::BYTES, 0, Qkv::BYTES);
    output.bring(weights + Qkv::BYTES, Output::BYTES, 0, Output::BYTES);
    down.bring(weights + LAYER_BYTES - Down::BYTES, Down::BYTES, 0, Down::BYTES);
    asm volatile("griddepcontrol.wait;" ::: "memory");

    const int tokens = rows * count, items = rows * KV_HEADS, first = threadIdx.x / 32 / GROUP * BLOCKS + blockIdx.x;
    const long cached = long(rows) * KV_HEADS * POSITIONS * HEAD;
    constexpr int AT_ONCE = WARPS / GROUP * BLOCKS;
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
        meet(counters, met, wide, gate_up, GateUp::BYTES, 0, GateUp::BYTES / 2);
#pragma unroll 1
        for (int item = first; item < items; item += AT_ONCE) {
            if (item > first) attention.recall(past, item);
            attention.attend(past, item / KV_HEADS, item % KV_HEADS, threadIdx.x / 32 % GROUP);
        }
        meet(counters, met, wide, gate_up, GateUp::BYTES, GateUp::BYTES / 2, GateUp::BYTES);
        multiply_rows<Output>(attended, ATTENDED, tokens, output, received, x, eps);
        meet(counters, met, output, next + Qkv::BYTES, Output::BYTES, 0, last ? 0 : Output::BYTES);
        multiply_rows<GateUp>(x, HIDDEN, tokens, wide, received, inner, eps);
        const int wide_bytes = last ? Heads::BYTES : Qkv::BYTES;
        meet(counters, met, wide, last ? head + long(blockIdx.x) * Heads::BYTES : next, wide_bytes, 0, wide_bytes);
        multiply_rows<Down>(inner, INNER, tokens, down, received, x, eps);
        meet(counters, met, down, next + LAYER_BYTES - Down::BYTES, Down::BYTES, 0, last ? 0 : Down::BYTES);
        weights = next;
    }
    multiply_rows<Heads>(x + (count - 1) * HIDDEN, count * HIDDEN, rows, wide, received, logits, eps);
}
