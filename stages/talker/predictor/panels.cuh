// The way of weights and panels into shared memory, and of results to the blocks that multiply them.
#pragma once
#include "hopper.cuh"

__device__ u32 barrier_at(int index) { return address_of(shared) + BARRIERS_AT + 8 * index; }

// Bytes that are brought of a panel: of as many rows as the largest tile has, or up to seven more.
__device__ int panel_bytes(int tokens) { return SQUARES_BYTES + (min(tokens, TILE_ROWS) + 7) / 8 * 8 * ROW_BYTES; }

// Where eight columns of a row stand.
__device__ unsigned char* piece_of(unsigned char* panels, int all_panels, int row, int column) {
    unsigned char* panel = panels + long(row / TILE_ROWS * all_panels + column / PANEL) * PANEL_BYTES;
    return panel + SQUARES_BYTES + row % TILE_ROWS * ROW_BYTES + ((column % PANEL / 8) ^ (row % 8)) * 16;
}

// A fence waits for all that is on its way to the multiprocessor. So where one is near, weights wait. With few rows
// they are what is waited for.
constexpr int FEW_ROWS = 16;
__device__ volatile u32& quiet() { return *reinterpret_cast<volatile u32*>(shared + QUIET_AT); }
__device__ void fence_is_near() {
    if (threadIdx.x == 0) quiet() = true;
}

// What the working warps wrote is there for those who see the count.
__device__ void count(u32* counter) {
    meet_workers();
    if (threadIdx.x == 0) {
        show_writes();
        count_up(counter);
        quiet() = false;
    }
}

__device__ void begin_barriers(int tokens) {
    if (threadIdx.x == 0) {
        for (int slot = 0; slot < SLOTS; ++slot) {
            begin_barrier(barrier_at(FULL + slot), 1);
            begin_barrier(barrier_at(EMPTY + slot), RANKS * WARPS / GROUPS);
        }
        for (int barrier = WIDE_HERE; barrier < BARRIERS; ++barrier) begin_barrier(barrier_at(barrier), 1);
        publish_barriers();
        for (int slot = 0; slot < SLOTS; ++slot) expect_bytes(barrier_at(FULL + slot), panel_bytes(tokens));
        quiet() = false;
    }
    __syncthreads();
    arrive_in_cluster();
    await_cluster();
}

// The thread that brings weights, each product's when its place has been read.
struct WeightSupply {
    static constexpr int PIECE = 4096;  // between two it looks for a fence
    u32 wide_phase, narrow_phase;

    template <class P>
    __device__ void bring(const unsigned char* from, bool first = false) {
        const u32 here = barrier_at(Place<P>::HERE);
        u32& phase = Place<P>::NARROW ? narrow_phase : wide_phase;
        if (!first) await_bytes(barrier_at(Place<P>::READ), phase), phase ^= 1;
        expect_bytes(here, P::BYTES);
#pragma unroll 1
        for (int at = 0; at < P::BYTES; at += PIECE) {
            while (quiet()) {
            }
            bring_bytes(address_of(shared) + Place<P>::AT + at, from + at, PIECE, here);
        }
    }
};

// The warp that brings panels. Both blocks of a cluster multiply the same ones, and bring them in turn for both.
struct PanelSupply {
    int tiles, bytes;
    u32 number;  // panels so far

    // A product's inputs, each panel when all who make it have been counted. Of a part, if the block has only that.
    template <class P>
    __device__ void bring(const unsigned char* from, int part, const u32* counters) {
        constexpr int LANES = 2 * SLOTS / RANKS, TURN_LANES = SLOTS / RANKS;
        const int lane = threadIdx.x % 32, rank = blockIdx.x % RANKS;
#pragma unroll 1
        for (int first = rank; first < tiles * P::PANELS; first += LANES * RANKS) {
            const int each = first + lane * RANKS, tile = each / P::PANELS, panel = each % P::PANELS;
            const u32 slot = (number + each) % SLOTS, turn = (number + each) / SLOTS;
            const u32* counter = counters + (P::PARTS > 1 ? part : panel) * COUNTER_WORDS;
            const bool mine = lane < LANES && each < tiles * P::PANELS;
            const u32 all = __ballot_sync(ALL, mine);
            bool made = false, sent = false;
            // One look is on its way while another is judged.
            u32 gone = 0, seen = mine ? count_of(counter) : 0;
            while (gone != all) {
                const u32 next = mine && !made ? count_of(counter) : 0;
                made = made || seen >= P::MAKERS;
                seen = next;
                // A barrier knows but this and the next turn of a slot: not before the panel in front is on its way.
                const bool next_turn = lane < TURN_LANES || gone >> (lane - TURN_LANES) & 1;
                if (made && !sent && next_turn && (turn == 0 || has_passed(barrier_at(EMPTY + slot), (turn - 1) % 2))) {
                    show_copies();
                    bring_to_both(address_of(shared) + slot * SLOT_BYTES + SQUARES_AT,
                                  from + long(tile * P::ALL_PANELS + part * P::PANELS + panel) * PANEL_BYTES, bytes,
                                  barrier_at(FULL + slot));
                    sent = true;
                }
                gone = __ballot_sync(ALL, sent);
            }
        }
        number += tiles * P::PANELS;
    }
};
