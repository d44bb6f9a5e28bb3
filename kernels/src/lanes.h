// Eight float32 side by side, the width in which every order of summation of attention is defined. Three forms with
// the same operations and the same bits: plain C++ (PlainLanes), AVX2 with FMA (Avx2Lanes) and NEON (NeonLanes, two
// registers). Arithmetic is written once, as a template over one of them.
//
// What makes the bits equal: each operation is one IEEE 754 operation a lane, fma rounds once, and sums over lanes are
// a fixed tree. Only the payload of a NaN is not defined.
//
// Internal linkage on purpose: a file compiled for one instruction set must not lend its copies of inline functions to
// the others.
#ifndef MAGNITUDE_KERNELS_LANES_H_
#define MAGNITUDE_KERNELS_LANES_H_

#include <math.h>
#include <stdint.h>
#include <string.h>

#if defined(__AVX2__) && defined(__FMA__)
#include <immintrin.h>
#endif
#if defined(__aarch64__)
#include <arm_neon.h>
#endif

namespace magnitude {
namespace {

constexpr int kLanes = 8;

// 1.5 · 2²³. Added to a number between -2²² and 2²² it leaves the nearest integer, ties to even, in the lowest bits of
// the sum: a rounding that is the same everywhere and, unlike a conversion, defined for every input.
constexpr float kRounding = 12582912.0f;
constexpr int32_t kRoundingBits = 0x4b400000;

inline uint32_t float_bits(float value) {
  uint32_t bits;
  memcpy(&bits, &value, sizeof bits);
  return bits;
}

inline float bits_float(uint32_t bits) {
  float value;
  memcpy(&value, &bits, sizeof value);
  return value;
}

struct PlainLanes {
  struct F {
    float lane[kLanes];
  };

  template <class Operation>
  static F each(Operation operation) {
    F result;
    for (int i = 0; i < kLanes; ++i) result.lane[i] = operation(i);
    return result;
  }
  static F all(float value) {
    return each([=](int) { return value; });
  }
  static F load(const float* from) {
    return each([=](int i) { return from[i]; });
  }
  static void store(float* to, F a) { memcpy(to, a.lane, sizeof a.lane); }
  static F add(F a, F b) {
    return each([&](int i) { return a.lane[i] + b.lane[i]; });
  }
  static F sub(F a, F b) {
    return each([&](int i) { return a.lane[i] - b.lane[i]; });
  }
  static F mul(F a, F b) {
    return each([&](int i) { return a.lane[i] * b.lane[i]; });
  }
  static F div(F a, F b) {
    return each([&](int i) { return a.lane[i] / b.lane[i]; });
  }
  // a · b + c, rounded once.
  static F fma(F a, F b, F c) {
    return each([&](int i) { return ::fmaf(a.lane[i], b.lane[i], c.lane[i]); });
  }
  // The larger one; b where one of them is a NaN.
  static F max(F a, F b) {
    return each([&](int i) { return a.lane[i] > b.lane[i] ? a.lane[i] : b.lane[i]; });
  }
  static F abs(F a) {
    return each([&](int i) { return bits_float(float_bits(a.lane[i]) & 0x7fffffffu); });
  }
  // The larger one by its bits as an unsigned integer: of numbers that are not negative the larger one, and a NaN
  // before all numbers.
  static F max_bits(F a, F b) {
    return each([&](int i) { return float_bits(a.lane[i]) > float_bits(b.lane[i]) ? a.lane[i] : b.lane[i]; });
  }
  // x where weight > 0, else +0.
  static F where_positive(F weight, F x) {
    return each([&](int i) { return weight.lane[i] > 0 ? x.lane[i] : 0.0f; });
  }
  // 2ⁿ⁻¹ of n + kRounding, n in -126…127; 0 for n = -126.
  static F half_power_of_rounded(F a) {
    return each([&](int i) { return bits_float((float_bits(a.lane[i]) << 23) + (126u << 23)); });
  }
  static F from_ints(const int32_t* from) {
    return each([=](int i) { return static_cast<float>(from[i]); });
  }
  // The nearest integers of numbers between -2¹⁵ and 2¹⁵; any integers of all others.
  static void store_rounded(int16_t* to, F a) {
    for (int i = 0; i < kLanes; ++i) {
      to[i] = static_cast<int16_t>(static_cast<uint16_t>(float_bits(a.lane[i] + kRounding)));
    }
  }
  // ((l0 + l1) + (l2 + l3)) + ((l4 + l5) + (l6 + l7)).
  static float sum(F a) {
    const float* l = a.lane;
    return ((l[0] + l[1]) + (l[2] + l[3])) + ((l[4] + l[5]) + (l[6] + l[7]));
  }
  // Lane i: sum(a[i]).
  static F sums(const F (&a)[kLanes]) {
    return each([&](int i) { return sum(a[i]); });
  }
  static float top(F a) {
    float result = a.lane[0];
    for (int i = 1; i < kLanes; ++i) result = a.lane[i] > result ? a.lane[i] : result;
    return result;
  }
  static float top_bits(F a) {
    uint32_t result = 0;
    for (int i = 0; i < kLanes; ++i) result = float_bits(a.lane[i]) > result ? float_bits(a.lane[i]) : result;
    return bits_float(result);
  }
};

#if defined(__AVX2__) && defined(__FMA__)
struct Avx2Lanes {
  using F = __m256;

