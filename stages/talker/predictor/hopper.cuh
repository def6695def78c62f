// Hopper's own instructions that the predictor alone uses, and arithmetic on a few values. No file but this one and
// `sm90.cuh` knows how they are spelt.
#pragma once
#include "layout.cuh"

// What other blocks write during the launch is never read through the first-level cache.
template <class T>
__device__ T load(const void* at) {
    return __ldcg(static_cast<const T*>(at));
}

// Results that announce themselves: where one is to come stands a mark, which no result is, since arithmetic makes
// another NaN. Who has read one puts the mark back.
constexpr u32 MARK = 0xffffffff;
__device__ bool is_there(uint2 value) { return value.x != MARK && value.y != MARK; }
__device__ bool is_there(uint4 value) {
    return is_there(make_uint2(value.x, value.y)) && is_there(make_uint2(value.z, value.w));
}

__device__ uint2 seen_two(const void* at) {
    uint2 two;
    asm volatile("ld.relaxed.gpu.global.v2.u32 {%0, %1}, [%2];" : "=r"(two.x), "=r"(two.y) : "l"(at) : "memory");
    return two;
}

__device__ uint4 seen_four(const void* at) {
    uint4 four;
    asm volatile("ld.relaxed.gpu.global.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(four.x), "=r"(four.y), "=r"(four.z), "=r"(four.w)
                 : "l"(at)
                 : "memory");
    return four;
}

__device__ void announce(void* at, u32 one) {
    asm volatile("st.relaxed.gpu.global.u32 [%0], %1;" ::"l"(at), "r"(one) : "memory");
}

__device__ void announce(void* at, float2 two) {
    asm volatile("st.relaxed.gpu.global.v2.f32 [%0], {%1, %2};" ::"l"(at), "f"(two.x), "f"(two.y) : "memory");
}

__device__ void mark_two(void* at) {
    asm volatile("st.relaxed.gpu.global.v2.u32 [%0], {%1, %1};" ::"l"(at), "r"(MARK) : "memory");
}

__device__ void mark_four(void* at) {
    asm volatile("st.relaxed.gpu.global.v4.u32 [%0], {%1, %1, %1, %1};" ::"l"(at), "r"(MARK) : "memory");
}

// This thread has come here; all threads of the cluster have. Nothing is said of what they wrote.
__device__ void arrive_in_cluster() { asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory"); }
__device__ void await_cluster() { asm volatile("barrier.cluster.wait.aligned;" ::: "memory"); }

// What the launch in front of this one wrote is there.
__device__ void await_launch() { asm volatile("griddepcontrol.wait;" ::: "memory"); }

// All that this block's threads wrote before they last met is there for whoever sees what follows.
__device__ void show_writes() { asm volatile("fence.acq_rel.gpu;" ::: "memory"); }

// What this thread has seen to be there is there for copies, too.
__device__ void show_copies() { asm volatile("fence.proxy.async.global;" ::: "memory"); }

__device__ void count_up(u32* counter) {
    asm volatile("red.relaxed.gpu.global.add.u32 [%0], 1;" ::"l"(counter) : "memory");
}

__device__ u32 count_of(const u32* counter) {
    u32 count;
    asm volatile("ld.relaxed.gpu.global.u32 %0, [%1];" : "=r"(count) : "l"(counter) : "memory");
    return count;
}

// What this thread wrote into shared memory is there before copies overwrite it.
__device__ void show_shared() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

// The threads of a warp group meet.
__device__ void meet_group(int group) {
    asm volatile("bar.sync %0, %1;" ::"r"(2 + group), "n"(GROUP_THREADS) : "memory");
}

// The threads that work meet.
__device__ void meet_workers() { asm volatile("bar.sync 1, %0;" ::"n"(WORKERS) : "memory"); }

// The address of the same place in a block of the cluster.
__device__ u32 there(u32 at, int rank) {
    u32 remote;
    asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(remote) : "r"(at), "r"(rank));
    return remote;
}

// At a barrier of any block of the cluster.
__device__ void arrive(u32 barrier) {
    asm volatile("mbarrier.arrive.relaxed.cluster.shared::cluster.b64 _, [%0];" ::"r"(barrier) : "memory");
}

