// Where weights come to, and where blocks wait for one another.
#pragma once
#include "hopper.cuh"

// A place in shared memory that bytes come to, and the barrier that counts them.
struct Place {
    u32 at, arrived, phase;

    __device__ Place(int offset, int index) : at(address_of(shared) + offset), phase(0) {
        arrived = address_of(shared) + ARRIVED_AT + 8 * index;
        if (threadIdx.x == 0) begin_arrivals(arrived);
    }

    __device__ void expect(int bytes) const {
        if (threadIdx.x == 0) expect_bytes(arrived, bytes);
    }

    // Bytes `first` to `stop` of the `bytes` of a product; `weights` are the block's own.
    template <class P>
    __device__ void bring(const unsigned char* weights, int bytes, int first, int stop) const {
        if (threadIdx.x != 0) return;
        if (first == 0 && stop > 0) expect(bytes);
        long step = P::COPY_BYTES;
        if constexpr (P::TEAMED) {  // the member's piece from each cluster of the team
            constexpr int EACH = P::PIECES / RANKS;
            const int member = blockIdx.x % MEMBERS;
            weights += long(member / EACH - member) * LAYER_BYTES + member % EACH * P::COPY_BYTES;
            step = RANKS * LAYER_BYTES;
        } else {
            weights += first;
        }
#pragma unroll 1
        for (int offset = first; offset < stop; offset += P::COPY_BYTES, weights += step)
            bring_bytes(at + offset, weights, min(P::COPY_BYTES, stop - offset), arrived);
    }

    __device__ void wait() {
        await_bytes(arrived, phase);
        phase ^= 1;
    }
};

// Eighths of a result.
struct Eighths {
    int first, count;
};

template <class P>
__device__ Eighths inputs_of() {
    return {blockIdx.x % (EIGHTHS / P::BLOCK_EIGHTHS) * P::BLOCK_EIGHTHS, P::BLOCK_EIGHTHS};
}

// This block has its part of a result, and waits for what it needs of it. `counters` count the blocks of each eighth at
// each of a launch's meetings. Bring weights meanwhile: not before, since the fence would wait for them.
template <class P>
__device__ void meet(u32*& counters, Eighths needed, const Place& place, const unsigned char* weights, int bytes,
                     int first, int stop) {
    __syncthreads();
    if (threadIdx.x == 0) {
        show_writes();
        count_up(counters + blockIdx.x / EIGHTH_BLOCKS * COUNTER_WORDS);
        place.bring<P>(weights, bytes, first, stop);
    }
    const int waiting = threadIdx.x - 32;  // another warp, a lane for each counter
    if (0 <= waiting && waiting < needed.count)
        // Nothing that others write is in this multiprocessor's cache, so that nothing need be thrown out of it here.
        while (count_of(counters + (needed.first + waiting) * COUNTER_WORDS) < EIGHTH_BLOCKS) {
        }
    counters += EIGHTHS * COUNTER_WORDS;
    __syncthreads();
}

// Zeros for the next launch, where the block knows that all blocks have come to the last meeting.
__device__ void clear(u32* counters, int first, int stop) {
    for (int i = first * EIGHTHS + threadIdx.x; i < stop * EIGHTHS; i += THREADS) counters[i * COUNTER_WORDS] = 0;
}

// The blocks of a team. Its counter is a multiple of their number before and behind: it is never set back.
template <class P>
__device__ void meet_team(u32* counters, const Place& place, const unsigned char* weights, int bytes, int first,
                          int stop) {
    __syncthreads();
    if (threadIdx.x == 0) {
        u32* counter = counters + blockIdx.x / MEMBERS * COUNTER_WORDS;
        show_writes();
        const u32 before = counted_up(counter), all = before - before % MEMBERS + MEMBERS;
        place.bring<P>(weights, bytes, first, stop);
        for (u32 count = before + 1; int(count - all) < 0; count = count_of(counter)) {
        }
    }
    __syncthreads();
}
