// Attention of query rows over a KV cache in float32 or in bytes: ragged batches, grouped queries, sliding window.
//
//   row r, query head h: Σ over p of softmax(scale · q[r, h] · k[slot r, h / group, p]) · v[slot r, h / group, p]
//
// with p in max(0, position − window + 1)…position of the row (window 0: from 0), group = heads / kv_heads. The rows'
// own keys and values are in the cache already.
//
// Order of sums, the same for every path and every way of calling: positions are cut into segments of 128, counted
// from position 0 of the slot. Each segment gives its own maximum, sum of weights and weighted sum of values; these are
// merged in ascending order. So a result's bits do not depend on the other rows, on their number, on the number of
// threads, or on whether the row was prefilled or decoded.
//
// Over bytes all products are of integers, and so exact in any order: the query is rounded to ±16319 steps of its
// largest magnitude, and weight · value scale to 16319 steps of the largest of the segment. 16319 = 127 · 128 + 63 is
// what two signed bytes hold, the form that Arm's dot products take. Against the cache's own rounding (±127) this is
// a hundredth. The error that it adds to
//   a score:  ≤ scale · Σ|k| · max|q| · 3.1e-5
//   a result: ≤ 127 · 3.1e-5 · Σ over segments of positions · largest (share of the weights · value scale)
// Both are worst cases; a hundredth of them is usual.
// Over floats, dots are eight lanes of fused multiply-adds (lanes.h) and values are added in ascending order.
//
// A query, key or value that is an infinity or a NaN gives what is no finite number in the rows that attend to it (over
// bytes: NaN, unless its weight is zero), and leaves all other rows as they are.
#ifndef MAGNITUDE_KERNELS_ATTENTION_H_
#define MAGNITUDE_KERNELS_ATTENTION_H_

#include <stdint.h>

#include "cache_bytes.h"

namespace magnitude {

// Part of the contract: another length would give other bits. 128 positions of 64 bytes, keys and values, with what is
// computed from them, are half of the smallest first-level cache (32 KiB).
constexpr int64_t kSegment = 128;

struct AttentionCall {
  KvCache cache;
  CacheRows rows;  // a row at position -1 is padding: its result is zero
  int64_t heads = 0;
  int64_t window = 0;
  float scale = 0;
  // [rows, heads, head_size] each, with a stride between rows in floats. Lengths are those of the memory behind the
  // pointers. The two must not overlap.
  const float* queries = nullptr;
  float* out = nullptr;
  int64_t queries_bytes = 0;
  int64_t out_bytes = 0;
  int64_t queries_stride = 0;
  int64_t out_stride = 0;
  // Threads that will share the work, 1 or more. Decides how finely it is cut, never what comes out.
  int64_t threads = 1;
};

// 0, or -1 with the reason in last_error(). The functions below want a call that was checked.
int check_attention(const AttentionCall& call);

// Memory that a call needs while it runs: the caller's, aligned to 64 bytes, used by one call at a time.
int64_t attention_workspace_bytes(const AttentionCall& call);

// Cuts the work into tasks 0…result - 1 that may run at the same time and in any order, each once. Writes zeros for
// padding.
int64_t plan_attention(const AttentionCall& call, void* workspace);

// The arithmetic for one instruction set. Each is in builds for its processor; whether the processor has it, the caller
// knows.
struct AttentionPath;
const AttentionPath* attention_reference();
const AttentionPath* attention_avx2();     // with FMA
const AttentionPath* attention_neon();     // any aarch64
const AttentionPath* attention_dotprod();  // aarch64 with FEAT_DotProd

// Runs one task. The last one of each group of tasks writes the group's results, so all have to run.
void attend(const AttentionPath& path, const AttentionCall& call, void* workspace, int64_t task);

// Bytes of the cache that a call reads at least: each position that a block of rows sees, once for each KV head.
int64_t attention_bytes_read(const AttentionCall& call);

}  // namespace magnitude

#endif  // MAGNITUDE_KERNELS_ATTENTION_H_
