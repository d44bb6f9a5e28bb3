#include <cmath>
#include <cstring>

#include "packed.h"
#include "rows.h"

namespace magnitude {

void round_row_reference(const float* x, int64_t k, int64_t row, const Rows& out) {
  for (int64_t block = 0; block < out.blocks; ++block) {
    float part[kBlock] = {};
    const int64_t start = block * kBlock;
    const int64_t count = k - start < kBlock ? k - start : kBlock;
    std::memcpy(part, x + start, static_cast<size_t>(count) * sizeof(float));

    uint32_t largest_bits = 0;
    for (float value : part) {
      uint32_t bits;
      std::memcpy(&bits, &value, sizeof bits);
      bits &= 0x7fffffffu;
      if (bits > largest_bits) largest_bits = bits;
    }
    float largest;
    std::memcpy(&largest, &largest_bits, sizeof largest);

    int8_t* values = out.values + (row * out.blocks + block) * kBlock;
    float scale = 0;
    float inverse = 0;
    if (largest_bits >= kInfinityBits) {
      scale = NAN;
    } else if (largest >= kSmallestMaximum) {
      scale = largest / 127.0f;
      inverse = 127.0f / largest;
    }
    int32_t sum = 0;
    for (int64_t i = 0; i < kBlock; ++i) {
      // |x · inverse| is at most 127 · (1 + 2⁻²²), which rounds to 127.
      const int32_t value = inverse == 0 ? 0 : static_cast<int32_t>(lrintf(part[i] * inverse));
      values[i] = static_cast<int8_t>(value);
      sum += value;
    }
    out.scales[row * out.blocks + block] = scale;
    out.sums[row * out.blocks + block] = sum;
  }
}

}  // namespace magnitude
