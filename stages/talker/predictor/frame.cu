// Frames as a single launch: a draw for the code that begins each, and for each of the others a pass of all layers and a
// head, and a draw, on all multiprocessors of a Hopper GPU.
//
// A pass streams the layers' weights (31 MB each at the published sizes) past a few rows. What it costs beyond that is
// handing results from one product to the next, so the launch stays, and results go from block to block through the
// second-level cache. They announce themselves: whoever needs one looks at its place until it stands there, so that no
// block fences what it tells, nor counts or waits for all others. Places are cleared behind it: there are three sets of
// them, which a pass's steps, its layers and its head, use in turn.
//
// A block's warps have three tasks: eight multiply, attend and draw, three bring the weights of the products to come,
// one prepares: it recalls keys and values and clears places. A result is always added up in one order, so that a row's
// depends on nothing but the row.
#include "attention.cuh"
#include "rows.cuh"
#include "team.cuh"

// Panels of weights that are on their way, with more rows and with few. A thread that brings them waits for one that
// another brings, so that none gets so far ahead that a barrier goes through two phases while somebody waits for one.
constexpr int FEW_ROWS = 16;
constexpr u32 PACE = 4, FEW_PACE = 5;
static_assert(PACE % SUPPLIERS != 0 && FEW_PACE % SUPPLIERS != 0 && SUPPLIERS * FEW_PACE < SLOTS, "pace");

// One of a launch's passes, which draws codes of that book. `step` counts layers and heads before it.
struct Pass {
    int number, book, step, count, start, tokens;
};

struct Frames {
    const unsigned char *layers, *heads;
    const bf16 *qk_norm, *cos, *sin;
    bf16* cache;
    const bf16* inputs;
    unsigned char *told, *handed;
    const bf16* table;
    const long long* offsets;
    const u32* words;
    const bf16* first_logits;
    unsigned char* seen;
    long long* codes;
    int room, rows, count, first_book, last_book;
    float eps;

    __device__ int passes() const { return last_book - first_book + 1; }
    __device__ Pass pass(int number) const {
        const int book = first_book + number, inputs_of_row = number == 0 ? count : 1;
        return {number, book, number * STEPS, inputs_of_row, book + 1 - inputs_of_row, rows * inputs_of_row};
    }
    // Steps count from 1.
    __device__ Told told_in(int step, int tokens) const {
        return {told + long(step % SETS) * TOLD_BYTES * room, u32(tokens + STEP - 1) / STEP * STEP};
    }
    __device__ Attention attention_in(int layer, const Pass& pass) const {
        const long cached = long(rows) * KV_HEADS * POSITIONS * HEAD;
        const bf16* norms = qk_norm + layer * (HEADS + KV_HEADS) * HEAD;
        bf16* keys = cache + 2 * layer * cached;
        return {norms, cos, sin, keys, keys + cached, pass.start, pass.count, eps};
    }

    __device__ void bring_weights() const;
    __device__ void prepare() const;
    __device__ void clear(Told before) const;
    __device__ void work() const;
    __device__ void begin(Told next) const;
    __device__ Told tell_pass(const Pass& pass, Told now, u32& recalled) const;
    __device__ void attend(int layer, const Pass& pass, Told now, u32& recalled) const;
    __device__ void tell_logits(const float2 (&sums)[Heads::EIGHTS], float scale, const Pass& pass, Told now,
                                int row) const;
    __device__ void draw(const Pass& pass, Told now, Told next) const;
    __device__ void tell_code(int row, int book, int code, Told next, int token) const;
};

__device__ void Frames::bring_weights() const {
    WeightSupply supply = {rows > FEW_ROWS ? PACE : FEW_PACE, threadIdx.x / WARP - WARPS, 0};
#pragma unroll 1
    for (int book = first_book; book <= last_book; ++book) {
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
        supply.bring(heads + (long(book - 1) * BLOCKS + blockIdx.x) * Heads::BYTES, Heads::PANELS, Heads::PANEL_BYTES);
    }
}

