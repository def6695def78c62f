// How a pass is shared out among blocks and warps, and what stands where in a block's shared memory.
// Sizes come from the compiler's command line: HIDDEN, HEADS, KV_HEADS, INNER, ENTRIES, LAYERS.
#pragma once
#include "sm90.cuh"

constexpr int RANKS = 2, CLUSTERS = 64, BLOCKS = RANKS * CLUSTERS, THREADS = 256, WARPS = THREADS / 32;
constexpr int GROUPS = 2, PARTS = RANKS * GROUPS, TILE_ROWS = 64, PANEL = 64, ROUND_PANELS = 2;
constexpr int HEAD = 128, POSITIONS = 16, GROUP = HEADS / KV_HEADS;
constexpr int HALF_PITCH = HEAD / 2 + 4;  // both halves of a head are read at once, from different banks
constexpr int QKV = (HEADS + 2 * KV_HEADS) * HEAD, ATTENDED = HEADS * HEAD, COPY_BYTES = 16384;
constexpr u32 ALL = 0xffffffff;

// What happens to a product's sums. Normalised: divided by the root mean square of the row that was multiplied.
enum Ending { NORMALISED, GATED, ADDED, LOGITS };

// A product of a pass: what a block, and in it a warp group, has of it.
template <int OUTPUTS, int INPUTS, Ending END>
struct Product {
    static constexpr Ending ending = END;
    static constexpr int COLUMNS = OUTPUTS / CLUSTERS, WIDTH = COLUMNS / RANKS;  // multiplied, and owned
    static constexpr int PITCH = WIDTH + 8;  // rows of sums that are written at once go to different banks
    static constexpr int PANEL_BYTES = COLUMNS * PANEL * 2, PANELS = INPUTS / (PARTS * PANEL),
                         ROUNDS = PANELS / ROUND_PANELS;
    static constexpr int AHEAD = ROUNDS < 4 ? ROUNDS : 4;
    static constexpr int GROUP_BYTES = PANELS * PANEL_BYTES, BYTES = GROUPS * GROUP_BYTES;
    static_assert(ROUNDS * ROUND_PANELS * PARTS * PANEL == INPUTS, "sizes");
};
using Qkv = Product<QKV, HIDDEN, NORMALISED>;
using Output = Product<HIDDEN, ATTENDED, ADDED>;
using GateUp = Product<2 * INNER, HIDDEN, GATED>;
using Down = Product<HIDDEN, INNER, ADDED>;
using Heads = Product<ENTRIES, HIDDEN, LOGITS>;

constexpr int most(int a, int b) { return a > b ? a : b; }

// Shared memory. Gate and up lie where query, key and value lay: one is read while the other is still far off.
constexpr int WIDE_BYTES = most(most(Qkv::BYTES, GateUp::BYTES), Heads::BYTES);
constexpr int OUTPUT_AT = WIDE_BYTES, DOWN_AT = OUTPUT_AT + Output::BYTES, SUMS_AT = DOWN_AT + Down::BYTES;
constexpr int WIDEST = most(most(Qkv::PITCH, GateUp::PITCH), most(Down::PITCH, Heads::PITCH));
constexpr int HALF_BYTES = TILE_ROWS * WIDEST * 4, RECEIVED_AT = SUMS_AT + 2 * HALF_BYTES;
constexpr int SQUARES_AT = RECEIVED_AT + HALF_BYTES;  // of both warp groups and of the neighbour
constexpr int ARRIVED_AT = SQUARES_AT + 3 * TILE_ROWS * 4, SCRATCH_FLOATS = 2 * HALF_PITCH + HEAD / 2;
static_assert(WARPS % GROUP == 0 && GROUP * KV_HEADS == HEADS, "heads");
static_assert(ARRIVED_AT + 4 * 8 <= 232448 && WARPS * SCRATCH_FLOATS * 4 <= 2 * HALF_BYTES, "shared memory");
constexpr int LAYER_BYTES = Qkv::BYTES + Output::BYTES + GateUp::BYTES + Down::BYTES;
