// What surrounds a product, a row at a time: the norm before it, the gate behind it. The same bits on every path.
#ifndef MAGNITUDE_KERNELS_ROW_MATH_H_
#define MAGNITUDE_KERNELS_ROW_MATH_H_

#include <stdint.h>

namespace magnitude {

struct RowMath {
  // out[i] = (x[i] · 1/√(Σ x² / k + epsilon)) · gain[i] (Zhang and Sennrich, Root Mean Square Layer Normalization).
  // Squares are added in eight lanes, by i mod 8, in ascending order, and the lanes as lanes.h adds them. k ≥ 1; x and
  // out may be one.
  void (*norm)(const float* x, int64_t k, const float* gain, float epsilon, float* out);

  // y[i] = gate[i] / (1 + e^−gate[i]) · up[i] (SiLU; Shazeer, GLU Variants Improve Transformer), within 6 · 2⁻²⁴ of its
  // own size for gates from 0 on, within (6 + 2 · |gate|) · 2⁻²⁴ down to −87, and nothing but tiny below. y may be gate.
  void (*gate)(const float* gate, const float* up, int64_t n, float* y);
};

extern const RowMath kRowMathReference;
#if defined(__x86_64__)
extern const RowMath kRowMathAvx2;  // with FMA
#elif defined(__aarch64__)
extern const RowMath kRowMathNeon;
#endif

}  // namespace magnitude

#endif  // MAGNITUDE_KERNELS_ROW_MATH_H_
