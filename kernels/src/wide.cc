#include "wide.h"

#include <algorithm>

#include "pool.h"

namespace magnitude {
namespace {

// Outputs of one task: with their sums and a row of weights, a few KB of the nearest cache.
constexpr int64_t kOutputs = 256;

struct WideCall {
  const float* x;
  int64_t m, k;
  const int64_t* channels;
  int64_t count;
  const float* rows;
  int64_t n;
  float* y;
};

// Plain loops: sums of different outputs do not meet, so that whatever the compiler makes of them has the same bits.
void add_outputs(void* context, int64_t begin, int64_t end) {
  const WideCall& call = *static_cast<const WideCall*>(context);
  const int64_t first = begin * kOutputs;
  const int64_t width = std::min(end * kOutputs, call.n) - first;
  for (int64_t row = 0; row < call.m; ++row) {
    float* y = call.y + row * call.n + first;
    for (int64_t i = 0; i < call.count; ++i) {
      const float value = call.x[row * call.k + call.channels[i]];
      const float* weights = call.rows + i * call.n + first;
      for (int64_t output = 0; output < width; ++output) y[output] += value * weights[output];
    }
  }
}

}  // namespace

void add_wide(const float* x, int64_t m, int64_t k, const int64_t* channels, int64_t count, const float* rows,
              int64_t n, float* y) {
  if (m == 0 || count == 0) return;
  WideCall call{x, m, k, channels, count, rows, n, y};
  run_tasks((n + kOutputs - 1) / kOutputs, kOutputs * m * count, add_outputs, &call);
}

}  // namespace magnitude
