// The channels of an activation that are multiplied in float, beside an INT8 product.
#ifndef MAGNITUDE_KERNELS_WIDE_H_
#define MAGNITUDE_KERNELS_WIDE_H_

#include <stdint.h>

namespace magnitude {

// y[m, n] += Σ over i of x[m, channels[i]] · rows[i, n], in the order of i, on the pool. Each product is rounded, then
// each sum. x [m, k], y and rows [count, n] are row-major and without gaps; channels are within 0 and k − 1.
void add_wide(const float* x, int64_t m, int64_t k, const int64_t* channels, int64_t count, const float* rows,
              int64_t n, float* y);

}  // namespace magnitude

#endif  // MAGNITUDE_KERNELS_WIDE_H_