  static F all(float value) { return _mm256_set1_ps(value); }
  static F load(const float* from) { return _mm256_loadu_ps(from); }
  static void store(float* to, F a) { _mm256_storeu_ps(to, a); }
  static F add(F a, F b) { return _mm256_add_ps(a, b); }
  static F sub(F a, F b) { return _mm256_sub_ps(a, b); }
  static F mul(F a, F b) { return _mm256_mul_ps(a, b); }
  static F div(F a, F b) { return _mm256_div_ps(a, b); }
  static F fma(F a, F b, F c) { return _mm256_fmadd_ps(a, b, c); }
  static F max(F a, F b) { return _mm256_max_ps(a, b); }
  static F abs(F a) { return _mm256_and_ps(a, _mm256_castsi256_ps(_mm256_set1_epi32(0x7fffffff))); }
  static F max_bits(F a, F b) {
    return _mm256_castsi256_ps(_mm256_max_epu32(_mm256_castps_si256(a), _mm256_castps_si256(b)));
  }
  static F where_positive(F weight, F x) {
    return _mm256_and_ps(x, _mm256_cmp_ps(weight, _mm256_setzero_ps(), _CMP_GT_OQ));
  }
  static F half_power_of_rounded(F a) {
    const __m256i exponent = _mm256_slli_epi32(_mm256_castps_si256(a), 23);
    return _mm256_castsi256_ps(_mm256_add_epi32(exponent, _mm256_set1_epi32(126 << 23)));
  }
  static F from_ints(const int32_t* from) {
    return _mm256_cvtepi32_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(from)));
  }
  static void store_rounded(int16_t* to, F a) {
    const __m256i bits = _mm256_castps_si256(_mm256_add_ps(a, all(kRounding)));
    // Sign-extend the low halves, so that packing has nothing to saturate.
    const __m256i low = _mm256_srai_epi32(_mm256_slli_epi32(bits, 16), 16);
    const __m128i packed = _mm_packs_epi32(_mm256_castsi256_si128(low), _mm256_extracti128_si256(low, 1));
    _mm_storeu_si128(reinterpret_cast<__m128i*>(to), packed);
  }
  static float sum(F a) {
    __m128 low = _mm256_castps256_ps128(a);
    __m128 high = _mm256_extractf128_ps(a, 1);
    low = _mm_hadd_ps(low, high);
    low = _mm_hadd_ps(low, low);
    return _mm_cvtss_f32(_mm_add_ss(low, _mm_movehdup_ps(low)));
  }
  // Adds neighbours (kEvery 1: lanes 0 and 1, ...; 2: pairs of lanes) of a and of b; lanes of a and b alternate in what
  // comes out. Blends and one shuffle: a horizontal addition has two shuffles, and they are what there are too few of.
  template <int kEvery>
  static F neighbours(F a, F b) {
    constexpr int kBlend = kEvery == 1 ? 0xaa : 0xcc;
    const F moved = _mm256_blend_ps(b, a, kBlend);
    return add(_mm256_blend_ps(a, b, kBlend), _mm256_permute_ps(moved, kEvery == 1 ? 0xb1 : 0x4e));
  }
  static F sums(const F (&a)[kLanes]) {
    const F low = neighbours<2>(neighbours<1>(a[0], a[1]), neighbours<1>(a[2], a[3]));
    const F high = neighbours<2>(neighbours<1>(a[4], a[5]), neighbours<1>(a[6], a[7]));
    return add(_mm256_blend_ps(low, high, 0xf0), _mm256_permute2f128_ps(low, high, 0x21));
  }
  static float top(F a) {
    __m128 m = _mm_max_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
    m = _mm_max_ps(m, _mm_movehl_ps(m, m));
    return _mm_cvtss_f32(_mm_max_ss(m, _mm_movehdup_ps(m)));
  }
  static float top_bits(F a) {
    const __m256i bits = _mm256_castps_si256(a);
    __m128i m = _mm_max_epu32(_mm256_castsi256_si128(bits), _mm256_extracti128_si256(bits, 1));
    m = _mm_max_epu32(m, _mm_shuffle_epi32(m, 0x4e));
    m = _mm_max_epu32(m, _mm_shuffle_epi32(m, 0xb1));
    return _mm_cvtss_f32(_mm_castsi128_ps(m));
  }
};
#endif

