// Attention with the dot products of Armv8.2 (Cortex-A55, A76 and later). Compiled with
// -march=armv8.2-a+dotprod.
//
// A dot product multiplies signed bytes, so words (queries, weights) go as two of them: word = 128 · high + low, high
// in -127…127, low in -64…63. Two instructions do what eight and as many conversions would do with words.
#include "attention_arithmetic.h"

namespace magnitude {
namespace {

// Splits 8 words.
inline void split(const int16_t* words, int8_t* high, int8_t* low) {
  const int16x8_t word = vld1q_s16(words);
  const int16x8_t upper = vshrq_n_s16(vaddq_s16(word, vdupq_n_s16(64)), 7);
  vst1_s8(high, vmovn_s16(upper));
  vst1_s8(low, vmovn_s16(vsubq_s16(word, vshlq_n_s16(upper, 7))));
}

inline int32x4_t join(int32x4_t high, int32x4_t low) { return vaddq_s32(vshlq_n_s32(high, 7), low); }

// Sixteen bytes; of the last half vector of a row eight, and zeros.
inline int8x16_t bytes_at(const int8_t* from) { return vld1q_s8(from); }
inline int8x16_t half_bytes_at(const int8_t* from) { return vcombine_s8(vld1_s8(from), vdup_n_s8(0)); }

struct DotprodBytes {
  struct Queries {
    alignas(16) int8_t high[kMaxQueries][kMaxHeadSize];
    alignas(16) int8_t low[kMaxQueries][kMaxHeadSize];
  };

  static void set_query(Queries* queries, int i, const int16_t* words, int64_t size) {
    for (int64_t d = 0; d < (size + 15) / 16 * 16; d += 8) split(words + d, queries->high[i] + d, queries->low[i] + d);
  }

  // kQueries queries with four rows: lane j of a result is the product with row j.
  template <int kQueries>
  static void dots(const Queries& queries, int first, const int8_t* const* rows, int64_t size, int32_t* out) {
    int32x4_t high[kQueries][4], low[kQueries][4];
    for (int i = 0; i < kQueries; ++i) {
      for (int j = 0; j < 4; ++j) high[i][j] = low[i][j] = vdupq_n_s32(0);
    }
    int64_t d = 0;
    const auto step = [&](auto load) {
      int8x16_t query_high[kQueries], query_low[kQueries];
      for (int i = 0; i < kQueries; ++i) {
        query_high[i] = vld1q_s8(queries.high[first + i] + d);
        query_low[i] = vld1q_s8(queries.low[first + i] + d);
      }
      for (int j = 0; j < 4; ++j) {
        const int8x16_t key = load(rows[j] + d);
        for (int i = 0; i < kQueries; ++i) {
          high[i][j] = vdotq_s32(high[i][j], query_high[i], key);
          low[i][j] = vdotq_s32(low[i][j], query_low[i], key);
        }
      }
    };
    for (; d + 16 <= size; d += 16) step(bytes_at);
    if (d < size) step(half_bytes_at);
    for (int i = 0; i < kQueries; ++i) vst1q_s32(out + i * kSegment, join(sums(high[i]), sums(low[i])));
  }

  static int32x4_t sums(const int32x4_t (&a)[4]) { return vpaddq_s32(vpaddq_s32(a[0], a[1]), vpaddq_s32(a[2], a[3])); }

  static void scores(const Queries& queries, int n, const int8_t* keys, int64_t stride, int64_t size, int64_t begin,
                     int64_t end, int32_t* out) {
    // Eights of positions, as the contract wants, in two fours.
    for (int64_t p = lanes_below(begin); p < lanes_above(end); p += 4) {
      const int8_t* rows[4];
      for (int j = 0; j < 4; ++j) rows[j] = keys + smaller(larger(p + j, begin), end - 1) * stride;
      int i = 0;
      for (; i + 2 <= n; i += 2) dots<2>(queries, i, rows, size, out + i * kSegment + p);
      if (i < n) dots<1>(queries, i, rows, size, out + i * kSegment + p);
    }
  }

  // Four positions' bytes of sixteen columns, so that the four of a column are together: columns 4c…4c+3 in result[c].
  struct Turned {
    int8x16_t columns[4];
  };
  static Turned turn(int8x16_t a, int8x16_t b, int8x16_t c, int8x16_t d) {
    const int8x16_t even_low = vzip1q_s8(a, c), even_high = vzip2q_s8(a, c);
    const int8x16_t odd_low = vzip1q_s8(b, d), odd_high = vzip2q_s8(b, d);
    return {{vzip1q_s8(even_low, odd_low), vzip2q_s8(even_low, odd_low), vzip1q_s8(even_high, odd_high),
             vzip2q_s8(even_high, odd_high)}};
  }

