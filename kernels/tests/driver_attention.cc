// The driver's command for appends and attention as a caller of the C interface has them: dispatched and on the pool.
// (attention_driver.cc has each path by itself.)
#include <cstdint>
#include <numeric>
#include <vector>

#include "driver_commands.h"

namespace magnitude {
namespace driver {

int attend(const char* line) {
  int over_bytes;
  long long rows, heads, kv_heads, head_size, window;
  if (std::sscanf(line, "%*s %d %lld %lld %lld %lld %lld", &over_bytes, &rows, &heads, &kv_heads, &head_size,
                  &window) != 6) {
    return refuse(line);
  }
  const size_t query_bytes = static_cast<size_t>(rows * heads * head_size) * sizeof(float);
  const size_t key_bytes = static_cast<size_t>(rows * kv_heads * head_size) * sizeof(float);
  Bytes queries, keys, values;
  if (!read(query_bytes, &queries) || !read(key_bytes, &keys) || !read(key_bytes, &values)) return refuse(line);

  // One slot that the rows fill, in buffers of exactly that size: a sanitizer sees a byte beyond.
  const size_t stored = over_bytes ? key_bytes / sizeof(float) : key_bytes;
  Bytes cached_keys(stored), cached_values(stored);
  std::vector<float> key_scales(over_bytes ? static_cast<size_t>(rows * kv_heads) : 0), value_scales(key_scales);
  mk_kv_cache cache{};
  cache.over_bytes = over_bytes;
  cache.keys = cached_keys.data();
  cache.values = cached_values.data();
  cache.keys_bytes = cache.values_bytes = static_cast<int64_t>(stored);
  if (over_bytes) {
    cache.key_scales = key_scales.data();
    cache.value_scales = value_scales.data();
    cache.key_scales_bytes = cache.value_scales_bytes = static_cast<int64_t>(key_scales.size() * sizeof(float));
  }
  cache.slots = 1;
  cache.kv_heads = kv_heads;
  cache.positions = rows;
  cache.head_size = head_size;
  std::vector<int64_t> slots(static_cast<size_t>(rows)), positions(slots);
  std::iota(positions.begin(), positions.end(), 0);
  if (mk_kv_append(&cache, rows, slots.data(), positions.data(), floats(keys), static_cast<int64_t>(key_bytes),
                   kv_heads * head_size, floats(values), static_cast<int64_t>(key_bytes), kv_heads * head_size) != 0) {
    return answer_error();
  }
  std::vector<float> out(query_bytes / sizeof(float));
  if (mk_attend(&cache, rows, slots.data(), positions.data(), heads, window, 0.125f, floats(queries),
                static_cast<int64_t>(query_bytes), heads * head_size, out.data(), static_cast<int64_t>(query_bytes),
                heads * head_size) != 0) {
    return answer_error();
  }
  return answer(out.data(), query_bytes);
}

}  // namespace driver
}  // namespace magnitude
