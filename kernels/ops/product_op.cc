// ai.magnitude.Product: x · wᵀ with packed weights.
//
//   inputs      x       float32 [..., k]
//               packed  uint8 [bytes], as mk_pack() writes it: an initializer, so that it can stay mapped from its file
//   output      y       float32 [..., n]
//   attributes  n       outputs; the packed weights must have as many
#include "op.h"
#include "packed.h"
#include "product.h"

namespace magnitude {
namespace ops {
namespace {

class ProductKernel {
 public:
  static const Signature& signature() {
    static const ONNXTensorElementDataType inputs[] = {ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT,
                                                       ONNX_TENSOR_ELEMENT_DATA_TYPE_UINT8};
    static const ONNXTensorElementDataType outputs[] = {ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT};
    static const Signature made = {"Product", inputs, 2, outputs, 1};
    return made;
  }

  OrtStatus* read(const OrtKernelInfo* info) { return get_attribute(info, "n", &n_); }

  OrtStatus* compute(OrtKernelContext* context) const {
    Tensor x, packed, y;
    OrtStatus* status = get_input(context, 0, &x);
    if (status == nullptr) status = get_input(context, 1, &packed);
    if (status != nullptr) return status;
    Packed weights{};
    if (open_packed(packed.data, static_cast<size_t>(packed.elements), &weights) != 0) return failed();
    if (x.dimensions == 0 || x.last() != weights.k || n_ != weights.n) {
      return refused("the weights are [%lld, %lld], x ends in %lld and n is %lld", static_cast<long long>(weights.n),
                     static_cast<long long>(weights.k), static_cast<long long>(x.last()), static_cast<long long>(n_));
    }
    int64_t shape[kMostDimensions];
    for (size_t i = 0; i < x.dimensions; ++i) shape[i] = x.shape[i];
    shape[x.dimensions - 1] = n_;
    status = make_output(context, 0, shape, x.dimensions, &y);
    if (status != nullptr) return status;
    if (product(weights, static_cast<const float*>(x.data), x.vectors(), static_cast<float*>(y.data)) != 0) {
      return failed();
    }
    return nullptr;
  }

 private:
  int64_t n_ = 0;
};

}  // namespace

const OrtCustomOp* product_op() {
  static const Op<ProductKernel> op;
  return &op;
}

}  // namespace ops
}  // namespace magnitude
