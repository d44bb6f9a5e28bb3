// A product with what stands before and behind it in a decoder, in one call: the norm of its input, wide channels in
// float, a bias, the gate of a feed-forward layer, the residual stream.
#ifndef MAGNITUDE_KERNELS_FUSED_H_
#define MAGNITUDE_KERNELS_FUSED_H_

#include <stdint.h>

#include "packed.h"

namespace magnitude {

// Everything may be absent (null, 0, false). In this order:
//   x' = norm(x) with gain; y = x' · wᵀ; y += wide channels of x' (wide.h); y += bias;
//   gated: the weights have 2 · width outputs, gates first, and y = silu(gate) · up; y += residual.
struct Fusion {
  const float* gain = nullptr;  // [k]
  float epsilon = 0;
  const int64_t* channels = nullptr;  // [wide], within 0 and k − 1
  int64_t wide = 0;
  const float* wide_rows = nullptr;  // [wide, n]
  const float* bias = nullptr;       // [n]
  bool gated = false;
  const float* residual = nullptr;  // [m, width]
};

// How many outputs come out: n, or half as many when gated.
inline int64_t width_of(const Packed& weights, const Fusion& fusion) {
  return fusion.gated ? weights.n / 2 : weights.n;
}

// y[m, width] of x[m, k], on the pool. Sizes have been checked; y and residual may be one. -1, and an error, only when
// memory is short.
int fused_product(const Packed& weights, const Fusion& fusion, const float* x, int64_t m, float* y);

}  // namespace magnitude

#endif  // MAGNITUDE_KERNELS_FUSED_H_
