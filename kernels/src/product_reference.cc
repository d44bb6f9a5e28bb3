#include <cmath>
#include <cstring>

#include "half.h"
#include "product.h"

namespace magnitude {
namespace {

float half_at(const uint8_t* halves, int64_t index) {
  uint16_t half;
  std::memcpy(&half, halves + 2 * index, sizeof half);
  return half_to_float(half);
}

// q of one output at position i of a block.
int32_t weight_at(Kind kind, const uint8_t* values, int64_t lane, int64_t i) {
  const int64_t group = i / 4;
  if (kind == Kind::kInt8) return static_cast<int8_t>(values[group * 32 + lane * 4 + i % 4]);
  const uint8_t pair = values[(group % 4) * 32 + lane * 4 + i % 4];
  return group < 4 ? pair & 0xf : pair >> 4;
}

float one_output(const Packed& weights, const Rows& rows, int64_t row, int64_t tile, int64_t lane) {
  float sum = 0;
  for (int64_t block = 0; block < weights.blocks; ++block) {
    const uint8_t* start = weights.data + tile * weights.tile_bytes + block * weights.block_bytes;
    const int8_t* a = rows.values + (row * rows.blocks + block) * kBlock;
    const float row_scale = rows.scales[row * rows.blocks + block];
    const int32_t a_sum = rows.sums[row * rows.blocks + block];
    int32_t dot = 0;
    for (int64_t i = 0; i < kBlock; ++i) {
      dot += weight_at(weights.kind, start + weights.values_offset, lane, i) * a[i];
    }
    if (weights.kind == Kind::kInt4) dot -= 8 * a_sum;
    sum = std::fma(half_at(start, lane) * row_scale, static_cast<float>(dot), sum);
    if (weights.kind == Kind::kInt4Minimum) {
      const float minimum = half_at(start + weights.minima_offset, lane);
      sum = std::fma(minimum * row_scale, static_cast<float>(a_sum), sum);
    }
  }
  return sum;
}

}  // namespace

void product_reference(const ProductPart& part) {
  const Packed& weights = *part.weights;
  for (int64_t row = part.row_begin; row < part.row_end; ++row) {
    for (int64_t tile = part.tile_begin; tile < part.tile_end; ++tile) {
      for (int64_t lane = 0; lane < kTile && tile * kTile + lane < weights.n; ++lane) {
        part.y[row * weights.n + tile * kTile + lane] = one_output(weights, *part.rows, row, tile, lane);
      }
    }
  }
}

}  // namespace magnitude
