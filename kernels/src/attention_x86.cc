// Attention with AVX2 and FMA. Compiled with -mavx2 -mfma.
#include "attention_arithmetic.h"

namespace magnitude {
namespace {

struct Avx2Bytes {
  struct Queries {
    alignas(32) int16_t words[kMaxQueries][kMaxHeadSize];
  };

  static void set_query(Queries* queries, int i, const int16_t* words, int64_t size) {
    memcpy(queries->words[i], words, static_cast<size_t>((size + 15) / 16 * 16) * sizeof(int16_t));
  }

  // Sixteen bytes as words; of the last half vector of a row eight, and zeros.
  static __m256i words_at(const int8_t* from) {
    return _mm256_cvtepi8_epi16(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from)));
  }
  static __m256i half_words_at(const int8_t* from) {
    return _mm256_cvtepi8_epi16(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(from)));
  }

  static __m256i product_sum(__m256i sum, __m256i a, __m256i b) {
    return _mm256_add_epi32(sum, _mm256_madd_epi16(a, b));
  }

  // Adds neighbours (kEvery 1: lanes 0 and 1, …; 2: pairs of lanes) of a and of b; lanes of a and b alternate in what
  // comes out. Blends and one shuffle: a horizontal addition has two shuffles, and they are what there are too few of.
  template <int kEvery>
  static __m256i neighbours(__m256i a, __m256i b) {
    constexpr int kBlend = kEvery == 1 ? 0xaa : 0xcc;
    const __m256i kept = _mm256_blend_epi32(a, b, kBlend);
    const __m256i moved = _mm256_blend_epi32(b, a, kBlend);
    return _mm256_add_epi32(kept, _mm256_shuffle_epi32(moved, kEvery == 1 ? 0xb1 : 0x4e));
  }

  // Lane i: the sum of the lanes of a[i].
  static __m256i sums(const __m256i (&a)[8]) {
    const __m256i low = neighbours<2>(neighbours<1>(a[0], a[1]), neighbours<1>(a[2], a[3]));
    const __m256i high = neighbours<2>(neighbours<1>(a[4], a[5]), neighbours<1>(a[6], a[7]));
    return _mm256_add_epi32(_mm256_blend_epi32(low, high, 0xf0), _mm256_permute2x128_si256(low, high, 0x21));
  }

  // kQueries queries with 8 / kQueries rows: eight sums, of the first query first.
  template <int kQueries>
  static __m256i dots(const int16_t* words, const int8_t* const* rows, int64_t size) {
    constexpr int kRows = 8 / kQueries;
    __m256i partial[8];
#pragma GCC unroll 8
    for (__m256i& sum : partial) sum = _mm256_setzero_si256();
    int64_t d = 0;
    const auto step = [&](auto load) __attribute__((always_inline)) {
      __m256i query[kQueries];
#pragma GCC unroll 8
      for (int i = 0; i < kQueries; ++i) {
        query[i] = _mm256_load_si256(reinterpret_cast<const __m256i*>(words + i * kMaxHeadSize + d));
      }
#pragma GCC unroll 8
      for (int j = 0; j < kRows; ++j) {
        const __m256i key = load(rows[j] + d);
#pragma GCC unroll 8
        for (int i = 0; i < kQueries; ++i) partial[i * kRows + j] = product_sum(partial[i * kRows + j], query[i], key);
      }
    };
    for (; d + 16 <= size; d += 16) step(words_at);
    if (d < size) step(half_words_at);
    return sums(partial);
  }

  static void scores(const Queries& queries, int n, const int8_t* keys, int64_t stride, int64_t size, int64_t begin,
                     int64_t end, int32_t* out) {
    for (int64_t p = lanes_below(begin); p < end; p += 8) {
      const int8_t* rows[8];
      for (int j = 0; j < 8; ++j) rows[j] = keys + smaller(larger(p + j, begin), end - 1) * stride;
      int i = 0;
      for (; i + 2 <= n; i += 2) {
        const __m256i low = dots<2>(queries.words[i], rows, size);
        const __m256i high = dots<2>(queries.words[i], rows + 4, size);
        int32_t* to = out + i * kSegment + p;
        _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), _mm256_permute2x128_si256(low, high, 0x20));
        _mm256_storeu_si256(reinterpret_cast<__m256i*>(to + kSegment), _mm256_permute2x128_si256(low, high, 0x31));
      }
      if (i < n) {
        _mm256_storeu_si256(reinterpret_cast<__m256i*>(out + i * kSegment + p), dots<1>(queries.words[i], rows, size));
      }
    }
  }

  // Sixteen columns (or, kHalf, eight) of kQueries queries, two positions at a time.
  template <int kQueries, bool kHalf>
  static void weigh_columns(const int16_t* weights, const int8_t* values, int64_t stride, int64_t begin, int64_t end,
                            int32_t* out, int64_t out_stride) {
    constexpr int kParts = kHalf ? 1 : 2;
    __m256i sums[kQueries][kParts];
#pragma GCC unroll 8
    for (auto& row : sums) {
#pragma GCC unroll 8
      for (__m256i& sum : row) sum = _mm256_setzero_si256();
    }
    const auto step = [&](int64_t p, const int8_t* even, const int8_t* odd) __attribute__((always_inline)) {
      __m128i a, b;
      if (kHalf) {
        a = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(even));
        b = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(odd));
      } else {
        a = _mm_loadu_si128(reinterpret_cast<const __m128i*>(even));
        b = _mm_loadu_si128(reinterpret_cast<const __m128i*>(odd));
      }
      __m256i pairs[kParts];
      pairs[0] = _mm256_cvtepi8_epi16(_mm_unpacklo_epi8(a, b));
      if (!kHalf) pairs[kParts - 1] = _mm256_cvtepi8_epi16(_mm_unpackhi_epi8(a, b));
