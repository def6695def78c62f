// Hopper's own instructions that `unit.cu` alone uses.
#pragma once
#include "sm90.cuh"

// The launch in front of this one has ended; the next one may come.
__device__ void await_input() {
    asm volatile("griddepcontrol.wait;\ngriddepcontrol.launch_dependents;" ::: "memory");
}

// Counts to `last` and then from 0 again. Returns the count before. It orders nothing: what is counted are products
// that have ended, and a fence would wait for bytes that this thread has sent for.
__device__ u32 count_up(u32 counter, u32 last) {
    u32 before;
    asm volatile("atom.relaxed.cta.shared::cta.inc.u32 %0, [%1], %2;"
                 : "=r"(before)
                 : "r"(counter), "r"(last)
                 : "memory");
    return before;
}

// 16 bytes, on their way until `await_pieces`.
__device__ void bring_piece(u32 to, const bf16* from) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(to), "l"(from) : "memory");
}

__device__ void await_pieces() { asm volatile("cp.async.wait_all;" ::: "memory"); }

// All warps of a warp group.
__device__ void meet(int group) { asm volatile("bar.sync %0, 128;" ::"r"(group + 1) : "memory"); }

// A warp's 16 rows of 16 inputs: lane l says where half l / 16 of row l % 16 stands.
__device__ void take(u32 (&left)[4], u32 at) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(left[0]), "=r"(left[1]), "=r"(left[2]), "=r"(left[3])
                 : "r"(at)
                 : "memory");
}

// From here on the compiler knows nothing of what this is.
__device__ void forget(u32& value) { asm volatile("" : "+r"(value)); }

// sums [64, 96] += what `take` left · right [96, 16]ᵀ; `right` describes shared memory.
__device__ void multiply(float (&sums)[48], const u32 (&left)[4], u64 right) {
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
        : "r"(left[0]), "r"(left[1]), "r"(left[2]), "r"(left[3]), "l"(right));
}

// Four neighbours each, from places that are 16 bytes apart or in other launches' outputs.
__device__ float4 constant_four(const float* at) { return __ldg(reinterpret_cast<const float4*>(at)); }
__device__ uint4 load_eight(const bf16* at) { return __ldcg(reinterpret_cast<const uint4*>(at)); }
__device__ void store_eight(bf16* at, uint4 eight) { *reinterpret_cast<uint4*>(at) = eight; }
__device__ int load_int(const int* at) { return __ldcg(at); }