// Of the rows that a block attends to, the first of all that share a key.
__device__ int first_attended(int sharers) { return sharers * HEAD_BLOCKS + blockIdx.x % HEAD_BLOCKS; }

// When a block has seen all of a step's x, every block has read all that was told in the step before. A layer's share of
// those places is cleared before the block tells the next step's x, without all of which nobody begins that step, and
// they are used in the one behind it. A head's share is cleared before anything is told in the next pass's first layer,
// without all of which nobody ends that. The first to be cleared are those of the launch before.
__device__ void Frames::prepare() const {
    const int sharers = threadIdx.x % WARP, row = first_attended(sharers);
    Told before = told_in(0, rows * count);
    await_launch();
#pragma unroll 1
    for (int number = 0; number < passes(); ++number) {
        const Pass each = pass(number);
#pragma unroll 1
        for (int layer = 0; layer <= LAYERS; ++layer) {
            const int step = each.step + layer;
            if (layer < LAYERS && sharers < WARPS / GROUP)
                attention_in(layer, each).recall(row, row < rows, blockIdx.x / HEAD_BLOCKS, sharers);
            await_bytes(barrier_at(READ), step % 2);
            clear(before);
            show_writes();
            arrive(barrier_at(CLEARED));
            before = told_in(step + 1, each.tokens);
            // What was attended to is recalled by the next pass.
            if (layer == LAYERS) continue;
            await_bytes(barrier_at(ATTENTION), (number * LAYERS + layer) % 2);
            show_writes_to_copies();
        }
    }
}

__device__ void Frames::clear(Told before) const {
    const u32 bytes = TOLD_BYTES * before.rows;
#pragma unroll 4
    for (u32 at = (blockIdx.x * WARP + threadIdx.x % WARP) * 16; at < bytes; at += BLOCKS * WARP * 16)
        mark_four(before.at + at);
}

__device__ void Frames::work() const {
    u32 recalled = 0;
    await_launch();
    Told now = told_in(1, rows * count);
    if (first_logits) begin(now);
    else
        settle_rows(now.row_at(X_AT, X_SQUARES_AT), rows * count,
                    [this](int row, u32 column) { return four_of(inputs + row * HIDDEN, column); });
#pragma unroll 1
    for (int number = 0; number < passes(); ++number) {
        const Pass each = pass(number);
        now = tell_pass(each, now, recalled);
        meet_workers();  // sums of groups are exchanged anew
        const Told next = told_in(each.step + STEPS + 1, rows);
        draw(each, now, next);
        now = next;
    }
}

