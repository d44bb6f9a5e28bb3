// ai.magnitude.Attention and ai.magnitude.AttentionOverBytes: new keys and values go into the KV cache, then queries
// attend to it. Rows of any slots and positions side by side, so batch, chunk and speculation are all one form.
//
//   inputs      query         float32 [..., heads · head_size]; all dimensions before the last make `rows`
//               key, value    float32 [..., kv_heads · head_size], as many rows
//               slots         int64 [rows]: in which slot of the cache a row is
//               positions     int64 [rows]: and at which position; −1 for padding, whose result is zero
//               past_key, past_value         [slots, kv_heads, positions, head_size]; float32, or int8 over bytes
//               past_key_scales, past_value_scales     over bytes: float32 [slots, kv_heads, positions]
//   outputs     y             float32, the shape of query
//               present_key, present_value (present_key_scales, present_value_scales)   the caches with the new rows
//   attributes  heads, kv_heads
//               window        how many positions a row sees, its own included; 0, the default: all
//               scale         of scores; 1 / √head_size by default
//
// A cache that is bound to both its past and its present is written in place. Otherwise present becomes a copy first,
// which is right and slow.
#include <math.h>
#include <string.h>

#include "attention_run.h"
#include "op.h"

namespace magnitude {
namespace ops {
namespace {

constexpr ONNXTensorElementDataType kFloat = ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT;
constexpr ONNXTensorElementDataType kInt8 = ONNX_TENSOR_ELEMENT_DATA_TYPE_INT8;
constexpr ONNXTensorElementDataType kInt64 = ONNX_TENSOR_ELEMENT_DATA_TYPE_INT64;

enum Input : size_t { kQuery, kKey, kValue, kSlots, kPositions, kPast };

bool same_shape(const Tensor& a, const Tensor& b) {
  return a.dimensions == b.dimensions && memcmp(a.shape, b.shape, a.dimensions * sizeof a.shape[0]) == 0;
}

template <CacheKind kind>
class AttentionKernel {
 public:
  static const Signature& signature() {
    if (kind == CacheKind::kFloat) {
      static const ONNXTensorElementDataType inputs[] = {kFloat, kFloat, kFloat, kInt64, kInt64, kFloat, kFloat};
      static const ONNXTensorElementDataType outputs[] = {kFloat, kFloat, kFloat};
      static const Signature made = {"Attention", inputs, 7, outputs, 3};
      return made;
    }
    static const ONNXTensorElementDataType inputs[] = {kFloat, kFloat, kFloat, kInt64, kInt64,
                                                       kInt8,  kInt8,  kFloat, kFloat};
    static const ONNXTensorElementDataType outputs[] = {kFloat, kInt8, kInt8, kFloat, kFloat};
    static const Signature made = {"AttentionOverBytes", inputs, 9, outputs, 5};
    return made;
  }

  OrtStatus* read(const OrtKernelInfo* info) {
    OrtStatus* status = get_attribute(info, "heads", &heads_);
    if (status == nullptr) status = get_attribute(info, "kv_heads", &kv_heads_);
    if (status != nullptr) return status;
    window_ = attribute_or(info, "window", int64_t{0});
    scale_ = attribute_or(info, "scale", 0.0f);
    if (heads_ < 1 || kv_heads_ < 1 || heads_ % kv_heads_ != 0) {
      return refused("%lld heads cannot share %lld KV heads", static_cast<long long>(heads_),
                     static_cast<long long>(kv_heads_));
    }
    return nullptr;
  }

  OrtStatus* compute(OrtKernelContext* context) const {
    Tensor rows[5];
    Tensor caches[kCaches];
    for (size_t i = 0; i < 5; ++i) {
      if (OrtStatus* status = get_input(context, i, &rows[i])) return status;
    }
    for (size_t i = 0; i < kCaches; ++i) {
      if (OrtStatus* status = get_input(context, kPast + i, &caches[i])) return status;
    }
    if (OrtStatus* status = check_shapes(rows, caches)) return status;
    Tensor y;
    if (OrtStatus* status = make_output(context, 0, rows[kQuery].shape, rows[kQuery].dimensions, &y)) return status;
    for (size_t i = 0; i < kCaches; ++i) {
      if (OrtStatus* status = keep_cache(context, i, &caches[i])) return status;
    }
    return append_and_attend(rows, caches, y);
  }

 private:
  static constexpr size_t kCaches = kind == CacheKind::kFloat ? 2 : 4;

