// Hopper's own instructions that the predictor alone uses. Only this file and `sm90.cuh` know how they are spelt.
#pragma once
#include "values.cuh"

// What other blocks write during the launch is never read through the first-level cache.
template <class T>
__device__ T load(const void* at) {
    return __ldcg(static_cast<const T*>(at));
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

// As `seen_four`, if it is wanted.
__device__ void see_again(uint4& four, const void* at, bool wanted) {
    asm volatile("{\n.reg .pred p;\nsetp.ne.u32 p, %5, 0;\n@p ld.relaxed.gpu.global.v4.u32 {%0, %1, %2, %3}, [%4];\n}"
                 : "+r"(four.x), "+r"(four.y), "+r"(four.z), "+r"(four.w)
                 : "l"(at), "r"(u32(wanted))
                 : "memory");
}

__device__ void announce(void* at, u32 one) {
    asm volatile("st.relaxed.gpu.global.u32 [%0], %1;" ::"l"(at), "r"(one) : "memory");
}

__device__ void announce(void* at, float one) { announce(at, __float_as_uint(one)); }

__device__ void announce(void* at, float2 two) {
    asm volatile("st.relaxed.gpu.global.v2.f32 [%0], {%1, %2};" ::"l"(at), "f"(two.x), "f"(two.y) : "memory");
}

__device__ void announce(void* at, uint4 four) {
    asm volatile("st.relaxed.gpu.global.v4.u32 [%0], {%1, %2, %3, %4};" ::"l"(at),
                 "r"(four.x), "r"(four.y), "r"(four.z), "r"(four.w)
                 : "memory");
}

__device__ void mark_four(void* at) {
    asm volatile("st.relaxed.gpu.global.v4.u32 [%0], {%1, %1, %1, %1};" ::"l"(at), "r"(MARK) : "memory");
}

// What the launch in front of this one wrote is there.
__device__ void await_launch() { asm volatile("griddepcontrol.wait;" ::: "memory"); }

// What this thread wrote is there for whoever sees what follows.
__device__ void show_writes() { asm volatile("fence.acq_rel.gpu;" ::: "memory"); }

// What threads wrote that this one knows of is there for copies that it begins.
__device__ void show_writes_to_copies() { asm volatile("fence.proxy.async;" ::: "memory"); }

// The thread's number as if it could be another each time: what follows from it is worked out where it is needed and
// not kept in registers, of which the products need nearly all.
__device__ u32 thread_anew() {
    u32 number = threadIdx.x;
    asm volatile("" : "+r"(number));
    return number;
}

// What is very small is 0.
__device__ float power_of_two(float exponent) {
    float power;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(power) : "f"(exponent));
    return power;
}

// The threads that work meet.
__device__ void meet_workers() { asm volatile("bar.sync 1, %0;" ::"n"(WORKERS) : "memory"); }

// The warps meet that share a key/value head.
__device__ void meet_sharers(int which) {
    asm volatile("bar.sync %0, %1;" ::"r"(2 + which), "n"(WARP * GROUP) : "memory");
}

// At a barrier of this block. Who sees that it has passed sees what this thread wrote.
__device__ void arrive(u32 barrier) { asm volatile("mbarrier.arrive.shared.b64 _, [%0];" ::"r"(barrier) : "memory"); }

__device__ bool has_passed(u32 barrier, u32 phase) {
    u32 passed;
    asm volatile("{\n.reg .pred p;\nmbarrier.test_wait.parity.shared.b64 p, [%1], %2;\nselp.u32 %0, 1, 0, p;\n}"
                 : "=r"(passed)
                 : "r"(barrier), "r"(phase)
                 : "memory");
    return passed;
}

// As `bring_bytes`, of what is read once: it does not displace what is read again from the second-level cache.
__device__ void bring_once(u32 to, const void* from, int bytes, u32 barrier) {
    asm volatile(
        "{\n.reg .b64 policy;\ncreatepolicy.fractional.L2::evict_first.b64 policy, 1.0;\n"
        "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint [%0], [%1], %2, [%3], "
        "policy;\n}" ::"r"(to),
        "l"(from), "r"(bytes), "r"(barrier)
        : "memory");
}

// The warp group has so many registers a thread from now on, once they are there.
template <int COUNT>
__device__ void give_registers() {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(COUNT));
}
template <int COUNT>
__device__ void take_registers() {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(COUNT));
}