// From its inputs, told, to its logits. Returns where they are told.
__device__ Told Frames::tell_pass(const Pass& pass, Told now, u32& recalled) const {
    const int tokens = pass.tokens, tiles = (tokens + TILE_ROWS - 1) / TILE_ROWS;
    const int group = __shfl_sync(ALL, int(threadIdx.x) / GROUP_THREADS, 0);
    if (pass.number > 0) await_bytes(barrier_at(CLEARED), (pass.step - 1) % 2);
#pragma unroll 1
    for (int half = 0;; ++half) {
        const int layer = half / 2, step = pass.step + layer;
        const bool attending = half % 2 == 0, ending = half == 2 * LAYERS;
        const Row x = attending ? now.row_at(X_AT, X_SQUARES_AT) : now.row_at(MIDDLE_AT, MIDDLE_SQUARES_AT);
        Demand demand = {tokens, group,
                         u32(pass.number * PASS_PANELS + layer * LAYER_PANELS +
                             (attending ? 0 : WIDE_PANELS + Output::PANELS))};
        const Inputs whole = {x.x, HIDDEN / STEP, 0, WIDE_PANELS};
#pragma unroll 1
        for (int tile = 0; tile < tiles; ++tile) {
            const int row = demand.ended_row(tile);
            const bool last = tile == tiles - 1;
            if (ending) {
                float2 sums[Heads::EIGHTS];
                const float scale = demand.multiply_rows<Heads::COLUMNS>(sums, whole, x.squares, tile, last, true, eps);
                if (row < tokens) tell_logits(sums, scale, pass, now, row);
            } else if (attending) {
                float2 sums[Qkv::EIGHTS];
                const float scale = demand.multiply_rows<Qkv::COLUMNS>(sums, whole, x.squares, tile, last, true, eps);
                if (row < tokens) tell_qkv(sums, scale, now.part(QKV_AT), row);
            } else {
                float2 sums[GateUp::EIGHTS];
                const float scale =
                    demand.multiply_rows<GateUp::COLUMNS>(sums, whole, x.squares, tile, last, false, eps);
                if (row < tokens) tell_gated(sums, scale, now.part(INNER_AT), row);
            }
            __syncwarp();
        }
        if (ending) return now;
        demand.number += WIDE_PANELS;
        if (attending) attend(layer, pass, now, recalled);
        const int columns = attending ? ATTENDED : INNER, panels = attending ? Output::PANELS : Down::PANELS;
#pragma unroll 1
        for (int tile = 0; tile < tiles; ++tile) {
            float parts[NARROW / 2];
            float2 sums[NARROW / 8];
            const Inputs part = {now.part(attending ? ATTENDED_AT : INNER_AT), columns / STEP,
                                 member() * panels * PANEL_STEPS, panels};
            demand.multiply<NARROW, NARROW_PANELS>(parts, part, tile, tile == tiles - 1);
            demand.add_groups<NARROW>(sums, parts, tiles + tile);
            const int row = demand.ended_row(tile);
            if (row < tokens) hand(sums, handed + blockIdx.x * now.rows * (4 * PANEL), row, half % 2);
            __syncwarp();
        }
        if (!attending) await_bytes(barrier_at(CLEARED), step % 2);
        const Told next = attending ? now : told_in(step + 2, tokens);
        const Row sum = attending ? next.row_at(MIDDLE_AT, MIDDLE_SQUARES_AT) : next.row_at(X_AT, X_SQUARES_AT);
        add_rows(sum, x.x, handed + team() * MEMBERS * now.rows * (4 * PANEL), tokens, now.rows, half % 2);
        now = next;
    }
}

// The blocks that make a key/value head's queries, keys and values share its rows. Who has none waits, too: none gets
// two layers ahead of the warp that recalls.
__device__ void Frames::attend(int layer, const Pass& pass, Told now, u32& recalled) const {
    constexpr int AT_ONCE = WARPS / GROUP * HEAD_BLOCKS;
    const int sharers = Attention::sharers(), kv_head = blockIdx.x / HEAD_BLOCKS, in_group = threadIdx.x / WARP % GROUP;
    const Attention attention = attention_in(layer, pass);
    int row = first_attended(sharers);
#pragma unroll 1
    for (;;) {
        await_bytes(barrier_at(RECALLED + sharers), recalled);
        recalled ^= 1;
        if (row < rows) attention.attend(now.part(QKV_AT), now.part(ATTENDED_AT), row, kv_head, in_group);
        row += AT_ONCE;
        if (row >= rows) break;
        meet_sharers(sharers);
        if (in_group == 0 && threadIdx.x % WARP == 0) attention.recall(row, true, kv_head, sharers);
    }
    if (threadIdx.x % WARP == 0) arrive(barrier_at(ATTENTION));
}

// Of each row's last input.
__device__ void Frames::tell_logits(const float2 (&sums)[Heads::EIGHTS], float scale, const Pass& pass, Told now,
                                    int row) const {
    if (row % pass.count != pass.count - 1) return;
    unsigned char* out = now.part(LOGITS_AT) + 4 * (row / pass.count * ENTRIES + blockIdx.x * Heads::COLUMNS);
#pragma unroll
    for (int i = 0; i < Heads::EIGHTS; ++i)
        announce(out + 32 * i + thread_anew() % 4 * 8, make_float2(sums[i].x * scale, sums[i].y * scale));
}

