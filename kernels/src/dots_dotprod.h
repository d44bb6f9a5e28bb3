// Sums of one block by the dot-product instructions (Arm v8.2: Cortex-A55, A76 and all later ones). Internal linkage
// on purpose, as this is compiled anew for each instruction set.
#ifndef MAGNITUDE_KERNELS_DOTS_DOTPROD_H_
#define MAGNITUDE_KERNELS_DOTS_DOTPROD_H_

#include "tile_neon.h"

namespace magnitude {
namespace {

template <Kind kind>
struct DotProductDots {
  // The lane of a row's vector is part of the instruction, so groups are unrolled by hand.
  template <int kGroup, int kCount>
  static inline void add_group(int8x16_t low_group, int8x16_t high_group, const int8x16_t (*rows)[2], int32x4_t* low,
                               int32x4_t* high) {
    for (int i = 0; i < kCount; ++i) {
      low[i] = vdotq_laneq_s32(low[i], low_group, rows[i][kGroup / 4], kGroup % 4);
      high[i] = vdotq_laneq_s32(high[i], high_group, rows[i][kGroup / 4], kGroup % 4);
    }
  }

  template <int kVector, int kCount>
  static inline void add_vector(const uint8_t* values, const int8x16_t (*rows)[2], int32x4_t* low, int32x4_t* high) {
    int8x16_t low_groups[2], high_groups[2];
    if (kind == Kind::kInt8) {
      low_groups[0] = load_group(values + 32 * kVector);
      high_groups[0] = load_group(values + 32 * kVector + 16);
      low_groups[1] = load_group(values + 32 * (kVector + 4));
      high_groups[1] = load_group(values + 32 * (kVector + 4) + 16);
    } else {
      unpack_pairs(values + 32 * kVector, &low_groups[0], &low_groups[1]);
      unpack_pairs(values + 32 * kVector + 16, &high_groups[0], &high_groups[1]);
    }
    add_group<kVector, kCount>(low_groups[0], high_groups[0], rows, low, high);
    add_group<kVector + 4, kCount>(low_groups[1], high_groups[1], rows, low, high);
  }

  template <int kCount>
  static inline void run(const uint8_t* values, const int8_t* a, int64_t stride, int32x4_t* low, int32x4_t* high) {
    int8x16_t rows[kCount][2];
    for (int i = 0; i < kCount; ++i) {
      rows[i][0] = vld1q_s8(a + i * stride);
      rows[i][1] = vld1q_s8(a + i * stride + 16);
    }
    add_vector<0, kCount>(values, rows, low, high);
    add_vector<1, kCount>(values, rows, low, high);
    add_vector<2, kCount>(values, rows, low, high);
    add_vector<3, kCount>(values, rows, low, high);
  }
};

}  // namespace
}  // namespace magnitude

#endif  // MAGNITUDE_KERNELS_DOTS_DOTPROD_H_
