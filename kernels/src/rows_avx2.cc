// Compiled for AVX2: nothing here but intrinsics, so that no shared function gets these instructions.
#include <immintrin.h>
#include <string.h>

#include "packed.h"
#include "rows.h"

namespace magnitude {
namespace {

inline uint32_t largest_of(__m256i bits) {
  __m128i four = _mm_max_epu32(_mm256_castsi256_si128(bits), _mm256_extracti128_si256(bits, 1));
  four = _mm_max_epu32(four, _mm_shuffle_epi32(four, 0x4e));
  four = _mm_max_epu32(four, _mm_shuffle_epi32(four, 0xb1));
  return static_cast<uint32_t>(_mm_cvtsi128_si32(four));
}

inline int32_t sum_of(__m256i bytes) {
  // Sums of adjacent bytes fit: at most 2 · 127.
  const __m256i pairs = _mm256_maddubs_epi16(_mm256_set1_epi8(1), bytes);
  const __m256i fours = _mm256_madd_epi16(pairs, _mm256_set1_epi16(1));
  __m128i sums = _mm_add_epi32(_mm256_castsi256_si128(fours), _mm256_extracti128_si256(fours, 1));
  sums = _mm_add_epi32(sums, _mm_shuffle_epi32(sums, 0x4e));
  sums = _mm_add_epi32(sums, _mm_shuffle_epi32(sums, 0xb1));
  return _mm_cvtsi128_si32(sums);
}

inline void round_block(const float* part, int8_t* values, float* scale, int32_t* sum) {
  __m256 x[4];
  __m256i bits = _mm256_setzero_si256();
  for (int i = 0; i < 4; ++i) {
    x[i] = _mm256_loadu_ps(part + 8 * i);
    bits = _mm256_max_epu32(bits, _mm256_and_si256(_mm256_castps_si256(x[i]), _mm256_set1_epi32(0x7fffffff)));
  }
  const uint32_t largest_bits = largest_of(bits);
  float largest;
  memcpy(&largest, &largest_bits, sizeof largest);
  if (largest_bits >= kInfinityBits || largest < kSmallestMaximum) {
    *scale = largest_bits >= kInfinityBits ? __builtin_nanf("") : 0;
    *sum = 0;
    memset(values, 0, kBlock);
    return;
  }
  *scale = largest / 127.0f;
  const __m256 inverse = _mm256_set1_ps(127.0f / largest);
  __m256i rounded[4];
  for (int i = 0; i < 4; ++i) rounded[i] = _mm256_cvtps_epi32(_mm256_mul_ps(x[i], inverse));
  // Packing works within halves of 128 bits; the permutation brings groups of 4 back into their order.
  const __m256i low = _mm256_packs_epi32(rounded[0], rounded[1]);
  const __m256i high = _mm256_packs_epi32(rounded[2], rounded[3]);
  const __m256i order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
  const __m256i bytes = _mm256_permutevar8x32_epi32(_mm256_packs_epi16(low, high), order);
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(values), bytes);
  *sum = sum_of(bytes);
}

}  // namespace

void round_row_avx2(const float* x, int64_t k, int64_t row, const Rows& out) {
  int8_t* values = out.values + row * out.blocks * kBlock;
  float* scales = out.scales + row * out.blocks;
  int32_t* sums = out.sums + row * out.blocks;
  const int64_t whole = k / kBlock;
  for (int64_t block = 0; block < whole; ++block) {
    round_block(x + block * kBlock, values + block * kBlock, scales + block, sums + block);
  }
  if (whole < out.blocks) {
    float part[kBlock] = {};
    memcpy(part, x + whole * kBlock, static_cast<size_t>(k - whole * kBlock) * sizeof(float));
    round_block(part, values + whole * kBlock, scales + whole, sums + whole);
  }
}

}  // namespace magnitude