// The first pass reads the Talker's hidden state and what code 0 becomes. Rows are shared out among blocks.
__device__ void Frames::begin(Told next) const {
#pragma unroll 1
    for (int row = blockIdx.x; row < rows; row += BLOCKS) {
        const int column = column_of_thread();
        tell_row(next.row_at(X_AT, X_SQUARES_AT), 2 * row, column, four_of(inputs + row * HIDDEN, column));
        const RowWords asked(words, row);
        FirstLogits logits(first_logits + row * FIRST_STRIDE, seen, asked);
        const int code = drawn(logits.of_thread, asked.first_cut(), shared + ROOM_AT);
        logits.see(code);
        tell_code(row, 0, code, next, 2 * row + 1);
    }
}

__device__ void Frames::draw(const Pass& pass, Told now, Told next) const {
#pragma unroll 1
    for (int row = blockIdx.x; row < rows; row += BLOCKS) {
        const RowWords asked(words, row);
        const Cut cut = asked.later_cut(pass.book);
        float logits[ENTRIES / WORKERS];
        await_logits(logits, now.part(LOGITS_AT) + 4 * row * ENTRIES);
        tell_code(row, pass.book, drawn(logits, cut, shared + ROOM_AT), next, row);
    }
}

// It becomes an input of the next pass.
__device__ void Frames::tell_code(int row, int book, int code, Told next, int token) const {
    if (threadIdx.x == 0) codes[row * POSITIONS + book] = code;
    if (book == last_book) return;
    const u32 column = column_of_thread();
    tell_row(next.row_at(X_AT, X_SQUARES_AT), token, column, four_of(table + (offsets[book] + code) * HIDDEN, column));
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
        begin_barrier(barrier_at(ATTENTION), WARPS);
        begin_barrier(barrier_at(CLEARED), WARP);
        publish_barriers();
    }
    __syncthreads();
}

// Draws codes of books `first_book` to `last_book` of so many rows into `codes`, int64 [rows, POSITIONS]. The first
// pass takes `count` inputs a row, bfloat16 [rows · count, HIDDEN], others what the pass before has drawn. With
// `first_logits`, bfloat16 [rows, FIRST_STRIDE], code 0 is drawn, too, and inputs are [rows, HIDDEN], the first of two.
// `words` say of each row how it is drawn (`rows.cuh`), and `seen`, bool [slots, FIRST_ENTRIES], which codes 0 there
// were in a slot.
//
// Weights are packed as `frame_kernel.packed` says; cache is [LAYERS, 2, rows, KV_HEADS, POSITIONS, HEAD]. `told` is
// [SETS, room, TOLD_BYTES], and `handed` is float32 [BLOCKS, room, PANEL]; all bits of them were set before the first
// launch. There is room for rows · count, rounded up to 16. The first set keeps the last pass's logits.
extern "C" __global__ void __launch_bounds__(THREADS, 1)
    predictor_frames(const unsigned char* layers, const unsigned char* heads, const bf16* qk_norm, const bf16* cos,
                     const bf16* sin, bf16* cache, const bf16* inputs, unsigned char* told, unsigned char* handed,
                     const bf16* table, const long long* offsets, const u32* words, const bf16* first_logits,
                     unsigned char* seen, long long* codes, int room, int rows, int count, int first_book,
                     int last_book, float eps) {
    const Frames frames = {layers, heads,  qk_norm, cos,   sin,          cache, inputs, told,
                           handed, table,  offsets, words, first_logits, seen,  codes,  room,
                           rows,   count,  first_book, last_book, eps};
    begin_barriers();
    if (threadIdx.x < WORKERS) {
        take_registers<REGISTERS>();
        frames.work();
    } else {
        give_registers<FEW_REGISTERS>();
        const int warp = threadIdx.x / WARP - WARPS;
        if (warp == SUPPLIERS) frames.prepare();
        else if (threadIdx.x % WARP == 0) frames.bring_weights();
    }
}
