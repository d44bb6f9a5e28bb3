// The C interface: checks of arguments, and calls into the library. No exception leaves these functions, as nothing
// below them throws.
#include "attention_run.h"
#include "blocks.h"
#include "counters.h"
#include "dispatch.h"
#include "error.h"
#include "magnitude_kernels.h"
#include "packed.h"
#include "pool.h"
#include "product.h"

using magnitude::fail;

static_assert(MK_INT4 == static_cast<int>(magnitude::Kind::kInt4), "the interface's kinds are the library's");
static_assert(MK_INT4_MINIMUM == static_cast<int>(magnitude::Kind::kInt4Minimum), "");
static_assert(MK_INT8 == static_cast<int>(magnitude::Kind::kInt8), "");

namespace {

using magnitude::KvCache;

// -1, and an error, for what the library's own form has no place for; the rest is checked with the call.
int cache_of(const mk_kv_cache* given, KvCache* cache) {
  if (given == nullptr) return fail("the cache is null");
  if ((given->over_bytes != 0 && given->over_bytes != 1) || given->reserved != 0) {
    return fail("over_bytes is %d and reserved %d, not 0 or 1 and 0", given->over_bytes, given->reserved);
  }
  cache->kind = given->over_bytes ? magnitude::CacheKind::kBytes : magnitude::CacheKind::kFloat;
  cache->keys = given->keys;
  cache->values = given->values;
  cache->key_scales = given->key_scales;
  cache->value_scales = given->value_scales;
  cache->keys_bytes = given->keys_bytes;
  cache->values_bytes = given->values_bytes;
  cache->key_scales_bytes = given->key_scales_bytes;
  cache->value_scales_bytes = given->value_scales_bytes;
  cache->slots = given->slots;
  cache->kv_heads = given->kv_heads;
  cache->positions = given->positions;
  cache->head_size = given->head_size;
  cache->slot_stride = given->slot_stride;
  cache->head_stride = given->head_stride;
  cache->position_stride = given->position_stride;
  cache->scale_slot_stride = given->scale_slot_stride;
  cache->scale_head_stride = given->scale_head_stride;
  const bool dense = (given->slot_stride | given->head_stride | given->position_stride | given->scale_slot_stride |
                      given->scale_head_stride) == 0;
  if (!dense) return 0;
  // Bounds within which the strides that follow from sizes stay within 64 bits.
  if (given->kv_heads > (int64_t{1} << 16) || given->positions > (int64_t{1} << 31) ||
      given->head_size > magnitude::kMaxHeadSize) {
    return fail("a cache of %lld KV heads, %lld positions and head size %lld is too large",
                static_cast<long long>(given->kv_heads), static_cast<long long>(given->positions),
                static_cast<long long>(given->head_size));
  }
  magnitude::set_dense_strides(cache);
  return 0;
}

}  // namespace

int mk_version(void) { return MK_VERSION; }

const char* mk_error(void) { return magnitude::last_error(); }

int mk_isa_count(void) { return magnitude::isa_count(); }

const char* mk_isa_name(int index) {
  const magnitude::Isa* isa = magnitude::isa_at(index);
  return isa != nullptr ? isa->name : nullptr;
}

int mk_isa_use(const char* name) { return magnitude::isa_use(name); }

const char* mk_isa(void) { return magnitude::isa().name; }

int64_t mk_pack_bytes(int kind, int64_t n, int64_t k) {
  magnitude::Packed shape{};
  if (magnitude::describe_packed(kind, n, k, &shape) != 0) return -1;
  return magnitude::packed_bytes(shape);
}

int mk_pack(int kind, int64_t n, int64_t k, const void* values, size_t values_bytes, const float* scales,
            const float* minima, void* packed, size_t packed_bytes) {
  return magnitude::pack(kind, n, k, values, values_bytes, scales, minima, packed, packed_bytes);
}

int64_t mk_pack_blocks_bytes(int bits, int64_t n, int64_t blocks, int corrected) {
  return magnitude::packed_blocks_bytes(bits, n, blocks, corrected != 0);
}

int mk_pack_blocks(int bits, int64_t n, int64_t blocks, const void* codes, size_t codes_bytes, const float* scales,
                   const float* correction, void* packed, size_t packed_bytes) {
  return magnitude::pack_blocks(bits, n, blocks, static_cast<const uint8_t*>(codes), codes_bytes, scales, correction,
                                packed, packed_bytes);
}

int mk_product(const void* packed, size_t packed_bytes, const float* x, int64_t m, int64_t k, float* y, int64_t n) {
  magnitude::Packed weights{};
  if (magnitude::open_packed(packed, packed_bytes, &weights) != 0) return -1;
  if (k != weights.k || n != weights.n) {
    return fail("the weights are [%lld, %lld], and the call is for [%lld, %lld]", static_cast<long long>(weights.n),
                static_cast<long long>(weights.k), static_cast<long long>(n), static_cast<long long>(k));
  }
  // More rows than any batch has, and few enough for sizes to stay within 64 bits.
  if (m < 0 || m > (int64_t{1} << 24)) return fail("m is %lld, not within 0 and 2^24", static_cast<long long>(m));
  if (m > 0 && (x == nullptr || y == nullptr)) return fail("x or y is null");
  return magnitude::product(weights, x, m, y);
}

int mk_kv_append(const mk_kv_cache* cache, int64_t rows, const int64_t* slots, const int64_t* positions,
                 const float* keys, int64_t keys_bytes, int64_t keys_stride, const float* values,
                 int64_t values_bytes, int64_t values_stride) {
  magnitude::AppendCall call;
  if (cache_of(cache, &call.cache) != 0) return -1;
  call.rows.rows = rows;
  call.rows.slots = slots;
  call.rows.positions = positions;
  call.keys = keys;
  call.keys_bytes = keys_bytes;
  call.keys_stride = keys_stride;
  call.values = values;
  call.values_bytes = values_bytes;
  call.values_stride = values_stride;
  return magnitude::run_append(call);
}

int mk_attend(const mk_kv_cache* cache, int64_t rows, const int64_t* slots, const int64_t* positions, int64_t heads,
              int64_t window, float scale, const float* queries, int64_t queries_bytes, int64_t queries_stride,
              float* out, int64_t out_bytes, int64_t out_stride) {
  magnitude::AttentionCall call;
  if (cache_of(cache, &call.cache) != 0) return -1;
  call.rows.rows = rows;
  call.rows.slots = slots;
  call.rows.positions = positions;
  call.heads = heads;
  call.window = window;
  call.scale = scale;
  call.queries = queries;
  call.queries_bytes = queries_bytes;
  call.queries_stride = queries_stride;
  call.out = out;
  call.out_bytes = out_bytes;
  call.out_stride = out_stride;
  return magnitude::run_attention(call);
}

int mk_pool_set(int threads, const int* cores, const float* shares) {
  return magnitude::pool_set(threads, cores, shares);
}

int mk_pool_threads(void) { return magnitude::pool_threads(); }

int mk_pool_stop(void) { return magnitude::pool_stop(); }

const char* mk_operator_name(int index) { return magnitude::operator_name(index); }

int mk_counters_read(int index, mk_counters* out) { return magnitude::read_counters(index, out); }

void mk_counters_reset(void) { magnitude::reset_counters(); }
