// Compiled twice: for AVX-VNNI (-DMAGNITUDE_AVXVNNI; small cores without AVX-512) and for AVX-512 VNNI with vectors of
// 256 bits, which have twice the registers. Nothing here but intrinsics, so that no shared function gets these
// instructions.
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

// sum + Σ of four products of unsigned and signed bytes, exact in 32 bits.
inline __m256i add_dot(__m256i sum, __m256i unsigned_bytes, __m256i signed_bytes) {
#if defined(MAGNITUDE_AVXVNNI)
  return _mm256_dpbusd_avx_epi32(sum, unsigned_bytes, signed_bytes);
#else
  return _mm256_dpbusd_epi32(sum, unsigned_bytes, signed_bytes);
#endif
}

// A block's weights as unsigned bytes, one vector a group: INT4 as they are, INT8 with 128 added.
template <Kind kind>
inline void unpack(const uint8_t* values, __m256i* groups) {
  if (kind == Kind::kInt8) {
    for (int g = 0; g < 8; ++g) groups[g] = _mm256_xor_si256(load(values + 32 * g), _mm256_set1_epi8(-128));
    return;
  }
  const __m256i mask = _mm256_set1_epi8(0xf);
  for (int j = 0; j < 4; ++j) {
    const __m256i pairs = load(values + 32 * j);
    groups[j] = _mm256_and_si256(pairs, mask);
    groups[j + 4] = _mm256_and_si256(_mm256_srli_epi16(pairs, 4), mask);
  }
}

template <Kind kind>
struct Tile {
  template <int kCount>
  static inline void run(const ProductPart& part, int64_t tile, int64_t row, const TileOut& out) {
    // What unpack() has added to each weight, taken away again as a multiple of Σ a.
    const int32_t excess = kind == Kind::kInt8 ? 128 : kind == Kind::kInt4 ? 8 : 0;
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
      __m256i groups[8];
      unpack<kind>(start + weights.values_offset, groups);
      const __m256 weight_scale = halves(start);
      for (int i = 0; i < kCount; ++i) {
        const int64_t at = i * rows.blocks + block;
        const __m256 row_scale = _mm256_set1_ps(scales[at]);
        // Two chains, as each sum has to wait for the one before it.
        __m256i even = _mm256_set1_epi32(-excess * sums[at]);
        __m256i odd = _mm256_setzero_si256();
        for (int g = 0; g < 8; g += 2) {
          even = add_dot(even, groups[g], group_of(a + at * kBlock, g));
          odd = add_dot(odd, groups[g + 1], group_of(a + at * kBlock, g + 1));
        }
        const __m256 dot = _mm256_cvtepi32_ps(_mm256_add_epi32(even, odd));
        sum[i] = _mm256_fmadd_ps(_mm256_mul_ps(weight_scale, row_scale), dot, sum[i]);
        if (kind == Kind::kInt4Minimum) {
          const __m256 minimum = halves(start + weights.minima_offset);
          const __m256 a_sum = _mm256_set1_ps(static_cast<float>(sums[at]));
          sum[i] = _mm256_fmadd_ps(_mm256_mul_ps(minimum, row_scale), a_sum, sum[i]);
        }
      }
    }
    for (int i = 0; i < kCount; ++i) _mm256_storeu_ps(out.y + i * out.stride, sum[i]);
  }
};

#if defined(MAGNITUDE_AVXVNNI)
constexpr int kRowsAtOnce = 4;  // 16 registers
#else
constexpr int kRowsAtOnce = 8;  // 32 registers
#endif

}  // namespace

#if defined(MAGNITUDE_AVXVNNI)
void product_avxvnni(const ProductPart& part) {
#else
void product_avx512vnni(const ProductPart& part) {
#endif
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
