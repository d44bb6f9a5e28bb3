// ai.magnitude.Attention and ai.magnitude.AttentionOverBytes: new keys and values go into the KV cache, then queries
// attend to it. Rows of any slots and positions side by side, so batch, chunk and speculation are all one form.
//
//   inputs      query         float32 [..., heads · head_size]; all dimensions before the last make `rows`
//               key, value    float32 [..., kv_heads · head_size], as many rows. Without both, query has all three in
//                             each row: [..., (heads + 2 · kv_heads) · head_size]
//               slots         int64 [rows]: in which slot of the cache a row is
//               positions     int64 [rows]: and at which position; −1 for padding, whose result is zero
//               past_key, past_value         [slots, kv_heads, positions, head_size]; float32, or int8 over bytes
//               past_key_scales, past_value_scales     over bytes: float32 [slots, kv_heads, positions]
//               cos, sin      may be left out: float32 [positions, head_size / 2], by which queries and new keys are
//                             turned before all else (kernels/src/rotation.h)
//   outputs     y             float32, the shape of query, its last dimension heads · head_size
//               present_key, present_value (present_key_scales, present_value_scales)   the caches with the new rows
//   attributes  heads, kv_heads
//               window        how many positions a row sees, its own included; 0, the default: all
//               scale         of scores; 1 / √head_size by default
//
// A cache that is bound to both its past and its present is written in place. Otherwise present becomes a copy first,
// which is right and slow; it has further positions where the new rows need them, as many as there are rows at most.
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

// Where rows of float32 lie: in a tensor of their own, or as a part of each row of another one.
struct Part {
  const float* data = nullptr;
  int64_t stride = 0;  // in floats, from row to row
  int64_t bytes = 0;   // from data to the tensor's end

  static Part of(const Tensor& tensor, int64_t offset) {
    Part part;
    part.stride = tensor.last();
    // Without rows there is no offset to go to.
    if (tensor.elements == 0) return part;
    part.data = static_cast<const float*>(tensor.data) + offset;
    part.bytes = (tensor.elements - offset) * static_cast<int64_t>(sizeof(float));
    return part;
  }
};

bool same_shape(const Tensor& a, const Tensor& b) {
  return a.dimensions == b.dimensions && memcmp(a.shape, b.shape, a.dimensions * sizeof a.shape[0]) == 0;
}

template <CacheKind kind>
class AttentionKernel {
 public:
  static const Signature& signature() {
    if (kind == CacheKind::kFloat) {
      static const ONNXTensorElementDataType inputs[] = {kFloat, kFloat, kFloat, kInt64, kInt64,
                                                         kFloat, kFloat, kFloat, kFloat};
      static const ONNXTensorElementDataType outputs[] = {kFloat, kFloat, kFloat};
      static const Signature made = {"Attention", inputs, kRotation + 2, outputs, 1 + kCaches};
      return made;
    }
    static const ONNXTensorElementDataType inputs[] = {kFloat, kFloat, kFloat, kInt64, kInt64, kInt8,
                                                       kInt8,  kFloat, kFloat, kFloat, kFloat};
    static const ONNXTensorElementDataType outputs[] = {kFloat, kInt8, kInt8, kFloat, kFloat};
    static const Signature made = {"AttentionOverBytes", inputs, kRotation + 2, outputs, 1 + kCaches};
    return made;
  }

