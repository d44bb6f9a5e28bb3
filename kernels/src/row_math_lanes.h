// The arithmetic of row_math.h, written once over the lanes of lanes.h.
#ifndef MAGNITUDE_KERNELS_ROW_MATH_LANES_H_
#define MAGNITUDE_KERNELS_ROW_MATH_LANES_H_

#include <math.h>
#include <string.h>

#include "exponential.h"
#include "lanes.h"
#include "row_math.h"

namespace magnitude {
namespace {

// Eight numbers at x, of which the first `count` are there; the others are 0.
template <class Lanes>
inline typename Lanes::F load_some(const float* x, int64_t count) {
  float part[kLanes] = {};
  memcpy(part, x, static_cast<size_t>(count) * sizeof(float));
  return Lanes::load(part);
}

template <class Lanes>
inline void store_some(float* to, typename Lanes::F a, int64_t count) {
  float part[kLanes];
  Lanes::store(part, a);
  memcpy(to, part, static_cast<size_t>(count) * sizeof(float));
}

template <class Lanes>
void norm_lanes(const float* x, int64_t k, const float* gain, float epsilon, float* out) {
  using F = typename Lanes::F;
  const int64_t whole = k / kLanes * kLanes;
  F squares = Lanes::all(0);
  for (int64_t i = 0; i < whole; i += kLanes) {
    const F part = Lanes::load(x + i);
    squares = Lanes::fma(part, part, squares);
  }
  if (whole < k) {
    const F part = load_some<Lanes>(x + whole, k - whole);
    squares = Lanes::fma(part, part, squares);
  }
  const float mean = Lanes::sum(squares) / static_cast<float>(k);
  const F inverse = Lanes::all(1.0f / sqrtf(mean + epsilon));
  for (int64_t i = 0; i < whole; i += kLanes) {
    Lanes::store(out + i, Lanes::mul(Lanes::mul(Lanes::load(x + i), inverse), Lanes::load(gain + i)));
  }
  if (whole < k) {
    const int64_t rest = k - whole;
    const F scaled = Lanes::mul(load_some<Lanes>(x + whole, rest), inverse);
    store_some<Lanes>(out + whole, Lanes::mul(scaled, load_some<Lanes>(gain + whole, rest)), rest);
  }
}

template <class Lanes>
inline typename Lanes::F gated(typename Lanes::F gate, typename Lanes::F up) {
  using F = typename Lanes::F;
  // min(−gate · log₂ e, 126), by the maximum of the opposites: what a NaN passes through is the second argument.
  const F opposite = Lanes::max(Lanes::all(-126.0f), Lanes::mul(gate, Lanes::all(kLog2E)));
  const F power = power_of_two<Lanes>(Lanes::sub(Lanes::all(0), opposite));
  return Lanes::mul(Lanes::div(gate, Lanes::add(Lanes::all(1), power)), up);
}

template <class Lanes>
void gate_lanes(const float* gate, const float* up, int64_t n, float* y) {
  const int64_t whole = n / kLanes * kLanes;
  for (int64_t i = 0; i < whole; i += kLanes) {
    Lanes::store(y + i, gated<Lanes>(Lanes::load(gate + i), Lanes::load(up + i)));
  }
  if (whole == n) return;
  const int64_t rest = n - whole;
  store_some<Lanes>(y + whole, gated<Lanes>(load_some<Lanes>(gate + whole, rest), load_some<Lanes>(up + whole, rest)),
                    rest);
}

template <class Lanes>
constexpr RowMath row_math() {
  return RowMath{norm_lanes<Lanes>, gate_lanes<Lanes>};
}

}  // namespace
}  // namespace magnitude

#endif  // MAGNITUDE_KERNELS_ROW_MATH_LANES_H_
