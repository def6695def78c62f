// What rows are told and asked between passes.
#pragma once
#include "draw.cuh"

// Each row's words, as `frames.Rows` names them.
enum Word { SLOT, FIRST_TOP_K = 2, TOP_K, MAY_END, IS_FIRST, PENALTY = 7, FIRST_CUT, LATER_CUT = 10, NOISE = 12 };
constexpr int WORDS = NOISE + POSITIONS;

struct RowWords {
    const u32* words;

    __device__ RowWords(const u32* all, int row) : words(all + row * WORDS) {}
    __device__ float number(int word) const { return __uint_as_float(words[word]); }
    __device__ Cut first_cut() const {
        return {number(FIRST_CUT), number(FIRST_CUT + 1), int(words[FIRST_TOP_K]), number(NOISE)};
    }
    __device__ Cut later_cut(int book) const {
        return {number(LATER_CUT), number(LATER_CUT + 1), int(words[TOP_K]), number(NOISE + book)};
    }
};

// Logits of code 0: repeated ones are penalised, and the last one, which ends a request, is masked before it may.
struct FirstLogits {
    static constexpr int EACH = (FIRST_ENTRIES + WORKERS - 1) / WORKERS;
    float of_thread[EACH];
    unsigned char* seen;
    bool is_first;

    __device__ FirstLogits(const bf16* logits, unsigned char* all_seen, const RowWords& asked)
        : seen(all_seen + long(asked.words[SLOT]) * FIRST_ENTRIES), is_first(asked.words[IS_FIRST]) {
        const float penalty = asked.number(PENALTY);
        const int end = asked.words[MAY_END] ? FIRST_ENTRIES : FIRST_ENTRIES - 1;
#pragma unroll
        for (int i = 0; i < EACH; ++i) {
            const int entry = threadIdx.x * EACH + i;
            of_thread[i] = __uint_as_float(0xff800000);
            if (entry >= end) continue;
            const float logit = low(logits[entry]);
            const bool again = !is_first && seen[entry];
            of_thread[i] = !again ? logit : logit > 0 ? logit / penalty : logit * penalty;
        }
    }

    // From now on.
    __device__ void see(int code) const {
#pragma unroll
        for (int i = 0; i < EACH; ++i) {
            const int entry = threadIdx.x * EACH + i;
            if (entry < FIRST_ENTRIES && (is_first || entry == code)) seen[entry] = entry == code;
        }
    }
};

// A thread's logits of a head's, which blocks tell.
template <int EACH>
__device__ void await_logits(float (&logits)[EACH], const unsigned char* from) {
    from += 4 * EACH * threadIdx.x;
    uint4 fours[EACH / 4];
    bool there;
    do {
        there = true;
#pragma unroll
        for (int i = 0; i < EACH / 4; ++i) fours[i] = seen_four(from + 16 * i);
#pragma unroll
        for (int i = 0; i < EACH / 4; ++i) there = there && is_there(fours[i]);
    } while (!there);
#pragma unroll
    for (int i = 0; i < EACH / 4; ++i) {
        const float4 four = floats_of(fours[i]);
        logits[4 * i] = four.x, logits[4 * i + 1] = four.y, logits[4 * i + 2] = four.z, logits[4 * i + 3] = four.w;
    }
}

// All workers have two columns of a row each, and those eight behind them.
__device__ u32 column_of_thread() { return threadIdx.x / 4 * STEP + threadIdx.x % 4 * 2; }

__device__ uint2 four_of(const bf16* row, u32 column) {
    return make_uint2(load<u32>(row + column), load<u32>(row + column + 8));
}
