// How a pass is shared out among blocks and warps, and what stands where in memory.
// Sizes come from the compiler's command line: HIDDEN, HEADS, KV_HEADS, INNER, ENTRIES, LAYERS, and of
// code 0 FIRST_ENTRIES, FIRST_STRIDE apart for each row.
#pragma once
#include "sm90.cuh"

constexpr int BLOCKS = 128;
// Warps that multiply and attend, in two groups. Of a third group three bring weights and one clears; it gives the
// others registers that it does not need.
constexpr int WARP = 32, GROUPS = 2, WARPS = 8, WORKERS = WARP * WARPS, GROUP_THREADS = WORKERS / GROUPS;
constexpr int SUPPLIERS = 3, THREADS = WORKERS + GROUP_THREADS, REGISTERS = 232, FEW_REGISTERS = 40;
constexpr u32 ALL = 0xffffffff;

// Rows are multiplied in tiles of 64, 16 a warp, 16 columns an instruction, of which each thread holds four words. So
// rows stand in memory: 16 of them by 16 columns, 16 bytes a thread.
constexpr int TILE_ROWS = 64, STEP = 16, STEP_BYTES = 2 * STEP * STEP;
// Weights stand as the tensor cores read them: panels of 64 inputs, in them eight outputs by eight.
constexpr int PANEL = 64, PANEL_STEPS = PANEL / STEP, ROW_BYTES = 2 * PANEL;

// The blocks of a team share the columns of a product that is added, and split its inputs.
constexpr int TEAMS = HIDDEN / PANEL, MEMBERS = BLOCKS / TEAMS;
constexpr int HEAD = 128, POSITIONS = 16, GROUP = HEADS / KV_HEADS, HEAD_BLOCKS = BLOCKS / KV_HEADS;
constexpr int QKV = (HEADS + 2 * KV_HEADS) * HEAD, ATTENDED = HEADS * HEAD;

// Weights go through a ring of slots, a panel in each.
constexpr int SLOTS = 19, SLOT_BYTES = 8192;

// A product of a pass: what a block has of it, all inputs or one of so many parts of them.
template <int OUT, int IN, int PARTS>
struct Product {
    static constexpr int COLUMNS = PARTS * OUT / BLOCKS, EIGHTS = COLUMNS / 8, PANELS = IN / PANEL / PARTS;
    static constexpr int PANEL_BYTES = COLUMNS * ROW_BYTES, BYTES = PANELS * PANEL_BYTES;  // of weights
    static_assert(PARTS * PANELS * PANEL == IN && PANELS % GROUPS == 0 && PANELS <= SLOTS, "sizes");
    static_assert(PANELS >= 2 * GROUPS, "sizes");
    static_assert(COLUMNS % 16 == 0 && PANEL_BYTES <= SLOT_BYTES, "sizes");
};
using Qkv = Product<QKV, HIDDEN, 1>;
using Output = Product<HIDDEN, ATTENDED, MEMBERS>;
using GateUp = Product<2 * INNER, HIDDEN, 1>;
using Down = Product<HIDDEN, INNER, MEMBERS>;
using Heads = Product<ENTRIES, HIDDEN, 1>;
constexpr int LAYER_BYTES = Qkv::BYTES + Output::BYTES + GateUp::BYTES + Down::BYTES;
constexpr int LAYER_PANELS = Qkv::PANELS + Output::PANELS + GateUp::PANELS + Down::PANELS;
// A pass's steps are its layers and its head.
constexpr int STEPS = LAYERS + 1, SETS = 3, PASS_PANELS = LAYERS * LAYER_PANELS + Heads::PANELS;

// What blocks tell one another in a step, bytes of each row in the order in which it stands there: rows that are
// multiplied, and of those that are normalised the sum of squares of each team's columns; queries, keys and values, or
// a head's logits.
constexpr int X_BYTES = 2 * HIDDEN, SQUARES_BYTES = 4 * TEAMS;
constexpr int X_AT = 0, X_SQUARES_AT = X_AT + X_BYTES, MIDDLE_AT = X_SQUARES_AT + SQUARES_BYTES;
constexpr int MIDDLE_SQUARES_AT = MIDDLE_AT + X_BYTES, QKV_AT = MIDDLE_SQUARES_AT + SQUARES_BYTES;
constexpr int ATTENDED_AT = QKV_AT + 2 * QKV, INNER_AT = ATTENDED_AT + 2 * ATTENDED, TOLD_BYTES = INNER_AT + 2 * INNER;
constexpr int LOGITS_AT = QKV_AT;
static_assert(LOGITS_AT + 4 * ENTRIES <= TOLD_BYTES && ENTRIES % (4 * WORKERS) == 0, "sizes");
static_assert(HIDDEN == 4 * WORKERS, "sizes");

constexpr int most(int a, int b) { return a > b ? a : b; }

// Products of all inputs have as many panels, those of a part of them as many columns.
constexpr int WIDE = most(most(Qkv::COLUMNS, GateUp::COLUMNS), Heads::COLUMNS), WIDE_PANELS = Qkv::PANELS;
constexpr int NARROW = Output::COLUMNS, NARROW_PANELS = most(Output::PANELS, Down::PANELS);
static_assert(GateUp::PANELS == WIDE_PANELS && Heads::PANELS == WIDE_PANELS && Down::COLUMNS == NARROW, "sizes");

// Shared memory: weights; where the groups exchange sums, in turn at two places; for each warps that share a key/value
// head keys and values of a row; what a draw needs.
constexpr int EXCHANGE_AT = SLOTS * SLOT_BYTES, EXCHANGE_BYTES = WORKERS * most(WIDE, NARROW);
constexpr int CACHED_BYTES = 2 * HEAD * POSITIONS, CACHED_AT = EXCHANGE_AT + 2 * EXCHANGE_BYTES;
constexpr int ROOM_AT = CACHED_AT + WARPS / GROUP * 2 * CACHED_BYTES, ROOM_BYTES = 4096;
constexpr int BARRIERS_AT = ROOM_AT + ROOM_BYTES;
enum Barrier { FULL, EMPTY = FULL + SLOTS, READ = EMPTY + SLOTS, CLEARED, ATTENTION, RECALLED };
constexpr int BARRIERS = RECALLED + WARPS / GROUP, SHARED_BYTES = BARRIERS_AT + 8 * BARRIERS;
static_assert(WARPS % GROUP == 0 && GROUP * KV_HEADS == HEADS && KV_HEADS == MEMBERS, "heads");
// Steps use sets of places in turn: a pass begins with the second and ends with the first.
static_assert(STEPS % SETS == 0 && TEAMS == 16 && SHARED_BYTES <= 232448, "sizes");
