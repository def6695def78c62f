// Hopper's own instructions, and arithmetic on a few values.
#pragma once
#include "layout.cuh"

// What other blocks write during the launch is never read through the first-level cache.
template <class T>
__device__ T load(const void* at) {
    return __ldcg(static_cast<const T*>(at));
}

// Both blocks of the cluster have come here. Nothing is said of what they wrote.
__device__ void cluster_barrier() {
    asm volatile("barrier.cluster.arrive.relaxed.aligned;\nbarrier.cluster.wait.aligned;" ::: "memory");
}

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

    // Bytes `first` to `stop` of `bytes`.
    __device__ void bring(const unsigned char* weights, int bytes, int first, int stop) const {
        if (threadIdx.x != 0) return;
        if (first == 0 && stop > 0) expect(bytes);
        for (int offset = first; offset < stop; offset += COPY_BYTES)
            bring_bytes(at + offset, weights + offset, min(COPY_BYTES, stop - offset), arrived);
    }

    __device__ void wait() {
        await_bytes(arrived, phase);
        phase ^= 1;
    }
};

// All blocks of the launch. `counters` are zero again when the one after the next is passed.
// Bring weights meanwhile: not before, since the fence would wait for them.
__device__ void meet(u32* counters, int& number, const Place& place, const unsigned char* weights, int bytes, int first,
                     int stop) {
    __syncthreads();
    if (threadIdx.x == 0) {
        u32* counter = counters + number;
        asm volatile("fence.acq_rel.gpu;\nred.relaxed.gpu.global.add.u32 [%0], 1;" ::"l"(counter) : "memory");
        place.bring(weights, bytes, first, stop);
        u32 count;
        do asm volatile("ld.relaxed.gpu.global.u32 %0, [%1];" : "=r"(count) : "l"(counter) : "memory");
        while (count < BLOCKS);
        // Nothing that others write is in this multiprocessor's cache, so that nothing need be thrown out of it here.
        if (blockIdx.x == 0) counters[(number + 5 * LAYERS - 1) % (5 * LAYERS)] = 0;
    }
    ++number;
    __syncthreads();
}

// A warp's 16 rows times rows 0 … 7 and times rows 8 … 15 of them: the diagonals are the squares of rows.
__device__ void square(float (&first)[4], float (&second)[4], u32 a, u32 b, u32 c, u32 d) {
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%4, %6}, {%0, %1, "
        "%2, %3};"
        : "+f"(first[0]), "+f"(first[1]), "+f"(first[2]), "+f"(first[3])
        : "r"(a), "r"(b), "r"(c), "r"(d));
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%5, %7}, {%0, %1, "
        "%2, %3};"
        : "+f"(second[0]), "+f"(second[1]), "+f"(second[2]), "+f"(second[3])
        : "r"(a), "r"(b), "r"(c), "r"(d));
}

// The thread's number, read where it is needed: what follows from it is not kept in registers from long before.
__device__ int thread() {
    int number;
    asm volatile("mov.u32 %0, %%tid.x;" : "=r"(number));
    return number;
}

// The address of the same place in another block of the cluster.
__device__ u32 there(u32 at, int rank) {
    u32 remote;
    asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(remote) : "r"(at), "r"(rank));
    return remote;
}

__device__ float4 shared_four(u32 at) {
    float4 four;
    asm volatile("ld.shared.v4.f32 {%0, %1, %2, %3}, [%4];"
                 : "=f"(four.x), "=f"(four.y), "=f"(four.z), "=f"(four.w)
                 : "r"(at));
    return four;
}

__device__ float4 widened(uint2 four) { return make_float4(low(four.x), high(four.x), low(four.y), high(four.y)); }

__device__ uint2 rounded(float4 four) { return make_uint2(pair_of(four.x, four.y), pair_of(four.z, four.w)); }

__device__ float4 operator+(float4 a, float4 b) { return make_float4(a.x + b.x, a.y + b.y, a.z + b.z, a.w + b.w); }

__device__ float4 operator*(float4 a, float4 b) { return make_float4(a.x * b.x, a.y * b.y, a.z * b.z, a.w * b.w); }

__device__ float dot(float4 a, float4 b) { return a.x * b.x + a.y * b.y + a.z * b.z + a.w * b.w; }

__device__ float total_of_warp(float value) {
#pragma unroll
    for (int distance = 16; distance; distance /= 2) value += __shfl_xor_sync(ALL, value, distance);
    return value;
}
