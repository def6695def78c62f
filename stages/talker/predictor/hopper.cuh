// Hopper's own instructions, and arithmetic on a few values.
#pragma once
#include "layout.cuh"

__device__ u32 address_of(const void* at) { return static_cast<u32>(__cvta_generic_to_shared(at)); }
__device__ float low(u32 pair) { return __uint_as_float(pair << 16); }
__device__ float high(u32 pair) { return __uint_as_float(pair & 0xffff0000); }
__device__ u32 pair_of(float low, float high) {
    u32 pair;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
    return pair;
}

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
        if (threadIdx.x == 0) asm volatile("mbarrier.init.shared.b64 [%0], 1;" ::"r"(arrived) : "memory");
    }

    __device__ void expect(int bytes) const {
        if (threadIdx.x == 0)
            asm volatile("mbarrier.arrive.expect_tx.shared.b64 _, [%0], %1;" ::"r"(arrived), "r"(bytes) : "memory");
    }

    // Bytes `first` to `stop` of `bytes`.
    __device__ void bring(const unsigned char* weights, int bytes, int first, int stop) const {
        if (threadIdx.x != 0) return;
        if (first == 0 && stop > 0) expect(bytes);
        for (int offset = first; offset < stop; offset += COPY_BYTES)
            asm volatile(
                "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(at +
                                                                                                                offset),
                "l"(weights + offset), "r"(min(COPY_BYTES, stop - offset)), "r"(arrived)
                : "memory");
    }

    __device__ void wait() {
        u32 there;
        do
            asm volatile("{\n.reg .pred p;\nmbarrier.try_wait.parity.shared.b64 p, [%1], %2;\nselp.u32 %0, 1, 0, p;\n}"
                         : "=r"(there)
                         : "r"(arrived), "r"(phase)
                         : "memory");
        while (!there);
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

// sums [64, columns] += left [64, 16] · right [columns, 16]ᵀ; `right` describes shared memory.
__device__ void multiply(float (&sums)[8], u32 a, u32 b, u32 c, u32 d, u64 right) {
    asm volatile(
        "wgmma.mma_async.sync.aligned.m64n16k16.f32.bf16.bf16 {%0, %1, %2, %3, %4, %5, %6, %7}, {%8, %9, %10, %11}, "
        "%12, 1, 1, 1, 0;"
        : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3]), "+f"(sums[4]), "+f"(sums[5]), "+f"(sums[6]),
          "+f"(sums[7])
        : "r"(a), "r"(b), "r"(c), "r"(d), "l"(right));
}

__device__ void multiply(float (&sums)[16], u32 a, u32 b, u32 c, u32 d, u64 right) {
    asm volatile(
        "wgmma.mma_async.sync.aligned.m64n32k16.f32.bf16.bf16 {%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, "
        "%13, %14, %15}, {%16, %17, %18, %19}, %20, 1, 1, 1, 0;"
        : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3]), "+f"(sums[4]), "+f"(sums[5]), "+f"(sums[6]),
          "+f"(sums[7]), "+f"(sums[8]), "+f"(sums[9]), "+f"(sums[10]), "+f"(sums[11]), "+f"(sums[12]), "+f"(sums[13]),
          "+f"(sums[14]), "+f"(sums[15])
        : "r"(a), "r"(b), "r"(c), "r"(d), "l"(right));
}

__device__ void multiply(float (&sums)[32], u32 a, u32 b, u32 c, u32 d, u64 right) {
    asm volatile(
        "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 {%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, "
        "%13, %14, %15, %16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31}, {%32, %33, "
        "%34, %35}, %36, 1, 1, 1, 0;"
        : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3]), "+f"(sums[4]), "+f"(sums[5]), "+f"(sums[6]),
          "+f"(sums[7]), "+f"(sums[8]), "+f"(sums[9]), "+f"(sums[10]), "+f"(sums[11]), "+f"(sums[12]), "+f"(sums[13]),
          "+f"(sums[14]), "+f"(sums[15]), "+f"(sums[16]), "+f"(sums[17]), "+f"(sums[18]), "+f"(sums[19]),
          "+f"(sums[20]), "+f"(sums[21]), "+f"(sums[22]), "+f"(sums[23]), "+f"(sums[24]), "+f"(sums[25]),
          "+f"(sums[26]), "+f"(sums[27]), "+f"(sums[28]), "+f"(sums[29]), "+f"(sums[30]), "+f"(sums[31])
        : "r"(a), "r"(b), "r"(c), "r"(d), "l"(right));
}

__device__ void multiply(float (&sums)[48], u32 a, u32 b, u32 c, u32 d, u64 right) {
    asm volatile(
        "wgmma.mma_async.sync.aligned.m64n96k16.f32.bf16.bf16 {%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, "
        "%13, %14, %15, %16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, %32, %33, "
        "%34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47}, {%48, %49, %50, %51}, %52, 1, 1, 1, "
        "0;"
        : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3]), "+f"(sums[4]), "+f"(sums[5]), "+f"(sums[6]),
          "+f"(sums[7]), "+f"(sums[8]), "+f"(sums[9]), "+f"(sums[10]), "+f"(sums[11]), "+f"(sums[12]), "+f"(sums[13]),
          "+f"(sums[14]), "+f"(sums[15]), "+f"(sums[16]), "+f"(sums[17]), "+f"(sums[18]), "+f"(sums[19]),
          "+f"(sums[20]), "+f"(sums[21]), "+f"(sums[22]), "+f"(sums[23]), "+f"(sums[24]), "+f"(sums[25]),
          "+f"(sums[26]), "+f"(sums[27]), "+f"(sums[28]), "+f"(sums[29]), "+f"(sums[30]), "+f"(sums[31]),
          "+f"(sums[32]), "+f"(sums[33]), "+f"(sums[34]), "+f"(sums[35]), "+f"(sums[36]), "+f"(sums[37]),
          "+f"(sums[38]), "+f"(sums[39]), "+f"(sums[40]), "+f"(sums[41]), "+f"(sums[42]), "+f"(sums[43]),
          "+f"(sums[44]), "+f"(sums[45]), "+f"(sums[46]), "+f"(sums[47])
        : "r"(a), "r"(b), "r"(c), "r"(d), "l"(right));
}

// Nothing is done to these registers earlier or later than here: the compiler does not see when tensor cores use them.
template <int COUNT>
__device__ void pin(float (&sums)[COUNT]) {
#pragma unroll
    for (int i = 0; i < COUNT; ++i) asm volatile("" : "+f"(sums[i])::"memory");
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