// sums [64, columns] += left [64, 16] · right [columns, 16]ᵀ: left as the threads hold it, right described in shared
// memory.
__device__ void multiply(float (&sums)[8], uint4 left, u32 right) {
    asm volatile(
        "{\n.reg .b64 right;\nmov.b64 right, {%12, 0x40000040};\n"
        "wgmma.mma_async.sync.aligned.m64n16k16.f32.bf16.bf16 {%0, %1, %2, %3, %4, %5, %6, %7}, "
        "{%8, %9, %10, %11}, right, 1, 1, 1, 0;\n}"
        : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3]), "+f"(sums[4]), "+f"(sums[5]), "+f"(sums[6]),
          "+f"(sums[7])
        : "r"(left.x), "r"(left.y), "r"(left.z), "r"(left.w), "r"(right));
}

__device__ void multiply(float (&sums)[16], uint4 left, u32 right) {
    asm volatile(
        "{\n.reg .b64 right;\nmov.b64 right, {%20, 0x40000040};\n"
        "wgmma.mma_async.sync.aligned.m64n32k16.f32.bf16.bf16 {%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, "
        "%12, %13, %14, %15}, {%16, %17, %18, %19}, right, 1, 1, 1, 0;\n}"
        : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3]), "+f"(sums[4]), "+f"(sums[5]), "+f"(sums[6]),
          "+f"(sums[7]), "+f"(sums[8]), "+f"(sums[9]), "+f"(sums[10]), "+f"(sums[11]), "+f"(sums[12]),
          "+f"(sums[13]), "+f"(sums[14]), "+f"(sums[15])
        : "r"(left.x), "r"(left.y), "r"(left.z), "r"(left.w), "r"(right));
}

__device__ void multiply(float (&sums)[24], uint4 left, u32 right) {
    asm volatile(
        "{\n.reg .b64 right;\nmov.b64 right, {%28, 0x40000040};\n"
        "wgmma.mma_async.sync.aligned.m64n48k16.f32.bf16.bf16 {%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, "
        "%12, %13, %14, %15, %16, %17, %18, %19, %20, %21, %22, %23}, {%24, %25, %26, %27}, right, 1, 1, 1, 0;\n}"
        : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3]), "+f"(sums[4]), "+f"(sums[5]), "+f"(sums[6]),
          "+f"(sums[7]), "+f"(sums[8]), "+f"(sums[9]), "+f"(sums[10]), "+f"(sums[11]), "+f"(sums[12]),
          "+f"(sums[13]), "+f"(sums[14]), "+f"(sums[15]), "+f"(sums[16]), "+f"(sums[17]), "+f"(sums[18]),
          "+f"(sums[19]), "+f"(sums[20]), "+f"(sums[21]), "+f"(sums[22]), "+f"(sums[23])
        : "r"(left.x), "r"(left.y), "r"(left.z), "r"(left.w), "r"(right));
}

__device__ void multiply(float (&sums)[32], uint4 left, u32 right) {
    asm volatile(
        "{\n.reg .b64 right;\nmov.b64 right, {%36, 0x40000040};\n"
        "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 {%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, "
        "%12, %13, %14, %15, %16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31}, "
        "{%32, %33, %34, %35}, right, 1, 1, 1, 0;\n}"
        : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3]), "+f"(sums[4]), "+f"(sums[5]), "+f"(sums[6]),
          "+f"(sums[7]), "+f"(sums[8]), "+f"(sums[9]), "+f"(sums[10]), "+f"(sums[11]), "+f"(sums[12]),
          "+f"(sums[13]), "+f"(sums[14]), "+f"(sums[15]), "+f"(sums[16]), "+f"(sums[17]), "+f"(sums[18]),
          "+f"(sums[19]), "+f"(sums[20]), "+f"(sums[21]), "+f"(sums[22]), "+f"(sums[23]), "+f"(sums[24]),
          "+f"(sums[25]), "+f"(sums[26]), "+f"(sums[27]), "+f"(sums[28]), "+f"(sums[29]), "+f"(sums[30]),
          "+f"(sums[31])
        : "r"(left.x), "r"(left.y), "r"(left.z), "r"(left.w), "r"(right));
}

// Nothing is done to these registers before or behind this point on the other side of it.
template <int COUNT>
__device__ void pin(uint4 (&fours)[COUNT]) {
#pragma unroll
    for (int i = 0; i < COUNT; ++i)
        asm volatile("" : "+r"(fours[i].x), "+r"(fours[i].y), "+r"(fours[i].z), "+r"(fours[i].w)::"memory");
}

__device__ void pin(u32& one) { asm volatile("" : "+r"(one)::"memory"); }
