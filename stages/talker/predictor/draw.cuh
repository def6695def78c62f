// Draws a row's code from its logits, by all workers of a block. Nothing depends on the order of threads: what is added
// with atomics is integers.
//
// What top-k and top-p keep is a bound in descending order, which is found like digits of a number: the block counts
// what falls into each of 256 sections, looks into the one in which the goal is reached, and ends when that section is
// kept as a whole. Sections of equal width in logits, down from the largest, mostly need one or two rounds, but may not
// tell close logits apart: then the bits of the floats decide.
#pragma once
#include "hopper.cuh"

// How a code is drawn.
struct Cut {
    float temperature, top_p;  // 0: the likeliest code; 1: all that top-k leaves
    int top_k;                 // 0: all
    float uniform;             // in [0, 1)
};

constexpr int SECTION_BITS = 8, SECTIONS = 1 << SECTION_BITS, LANE_SECTIONS = SECTIONS / WARP;
constexpr u32 FLOAT_ROUND = 3, LAST_ROUND = 6;
static_assert(SECTIONS == WORKERS, "each thread clears one");

// Where the block's warps tell one another what they have. Rounds use three sets of sections in turn: one is cleared
// while another is read. What is read last is written last, so that rows can follow one another.
struct DrawRoom {
    uint4 sections[3][SECTIONS / 4];
    uint2 extremes[WARPS];
    float sums[WARPS];
    u32 choices[WARPS];
    u32 unread[WARP];  // where lanes count what need not be counted: none branches
};
static_assert(sizeof(DrawRoom) <= ROOM_BYTES, "sizes");

// An integer that is smaller for larger floats, and back again.
__device__ u32 turned(u32 bits) { return bits ^ (~u32(int(bits) >> 31) & 0x7fffffff); }
__device__ u32 rank_of(float value) { return turned(__float_as_uint(value + 0.0f)); }  // -0 is 0
__device__ float of_rank(u32 rank) { return __uint_as_float(turned(rank)); }

// What the warp's lanes have up to this one.
template <class T>
__device__ T through_lane(T value) {
#pragma unroll
    for (int distance = 1; distance < WARP; distance *= 2) {
        const T other = __shfl_up_sync(ALL, value, distance);
        if (int(threadIdx.x % WARP) >= distance) value += other;
    }
    return value;
}

// What the block's threads have before this one, and all of them.
__device__ float2 before_thread(float value, DrawRoom& room) {
    const float through = through_lane(value), near = __shfl_up_sync(ALL, through, 1);
    if (threadIdx.x % WARP == WARP - 1) room.sums[threadIdx.x / WARP] = through;
    meet_workers();
    float before = 0, total = 0;
#pragma unroll
    for (int warp = 0; warp < WARPS; ++warp) {
        if (warp == int(threadIdx.x / WARP)) before = total;
        total += room.sums[warp];
    }
    return make_float2(threadIdx.x % WARP == 0 ? before : before + near, total);
}

// The last section is not counted, where everything is that is far below: it is the one if no other is.
struct Section {
    u32 index, goal;  // what is left of the goal in it
    bool whole;       // is the goal

    // The first by whose end the goal is reached. The goal and all masses together fit into 31 bits.
    __device__ Section(const uint4* sections, u32 sought) {
        const uint4 one = sections[threadIdx.x % WARP * 2], two = sections[threadIdx.x % WARP * 2 + 1];
        const u32 masses[LANE_SECTIONS] = {one.x, one.y, one.z, one.w, two.x, two.y, two.z, two.w};
        const u32 sum = (one.x + one.y + (one.z + one.w)) + (two.x + two.y + (two.z + two.w));
        u32 left = sought - 1 - (through_lane(sum) - sum), least = sought - 1, reached = 0;
        bool hit = false;
#pragma unroll
        for (int i = 0; i < LANE_SECTIONS; ++i) {
            left -= masses[i];
            least = min(least, left);  // below 0 it is large
            reached += left >> 31;
            hit |= left == ~0u;
        }
        index = min(SECTIONS - __reduce_add_sync(ALL, reached), u32(SECTIONS - 1));
        goal = __reduce_min_sync(ALL, least) + 1;
        whole = __any_sync(ALL, hit);
    }
};

// The largest key that is kept: the smallest keys are, as few as have the goal of the masses, and those that are equal.
// Keys may become others, in the same order. `turn` says which set of sections is clear, as the next one is.
template <int EACH>
__device__ u32 bound_of(u32 (&keys)[EACH], const float (&logits)[EACH], const u32 (&masses)[EACH], u32 goal,
                        DrawRoom& room, u32& turn) {
    u32 first = 0, sought = goal, bound, round = 0;
    bool found;
#pragma unroll 1
    do {
        // Three digits of the keys, and if they don't tell, the four of the floats.
        const u32 shift = (round < FLOAT_ROUND ? FLOAT_ROUND - round : LAST_ROUND - round) * SECTION_BITS;
        u32* counted = reinterpret_cast<u32*>(room.sections[turn]);
#pragma unroll
        for (int i = 0; i < EACH; ++i) {
            const u32 index = (keys[i] - first) >> shift;
            atomicAdd(index < SECTIONS - 1 ? counted + index : room.unread + threadIdx.x % WARP, masses[i]);
        }
        meet_workers();
        const Section section(room.sections[turn], sought);
        turn = turn == 2 ? 0 : turn + 1;
        reinterpret_cast<u32*>(room.sections[turn == 2 ? 0 : turn + 1])[threadIdx.x] = 0;
        first += section.index << shift, sought = section.goal;
        bound = first + (1u << shift) - 1;
        found = section.whole || round == LAST_ROUND;
        if (!found && ++round == FLOAT_ROUND) {
            float values[EACH];
#pragma unroll
            for (int i = 0; i < EACH; ++i) values[i] = logits[i];
            pin(values);  // or ranks would be computed for all who need none
#pragma unroll
            for (int i = 0; i < EACH; ++i) keys[i] = keys[i] > bound ? ~0u : rank_of(values[i]);
            first = 0, sought = goal;
        }
    } while (!found);
    return bound;
}