  struct Weights {
    alignas(16) int8_t high[kMaxQueries][kSegment];
    alignas(16) int8_t low[kMaxQueries][kSegment];
  };

  static int8x16_t four_of(const int8_t* from) {
    int32_t four;
    memcpy(&four, from, sizeof four);
    return vreinterpretq_s8_s32(vdupq_n_s32(four));
  }

  // Sixteen columns (or, kHalf, eight) of kQueries queries, four positions at a time.
  template <int kQueries, bool kHalf>
  static void weigh_columns(const Weights& weights, int first, const int8_t* values, int64_t stride, int64_t begin,
                            int64_t end, int32_t* out, int64_t out_stride) {
    constexpr int kParts = kHalf ? 2 : 4;
    int32x4_t high[kQueries][kParts], low[kQueries][kParts];
    for (int i = 0; i < kQueries; ++i) {
      for (int c = 0; c < kParts; ++c) high[i][c] = low[i][c] = vdupq_n_s32(0);
    }
    const auto load = [](const int8_t* from) { return kHalf ? half_bytes_at(from) : bytes_at(from); };
    const auto step = [&](int64_t p, const int8_t* first_row, const int8_t* second_row, const int8_t* third_row,
                          const int8_t* fourth_row) {
      const Turned turned = turn(load(first_row), load(second_row), load(third_row), load(fourth_row));
      for (int i = 0; i < kQueries; ++i) {
        const int8x16_t weight_high = four_of(weights.high[first + i] + p);
        const int8x16_t weight_low = four_of(weights.low[first + i] + p);
        for (int c = 0; c < kParts; ++c) {
          high[i][c] = vdotq_s32(high[i][c], turned.columns[c], weight_high);
          low[i][c] = vdotq_s32(low[i][c], turned.columns[c], weight_low);
        }
      }
    };
    // Beyond begin and end no row is read: the weight is zero, any other row will do.
    const auto edge = [&](int64_t p) {
      const auto row = [&](int64_t at) { return values + smaller(larger(at, begin), end - 1) * stride; };
      step(p, row(p), row(p + 1), row(p + 2), row(p + 3));
    };
    int64_t p = begin / 4 * 4;
    if (p < begin) {
      edge(p);
      p += 4;
    }
    for (; p + 4 <= end; p += 4) {
      const int8_t* from = values + p * stride;
      step(p, from, from + stride, from + 2 * stride, from + 3 * stride);
    }
    if (p < end) edge(p);
    for (int i = 0; i < kQueries; ++i) {
      for (int c = 0; c < kParts; ++c) vst1q_s32(out + i * out_stride + 4 * c, join(high[i][c], low[i][c]));
    }
  }

  template <int kQueries>
  static void weigh_queries(const Weights& weights, int first, const int8_t* values, int64_t stride, int64_t size,
                            int64_t begin, int64_t end, int32_t* out) {
    int64_t d = 0;
    for (; d + 16 <= size; d += 16) {
      weigh_columns<kQueries, false>(weights, first, values + d, stride, begin, end, out + d, size);
    }
    if (d < size) weigh_columns<kQueries, true>(weights, first, values + d, stride, begin, end, out + d, size);
  }

  static void weigh(const int16_t* words, int n, const int8_t* values, int64_t stride, int64_t size, int64_t begin,
                    int64_t end, int32_t* out) {
    Weights weights;
    for (int i = 0; i < n; ++i) {
      for (int64_t p = lanes_below(begin); p < end; p += 8) {
        split(words + i * kSegment + p, weights.high[i] + p, weights.low[i] + p);
      }
    }
    int i = 0;
    for (; i + 2 <= n; i += 2) weigh_queries<2>(weights, i, values, stride, size, begin, end, out + i * size);
    if (i < n) weigh_queries<1>(weights, i, values, stride, size, begin, end, out + i * size);
  }
};

constexpr AttentionPath kPath = {attend_with<NeonLanes, DotprodBytes>, merge_with<NeonLanes, DotprodBytes>};

}  // namespace

const AttentionPath* attention_dotprod() { return &kPath; }

}  // namespace magnitude