  static bool optional(size_t index) { return index == kKey || index == kValue || index >= kRotation; }

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
    Rows rows;
    Tensor caches[kCaches];
    Tensor tables[2];
    if (OrtStatus* status = read_rows(context, &rows)) return status;
    for (size_t i = 0; i < kCaches; ++i) {
      if (OrtStatus* status = get_input(context, kPast + i, &caches[i])) return status;
    }
    for (size_t i = 0; i < 2; ++i) {
      if (OrtStatus* status = get_optional(context, kRotation + i, &tables[i])) return status;
    }
    if (OrtStatus* status = check_shapes(&rows, caches, tables)) return status;
    int64_t shape[kMostDimensions];
    for (size_t i = 0; i < rows.query.dimensions; ++i) shape[i] = rows.query.shape[i];
    shape[rows.query.dimensions - 1] = heads_ * caches[0].shape[3];
    Tensor y;
    if (OrtStatus* status = make_output(context, 0, shape, rows.query.dimensions, &y)) return status;
    int64_t positions = 0;
    if (OrtStatus* status = positions_after(rows, caches[0].shape[2], &positions)) return status;
    for (size_t i = 0; i < kCaches; ++i) {
      if (OrtStatus* status = keep_cache(context, i, positions, &caches[i])) return status;
    }
    return append_and_attend(rows, caches, tables, y);
  }

 private:
  static constexpr size_t kCaches = kind == CacheKind::kFloat ? 2 : 4;
  static constexpr size_t kRotation = kPast + kCaches;

  struct Rows {
    Tensor query, key, value, slots, positions;
    bool packed = false;  // query has all three
    Part queries, keys, values;
  };

  static OrtStatus* read_rows(OrtKernelContext* context, Rows* rows) {
    OrtStatus* status = get_input(context, kQuery, &rows->query);
    if (status == nullptr) status = get_optional(context, kKey, &rows->key);
    if (status == nullptr) status = get_optional(context, kValue, &rows->value);
    if (status == nullptr) status = get_input(context, kSlots, &rows->slots);
    if (status == nullptr) status = get_input(context, kPositions, &rows->positions);
    if (status == nullptr && rows->key.there != rows->value.there) return refused("there is one of key and value");
    rows->packed = !rows->key.there;
    return status;
  }

  // What the library cannot see from lengths, and where rows lie then. Everything else it checks itself.
  OrtStatus* check_shapes(Rows* rows, const Tensor* caches, const Tensor* tables) const {
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
    if (tables[0].there != tables[1].there) return refused("there is one of cos and sin");
    if (tables[0].there && (tables[0].dimensions != 2 || !same_shape(tables[0], tables[1]) ||
                            2 * tables[0].shape[1] != head_size)) {
      return refused("cos and sin are not both [positions, %lld]", static_cast<long long>(head_size / 2));
    }
    const int64_t count = rows->slots.elements;
    if (rows->positions.elements != count) {
      return refused("there are %lld positions for %lld slots", static_cast<long long>(rows->positions.elements),
                     static_cast<long long>(count));
    }
    const int64_t width = heads_ * head_size, kv_width = kv_heads_ * head_size;
    if (rows->packed) {
      if (OrtStatus* status = check_width(rows->query, kQuery, count, width + 2 * kv_width)) return status;
      rows->queries = Part::of(rows->query, 0);
      rows->keys = Part::of(rows->query, width);
      rows->values = Part::of(rows->query, width + kv_width);
      return nullptr;
    }
    if (OrtStatus* status = check_width(rows->query, kQuery, count, width)) return status;
    if (OrtStatus* status = check_width(rows->key, kKey, count, kv_width)) return status;
    if (OrtStatus* status = check_width(rows->value, kValue, count, kv_width)) return status;
    rows->queries = Part::of(rows->query, 0);
    rows->keys = Part::of(rows->key, 0);
    rows->values = Part::of(rows->value, 0);
    return nullptr;
  }

  static OrtStatus* check_width(const Tensor& rows, size_t index, int64_t count, int64_t width) {
    if (rows.dimensions != 0 && rows.last() == width && rows.elements == count * width) return nullptr;
    return refused("input %zu is not %lld rows of %lld", index, static_cast<long long>(count),
                   static_cast<long long>(width));
  }

  static OrtStatus* positions_after(const Rows& rows, int64_t before, int64_t* after) {
    *after = before;
    const int64_t* positions = static_cast<const int64_t*>(rows.positions.data);
    for (int64_t row = 0; row < rows.positions.elements; ++row) {
      if (positions[row] < *after) continue;
      if (positions[row] >= before + rows.positions.elements) {
        return refused("row %lld is at position %lld of a cache of %lld positions", static_cast<long long>(row),
                       static_cast<long long>(positions[row]), static_cast<long long>(before));
      }
      *after = positions[row] + 1;
    }
    return nullptr;
  }

  // Makes the present form of a cache, which from then on is the cache.
  static OrtStatus* keep_cache(OrtKernelContext* context, size_t index, int64_t positions, Tensor* cache) {
    int64_t shape[kMostDimensions];
    for (size_t i = 0; i < cache->dimensions; ++i) shape[i] = cache->shape[i];
    shape[2] = positions;
    Tensor present;
    if (OrtStatus* status = make_output(context, 1 + index, shape, cache->dimensions, &present)) return status;
    if (present.data != cache->data) {
      const int64_t heads = shape[0] * shape[1];
      const int64_t before = heads > 0 ? bytes_of(*cache, index) / heads : 0;
      const int64_t after = heads > 0 ? bytes_of(present, index) / heads : 0;
      for (int64_t head = 0; head < heads; ++head) {
        memcpy(static_cast<char*>(present.data) + head * after, static_cast<const char*>(cache->data) + head * before,
               static_cast<size_t>(before));
        memset(static_cast<char*>(present.data) + head * after + before, 0, static_cast<size_t>(after - before));
      }
    }
    *cache = present;
    return nullptr;
  }

  static int64_t bytes_of(const Tensor& cache, size_t index) {
    const bool in_bytes = kind == CacheKind::kBytes && index < 2;
    return cache.elements * static_cast<int64_t>(in_bytes ? sizeof(int8_t) : sizeof(float));
  }

  OrtStatus* append_and_attend(const Rows& rows, const Tensor* caches, const Tensor* tables, const Tensor& y) const {
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
    where.rows = rows.slots.elements;
    where.slots = static_cast<const int64_t*>(rows.slots.data);
    where.positions = static_cast<const int64_t*>(rows.positions.data);

    AppendCall appending;
    appending.cache = cache;
    appending.rows = where;
    appending.keys = rows.keys.data;
    appending.values = rows.values.data;
    appending.keys_bytes = rows.keys.bytes;
    appending.values_bytes = rows.values.bytes;
    appending.keys_stride = rows.keys.stride;
    appending.values_stride = rows.values.stride;

    AttentionCall attending;
    attending.cache = cache;
    attending.rows = where;
    attending.heads = heads_;
    attending.window = window_;
    attending.scale = scale_ != 0 ? scale_ : 1.0f / sqrtf(static_cast<float>(cache.head_size));
    attending.queries = rows.queries.data;
    attending.queries_bytes = rows.queries.bytes;
    attending.queries_stride = rows.queries.stride;
    attending.out = static_cast<float*>(y.data);
    attending.out_bytes = y.elements * static_cast<int64_t>(sizeof(float));
    attending.out_stride = y.last();

    Rotation rotation;
    if (tables[0].there) {
      rotation.cosines = static_cast<const float*>(tables[0].data);
      rotation.sines = static_cast<const float*>(tables[1].data);
      rotation.positions = tables[0].shape[0];
      rotation.cosines_bytes = rotation.sines_bytes = tables[0].elements * static_cast<int64_t>(sizeof(float));
    }
    return run_step(rotation, &appending, attending) == 0 ? nullptr : failed();
  }

  int64_t heads_ = 0;
  int64_t kv_heads_ = 0;
  int64_t window_ = 0;
  float scale_ = 0;
};

template <CacheKind kind>
struct AttentionOp : Op<AttentionKernel<kind>> {
  AttentionOp() {
    this->GetInputCharacteristic = [](const OrtCustomOp*, size_t index) {
      return AttentionKernel<kind>::optional(index) ? INPUT_OUTPUT_OPTIONAL : INPUT_OUTPUT_REQUIRED;
    };
  }
};

}  // namespace

const OrtCustomOp* attention_op() {
  static const AttentionOp<CacheKind::kFloat> op;
  return &op;
}

const OrtCustomOp* attention_over_bytes_op() {
  static const AttentionOp<CacheKind::kBytes> op;
  return &op;
}

}  // namespace ops
}  // namespace magnitude
