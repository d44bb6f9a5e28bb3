// For processors without the dot product (Cortex-A53, A72): products in 16 bits.
#include "tile_neon.h"

namespace magnitude {
namespace {

// Group `group` of a row, twice: the operand beside two outputs.
inline int8x8_t twice(const int8_t* a, int group) {
  int32_t four;
  memcpy(&four, a + 4 * group, sizeof four);
  return vreinterpret_s8_s32(vdup_n_s32(four));
}

// Four sums of pairs in each: outputs 0, 0, 1, 1 and 2, 2, 3, 3 to outputs 0, 1, 2, 3.
inline int32x4_t add_pairs(int32x4_t sum, int16x8_t first, int16x8_t second) {
  return vaddq_s32(sum, vpaddq_s32(vpaddlq_s16(first), vpaddlq_s16(second)));
}

template <Kind kind>
struct PlainDots {
  // INT4: eight products of at most 15 · 127 in each lane stay below 2¹⁵.
  template <int kCount>
  static inline void run(const uint8_t* values, const int8_t* a, int64_t stride, int32x4_t* low, int32x4_t* high) {
    for (int side = 0; side < 2; ++side) {
      int8x16_t groups[8];
      for (int j = 0; j < 4; ++j) unpack_pairs(values + 32 * j + 16 * side, &groups[j], &groups[j + 4]);
      int32x4_t* sums = side == 0 ? low : high;
      for (int i = 0; i < kCount; ++i) {
        const int8_t* row = a + i * stride;
        int16x8_t first = vmull_s8(vget_low_s8(groups[0]), twice(row, 0));
        int16x8_t second = vmull_s8(vget_high_s8(groups[0]), twice(row, 0));
        for (int g = 1; g < 8; ++g) {
          first = vmlal_s8(first, vget_low_s8(groups[g]), twice(row, g));
          second = vmlal_s8(second, vget_high_s8(groups[g]), twice(row, g));
        }
        sums[i] = add_pairs(sums[i], first, second);
      }
    }
  }
};

template <>
struct PlainDots<Kind::kInt8> {
  // INT8: two products of at most 128 · 127.
  template <int kCount>
  static inline void run(const uint8_t* values, const int8_t* a, int64_t stride, int32x4_t* low, int32x4_t* high) {
    for (int side = 0; side < 2; ++side) {
      int32x4_t* sums = side == 0 ? low : high;
      for (int g = 0; g < 8; g += 2) {
        const int8x16_t even = load_group(values + 32 * g + 16 * side);
        const int8x16_t odd = load_group(values + 32 * (g + 1) + 16 * side);
        for (int i = 0; i < kCount; ++i) {
          const int8_t* row = a + i * stride;
          int16x8_t first = vmull_s8(vget_low_s8(even), twice(row, g));
          int16x8_t second = vmull_s8(vget_high_s8(even), twice(row, g));
          first = vmlal_s8(first, vget_low_s8(odd), twice(row, g + 1));
          second = vmlal_s8(second, vget_high_s8(odd), twice(row, g + 1));
          sums[i] = add_pairs(sums[i], first, second);
        }
      }
    }
  }
};

}  // namespace

void product_neon(const ProductPart& part) { compute_neon<PlainDots, 4>(part); }

}  // namespace magnitude
