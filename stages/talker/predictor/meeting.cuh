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
        if constexpr (P::ending == ADDED) {  // the member's part from each cluster of the team
            const int member = blockIdx.x % MEMBERS;
            weights += long(member / TEAM - member) * LAYER_BYTES + member % TEAM * P::COPY_BYTES;
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

// The block has made its columns of a result, and needs those of one of its `parts`. `counters` are of one meeting, a
// count of blocks for each part. Bring weights meanwhile: not before, since the fence would wait for them.
template <class P>
__device__ void meet(u32*& counters, int parts, int needed, const Place& place, const unsigned char* weights, int bytes,
                     int first, int stop) {
    const int blocks = BLOCKS / parts;
    __syncthreads();
    if (threadIdx.x == 0) {
        show_writes();
        count_up(counters + blockIdx.x / blocks * COUNTER_WORDS);
        place.bring<P>(weights, bytes, first, stop);
    }
    if (threadIdx.x == 32)  // another warp
        // Nothing that others write is in this multiprocessor's cache, so that nothing need be thrown out of it here.
        while (count_of(counters + needed * COUNTER_WORDS) < blocks) {
        }
    counters += MOST_PARTS * COUNTER_WORDS;
    __syncthreads();
}

// The part of a product's inputs that the block multiplies is there.
template <class Next, class P>
__device__ void meet_for(u32*& counters, const Place& place, const unsigned char* weights, int bytes, int first,
                         int stop) {
    meet<P>(counters, Next::PARTS, blockIdx.x % Next::PARTS, place, weights, bytes, first, stop);
}

// Zeros for the next launch, where the block knows that all blocks have come to the last meeting.
__device__ void clear(u32* counters, int first, int stop) {
    for (int i = first * MOST_PARTS + threadIdx.x; i < stop * MOST_PARTS; i += THREADS) counters[i * COUNTER_WORDS] = 0;
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
