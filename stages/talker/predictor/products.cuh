// A product of a pass from its inputs to its stored outputs.
#pragma once
#include "panels.cuh"

// Describes rows of 128 bytes to the tensor cores, in groups of eight, their 16-byte pieces exchanged.
__device__ u64 described(u32 at) { return u64(1) << 62 | u64(1024 >> 4) << 32 | u64(1) << 16 | at >> 4; }

// Where products end.
struct Results {
    bf16* qkv;
    unsigned char* inner;
    float *logits, *handed;
    int tokens, count;
    float eps;

    // A row's outputs, of each eight of the block's columns two neighbours. `squares`: the sum of the multiplied row's.
    template <class P>
    __device__ void store(const float2 (&sums)[P::EIGHTS], float squares, int row) const {
        const int lane = threadIdx.x % 4;
        const float scale = rsqrtf(squares / HIDDEN + eps);
        if (row >= tokens) return;
        if constexpr (P::ending == NORMALISED) {
            u32* out = reinterpret_cast<u32*>(qkv + long(row) * QKV + blockIdx.x * P::COLUMNS) + lane;
#pragma unroll
            for (int i = 0; i < P::EIGHTS; ++i) announce(out + 4 * i, pair_of(sums[i].x * scale, sums[i].y * scale));
        } else if constexpr (P::ending == GATED) {
#pragma unroll
            for (int i = 0; i < P::EIGHTS; i += 2) {
                unsigned char* piece = piece_of(inner, INNER / PANEL, row, blockIdx.x * (P::COLUMNS / 2) + 4 * i);
                reinterpret_cast<u32*>(piece)[lane] = pair_of(gated(sums[i], scale), gated(sums[i + 1], scale));
            }
        } else if constexpr (P::ending == LOGITS) {
            if (row % count != count - 1) return;
            float2* out = reinterpret_cast<float2*>(logits + long(row / count) * ENTRIES + blockIdx.x * P::COLUMNS);
#pragma unroll
            for (int i = 0; i < P::EIGHTS; ++i) out[4 * i + lane] = make_float2(sums[i].x * scale, sums[i].y * scale);
        } else {
            float2* out = reinterpret_cast<float2*>(handed + long(row) * P::COLUMNS);
#pragma unroll
            for (int i = 0; i < P::EIGHTS; ++i) announce(out + 4 * i + lane, sums[i]);
        }
    }

    static __device__ float gated(float2 sums, float scale) {
        const float gate = sums.x * scale;
        return __fdividef(gate * (sums.y * scale), 1 + __expf(-gate));
    }
};

// A working warp's side of what is brought. The two groups take panels in turn, and each ends every other eight rows.
struct Demand {
    int tiles, bytes;
    u32 number;  // panels so far
    u32 wide_phase, narrow_phase;

    // x · weightsᵀ, ended as the product ends.
    template <class P>
    __device__ void multiply_rows(const Results& results) {
        const int group = __shfl_sync(ALL, threadIdx.x / GROUP_THREADS, 0);
        u32& phase = Place<P>::NARROW ? narrow_phase : wide_phase;
        await_bytes(barrier_at(Place<P>::HERE), phase);
        phase ^= 1;
#pragma unroll 1
        for (int tile = 0; tile < tiles; ++tile, number += P::PANELS) {
            float sums[P::COLUMNS / 2], squares[2];
            multiply_tile<P>(sums, squares, group, address_of(shared) + Place<P>::AT);
            float2 both[P::EIGHTS];
            const float square = add_groups<P>(both, sums, squares, group);
            if (tile == tiles - 1) {
                if (threadIdx.x == 0) arrive(there(barrier_at(Place<P>::READ), blockIdx.x % RANKS));
                if (P::ending == GATED) fence_is_near();
            }
            results.store<P>(both, square, tile * TILE_ROWS + first_row() + 8 * group);
        }
    }

