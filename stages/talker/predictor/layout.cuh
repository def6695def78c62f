// How a pass is shared out among blocks and warps, and what stands where in a block's shared memory.
// Sizes come from the compiler's command line: HIDDEN, HEADS, KV_HEADS, INNER, ENTRIES, LAYERS.
#pragma once
#include "sm90.cuh"

constexpr int RANKS = 2, CLUSTERS = 64, BLOCKS = RANKS * CLUSTERS, THREADS = 256, WARPS = THREADS / 32;
constexpr int GROUPS = 2, TILE_ROWS = 64, PANEL = 64;
constexpr int TEAM = 4, MEMBERS = RANKS * TEAM;  // clusters, and their blocks, that share columns of an added product
// Neighbouring blocks make neighbouring columns of every result. Who needs a part of one waits for those alone.
constexpr int MEETINGS = 5 * LAYERS, MOST_PARTS = 8, COUNTER_WORDS = 32;  // from one counter to the next: a cache line
constexpr int HEAD = 128, POSITIONS = 16, GROUP = HEADS / KV_HEADS;
constexpr int HALF_PITCH = HEAD / 2 + 4;  // both halves of a head are read at once, from different banks
constexpr int QKV = (HEADS + 2 * KV_HEADS) * HEAD, ATTENDED = HEADS * HEAD;
constexpr int PANEL_BYTES = 8 * PANEL * 2;  // of eight columns, whose 16-byte pieces the hardware exchanges
constexpr u32 ALL = 0xffffffff;

// What happens to a product's sums. Normalised: divided by the root mean square of the row that was multiplied.
enum Ending { NORMALISED, GATED, ADDED, LOGITS };

// A product of a pass: what a block, and in it a warp group, has of it.
template <int OUT, int IN, Ending END>
struct Product {
    static constexpr Ending ending = END;
    static constexpr int OUTPUTS = OUT, INPUTS = IN;
    static constexpr int PARTS = END == ADDED ? MEMBERS : RANKS;  // of the inputs, for blocks that share columns
    static constexpr int COLUMNS = PARTS * OUTPUTS / BLOCKS, WIDTH = COLUMNS / 2;  // multiplied; ended or handed on
    static constexpr int PITCH = WIDTH + 8;  // rows of sums that are written at once go to different banks
    static constexpr int PANELS = INPUTS / (PARTS * GROUPS * PANEL);
    static constexpr int ROUND_PANELS = PANELS % 2 ? PANELS : 2, ROUNDS = PANELS / ROUND_PANELS;
    static constexpr int AHEAD = ROUNDS < 4 ? ROUNDS : 4;
    // Of its part a block has eight columns after eight, and a team's block copies it from the weights of each cluster.
    static constexpr int EIGHT_BYTES = GROUPS * PANELS * PANEL_BYTES, BYTES = COLUMNS / 8 * EIGHT_BYTES;
    static constexpr int COPY_BYTES = END == ADDED ? BYTES / TEAM : 16384;
    static_assert(PARTS * GROUPS * PANELS * PANEL == INPUTS, "sizes");
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
static_assert(WARPS % GROUP == 0 && GROUP * KV_HEADS == HEADS && KV_HEADS == MOST_PARTS, "heads");
static_assert(ARRIVED_AT + 4 * 8 <= 232448 && WARPS * SCRATCH_FLOATS * 4 <= 2 * HALF_BYTES, "shared memory");
// How much of gate and up is asked for before the product in front of them; its teams ask for the rest where they meet.
constexpr int GATE_UP_SOON = GateUp::BYTES / 4 * 3;
constexpr int LAYER_BYTES = Qkv::BYTES + Output::BYTES + GateUp::BYTES + Down::BYTES;