__device__ bool has_passed(u32 barrier, u32 phase) {
    u32 passed;
    asm volatile("{\n.reg .pred p;\nmbarrier.test_wait.parity.shared.b64 p, [%1], %2;\nselp.u32 %0, 1, 0, p;\n}"
                 : "=r"(passed)
                 : "r"(barrier), "r"(phase)
                 : "memory");
    return passed;
}

// To the same place in both blocks of the cluster, counted by the barrier at the same place in each.
__device__ void bring_to_both(u32 to, const unsigned char* from, int bytes, u32 barrier) {
    asm volatile(
        "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster [%0], [%1], %2, [%3], "
        "%4;" ::"r"(to),
        "l"(from), "r"(bytes), "r"(barrier), "h"(static_cast<unsigned short>((1 << RANKS) - 1))
        : "memory");
}

// sums [64, columns] += left [64, 16] · right [columns, 16]ᵀ; both describe shared memory.
__device__ void multiply(float (&sums)[8], u64 left, u64 right) {
    asm volatile(
        "wgmma.mma_async.sync.aligned.m64n16k16.f32.bf16.bf16 {%0, %1, %2, %3, %4, %5, %6, %7}, %8, %9, 1, 1, 1, 0, "
        "0;"
        : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3]), "+f"(sums[4]), "+f"(sums[5]), "+f"(sums[6]),
          "+f"(sums[7])
        : "l"(left), "l"(right));
}

__device__ void multiply(float (&sums)[16], u64 left, u64 right) {
    asm volatile(
        "wgmma.mma_async.sync.aligned.m64n32k16.f32.bf16.bf16 {%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, "
        "%12, %13, %14, %15}, %16, %17, 1, 1, 1, 0, 0;"
        : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3]), "+f"(sums[4]), "+f"(sums[5]), "+f"(sums[6]),
          "+f"(sums[7]), "+f"(sums[8]), "+f"(sums[9]), "+f"(sums[10]), "+f"(sums[11]), "+f"(sums[12]), "+f"(sums[13]),
          "+f"(sums[14]), "+f"(sums[15])
        : "l"(left), "l"(right));
}

__device__ void multiply(float (&sums)[24], u64 left, u64 right) {
    asm volatile(
        "wgmma.mma_async.sync.aligned.m64n48k16.f32.bf16.bf16 {%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, "
        "%12, %13, %14, %15, %16, %17, %18, %19, %20, %21, %22, %23}, %24, %25, 1, 1, 1, 0, 0;"
        : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3]), "+f"(sums[4]), "+f"(sums[5]), "+f"(sums[6]),
          "+f"(sums[7]), "+f"(sums[8]), "+f"(sums[9]), "+f"(sums[10]), "+f"(sums[11]), "+f"(sums[12]), "+f"(sums[13]),
          "+f"(sums[14]), "+f"(sums[15]), "+f"(sums[16]), "+f"(sums[17]), "+f"(sums[18]), "+f"(sums[19]),
          "+f"(sums[20]), "+f"(sums[21]), "+f"(sums[22]), "+f"(sums[23])
        : "l"(left), "l"(right));
}

__device__ void multiply(float (&sums)[32], u64 left, u64 right) {
    asm volatile(
        "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 {%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, "
        "%12, %13, %14, %15, %16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31}, %32, "
        "%33, 1, 1, 1, 0, 0;"
        : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3]), "+f"(sums[4]), "+f"(sums[5]), "+f"(sums[6]),
          "+f"(sums[7]), "+f"(sums[8]), "+f"(sums[9]), "+f"(sums[10]), "+f"(sums[11]), "+f"(sums[12]), "+f"(sums[13]),
          "+f"(sums[14]), "+f"(sums[15]), "+f"(sums[16]), "+f"(sums[17]), "+f"(sums[18]), "+f"(sums[19]),
          "+f"(sums[20]), "+f"(sums[21]), "+f"(sums[22]), "+f"(sums[23]), "+f"(sums[24]), "+f"(sums[25]),
          "+f"(sums[26]), "+f"(sums[27]), "+f"(sums[28]), "+f"(sums[29]), "+f"(sums[30]), "+f"(sums[31])
        : "l"(left), "l"(right));
}

__device__ float4 floats_of(uint4 bits) {
    return make_float4(__uint_as_float(bits.x), __uint_as_float(bits.y), __uint_as_float(bits.z),
                       __uint_as_float(bits.w));
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