    // The group's part of the sums, and of the rows' squares. The slot that it had last is not released.
    template <class P>
    __device__ void multiply_tile(float (&sums)[P::COLUMNS / 2], float (&squares)[2], int group, u32 weights) const {
#pragma unroll
        for (int i = 0; i < P::COLUMNS / 2; ++i) sums[i] = 0;
        squares[0] = squares[1] = 0;
        u64 right = described(weights + group * P::PANEL_COLUMNS_BYTES);
#pragma unroll 1
        for (u32 panel = number + group; panel < number + P::PANELS;
             panel += GROUPS, right += GROUPS * P::PANEL_COLUMNS_BYTES >> 4) {
            const u32 slot = panel % SLOTS, full = barrier_at(FULL) + 8 * slot;
            await_bytes(full, panel / SLOTS % 2);
            if (threadIdx.x % GROUP_THREADS == 0) expect_bytes(full, bytes);
            const u64 left = described(address_of(shared) + slot * SLOT_BYTES + ROWS_AT);
            pin(sums);
            begin_products();
#pragma unroll
            for (int step = 0; step < PANEL / 16; ++step) multiply(sums, left + 2 * step, right + 2 * step);
            close_products();
            if constexpr (P::ending != ADDED) {
                const float* known = floats_in(slot, SQUARES_AT) + first_row();
                squares[0] += known[0], squares[1] += known[8];
            }
            await_products<1>();
            if (panel >= number + GROUPS) release(panel - GROUPS);
        }
        await_products<0>();
        pin(sums);
    }

    // What both groups have of the rows that this one ends. Each tells the other in the slot that it had last.
    template <class P>
    __device__ float add_groups(float2 (&both)[P::EIGHTS], const float (&sums)[P::COLUMNS / 2],
                                const float (&squares)[2], int group) const {
        meet_group(group);  // what is overwritten now has been read
        const u32 last = number + P::PANELS - GROUPS, place = threadIdx.x % GROUP_THREADS * 4;
        float* told = floats_in((last + group) % SLOTS, ROWS_AT) + place;
        const float* heard = floats_in((last + 1 - group) % SLOTS, ROWS_AT) + place;
        const auto of = [&](int i, bool below) {
            return below ? make_float2(sums[4 * i + 2], sums[4 * i + 3]) : make_float2(sums[4 * i], sums[4 * i + 1]);
        };
#pragma unroll
        for (int i = 0; i < P::EIGHTS; i += 2) {
            const float2 one = of(i, group == 0), two = of(i + 1, group == 0);
            *reinterpret_cast<float4*>(told + 256 * i) = make_float4(one.x, one.y, two.x, two.y);
        }
        if constexpr (P::ending != ADDED) told[256 * P::EIGHTS] = group == 0 ? squares[1] : squares[0];
        show_shared();
        meet_workers();
#pragma unroll
        for (int i = 0; i < P::EIGHTS; i += 2) {
            const float2 one = of(i, group == 1), two = of(i + 1, group == 1);
            const float4 four = *reinterpret_cast<const float4*>(heard + 256 * i);
            both[i] = make_float2(four.x + one.x, four.y + one.y);
            both[i + 1] = make_float2(four.z + two.x, four.w + two.y);
        }
        float square = 0;
        if constexpr (P::ending != ADDED) square = heard[256 * P::EIGHTS] + (group == 0 ? squares[0] : squares[1]);
        release(last + 1 - group);
        return square;
    }

    // Of the two rows of a tile, eight apart, that the tensor cores give a thread.
    static __device__ int first_row() { return threadIdx.x % GROUP_THREADS / 32 * 16 + threadIdx.x % 32 / 4; }

    static __device__ float* floats_in(u32 slot, int at) {
        return reinterpret_cast<float*>(shared + slot * SLOT_BYTES + at);
    }

    // A slot may be filled anew, by the block that brings its panels.
    static __device__ void release(u32 panel) {
        __syncwarp();
        if (threadIdx.x % 32 == 0) arrive(there(barrier_at(EMPTY) + 8 * (panel % SLOTS), panel % RANKS));
    }
};
