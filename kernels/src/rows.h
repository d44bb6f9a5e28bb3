// Rows of activations, rounded to INT8 in blocks of 32.
//
// Of each block: scale = max|x| / 127, values = x / scale rounded to nearest (ties to even), and the sum of the values
// as an integer. All instruction sets give the same bits: the maximum is taken over the bits of |x| as integers, so
// that its order does not matter even among NaN, and the rest is one division, one multiplication and one rounding.
#ifndef MAGNITUDE_KERNELS_ROWS_H_
#define MAGNITUDE_KERNELS_ROWS_H_

#include <stdint.h>

namespace magnitude {

// Rounded rows, one after the other. A row has 32 · blocks values; those beyond k are 0.
struct Rows {
  int8_t* values;   // [m, blocks, 32]
  float* scales;    // [m, blocks]
  int32_t* sums;    // [m, blocks], of values
  int64_t blocks;
};

// A block with a smaller maximum counts as zero: 127 divided by it must not come near the largest float.
constexpr float kSmallestMaximum = 0x1p-100f;
constexpr uint32_t kInfinityBits = 0x7f800000u;

// Rounds k values at x into row `row` of `out`. A block with an infinity or NaN gets the scale NaN and the values 0.
using RoundRow = void (*)(const float* x, int64_t k, int64_t row, const Rows& out);

void round_row_reference(const float* x, int64_t k, int64_t row, const Rows& out);
#if defined(__x86_64__)
void round_row_avx2(const float* x, int64_t k, int64_t row, const Rows& out);
#elif defined(__aarch64__)
void round_row_neon(const float* x, int64_t k, int64_t row, const Rows& out);
#endif

}  // namespace magnitude

#endif  // MAGNITUDE_KERNELS_ROWS_H_
