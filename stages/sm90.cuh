// Hopper's instructions that more than one kernel uses, and pairs of bfloat16.
#pragma once

typedef unsigned int u32;
typedef unsigned long long u64;
typedef unsigned short bf16;

extern __shared__ __align__(1024) unsigned char shared[];

__device__ u32 address_of(const void* at) { return static_cast<u32>(__cvta_generic_to_shared(at)); }
__device__ float low(u32 pair) { return __uint_as_float(pair << 16); }
__device__ float high(u32 pair) { return __uint_as_float(pair & 0xffff0000); }
__device__ u32 pair_of(float low, float high) {
    u32 pair;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
    return pair;
}

// A barrier that so many arrivals pass, and all bytes which were said to be expected.
__device__ void begin_barrier(u32 barrier, int arrivals) {
    asm volatile("mbarrier.init.shared.b64 [%0], %1;" ::"r"(barrier), "r"(arrivals) : "memory");
}

// Barriers that have begun are seen by copies.
__device__ void publish_barriers() {
    asm volatile("fence.mbarrier_init.release.cluster;\nfence.proxy.async;" ::: "memory");
}

__device__ void expect_bytes(u32 barrier, int bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes) : "memory");
}

__device__ void bring_bytes(u32 to, const void* from, int bytes, u32 barrier) {
    asm volatile(
        "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(to),
        "l"(from), "r"(bytes), "r"(barrier)
        : "memory");
}

__device__ void await_bytes(u32 barrier, u32 phase) {
    u32 there;
    do
        asm volatile("{\n.reg .pred p;\nmbarrier.try_wait.parity.shared.b64 p, [%1], %2;\nselp.u32 %0, 1, 0, p;\n}"
                     : "=r"(there)
                     : "r"(barrier), "r"(phase)
                     : "memory");
    while (!there);
}

// What registers hold is seen by the products that begin now.
__device__ void begin_products() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
__device__ void close_products() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }

// All products have ended but those of the last OPEN groups that were closed.
template <int OPEN>
__device__ void await_products() {
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(OPEN) : "memory");
}

// Nothing is done to these registers earlier or later than here: the compiler does not see when tensor cores use them.
template <int COUNT>
__device__ void pin(float (&sums)[COUNT]) {
#pragma unroll
    for (int i = 0; i < COUNT; ++i) asm volatile("" : "+f"(sums[i])::"memory");
}
