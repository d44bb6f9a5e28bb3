#include "rotation.h"

#include <algorithm>

#include "error.h"

namespace magnitude {

int check_rotation(const Rotation& rotation, int64_t head_size, int64_t rows, const int64_t* positions) {
  if (rotation.cosines == nullptr && rotation.sines == nullptr) return 0;
  if (rotation.cosines == nullptr || rotation.sines == nullptr) return fail("one of cosines and sines is null");
  const int64_t row_bytes = head_size / 2 * static_cast<int64_t>(sizeof(float));
  if (rotation.positions < 0 || rotation.cosines_bytes / row_bytes < rotation.positions ||
      rotation.sines_bytes / row_bytes < rotation.positions) {
    return fail("cosines of %lld and sines of %lld bytes are shorter than %lld positions",
                static_cast<long long>(rotation.cosines_bytes), static_cast<long long>(rotation.sines_bytes),
                static_cast<long long>(rotation.positions));
  }
  for (int64_t row = 0; row < rows; ++row) {
    if (positions[row] >= rotation.positions) {
      return fail("row %lld is at position %lld, and the rotation has %lld", static_cast<long long>(row),
                  static_cast<long long>(positions[row]), static_cast<long long>(rotation.positions));
    }
  }
  return 0;
}

void rotate_row(const Rotation& rotation, const float* x, int64_t heads, int64_t head_size, int64_t position,
                float* out) {
  if (position < 0) {
    std::fill(out, out + heads * head_size, 0.0f);
    return;
  }
  const int64_t half = head_size / 2;
  const float* __restrict cosines = rotation.cosines + position * half;
  const float* __restrict sines = rotation.sines + position * half;
  for (int64_t head = 0; head < heads; ++head) {
    const float* __restrict from = x + head * head_size;
    float* __restrict to = out + head * head_size;
    for (int64_t i = 0; i < half; ++i) {
      to[i] = from[i] * cosines[i] - from[i + half] * sines[i];
      to[i + half] = from[i + half] * cosines[i] + from[i] * sines[i];
    }
  }
}

}  // namespace magnitude