  // What the library cannot see from lengths. Everything else it checks itself.
  OrtStatus* check_shapes(const Tensor* rows, const Tensor* caches) const {
    const Tensor& keys = caches[0];
    if (keys.dimensions != 4 || !same_shape(keys, caches[1]) || keys.shape[1] != kv_heads_) {
      return refused("past_key and past_value are not both [slots, %lld, positions, head_size]",
                     static_cast<long long>(kv_heads_));
    }
    for (size_t i = 2; i < kCaches; ++i) {
      if (caches[i].dimensions != 3 || memcmp(caches[i].shape, keys.shape, 3 * sizeof keys.shape[0]) != 0) {
        return refused("the scales of the cache are not [slots, %lld, positions]", static_cast<long long>(kv_heads_));
      }
    }
    const int64_t head_size = keys.shape[3];
    const int64_t count = rows[kSlots].elements;
    const int64_t widths[] = {heads_ * head_size, kv_heads_ * head_size, kv_heads_ * head_size};
    for (size_t i = kQuery; i <= kValue; ++i) {
      if (rows[i].dimensions == 0 || rows[i].last() != widths[i] || rows[i].elements != count * widths[i]) {
        return refused("input %zu is not %lld rows of %lld", i, static_cast<long long>(count),
                       static_cast<long long>(widths[i]));
      }
    }
    if (rows[kPositions].elements != count) {
      return refused("there are %lld positions for %lld slots", static_cast<long long>(rows[kPositions].elements),
                     static_cast<long long>(count));
    }
    return nullptr;
  }

  // Makes the present form of a cache, which from then on is the cache.
  static OrtStatus* keep_cache(OrtKernelContext* context, size_t index, Tensor* cache) {
    Tensor present;
    if (OrtStatus* status = make_output(context, 1 + index, cache->shape, cache->dimensions, &present)) return status;
    if (present.data != cache->data) memcpy(present.data, cache->data, static_cast<size_t>(bytes_of(*cache, index)));
    *cache = present;
    return nullptr;
  }

  static int64_t bytes_of(const Tensor& cache, size_t index) {
    const bool in_bytes = kind == CacheKind::kBytes && index < 2;
    return cache.elements * static_cast<int64_t>(in_bytes ? sizeof(int8_t) : sizeof(float));
  }

  OrtStatus* append_and_attend(const Tensor* rows, const Tensor* caches, const Tensor& y) const {
    KvCache cache;
    cache.kind = kind;
    cache.keys = caches[0].data;
    cache.values = caches[1].data;
    cache.keys_bytes = bytes_of(caches[0], 0);
    cache.values_bytes = bytes_of(caches[1], 1);
    if (kind == CacheKind::kBytes) {
      cache.key_scales = static_cast<float*>(caches[kCaches - 2].data);
      cache.value_scales = static_cast<float*>(caches[kCaches - 1].data);
      cache.key_scales_bytes = bytes_of(caches[kCaches - 2], kCaches - 2);
      cache.value_scales_bytes = bytes_of(caches[kCaches - 1], kCaches - 1);
    }
    cache.slots = caches[0].shape[0];
    cache.kv_heads = kv_heads_;
    cache.positions = caches[0].shape[2];
    cache.head_size = caches[0].shape[3];
    set_dense_strides(&cache);

    CacheRows where;
    where.rows = rows[kSlots].elements;
    where.slots = static_cast<const int64_t*>(rows[kSlots].data);
    where.positions = static_cast<const int64_t*>(rows[kPositions].data);

    AppendCall appending;
    appending.cache = cache;
    appending.rows = where;
    appending.keys = static_cast<const float*>(rows[kKey].data);
    appending.values = static_cast<const float*>(rows[kValue].data);
    appending.keys_bytes = rows[kKey].elements * static_cast<int64_t>(sizeof(float));
    appending.values_bytes = rows[kValue].elements * static_cast<int64_t>(sizeof(float));
    appending.keys_stride = rows[kKey].last();
    appending.values_stride = rows[kValue].last();
    if (run_append(appending) != 0) return failed();

    AttentionCall attending;
    attending.cache = cache;
    attending.rows = where;
    attending.heads = heads_;
    attending.window = window_;
    attending.scale = scale_ != 0 ? scale_ : 1.0f / sqrtf(static_cast<float>(cache.head_size));
    attending.queries = static_cast<const float*>(rows[kQuery].data);
    attending.out = static_cast<float*>(y.data);
    attending.queries_bytes = rows[kQuery].elements * static_cast<int64_t>(sizeof(float));
    attending.out_bytes = attending.queries_bytes;
    attending.queries_stride = rows[kQuery].last();
    attending.out_stride = attending.queries_stride;
    return run_attention(attending) == 0 ? nullptr : failed();
  }

  int64_t heads_ = 0;
  int64_t kv_heads_ = 0;
  int64_t window_ = 0;
  float scale_ = 0;
};

}  // namespace

const OrtCustomOp* attention_op() {
  static const Op<AttentionKernel<CacheKind::kFloat>> op;
  return &op;
}

const OrtCustomOp* attention_over_bytes_op() {
  static const Op<AttentionKernel<CacheKind::kBytes>> op;
  return &op;
}

}  // namespace ops
}  // namespace magnitude
