// Attention with what every aarch64 processor has (Cortex-A53 and A72 have no more).
#include "attention_arithmetic.h"

namespace magnitude {
namespace {

struct NeonBytes {
  struct Queries {
    alignas(16) int16_t words[kMaxQueries][kMaxHeadSize];
  };

  static void set_query(Queries* queries, int i, const int16_t* words, int64_t size) {
    memcpy(queries->words[i], words, static_cast<size_t>(size) * sizeof(int16_t));
  }

  static int32x4_t product_sum(int32x4_t sum, int16x8_t a, int16x8_t b) {
    return vmlal_high_s16(vmlal_s16(sum, vget_low_s16(a), vget_low_s16(b)), a, b);
  }

  // kQueries queries with four rows: lane j of a result is the product with row j.
  template <int kQueries>
  static void dots(const int16_t* words, const int8_t* const* rows, int64_t size, int32_t* out) {
    int32x4_t partial[kQueries][4];
    for (auto& row : partial) {
      for (int32x4_t& sum : row) sum = vdupq_n_s32(0);
    }
    for (int64_t d = 0; d < size; d += 8) {
      int16x8_t query[kQueries];
      for (int i = 0; i < kQueries; ++i) query[i] = vld1q_s16(words + i * kMaxHeadSize + d);
      for (int j = 0; j < 4; ++j) {
        const int16x8_t key = vmovl_s8(vld1_s8(rows[j] + d));
        for (int i = 0; i < kQueries; ++i) partial[i][j] = product_sum(partial[i][j], query[i], key);
      }
    }
    for (int i = 0; i < kQueries; ++i) {
      vst1q_s32(out + i * kSegment,
                vpaddq_s32(vpaddq_s32(partial[i][0], partial[i][1]), vpaddq_s32(partial[i][2], partial[i][3])));
    }
  }

  static void scores(const Queries& queries, int n, const int8_t* keys, int64_t stride, int64_t size, int64_t begin,
                     int64_t end, int32_t* out) {
    // Eights of positions, as the contract wants, in two fours.
    for (int64_t p = lanes_below(begin); p < lanes_above(end); p += 4) {
      const int8_t* rows[4];
      for (int j = 0; j < 4; ++j) rows[j] = keys + smaller(larger(p + j, begin), end - 1) * stride;
      int i = 0;
      for (; i + 4 <= n; i += 4) dots<4>(queries.words[i], rows, size, out + i * kSegment + p);
      for (; i + 2 <= n; i += 2) dots<2>(queries.words[i], rows, size, out + i * kSegment + p);
      if (i < n) dots<1>(queries.words[i], rows, size, out + i * kSegment + p);
    }
  }

  // Eight columns of kQueries queries.
  template <int kQueries>
  static void weigh_columns(const int16_t* weights, const int8_t* values, int64_t stride, int64_t begin, int64_t end,
                            int32_t* out, int64_t out_stride) {
    int32x4_t low[kQueries], high[kQueries];
    for (int i = 0; i < kQueries; ++i) low[i] = high[i] = vdupq_n_s32(0);
    for (int64_t p = begin; p < end; ++p) {
      const int16x8_t value = vmovl_s8(vld1_s8(values + p * stride));
      for (int i = 0; i < kQueries; ++i) {
        const int16x8_t weight = vld1q_dup_s16(weights + i * kSegment + p);
        low[i] = vmlal_s16(low[i], vget_low_s16(value), vget_low_s16(weight));
        high[i] = vmlal_high_s16(high[i], value, weight);
      }
    }
    for (int i = 0; i < kQueries; ++i) {
      vst1q_s32(out + i * out_stride, low[i]);
      vst1q_s32(out + i * out_stride + 4, high[i]);
    }
  }

  template <int kQueries>
  static void weigh_queries(const int16_t* weights, const int8_t* values, int64_t stride, int64_t size, int64_t begin,
                            int64_t end, int32_t* out) {
    for (int64_t d = 0; d < size; d += 8) {
      weigh_columns<kQueries>(weights, values + d, stride, begin, end, out + d, size);
    }
  }

  static void weigh(const int16_t* weights, int n, const int8_t* values, int64_t stride, int64_t size, int64_t begin,
                    int64_t end, int32_t* out) {
    int i = 0;
    for (; i + 4 <= n; i += 4) {
      weigh_queries<4>(weights + i * kSegment, values, stride, size, begin, end, out + i * size);
    }
    weights += i * kSegment;
    out += i * size;
    if (n - i == 3) weigh_queries<3>(weights, values, stride, size, begin, end, out);
    if (n - i == 2) weigh_queries<2>(weights, values, stride, size, begin, end, out);
    if (n - i == 1) weigh_queries<1>(weights, values, stride, size, begin, end, out);
  }
};

constexpr AttentionPath kPath = {attend_with<NeonLanes, NeonBytes>, merge_with<NeonLanes, NeonBytes>};

}  // namespace

const AttentionPath* attention_neon() { return &kPath; }

}  // namespace magnitude
