// ai.magnitude.Product: x · wᵀ with weights in blocks, and what stands before and behind it in a decoder.
//
//   inputs      x           float32 [..., k]
//               weights     uint8 [bytes]: packed, as mk_pack() writes it, which can stay mapped from its file. Or
//                           uint8 [n, k/32, 16 or 32]: codes of 4 or 8 bits as mk_pack_blocks() takes them
//               scales      with codes: float32 [n, k/32]
//               correction  may be left out: float32 [rows, n]. With codes of 4 bits, k/32 rows that are what
//                           mk_pack_blocks() calls correction, if `minima` says so; then one for each wide channel
//               gain        may be left out: float32 [k], the weights of an RMS norm that x goes through first
//               bias        may be left out: float32 [n]
//               residual    may be left out: float32 [..., width], added last
//   output      y           float32 [..., width], width being n, or n/2 where it is gated
//   attributes  n           outputs; the weights must have as many
//               epsilon     of the norm
//               gated       1: the first half of the outputs are gates of the second half, y = silu(gate) · up; 0, the
//                           default: they are not
//               minima      1: the correction has them; 0, the default: it does not
//               wide        indices along k, none by default. What these channels of x give with their rows of the
//                           correction is added in float: the channels are those that would make the INT8 step of
//                           their blocks coarse, so that whoever made x has them small in it, and the rows large
//
// Codes, scales and correction are initializers, packed when a session is made: into memory of that session alone.
// Who has them packed already gives that to the session as the initializer in the place of codes, and the rest of the
// graph stays as it is: scales are then not read, nor minima.
#include <algorithm>
#include <memory>
#include <new>
#include <vector>

#include "blocks.h"
#include "fused.h"
#include "op.h"
#include "packed.h"

namespace magnitude {
namespace ops {
namespace {

constexpr ONNXTensorElementDataType kFloat = ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT;
constexpr ONNXTensorElementDataType kUint8 = ONNX_TENSOR_ELEMENT_DATA_TYPE_UINT8;

enum Input : size_t { kX, kWeights, kScales, kCorrection, kGain, kBias, kResidual, kInputs };

constexpr std::align_val_t kAlignment{64};

struct Release {
  void operator()(uint8_t* bytes) const { operator delete[](bytes, kAlignment); }
};

class ProductKernel {
 public:
  static const Signature& signature() {
    static const ONNXTensorElementDataType inputs[kInputs] = {kFloat, kUint8, kFloat, kFloat, kFloat, kFloat, kFloat};
    static const ONNXTensorElementDataType outputs[] = {kFloat};
    static const Signature made = {"Product", inputs, kInputs, outputs, 1};
    return made;
  }

  OrtStatus* read(const OrtKernelInfo* info) {
    OrtStatus* status = get_attribute(info, "n", &n_);
    if (status != nullptr) return status;
    minima_ = attribute_or(info, "minima", int64_t{0}) != 0;
    wide_ = attribute_or(info, "wide", std::vector<int64_t>());
    epsilon_ = attribute_or(info, "epsilon", 0.0f);
    gated_ = attribute_or(info, "gated", int64_t{0}) != 0;
    if (gated_ && n_ % 2 != 0) return refused("n is %lld, and half of the outputs are gates", static_cast<long long>(n_));
    Tensor weights;
    bool there = false;
    if (!wide_.empty()) status = read_wide(info);
    if (status == nullptr) status = get_constant(info, kWeights, &weights, &there);
    if (status != nullptr || !there || weights.dimensions == 1) return status;
    return pack_codes(info, weights);
  }

  OrtStatus* compute(OrtKernelContext* context) const {
    Tensor x, y;
    OrtStatus* status = get_input(context, kX, &x);
    if (status != nullptr) return status;
    Packed weights{};
    if (own_ != nullptr) {
      if (open_packed(own_.get(), own_bytes_, &weights) != 0) return failed();
    } else {
      Tensor packed;
      status = get_input(context, kWeights, &packed);
      if (status != nullptr) return status;
      if (open_packed(packed.data, static_cast<size_t>(packed.elements), &weights) != 0) return failed();
    }
    if (x.dimensions == 0 || x.last() != weights.k || n_ != weights.n) {
      return refused("the weights are [%lld, %lld], x ends in %lld and n is %lld", static_cast<long long>(weights.n),
                     static_cast<long long>(weights.k), static_cast<long long>(x.last()), static_cast<long long>(n_));
    }
    if (!wide_.empty() && *std::max_element(wide_.begin(), wide_.end()) >= weights.k) {
      return refused("a wide channel is beyond x");
    }
    Fusion fusion;
    if (status == nullptr) status = get_fusion(context, weights, x.vectors(), &fusion);
    int64_t shape[kMostDimensions];
    for (size_t i = 0; i < x.dimensions; ++i) shape[i] = x.shape[i];
    shape[x.dimensions - 1] = width_of(weights, fusion);
    if (status == nullptr) status = make_output(context, 0, shape, x.dimensions, &y);
    if (status != nullptr) return status;
    if (fused_product(weights, fusion, static_cast<const float*>(x.data), x.vectors(), static_cast<float*>(y.data)) !=
        0) {
      return failed();
    }
    return nullptr;
  }

