// 2ˣ in the lanes of lanes.h, the same bits on every path.
#ifndef MAGNITUDE_KERNELS_EXPONENTIAL_H_
#define MAGNITUDE_KERNELS_EXPONENTIAL_H_

#include "lanes.h"

namespace magnitude {
namespace {

// log₂ e, by which a factor of x makes eˣ of 2ˣ.
constexpr float kLog2E = 1.44269504f;

// 2ˣ for x ≤ 127. Relative error below 8.5e-8, the worst of every float in -125.5…0; exactly 1 for x = 0; exactly 0 for
// x ≤ -125.5, -∞ included, so that nothing is ever subnormal. NaN for NaN.
template <class Lanes>
inline typename Lanes::F power_of_two(typename Lanes::F x) {
  // The argument of max that a NaN passes through is the second one.
  x = Lanes::max(Lanes::all(-126.0f), x);
  const typename Lanes::F rounded = Lanes::add(x, Lanes::all(kRounding));
  const typename Lanes::F rest = Lanes::sub(x, Lanes::sub(rounded, Lanes::all(kRounding)));
  // Twice 2ˣ: minimax in relative error over -½…½ with the constant term fixed, 2.6e-9, a thirtieth of what rounding
  // adds. Half the power beside it is zero before the product gets subnormal.
  typename Lanes::F sum = Lanes::all(0x1.470b4ap-12f);
  sum = Lanes::fma(sum, rest, Lanes::all(0x1.5f7276p-9f));
  sum = Lanes::fma(sum, rest, Lanes::all(0x1.3b270ep-6f));
  sum = Lanes::fma(sum, rest, Lanes::all(0x1.c6ae72p-4f));
  sum = Lanes::fma(sum, rest, Lanes::all(0x1.ebfbe2p-2f));
  sum = Lanes::fma(sum, rest, Lanes::all(0x1.62e432p0f));
  sum = Lanes::fma(sum, rest, Lanes::all(2.0f));
  return Lanes::mul(sum, Lanes::half_power_of_rounded(rounded));
}

}  // namespace
}  // namespace magnitude

#endif  // MAGNITUDE_KERNELS_EXPONENTIAL_H_
