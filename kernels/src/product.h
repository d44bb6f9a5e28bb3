// Products of packed weights with rows of activations.
//
// The arithmetic, which every path follows to the bit. For one output and one row, over blocks in ascending order:
//   dot  = Σ q · a              integers: exact, in any order (a: the row's INT8 values)
//   dot -= 8 · Σ a              for INT4 without minima
//   sum  = fma(weight_scale · row_scale, float(dot), sum)
//   sum  = fma(minimum · row_scale, float(Σ a), sum)     for INT4 with minima
// Nothing in it depends on other rows or outputs, so batch, chunk and threads cannot change a result.
#ifndef MAGNITUDE_KERNELS_PRODUCT_H_
#define MAGNITUDE_KERNELS_PRODUCT_H_

#include <stdint.h>

#include "packed.h"
#include "rows.h"

namespace magnitude {

// A part of a product: some tiles of outputs for some rows.
struct ProductPart {
  const Packed* weights;
  const Rows* rows;
  int64_t row_begin, row_end;
  int64_t tile_begin, tile_end;
  float* y;  // [m, n], row-major; only the part's outputs are written
};

using ComputePart = void (*)(const ProductPart& part);

void product_reference(const ProductPart& part);
#if defined(__x86_64__)
void product_avx2(const ProductPart& part);
void product_avxvnni(const ProductPart& part);
void product_avx512vnni(const ProductPart& part);
#elif defined(__aarch64__)
void product_neon(const ProductPart& part);
void product_dotprod(const ProductPart& part);
void product_i8mm(const ProductPart& part);
#endif

// y[m, n] = x[m, k] · wᵀ on the pool. Sizes have been checked. -1, and an error, only when memory is short.
int product(const Packed& weights, const float* x, int64_t m, float* y);

}  // namespace magnitude

#endif  // MAGNITUDE_KERNELS_PRODUCT_H_
