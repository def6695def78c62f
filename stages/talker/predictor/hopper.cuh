// Hopper's own instructions that the predictor alone uses, and arithmetic on a few values. No file but this one and
// `sm90.cuh` knows how they are spelt.
#pragma once
#include "layout.cuh"

// What other blocks write during the launch is never read through the first-level cache.
template <class T>
__device__ T load(const void* at) {
    return __ldcg(static_cast<const T*>(at));
}

// This thread has come here; all threads of the cluster have. Nothing is said of what they wrote.
__device__ void arrive_in_cluster() { asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory"); }
__device__ void await_cluster() { asm volatile("barrier.cluster.wait.aligned;" ::: "memory"); }

// What the launch in front of this one wrote is there.
__device__ void await_launch() { asm volatile("griddepcontrol.wait;" ::: "memory"); }

// All that this block's threads wrote before they last met is there for whoever sees what follows.
__device__ void show_writes() { asm volatile("fence.acq_rel.gpu;" ::: "memory"); }

__device__ void count_up(u32* counter) {
    asm volatile("red.relaxed.gpu.global.add.u32 [%0], 1;" ::"l"(counter) : "memory");
}

// The count before.
__device__ u32 counted_up(u32* counter) {
    u32 before;
    asm volatile("atom.relaxed.gpu.global.add.u32 %0, [%1], 1;" : "=r"(before) : "l"(counter) : "memory");
    return before;
}

__device__ u32 count_of(const u32* counter) {
    u32 count;
    asm volatile("ld.relaxed.gpu.global.u32 %0, [%1];" : "=r"(count) : "l"(counter) : "memory");
    return count;
}

// What is computed from it later is not kept in registers from long before.
__device__ void forget(u64& value) { asm volatile("" : "+l"(value)); }

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

__device__ float2 shared_two(u32 at) {
    float2 two;
    asm volatile("ld.shared.v2.f32 {%0, %1}, [%2];" : "=f"(two.x), "=f"(two.y) : "r"(at));
    return two;
}

__device__ void store_two(u32 at, float2 two) {
    asm volatile("st.shared.v2.f32 [%0], {%1, %2};" ::"r"(at), "f"(two.x), "f"(two.y) : "memory");
}

// Into another block's shared memory, counted by its barrier.
__device__ void send(u32 to, float2 two, u32 barrier) {
    asm volatile(
        "st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v2.f32 [%0], {%1, %2}, [%3];" ::"r"(to),
        "f"(two.x), "f"(two.y), "r"(barrier)
        : "memory");
}

__device__ void send(u32 to, float one, u32 barrier) {
    asm volatile("st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.f32 [%0], %1, [%2];" ::"r"(to), "f"(one),
                 "r"(barrier)
                 : "memory");
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
