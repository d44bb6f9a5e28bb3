// float16 (IEEE 754 binary16) without instructions for it. Internal linkage on purpose: this header is also used by
// files compiled for one instruction set, whose copies must not become everybody's.
#ifndef MAGNITUDE_KERNELS_HALF_H_
#define MAGNITUDE_KERNELS_HALF_H_

#include <stdint.h>
#include <string.h>

namespace magnitude {
namespace {

// Exact: every float16 is a float32.
inline float half_to_float(uint16_t half) {
  const uint32_t sign = static_cast<uint32_t>(half & 0x8000u) << 16;
  const uint32_t exponent = (half >> 10) & 0x1fu;
  const uint32_t fraction = half & 0x3ffu;
  uint32_t bits;
  if (exponent == 0x1f) {
    bits = sign | 0x7f800000u | (fraction << 13);
  } else if (exponent != 0) {
    bits = sign | ((exponent + 112) << 23) | (fraction << 13);
  } else {
    // Zero or subnormal: fraction · 2⁻²⁴, a product that float32 holds exactly.
    const float magnitude = static_cast<float>(fraction) * 0x1p-24f;
    return sign ? -magnitude : magnitude;
  }
  float value;
  memcpy(&value, &bits, sizeof value);
  return value;
}

// Rounds to nearest, ties to even. What is too large becomes an infinity, what is no number stays none.
inline uint16_t float_to_half(float value) {
  uint32_t bits;
  memcpy(&bits, &value, sizeof bits);
  const uint16_t sign = static_cast<uint16_t>((bits >> 16) & 0x8000u);
  const uint32_t magnitude = bits & 0x7fffffffu;
  if (magnitude > 0x7f800000u) return sign | 0x7e00u;
  if (magnitude >= 0x477ff000u) return sign | 0x7c00u;  // 65520, halfway to what would be next, and all above
  if (magnitude < 0x33000001u) return sign;             // 2⁻²⁵, half of the smallest, rounds to even: to zero
  const uint32_t exponent = magnitude >> 23;
  // The fraction with its leading one, and how many of its bits float16 has no place for.
  const uint32_t fraction = (magnitude & 0x7fffffu) | 0x800000u;
  const uint32_t dropped = exponent < 113 ? 126 - exponent : 13;
  const uint32_t half_way = 1u << (dropped - 1);
  const uint32_t kept = fraction >> dropped;
  const uint32_t rest = fraction & ((1u << dropped) - 1);
  const uint32_t rounded = kept + (rest > half_way || (rest == half_way && (kept & 1)) ? 1 : 0);
  // A normal number's leading one adds itself to the exponent, and so does a carry out of the fraction.
  const uint32_t base = exponent < 113 ? 0 : (exponent - 113) << 10;
  return static_cast<uint16_t>(sign | (base + rounded));
}

}  // namespace
}  // namespace magnitude

#endif  // MAGNITUDE_KERNELS_HALF_H_
