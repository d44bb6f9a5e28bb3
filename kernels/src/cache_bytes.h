// The KV cache of one layer as the kernels see it: where keys and values lie, in float32 or in bytes, and how rows get
// into it.
//
// Layout: [slot][kv_head][position][head_size], the last axis without gaps, the others with strides. In bytes a value
// is scale · q with q in -127…127, one scale for each position and KV head, keys and values apart; scales lie as
// [slot][kv_head][position], positions without gaps. No calibration: a scale is the largest magnitude of what it
// scales, divided by 127.
//
// Error of bytes: a value is off by at most 0.501 · scale, so an outlier costs the other values of its own head and
// position their precision and no others. Where the largest magnitude is below 2⁻¹⁰⁰, all are zero. Where one of them
// is an infinity or a NaN, the scale is a NaN, and so is all that attends to this position.
#ifndef MAGNITUDE_KERNELS_CACHE_BYTES_H_
#define MAGNITUDE_KERNELS_CACHE_BYTES_H_

#include <stdint.h>

namespace magnitude {

enum class CacheKind { kFloat, kBytes };

// Memory belongs to the caller. Pointers need the alignment of their type only. Lengths are those of the whole
// buffers, by which strides and sizes are checked.
struct KvCache {
  CacheKind kind = CacheKind::kBytes;
  void* keys = nullptr;  // int8_t or float
  void* values = nullptr;
  float* key_scales = nullptr;  // kBytes only
  float* value_scales = nullptr;
  int64_t keys_bytes = 0;
  int64_t values_bytes = 0;
  int64_t key_scales_bytes = 0;
  int64_t value_scales_bytes = 0;

  int64_t slots = 0;
  int64_t kv_heads = 0;
  int64_t positions = 0;  // that a slot can hold
  int64_t head_size = 0;  // a multiple of 8, at most 256

  // In elements, the same for keys and values.
  int64_t slot_stride = 0;
  int64_t head_stride = 0;
  int64_t position_stride = 0;
  int64_t scale_slot_stride = 0;
  int64_t scale_head_stride = 0;
};

constexpr int64_t kMaxHeadSize = 256;

// Sets the strides of a cache without gaps from its sizes.
void set_dense_strides(KvCache* cache);

// 0, or -1 with the reason in last_error(): sizes out of range, strides that overlap, null or misaligned pointers,
// buffers shorter than strides and sizes say.
int check_cache(const KvCache& cache);

// Where each of `rows` rows is in the cache. A row at position -1 is padding: nothing is written for it.
struct CacheRows {
  int64_t rows = 0;
  const int64_t* slots = nullptr;
  const int64_t* positions = nullptr;
};

// 0, or -1 with the reason in last_error(): a slot or position outside the cache.
int check_rows(const KvCache& cache, const CacheRows& rows);

// New keys and values, float32 [rows, kv_heads, head_size] with a stride between rows (in floats), so that they can be
// parts of one wider product. Lengths are those of the memory behind the pointers.
struct AppendCall {
  KvCache cache;
  CacheRows rows;
  const float* keys = nullptr;
  const float* values = nullptr;
  int64_t keys_bytes = 0;
  int64_t values_bytes = 0;
  int64_t keys_stride = 0;
  int64_t values_stride = 0;
};

// 0, or -1 with the reason in last_error(), before anything is written.
int check_append(const AppendCall& call);

// The work of a checked call in pieces that may run at the same time, one for each KV head: 0…append_tasks() - 1.
// Where two rows name the same place, the later one stays.
int64_t append_tasks(const AppendCall& call);
void append(const AppendCall& call, int64_t task);

}  // namespace magnitude

#endif  // MAGNITUDE_KERNELS_CACHE_BYTES_H_
