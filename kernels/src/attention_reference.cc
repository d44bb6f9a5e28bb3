// Attention in plain C++: what the other paths are tested against, and what runs where there is none of them.
#include "attention_arithmetic.h"

namespace magnitude {
namespace {

struct PlainBytes {
  struct Queries {
    int16_t words[kMaxQueries][kMaxHeadSize];
  };

  static void set_query(Queries* queries, int i, const int16_t* words, int64_t size) {
    memcpy(queries->words[i], words, static_cast<size_t>(size) * sizeof(int16_t));
  }

  static void scores(const Queries& queries, int n, const int8_t* keys, int64_t stride, int64_t size, int64_t begin,
                     int64_t end, int32_t* out) {
    for (int i = 0; i < n; ++i) {
      for (int64_t p = lanes_below(begin); p < lanes_above(end); ++p) {
        int32_t sum = 0;
        for (int64_t d = 0; p >= begin && p < end && d < size; ++d) sum += queries.words[i][d] * keys[p * stride + d];
        out[i * kSegment + p] = sum;
      }
    }
  }

  static void weigh(const int16_t* weights, int n, const int8_t* values, int64_t stride, int64_t size, int64_t begin,
                    int64_t end, int32_t* out) {
    memset(out, 0, static_cast<size_t>(n * size) * sizeof(int32_t));
    for (int i = 0; i < n; ++i) {
      for (int64_t p = begin; p < end; ++p) {
        for (int64_t d = 0; d < size; ++d) out[i * size + d] += weights[i * kSegment + p] * values[p * stride + d];
      }
    }
  }
};

constexpr AttentionPath kPath = {attend_with<PlainLanes, PlainBytes>, merge_with<PlainLanes, PlainBytes>};

}  // namespace

const AttentionPath* attention_reference() { return &kPath; }

}  // namespace magnitude
