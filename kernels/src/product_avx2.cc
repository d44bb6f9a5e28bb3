// Compiled for AVX2, FMA and F16C: nothing here but intrinsics, so that no shared function gets these instructions.
#include <immintrin.h>

#include "tile_store.h"

namespace magnitude {
namespace {

inline __m256i load(const void* bytes) { return _mm256_loadu_si256(static_cast<const __m256i*>(bytes)); }

// The same four values (one group along k) for all eight outputs.
inline __m256i group_of(const int8_t* values, int group) {
  int32_t four;
  memcpy(&four, values + 4 * group, sizeof four);
  return _mm256_set1_epi32(four);
}

// Asks for what is read a page later. With one row the processor does that better by itself, with several it loses
// sight of the weights between the rows: 1.4 times as fast with four rows of 4864.
constexpr int64_t kPrefetch = 4096;

inline void prefetch(const uint8_t* at, int64_t bytes) {
  for (int64_t i = 0; i < bytes; i += 64) _mm_prefetch(reinterpret_cast<const char*>(at + i), _MM_HINT_T0);
}

inline __m256 halves(const uint8_t* at) {
  return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(at)));
}

// One block's weights in registers, for any number of rows.
template <Kind kind>
struct Block;

struct Int4Block {
  __m256i groups[8];
  explicit Int4Block(const uint8_t* values) {
    const __m256i mask = _mm256_set1_epi8(0xf);
    for (int j = 0; j < 4; ++j) {
      const __m256i pairs = load(values + 32 * j);
      groups[j] = _mm256_and_si256(pairs, mask);
      groups[j + 4] = _mm256_and_si256(_mm256_srli_epi16(pairs, 4), mask);
    }
  }
  __m256i dot(const int8_t* a) const {
    // 16 products of at most 15 · 127 stay below 2¹⁵, so a whole block adds up in 16 bits.
    __m256i even = _mm256_maddubs_epi16(groups[0], group_of(a, 0));
    __m256i odd = _mm256_maddubs_epi16(groups[1], group_of(a, 1));
    for (int g = 2; g < 8; g += 2) {
      even = _mm256_add_epi16(even, _mm256_maddubs_epi16(groups[g], group_of(a, g)));
      odd = _mm256_add_epi16(odd, _mm256_maddubs_epi16(groups[g + 1], group_of(a, g + 1)));
    }
    return _mm256_madd_epi16(_mm256_add_epi16(even, odd), _mm256_set1_epi16(1));
  }
};

template <>
struct Block<Kind::kInt4> : Int4Block {
  using Int4Block::Int4Block;
};

template <>
struct Block<Kind::kInt4Minimum> : Int4Block {
  using Int4Block::Int4Block;
};

template <>
struct Block<Kind::kInt8> {
  const uint8_t* values;
  explicit Block(const uint8_t* at) : values(at) {}
  __m256i dot(const int8_t* a) const {
    __m256i sum = _mm256_setzero_si256();
    for (int g = 0; g < 8; ++g) {
      // |w| · (a with the sign of w): two products of at most 128 · 127 fit into 16 bits.
      const __m256i w = load(values + 32 * g);
      const __m256i pairs = _mm256_maddubs_epi16(_mm256_abs_epi8(w), _mm256_sign_epi8(group_of(a, g), w));
      sum = _mm256_add_epi32(sum, _mm256_madd_epi16(pairs, _mm256_set1_epi16(1)));
    }
    return sum;
  }
};

template <Kind kind>
struct Tile {
  template <int kCount>
  static inline void run(const ProductPart& part, int64_t tile, int64_t row, const TileOut& out) {
    const Packed& weights = *part.weights;
    const Rows& rows = *part.rows;
    const uint8_t* start = weights.data + tile * weights.tile_bytes;
    const int8_t* a = rows.values + row * rows.blocks * kBlock;
    const float* scales = rows.scales + row * rows.blocks;
    const int32_t* sums = rows.sums + row * rows.blocks;
    __m256 sum[kCount];
    for (int i = 0; i < kCount; ++i) sum[i] = _mm256_setzero_ps();
    for (int64_t block = 0; block < weights.blocks; ++block, start += weights.block_bytes) {
      if (kCount > 1) prefetch(start + kPrefetch, weights.block_bytes);
      const Block<kind> w(start + weights.values_offset);
      const __m256 weight_scale = halves(start);
      for (int i = 0; i < kCount; ++i) {
        const int64_t at = i * rows.blocks + block;
        const __m256 row_scale = _mm256_set1_ps(scales[at]);
        __m256i dot = w.dot(a + at * kBlock);
        const __m256i a_sum = _mm256_set1_epi32(sums[at]);
        if (kind == Kind::kInt4) dot = _mm256_sub_epi32(dot, _mm256_slli_epi32(a_sum, 3));  // 8 · Σ a
        sum[i] = _mm256_fmadd_ps(_mm256_mul_ps(weight_scale, row_scale), _mm256_cvtepi32_ps(dot), sum[i]);
        if (kind == Kind::kInt4Minimum) {
          const __m256 minimum = halves(start + weights.minima_offset);
          sum[i] = _mm256_fmadd_ps(_mm256_mul_ps(minimum, row_scale), _mm256_cvtepi32_ps(a_sum), sum[i]);
        }
      }
    }
    for (int i = 0; i < kCount; ++i) _mm256_storeu_ps(out.y + i * out.stride, sum[i]);
  }
};

// Four rows: with more, their sums and a block's eight vectors no longer fit into 16 registers.
constexpr int kRowsAtOnce = 4;

}  // namespace

void product_avx2(const ProductPart& part) {
  switch (part.weights->kind) {
    case Kind::kInt4:
      return compute_part<Tile<Kind::kInt4>, kRowsAtOnce>(part);
    case Kind::kInt4Minimum:
      return compute_part<Tile<Kind::kInt4Minimum>, kRowsAtOnce>(part);
    case Kind::kInt8:
      return compute_part<Tile<Kind::kInt8>, kRowsAtOnce>(part);
  }
}

}  // namespace magnitude
