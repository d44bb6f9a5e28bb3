#include <arm_neon.h>
#include <string.h>

#include "packed.h"
#include "rows.h"

namespace magnitude {
namespace {

inline void round_block(const float* part, int8_t* values, float* scale, int32_t* sum) {
  float32x4_t x[8];
  uint32x4_t bits = vdupq_n_u32(0);
  for (int i = 0; i < 8; ++i) {
    x[i] = vld1q_f32(part + 4 * i);
    bits = vmaxq_u32(bits, vandq_u32(vreinterpretq_u32_f32(x[i]), vdupq_n_u32(0x7fffffff)));
  }
  const uint32_t largest_bits = vmaxvq_u32(bits);
  float largest;
  memcpy(&largest, &largest_bits, sizeof largest);
  if (largest_bits >= kInfinityBits || largest < kSmallestMaximum) {
    *scale = largest_bits >= kInfinityBits ? __builtin_nanf("") : 0;
    *sum = 0;
    memset(values, 0, kBlock);
    return;
  }
  *scale = largest / 127.0f;
  const float inverse = 127.0f / largest;
  int32x4_t sums = vdupq_n_s32(0);
  for (int half = 0; half < 2; ++half) {
    int32x4_t rounded[4];
    for (int i = 0; i < 4; ++i) {
      rounded[i] = vcvtnq_s32_f32(vmulq_n_f32(x[4 * half + i], inverse));
      sums = vaddq_s32(sums, rounded[i]);
    }
    const int16x8_t low = vcombine_s16(vmovn_s32(rounded[0]), vmovn_s32(rounded[1]));
    const int16x8_t high = vcombine_s16(vmovn_s32(rounded[2]), vmovn_s32(rounded[3]));
    vst1q_s8(values + 16 * half, vcombine_s8(vmovn_s16(low), vmovn_s16(high)));
  }
  *sum = vaddvq_s32(sums);
}

}  // namespace

void round_row_neon(const float* x, int64_t k, int64_t row, const Rows& out) {
  int8_t* values = out.values + row * out.blocks * kBlock;
  float* scales = out.scales + row * out.blocks;
  int32_t* sums = out.sums + row * out.blocks;
  const int64_t whole = k / kBlock;
  for (int64_t block = 0; block < whole; ++block) {
    round_block(x + block * kBlock, values + block * kBlock, scales + block, sums + block);
  }
  if (whole < out.blocks) {
    float part[kBlock] = {};
    memcpy(part, x + whole * kBlock, static_cast<size_t>(k - whole * kBlock) * sizeof(float));
    round_block(part, values + whole * kBlock, scales + whole, sums + whole);
  }
}

}  // namespace magnitude
