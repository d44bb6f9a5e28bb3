// For processors with 8-bit matrix products (Arm v8.6; Cortex-A510, A710, X2 and later): two outputs by two rows in one
// instruction. A single row gains nothing from it and takes the dot product.
#include "dots_dotprod.h"

namespace magnitude {
namespace {

// The first or second group of a block's vector j, four outputs at `side`.
template <Kind kind>
inline void load_groups(const uint8_t* values, int side, int8x16_t* groups) {
  for (int j = 0; j < 4; ++j) {
    if (kind == Kind::kInt8) {
      groups[j] = load_group(values + 32 * j + 16 * side);
      groups[j + 4] = load_group(values + 32 * (j + 4) + 16 * side);
    } else {
      unpack_pairs(values + 32 * j + 16 * side, &groups[j], &groups[j + 4]);
    }
  }
}

template <Kind kind>
struct MatrixDots {
  template <int kCount>
  static inline void run(const uint8_t* values, const int8_t* a, int64_t stride, int32x4_t* low, int32x4_t* high) {
    if (kCount % 2 != 0) return DotProductDots<kind>::template run<kCount>(values, a, stride, low, high);
    // Eight values along k of two rows in each vector.
    int8x16_t rows[(kCount + 1) / 2][4];
    for (int pair = 0; pair < kCount / 2; ++pair) {
      for (int part = 0; part < 4; ++part) {
        const int8_t* at = a + 2 * pair * stride + 8 * part;
        rows[pair][part] = vcombine_s8(vld1_s8(at), vld1_s8(at + stride));
      }
    }
    for (int side = 0; side < 2; ++side) {
      int8x16_t groups[8];
      load_groups<kind>(values, side, groups);
      int32x4_t* sums = side == 0 ? low : high;
      int32x4_t first[(kCount + 1) / 2], second[(kCount + 1) / 2];  // outputs 0, 1 and 2, 3, each by two rows
      for (int pair = 0; pair < kCount / 2; ++pair) first[pair] = second[pair] = vdupq_n_s32(0);
      for (int part = 0; part < 4; ++part) {
        // Two neighbouring groups of four values make eight values of each output.
        const int32x4_t even = vreinterpretq_s32_s8(groups[2 * part]);
        const int32x4_t odd = vreinterpretq_s32_s8(groups[2 * part + 1]);
        const int8x16_t outputs01 = vreinterpretq_s8_s32(vzip1q_s32(even, odd));
        const int8x16_t outputs23 = vreinterpretq_s8_s32(vzip2q_s32(even, odd));
        for (int pair = 0; pair < kCount / 2; ++pair) {
          first[pair] = vmmlaq_s32(first[pair], outputs01, rows[pair][part]);
          second[pair] = vmmlaq_s32(second[pair], outputs23, rows[pair][part]);
        }
      }
      for (int pair = 0; pair < kCount / 2; ++pair) {
        sums[2 * pair] = vaddq_s32(sums[2 * pair], vuzp1q_s32(first[pair], second[pair]));
        sums[2 * pair + 1] = vaddq_s32(sums[2 * pair + 1], vuzp2q_s32(first[pair], second[pair]));
      }
    }
  }
};

}  // namespace

// Eight rows: a block's weights are taken apart half as often as with four.
void product_i8mm(const ProductPart& part) { compute_neon<MatrixDots, 8>(part); }

}  // namespace magnitude