#pragma GCC unroll 8
      for (int i = 0; i < kQueries; ++i) {
        int32_t two;
        memcpy(&two, weights + i * kSegment + p, sizeof two);
        const __m256i weight = _mm256_set1_epi32(two);
#pragma GCC unroll 8
        for (int c = 0; c < kParts; ++c) sums[i][c] = product_sum(sums[i][c], pairs[c], weight);
      }
    };
    // At an odd begin or end the neighbour is not read: its weight is zero, any row will do.
    int64_t p = begin / 2 * 2;
    if (p < begin) {
      step(p, values + begin * stride, values + begin * stride);
      p += 2;
    }
    for (; p + 2 <= end; p += 2) step(p, values + p * stride, values + (p + 1) * stride);
    if (p < end) step(p, values + p * stride, values + p * stride);
#pragma GCC unroll 8
    for (int i = 0; i < kQueries; ++i) {
#pragma GCC unroll 8
      for (int c = 0; c < kParts; ++c) {
        _mm256_storeu_si256(reinterpret_cast<__m256i*>(out + i * out_stride + 8 * c), sums[i][c]);
      }
    }
  }

  template <int kQueries>
  static void weigh_queries(const int16_t* weights, const int8_t* values, int64_t stride, int64_t size, int64_t begin,
                            int64_t end, int32_t* out) {
    int64_t d = 0;
    for (; d + 16 <= size; d += 16) {
      weigh_columns<kQueries, false>(weights, values + d, stride, begin, end, out + d, size);
    }
    if (d < size) weigh_columns<kQueries, true>(weights, values + d, stride, begin, end, out + d, size);
  }

  static void weigh(const int16_t* weights, int n, const int8_t* values, int64_t stride, int64_t size, int64_t begin,
                    int64_t end, int32_t* out) {
    // Three at a time have their sums in registers; four, with AVX2's sixteen, do not, and take twice as long each.
    int i = 0;
    for (; i + 3 <= n; i += 3) {
      weigh_queries<3>(weights + i * kSegment, values, stride, size, begin, end, out + i * size);
    }
    if (n - i == 2) weigh_queries<2>(weights + i * kSegment, values, stride, size, begin, end, out + i * size);
    if (n - i == 1) weigh_queries<1>(weights + i * kSegment, values, stride, size, begin, end, out + i * size);
  }
};

constexpr AttentionPath kPath = {attend_with<Avx2Lanes, Avx2Bytes>, merge_with<Avx2Lanes, Avx2Bytes>};

}  // namespace

const AttentionPath* attention_avx2() { return &kPath; }

}  // namespace magnitude
