// Rotary position embedding: each pair of channels (i, i + head_size / 2) of a head is turned by an angle that grows
// with the position (Su et al., RoFormer, in the form of GPT-NeoX and Llama).
//
//   y[i] = x[i] · cos[p, i] − x[i + half] · sin[p, i]
//   y[i + half] = x[i + half] · cos[p, i] + x[i] · sin[p, i]
//
// Each product and each sum is rounded by itself, so that all compilers' code has the same bits.
#ifndef MAGNITUDE_KERNELS_ROTATION_H_
#define MAGNITUDE_KERNELS_ROTATION_H_

#include <stdint.h>

namespace magnitude {

// Tables [positions, head_size / 2], row-major and without gaps; null: nothing is turned.
struct Rotation {
  const float* cosines = nullptr;
  const float* sines = nullptr;
  int64_t positions = 0;
  // The sizes of the memory behind the pointers.
  int64_t cosines_bytes = 0;
  int64_t sines_bytes = 0;
};

// 0, or -1 with the reason in last_error(): tables shorter than they say, or a row at a position beyond them.
int check_rotation(const Rotation& rotation, int64_t head_size, int64_t rows, const int64_t* positions);

// Turns the `heads` heads of one row at x, which lie without gaps, into `out`. A row at position −1, which is padding,
// becomes zero.
void rotate_row(const Rotation& rotation, const float* x, int64_t heads, int64_t head_size, int64_t position,
                float* out);

}  // namespace magnitude

#endif  // MAGNITUDE_KERNELS_ROTATION_H_
