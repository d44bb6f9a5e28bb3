#include "cache_bytes.h"

#include <math.h>
#include <string.h>

#include "checks.h"
#include "error.h"
#include "lanes.h"

namespace magnitude {
namespace {

// A scale below 2⁻¹⁰⁰ / 127 is of no use to a float32 sum, and far above it quotients would overflow.
constexpr float kSmallest = 0x1p-100f;
constexpr uint32_t kInfinityBits = 0x7f800000u;

// One head of one row into bytes. Returns the scale. Compiled once, without instructions beyond the baseline: each
// step is one IEEE 754 operation, so every compiler's vectors give the same bits.
float quantise(const float* from, int64_t size, int8_t* to) {
  // As integers: these sort like the magnitudes they are, with NaNs above infinity above all numbers.
  uint32_t top = 0;
  for (int64_t i = 0; i < size; ++i) {
    const uint32_t magnitude = float_bits(from[i]) & 0x7fffffffu;
    top = magnitude > top ? magnitude : top;
  }
  if (top >= kInfinityBits || bits_float(top) < kSmallest) {
    memset(to, 0, static_cast<size_t>(size));
    return top >= kInfinityBits ? NAN : 0.0f;
  }
  const float inverse = 127.0f / bits_float(top);
  for (int64_t i = 0; i < size; ++i) {
    to[i] = static_cast<int8_t>(static_cast<uint8_t>(float_bits(from[i] * inverse + kRounding)));
  }
  return bits_float(top) / 127.0f;
}

void append_bytes(const KvCache& cache, void* bytes, float* scales, int64_t slot, int64_t head, int64_t position,
                  const float* from) {
  const int64_t at = slot * cache.slot_stride + head * cache.head_stride + position * cache.position_stride;
  const int64_t scale_at = slot * cache.scale_slot_stride + head * cache.scale_head_stride + position;
  scales[scale_at] = quantise(from, cache.head_size, static_cast<int8_t*>(bytes) + at);
}

void append_floats(const KvCache& cache, void* floats, int64_t slot, int64_t head, int64_t position,
                   const float* from) {
  const int64_t at = slot * cache.slot_stride + head * cache.head_stride + position * cache.position_stride;
  memcpy(static_cast<float*>(floats) + at, from, static_cast<size_t>(cache.head_size) * sizeof(float));
}

}  // namespace

void set_dense_strides(KvCache* cache) {
  cache->position_stride = cache->head_size;
  cache->head_stride = cache->positions * cache->position_stride;
  cache->slot_stride = cache->kv_heads * cache->head_stride;
  cache->scale_head_stride = cache->positions;
  cache->scale_slot_stride = cache->kv_heads * cache->scale_head_stride;
}

int check_cache(const KvCache& cache) {
  if (cache.head_size < kLanes || cache.head_size > kMaxHeadSize || cache.head_size % kLanes != 0) {
    return fail("head size %lld is not a multiple of 8 in 8…256", static_cast<long long>(cache.head_size));
  }
  if (cache.slots < 0 || cache.kv_heads < 1 || cache.positions < 1) {
    return fail("a cache of %lld slots, %lld KV heads and %lld positions", static_cast<long long>(cache.slots),
                static_cast<long long>(cache.kv_heads), static_cast<long long>(cache.positions));
  }
  const int64_t element_bytes = cache.kind == CacheKind::kBytes ? 1 : static_cast<int64_t>(sizeof(float));
  const Length head = span(cache.positions, cache.position_stride, Length(cache.head_size));
  const Length slot = span(cache.kv_heads, cache.head_stride, head);
  const Length whole = span(cache.slots, cache.slot_stride, slot).times(element_bytes);
  if (cache.position_stride < cache.head_size || !head.within(cache.head_stride) || !slot.within(cache.slot_stride)) {
    return fail("strides of %lld, %lld and %lld elements (slot, head, position) let parts of the cache overlap",
                static_cast<long long>(cache.slot_stride), static_cast<long long>(cache.head_stride),
                static_cast<long long>(cache.position_stride));
  }
  if (!whole.within(cache.keys_bytes) || !whole.within(cache.values_bytes)) {
    return fail("keys of %lld and values of %lld bytes are shorter than the cache's sizes and strides say",
                static_cast<long long>(cache.keys_bytes), static_cast<long long>(cache.values_bytes));
  }
  if (cache.slots == 0) return 0;
  if (cache.keys == nullptr || cache.values == nullptr) return fail("keys or values are null");
  if (cache.kind == CacheKind::kFloat) {
    if (!aligned_for_float(cache.keys) || !aligned_for_float(cache.values)) {
      return fail("keys or values are not aligned for floats");
    }
    return 0;
  }
  const Length scale_head(cache.positions);
  const Length scale_slot = span(cache.kv_heads, cache.scale_head_stride, scale_head);
  const Length scales = span(cache.slots, cache.scale_slot_stride, scale_slot).times(sizeof(float));
  if (!scale_head.within(cache.scale_head_stride) || !scale_slot.within(cache.scale_slot_stride)) {
    return fail("strides of %lld and %lld scales (slot, head) let parts of the cache overlap",
                static_cast<long long>(cache.scale_slot_stride), static_cast<long long>(cache.scale_head_stride));
  }
  if (!scales.within(cache.key_scales_bytes) || !scales.within(cache.value_scales_bytes)) {
    return fail("key scales of %lld and value scales of %lld bytes are shorter than the cache's sizes and strides say",
                static_cast<long long>(cache.key_scales_bytes), static_cast<long long>(cache.value_scales_bytes));
  }
  if (cache.key_scales == nullptr || cache.value_scales == nullptr) return fail("scales are null");
  if (!aligned_for_float(cache.key_scales) || !aligned_for_float(cache.value_scales)) {
    return fail("scales are not aligned for floats");
  }
  return 0;
}

int check_rows(const KvCache& cache, const CacheRows& rows) {
  if (rows.rows < 0) return fail("%lld rows", static_cast<long long>(rows.rows));
  if (rows.rows > 0 && (rows.slots == nullptr || rows.positions == nullptr)) {
    return fail("slots or positions of rows are null");
  }
  for (int64_t i = 0; i < rows.rows; ++i) {
    if (rows.positions[i] == -1) continue;
    if (rows.slots[i] < 0 || rows.slots[i] >= cache.slots) {
      return fail("row %lld is in slot %lld of %lld", static_cast<long long>(i), static_cast<long long>(rows.slots[i]),
                  static_cast<long long>(cache.slots));
    }
    if (rows.positions[i] < 0 || rows.positions[i] >= cache.positions) {
      return fail("row %lld is at position %lld of %lld", static_cast<long long>(i),
                  static_cast<long long>(rows.positions[i]), static_cast<long long>(cache.positions));
    }
  }
  return 0;
}

int check_append(const AppendCall& call) {
  if (check_cache(call.cache) != 0 || check_rows(call.cache, call.rows) != 0) return -1;
  const Length width = Length(call.cache.kv_heads).times(call.cache.head_size);
  const int64_t rows = call.rows.rows;
  if (call.keys_stride < 0 || call.values_stride < 0) {
    return fail("rows %lld and %lld floats apart", static_cast<long long>(call.keys_stride),
                static_cast<long long>(call.values_stride));
  }
  if (!span(rows, call.keys_stride, width).times(sizeof(float)).within(call.keys_bytes) ||
      !span(rows, call.values_stride, width).times(sizeof(float)).within(call.values_bytes)) {
    return fail("new keys of %lld and values of %lld bytes are shorter than %lld rows",
                static_cast<long long>(call.keys_bytes), static_cast<long long>(call.values_bytes),
                static_cast<long long>(rows));
  }
  if (rows == 0) return 0;
  if (call.keys == nullptr || call.values == nullptr) return fail("new keys or values are null");
  if (!aligned_for_float(call.keys) || !aligned_for_float(call.values)) {
    return fail("new keys or values are not aligned for floats");
  }
  return 0;
}

int64_t append_tasks(const AppendCall& call) { return call.rows.rows == 0 ? 0 : call.cache.kv_heads; }

void append(const AppendCall& call, int64_t task) {
  const KvCache& cache = call.cache;
  const int64_t offset = task * cache.head_size;
  for (int64_t i = 0; i < call.rows.rows; ++i) {
    const int64_t slot = call.rows.slots[i];
    const int64_t position = call.rows.positions[i];
    if (position < 0) continue;
    const float* key = call.keys + i * call.keys_stride + offset;
    const float* value = call.values + i * call.values_stride + offset;
    if (cache.kind == CacheKind::kBytes) {
      append_bytes(cache, cache.keys, cache.key_scales, slot, task, position, key);
      append_bytes(cache, cache.values, cache.value_scales, slot, task, position, value);
    } else {
      append_floats(cache, cache.keys, slot, task, position, key);
      append_floats(cache, cache.values, slot, task, position, value);
    }
  }
}

}  // namespace magnitude