// The code drawn from EACH * WORKERS logits, of which thread t has those of entries t * EACH ... t * EACH + EACH - 1;
// entries that do not exist are -infinity. All workers of a block call it together, and all get the code. Nobody else
// uses the shared memory at `at` from before the call until the workers have met after it.
template <int EACH>
__device__ int drawn(const float (&logits)[EACH], Cut cut, unsigned char* at) {
    constexpr float LOG2_E = 1.44269504f;
    constexpr float NO_SHARE = 104;  // e to the power of minus this is 0
    constexpr u32 NOTHING = 0xff800000;  // the rank of -infinity
    DrawRoom& room = *reinterpret_cast<DrawRoom*>(at);
    const int lane = threadIdx.x % WARP, warp = threadIdx.x / WARP;
    float most = logits[0];
#pragma unroll
    for (int i = 1; i < EACH; ++i) most = fmaxf(most, logits[i]);
    const u32 rank = rank_of(most), told = __reduce_min_sync(ALL, rank);
    const u32 last = __reduce_max_sync(ALL, rank < NOTHING ? rank : 0);
    if (lane == 0) room.extremes[warp] = make_uint2(told, last);
    reinterpret_cast<u32*>(room.sections[0])[threadIdx.x] = 0;
    reinterpret_cast<u32*>(room.sections[1])[threadIdx.x] = 0;
    meet_workers();
    const uint2 extremes = room.extremes[lane % WARPS];
    const float largest = of_rank(__reduce_min_sync(ALL, extremes.x));
    // So many threads have a logit that is no smaller.
    const float least = of_rank(__reduce_max_sync(ALL, extremes.y));

    float shares[EACH], before = 0, goal = -1;
    if (cut.temperature == 0) {
#pragma unroll
        for (int i = 0; i < EACH; ++i) shares[i] = logits[i] == largest;
    } else {
        const float per_logit = __fdividef(-LOG2_E, cut.temperature);
        float range = NO_SHARE * cut.temperature;
        if (cut.top_k > 0 && cut.top_k <= WORKERS) range = fminf(range, largest - least);
        const float scale = __fdividef(1, range);
        u32 masses[EACH], keys[EACH], sought = cut.top_k, turn = 0;
#pragma unroll
        for (int i = 0; i < EACH; ++i) shares[i] = power_of_two((largest - logits[i]) * per_logit), masses[i] = 1;
#pragma unroll 1
        for (bool by_share = false;; by_share = true) {
            if (by_share || (cut.top_k > 0 && cut.top_k < EACH * WORKERS)) {
#pragma unroll
                for (int i = 0; i < EACH; ++i) {
                    const float part = __saturatef((largest - logits[i]) * scale);
                    keys[i] = __float_as_uint(1 + part * 0x1.fffffcp-1f) << 9;
                }
                const u32 bound = bound_of(keys, logits, masses, sought, room, turn);
#pragma unroll
                for (int i = 0; i < EACH; ++i) shares[i] = keys[i] <= bound ? shares[i] : 0;
            }
            float sum = shares[0];
#pragma unroll
            for (int i = 1; i < EACH; ++i) sum += shares[i];
            const float2 sums = before_thread(sum, room);
            before = sums.x, goal = cut.uniform * sums.y;
            if (by_share || cut.top_p >= 1) break;
            // Shares become integers, which are added without an error: times a power of two, of less than 2^30.
            const float one = __uint_as_float(((2 * 127 + 29u) << 23) - (__float_as_uint(sums.y) & 0x7f800000));
#pragma unroll
            for (int i = 0; i < EACH; ++i) masses[i] = u32(shares[i] * one + 0.5f);
            sought = max(u32(cut.top_p * sums.y * one), 1u);
        }
    }
    // The first that passes the goal is the smallest, else the last that has a share.
    u32 choice = ~0u;
#pragma unroll
    for (int i = 0; i < EACH; ++i) {
        const u32 index = threadIdx.x * EACH + i;
        before += shares[i];
        if (shares[i] > 0) choice = min(choice, before > goal ? index : ~index);
    }
    choice = __reduce_min_sync(ALL, choice);
    if (lane == 0) room.choices[warp] = choice;
    meet_workers();
    choice = __reduce_min_sync(ALL, room.choices[lane % WARPS]);
    return int(choice) < 0 ? ~choice : choice;
}
