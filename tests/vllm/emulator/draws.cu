// Draws alone, for the emulator: codes, int32 [rows], of logits, float32 [rows, entries], and cuts, float32 [rows, 4].
#include "draw.cuh"

extern "C" __global__ void predictor_frames(const float* logits, const float* cuts, int* codes, int rows, int entries) {
    constexpr int EACH = (FIRST_ENTRIES + WORKERS - 1) / WORKERS;
    for (int row = 0; row < rows; ++row) {
        float mine[EACH];
        for (int i = 0; i < EACH; ++i) {
            const int entry = threadIdx.x * EACH + i;
            mine[i] = entry < entries ? logits[row * entries + entry] : __uint_as_float(0xff800000);
        }
        const float* cut = cuts + 4 * row;
        codes[row] = drawn(mine, {cut[0], cut[1], int(cut[2]), cut[3]}, shared + ROOM_AT);
    }
}