#if defined(__aarch64__)
struct NeonLanes {
  struct F {
    float32x4_t low, high;
  };

  static F all(float value) { return {vdupq_n_f32(value), vdupq_n_f32(value)}; }
  static F load(const float* from) { return {vld1q_f32(from), vld1q_f32(from + 4)}; }
  static void store(float* to, F a) {
    vst1q_f32(to, a.low);
    vst1q_f32(to + 4, a.high);
  }
  static F add(F a, F b) { return {vaddq_f32(a.low, b.low), vaddq_f32(a.high, b.high)}; }
  static F sub(F a, F b) { return {vsubq_f32(a.low, b.low), vsubq_f32(a.high, b.high)}; }
  static F mul(F a, F b) { return {vmulq_f32(a.low, b.low), vmulq_f32(a.high, b.high)}; }
  static F div(F a, F b) { return {vdivq_f32(a.low, b.low), vdivq_f32(a.high, b.high)}; }
  static F fma(F a, F b, F c) { return {vfmaq_f32(c.low, a.low, b.low), vfmaq_f32(c.high, a.high, b.high)}; }
  // Not vmaxq: it returns a NaN where the others return b.
  static F max(F a, F b) {
    return {vbslq_f32(vcgtq_f32(a.low, b.low), a.low, b.low), vbslq_f32(vcgtq_f32(a.high, b.high), a.high, b.high)};
  }
  static F abs(F a) { return {vabsq_f32(a.low), vabsq_f32(a.high)}; }
  static F max_bits(F a, F b) {
    return {vreinterpretq_f32_u32(vmaxq_u32(vreinterpretq_u32_f32(a.low), vreinterpretq_u32_f32(b.low))),
            vreinterpretq_f32_u32(vmaxq_u32(vreinterpretq_u32_f32(a.high), vreinterpretq_u32_f32(b.high)))};
  }
  static F where_positive(F weight, F x) {
    const float32x4_t zero = vdupq_n_f32(0);
    return {vreinterpretq_f32_u32(vandq_u32(vcgtq_f32(weight.low, zero), vreinterpretq_u32_f32(x.low))),
            vreinterpretq_f32_u32(vandq_u32(vcgtq_f32(weight.high, zero), vreinterpretq_u32_f32(x.high)))};
  }
  static float32x4_t half_power_of_rounded(float32x4_t a) {
    const uint32x4_t exponent = vshlq_n_u32(vreinterpretq_u32_f32(a), 23);
    return vreinterpretq_f32_u32(vaddq_u32(exponent, vdupq_n_u32(126u << 23)));
  }
  static F half_power_of_rounded(F a) { return {half_power_of_rounded(a.low), half_power_of_rounded(a.high)}; }
  static F from_ints(const int32_t* from) {
    return {vcvtq_f32_s32(vld1q_s32(from)), vcvtq_f32_s32(vld1q_s32(from + 4))};
  }
  static void store_rounded(int16_t* to, F a) {
    const float32x4_t rounding = vdupq_n_f32(kRounding);
    const int32x4_t low = vreinterpretq_s32_f32(vaddq_f32(a.low, rounding));
    const int32x4_t high = vreinterpretq_s32_f32(vaddq_f32(a.high, rounding));
    vst1q_s16(to, vcombine_s16(vmovn_s32(low), vmovn_s32(high)));
  }
  static float sum(F a) {
    const float32x4_t pairs = vpaddq_f32(a.low, a.high);
    const float32x4_t fours = vpaddq_f32(pairs, pairs);
    return vgetq_lane_f32(fours, 0) + vgetq_lane_f32(fours, 1);
  }
  static float32x4_t fours(F a, F b) { return vpaddq_f32(vpaddq_f32(a.low, a.high), vpaddq_f32(b.low, b.high)); }
  static F sums(const F (&a)[kLanes]) {
    return {vpaddq_f32(fours(a[0], a[1]), fours(a[2], a[3])), vpaddq_f32(fours(a[4], a[5]), fours(a[6], a[7]))};
  }
  static float top(F a) {
    const float32x4_t m = vbslq_f32(vcgtq_f32(a.low, a.high), a.low, a.high);
    const float32x2_t two = vbsl_f32(vcgt_f32(vget_low_f32(m), vget_high_f32(m)), vget_low_f32(m), vget_high_f32(m));
    const float first = vget_lane_f32(two, 0), second = vget_lane_f32(two, 1);
    return first > second ? first : second;
  }
  static float top_bits(F a) {
    return bits_float(vmaxvq_u32(vmaxq_u32(vreinterpretq_u32_f32(a.low), vreinterpretq_u32_f32(a.high))));
  }
};
#endif

}  // namespace
}  // namespace magnitude

#endif  // MAGNITUDE_KERNELS_LANES_H_
