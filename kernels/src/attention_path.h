// Between the plan of an attention call (attention.cc) and the arithmetic for one instruction set (attention_*.cc,
// made from attention_arithmetic.h).
#ifndef MAGNITUDE_KERNELS_ATTENTION_PATH_H_
#define MAGNITUDE_KERNELS_ATTENTION_PATH_H_

#include <stdint.h>

#include "attention.h"

namespace magnitude {

// Query vectors that share a pass over keys and values. With 16 a prefill is bound by arithmetic, and their scores
// (16 · 128 · 4 bytes) and a segment of keys are in the first-level cache together.
constexpr int kMaxQueries = 16;

// Query vectors over one KV head of one slot, for segments first_segment…last_segment.
struct AttentionTask {
  CacheKind kind;
  const void* keys;  // position 0 of the head
  const void* values;
  const float* key_scales;
  const float* value_scales;
  int64_t position_stride;
  int64_t head_size;
  float scale;

  int64_t first_segment;
  int64_t last_segment;

  int queries;
  const float* query[kMaxQueries];
  int64_t begin[kMaxQueries];  // the positions that a query sees: begin…end - 1
  int64_t end[kMaxQueries];

  // Where the results go: out of each query, or, where other tasks have the rest of the segments, what is known of a
  // segment: partial + (query · segments + segment - partial_first) · partial_floats(head_size).
  float* out[kMaxQueries];
  float* partial;
  int64_t partial_first;
  int64_t partial_segments;
};

// Of one query and segment: the weighted sum of values, the maximum of scores, the sum of weights.
static constexpr int64_t partial_floats(int64_t head_size) { return head_size + 8; }

struct AttentionPath {
  // Computes the task's segments and writes out or partial.
  void (*attend)(const AttentionTask& task);
  // Merges the partials of all segments into out.
  void (*merge)(const AttentionTask& task);
};

}  // namespace magnitude

#endif  // MAGNITUDE_KERNELS_ATTENTION_PATH_H_