 private:
  // The rows of the correction for wide channels are its last ones. ONNX Runtime keeps initializers where they are for
  // as long as a session lives.
  OrtStatus* read_wide(const OrtKernelInfo* info) {
    Tensor correction;
    bool there = false;
    if (OrtStatus* status = get_constant(info, kCorrection, &correction, &there)) return status;
    const int64_t count = static_cast<int64_t>(wide_.size());
    if (*std::min_element(wide_.begin(), wide_.end()) < 0) return refused("a wide channel is negative");
    if (!there || correction.dimensions != 2 || correction.shape[0] < count || correction.shape[1] != n_) {
      return refused("correction is no initializer with %lld rows of %lld for wide channels",
                     static_cast<long long>(count), static_cast<long long>(n_));
    }
    wide_rows_ = static_cast<const float*>(correction.data) + (correction.shape[0] - count) * n_;
    return nullptr;
  }

  OrtStatus* get_fusion(const OrtKernelContext* context, const Packed& weights, int64_t rows, Fusion* fusion) const {
    fusion->epsilon = epsilon_;
    fusion->gated = gated_;
    fusion->channels = wide_.data();
    fusion->wide = static_cast<int64_t>(wide_.size());
    fusion->wide_rows = wide_rows_;
    OrtStatus* status = get_floats(context, kGain, "gain", weights.k, &fusion->gain);
    if (status == nullptr) status = get_floats(context, kBias, "bias", weights.n, &fusion->bias);
    if (status == nullptr) {
      status = get_floats(context, kResidual, "residual", rows * width_of(weights, *fusion), &fusion->residual);
    }
    return status;
  }

  // An input that may be left out.
  static OrtStatus* get_floats(const OrtKernelContext* context, size_t index, const char* name, int64_t count,
                               const float** out) {
    Tensor tensor;
    OrtStatus* status = get_optional(context, index, &tensor);
    if (status != nullptr || !tensor.there) return status;
    if (tensor.elements != count) {
      return refused("%s has %lld numbers, not %lld", name, static_cast<long long>(tensor.elements),
                     static_cast<long long>(count));
    }
    *out = static_cast<const float*>(tensor.data);
    return nullptr;
  }

  OrtStatus* pack_codes(const OrtKernelInfo* info, const Tensor& codes) {
    if (codes.dimensions != 3 || (codes.shape[2] != 16 && codes.shape[2] != 32)) {
      return refused("weights are neither packed nor codes [n, blocks, 16 or 32]");
    }
    const int64_t n = codes.shape[0];
    const int64_t blocks = codes.shape[1];
    const int bits = codes.shape[2] == 16 ? 4 : 8;
    Tensor scales, correction;
    bool scaled = false;
    bool corrected = false;
    OrtStatus* status = get_constant(info, kScales, &scales, &scaled);
    if (status == nullptr && minima_) status = get_constant(info, kCorrection, &correction, &corrected);
    if (status != nullptr) return status;
    if (!scaled || scales.dimensions != 2 || scales.shape[0] != n || scales.shape[1] != blocks) {
      return refused("scales are no initializer [%lld, %lld]", static_cast<long long>(n),
                     static_cast<long long>(blocks));
    }
    const int64_t rows = blocks + static_cast<int64_t>(wide_.size());
    if (minima_ && (!corrected || correction.dimensions != 2 || correction.shape[0] != rows ||
                    correction.shape[1] != n)) {
      return refused("correction is no initializer [%lld, %lld]", static_cast<long long>(rows),
                     static_cast<long long>(n));
    }
    const int64_t bytes = packed_blocks_bytes(bits, n, blocks, corrected);
    if (bytes < 0) return failed();
    own_bytes_ = static_cast<size_t>(bytes);
    own_.reset(new (kAlignment, std::nothrow) uint8_t[own_bytes_]);
    if (own_ == nullptr) return refused("no memory for %zu bytes of packed weights", own_bytes_);
    if (pack_blocks(bits, n, blocks, static_cast<const uint8_t*>(codes.data), static_cast<size_t>(codes.elements),
                    static_cast<const float*>(scales.data),
                    corrected ? static_cast<const float*>(correction.data) : nullptr, own_.get(),
                    own_bytes_) != 0) {
      return failed();
    }
    return nullptr;
  }

  int64_t n_ = 0;
  bool minima_ = false;
  bool gated_ = false;
  float epsilon_ = 0;
  std::vector<int64_t> wide_;
  const float* wide_rows_ = nullptr;  // [wide channels, n]
  std::unique_ptr<uint8_t[], Release> own_;  // null where weights come packed
  size_t own_bytes_ = 0;
};

struct ProductOp : Op<ProductKernel> {
  ProductOp() {
    GetInputCharacteristic = [](const OrtCustomOp*, size_t index) {
      return index >= kScales ? INPUT_OUTPUT_OPTIONAL : INPUT_OUTPUT_REQUIRED;
    };
  }
};

}  // namespace

const OrtCustomOp* product_op() {
  static const ProductOp op;
  return &op;
}

}  // namespace ops
}  // namespace magnitude
