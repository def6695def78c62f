// How a pass is shared out among blocks and warps, and what stands where in a block's shared memory.
// Sizes come from the compiler's command line: HIDDEN, HEADS, KV_HEADS, INNER, ENTRIES, LAYERS.
#pragma once
#include "sm90.cuh"

constexpr int RANKS = 2, BLOCKS = 128;  // blocks of a cluster; of a launch
// Warps that multiply and attend, in two groups; two more bring panels and weights.
constexpr int GROUPS = 2, WARPS = 8, WORKERS = 32 * WARPS, GROUP_THREADS = WORKERS / GROUPS, THREADS = WORKERS + 64;
constexpr u32 ALL = 0xffffffff;

// Rows that are multiplied stand in tiles of 64, a tile in panels of 64 columns: the sum of squares of each row's part,
// float32, then the rows, whose 16-byte pieces are exchanged as the tensor cores read them.
constexpr int TILE_ROWS = 64, PANEL = 64, ROW_BYTES = 2 * PANEL;
constexpr int SQUARES_BYTES = 4 * TILE_ROWS, PANEL_BYTES = SQUARES_BYTES + TILE_ROWS * ROW_BYTES;
constexpr int SLOTS = 8, SLOT_BYTES = 9 * 1024, ROWS_AT = 1024, SQUARES_AT = ROWS_AT - SQUARES_BYTES;  // of a slot

// The blocks of a team share the columns of a product that is added, a panel, and split its inputs. Blocks of a cluster
// are of two teams and have the same part.
constexpr int TEAMS = HIDDEN / PANEL, MEMBERS = BLOCKS / TEAMS;
constexpr int HEAD = 128, POSITIONS = 16, GROUP = HEADS / KV_HEADS, HEAD_BLOCKS = BLOCKS / KV_HEADS;
constexpr int HALF_PITCH = HEAD / 2 + 4;  // both halves of a head are read at once, from different banks
constexpr int QKV = (HEADS + 2 * KV_HEADS) * HEAD, ATTENDED = HEADS * HEAD;

// What happens to a product's sums. Normalised: divided by the root mean square of the row that was multiplied.
enum Ending { NORMALISED, GATED, ADDED, LOGITS };

// A product of a pass: what a block has of it.
template <int OUT, int IN, Ending END>
struct Product {
    static constexpr Ending ending = END;
    static constexpr int ALL_PANELS = IN / PANEL;
    static constexpr int PARTS = END == ADDED ? MEMBERS : 1;  // of the inputs, for blocks that share columns
    static constexpr int COLUMNS = PARTS * OUT / BLOCKS, EIGHTS = COLUMNS / 8, PANELS = ALL_PANELS / PARTS;
    static constexpr int PANEL_COLUMNS_BYTES = COLUMNS * ROW_BYTES, BYTES = PANELS * PANEL_COLUMNS_BYTES;  // of weights
    static constexpr int MAKERS = PARTS == 1 ? MEMBERS : BLOCKS / PARTS;  // blocks that make a part of the inputs
    static_assert(PARTS * PANELS * PANEL == IN && PANELS % RANKS == 0 && (END == ADDED || COLUMNS < PANEL), "sizes");
};
using Qkv = Product<QKV, HIDDEN, NORMALISED>;
using Output = Product<HIDDEN, ATTENDED, ADDED>;
using GateUp = Product<2 * INNER, HIDDEN, GATED>;
using Down = Product<HIDDEN, INNER, ADDED>;
using Heads = Product<ENTRIES, HIDDEN, LOGITS>;
constexpr int LAYER_BYTES = Qkv::BYTES + Output::BYTES + GateUp::BYTES + Down::BYTES;

// Where blocks wait for results, which are counted: of each part of one its makers. A cache line for each counter.
enum Meeting { ATTENDED_TO, OUTPUT_ADDED, GATED_UP, DOWN_ADDED, MEETINGS };
constexpr int COUNTED_PARTS = TEAMS, COUNTER_WORDS = 32, MEETING_WORDS = COUNTED_PARTS * COUNTER_WORDS;

constexpr int most(int a, int b) { return a > b ? a : b; }

// Shared memory. Products that are added have one place for their weights, the others another.
constexpr int WIDE_AT = SLOTS * SLOT_BYTES, WIDE_BYTES = most(most(Qkv::BYTES, GateUp::BYTES), Heads::BYTES);
constexpr int NARROW_AT = WIDE_AT + WIDE_BYTES, SCRATCH_AT = NARROW_AT + most(Output::BYTES, Down::BYTES);
constexpr int SCRATCH_FLOATS = 2 * HALF_PITCH + HEAD / 2, BARRIERS_AT = SCRATCH_AT + 4 * WARPS * SCRATCH_FLOATS;
enum Barrier { FULL, EMPTY = FULL + SLOTS, WIDE_HERE = EMPTY + SLOTS, NARROW_HERE, WIDE_READ, NARROW_READ, BARRIERS };
constexpr int QUIET_AT = BARRIERS_AT + 8 * BARRIERS, SHARED_BYTES = QUIET_AT + 4;
static_assert(WARPS % GROUP == 0 && GROUP * KV_HEADS == HEADS && KV_HEADS == MEMBERS, "heads");
static_assert(TEAMS >= KV_HEADS && SHARED_BYTES <= 232448, "shared memory");

// Where a product's weights come to, and the barriers that say that they are here and that they have been read.
template <class P>
struct Place {
    static constexpr bool NARROW = P::ending == ADDED;
    static constexpr int AT = NARROW ? NARROW_AT : WIDE_AT;
    static constexpr Barrier HERE = NARROW ? NARROW_HERE : WIDE_HERE, READ = NARROW ? NARROW_READ : WIDE_READ;
};
