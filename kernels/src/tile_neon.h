// What the three Arm paths share: float work on the sums of one block, eight outputs in two registers.
// Internal linkage on purpose, as this is compiled anew for each instruction set.
#ifndef MAGNITUDE_KERNELS_TILE_NEON_H_
#define MAGNITUDE_KERNELS_TILE_NEON_H_

#include <arm_neon.h>

#include "tile_store.h"

namespace magnitude {
namespace {

// Outputs 0…3 and 4…7 of a tile.
struct Halves {
  float32x4_t low, high;
};

inline Halves load_halves(const uint8_t* at) {
  const float16x8_t eight = vreinterpretq_f16_u8(vld1q_u8(at));
  return {vcvt_f32_f16(vget_low_f16(eight)), vcvt_high_f32_f16(eight)};
}

// sum + (weight · row_scale) · term, fused as everywhere.
inline void add_scaled(Halves* sum, const Halves& weight, float row_scale, float32x4_t low, float32x4_t high) {
  sum->low = vfmaq_f32(sum->low, vmulq_n_f32(weight.low, row_scale), low);
  sum->high = vfmaq_f32(sum->high, vmulq_n_f32(weight.high, row_scale), high);
}

// One tile whose Dots gives the sums of a block for kCount rows at once:
//   Dots<kind>::template run<kCount>(values, a, stride, low, high)
// with values the block's weights, a the first row's INT8 values of the block and stride bytes from row to row; it
// adds the products to low[i] (outputs 0…3 of row i) and high[i].
template <Kind kind, template <Kind> class Dots>
struct NeonTile {
  template <int kCount>
  static inline void run(const ProductPart& part, int64_t tile, int64_t row, const TileOut& out) {
    const Packed& weights = *part.weights;
    const Rows& rows = *part.rows;
    const uint8_t* start = weights.data + tile * weights.tile_bytes;
    const int8_t* a = rows.values + row * rows.blocks * kBlock;
    const float* scales = rows.scales + row * rows.blocks;
    const int32_t* sums = rows.sums + row * rows.blocks;
    Halves sum[kCount];
    for (int i = 0; i < kCount; ++i) sum[i] = {vdupq_n_f32(0), vdupq_n_f32(0)};
    for (int64_t block = 0; block < weights.blocks; ++block, start += weights.block_bytes) {
      int32x4_t low[kCount], high[kCount];
      for (int i = 0; i < kCount; ++i) {
        // INT4 without minima: w = q − 8, so Σ w · a = Σ q · a − 8 · Σ a.
        low[i] = vdupq_n_s32(kind == Kind::kInt4 ? -8 * sums[i * rows.blocks + block] : 0);
        high[i] = low[i];
      }
      const uint8_t* values = start + weights.values_offset;
      Dots<kind>::template run<kCount>(values, a + block * kBlock, rows.blocks * kBlock, low, high);
      const Halves scale = load_halves(start);
      for (int i = 0; i < kCount; ++i) {
        const float row_scale = scales[i * rows.blocks + block];
        add_scaled(&sum[i], scale, row_scale, vcvtq_f32_s32(low[i]), vcvtq_f32_s32(high[i]));
      }
      if (kind == Kind::kInt4Minimum) {
        const Halves minimum = load_halves(start + weights.minima_offset);
        for (int i = 0; i < kCount; ++i) {
          const float32x4_t a_sum = vdupq_n_f32(static_cast<float>(sums[i * rows.blocks + block]));
          add_scaled(&sum[i], minimum, scales[i * rows.blocks + block], a_sum, a_sum);
        }
      }
    }
    for (int i = 0; i < kCount; ++i) {
      vst1q_f32(out.y + i * out.stride, sum[i].low);
      vst1q_f32(out.y + i * out.stride + 4, sum[i].high);
    }
  }
};

template <template <Kind> class Dots, int kRows>
inline void compute_neon(const ProductPart& part) {
  switch (part.weights->kind) {
    case Kind::kInt4:
      return compute_part<NeonTile<Kind::kInt4, Dots>, kRows>(part);
    case Kind::kInt4Minimum:
      return compute_part<NeonTile<Kind::kInt4Minimum, Dots>, kRows>(part);
    case Kind::kInt8:
      return compute_part<NeonTile<Kind::kInt8, Dots>, kRows>(part);
  }
}

// Two groups of a block's INT4 weights from one vector of four outputs: q as signed bytes, 0…15.
inline void unpack_pairs(const uint8_t* at, int8x16_t* low_group, int8x16_t* high_group) {
  const uint8x16_t pairs = vld1q_u8(at);
  *low_group = vreinterpretq_s8_u8(vandq_u8(pairs, vdupq_n_u8(0xf)));
  *high_group = vreinterpretq_s8_u8(vshrq_n_u8(pairs, 4));
}

inline int8x16_t load_group(const uint8_t* at) { return vreinterpretq_s8_u8(vld1q_u8(at)); }

}  // namespace
}  // namespace magnitude

#endif  // MAGNITUDE_KERNELS_TILE_NEON_H_
