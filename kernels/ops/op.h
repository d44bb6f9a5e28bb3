// What all operators for ONNX Runtime share: its interface, tensors without exceptions, and errors as its statuses.
//
// ONNX Runtime owns every tensor. A function that returns OrtStatus* gives null for success; whoever gets another one
// passes it on to ONNX Runtime, which then owns it.
#ifndef MAGNITUDE_KERNELS_OP_H_
#define MAGNITUDE_KERNELS_OP_H_

#include <onnxruntime_c_api.h>
#include <stdint.h>

#include <new>
#include <vector>

namespace magnitude {
namespace ops {

// The oldest version of the interface that has all that is used here, the versions of an operator last: ONNX Runtime
// 1.17. Newer ones keep to it.
constexpr uint32_t kApiVersion = 17;

constexpr size_t kMostDimensions = 8;

// ONNX Runtime's interface; set once, before any operator is made.
extern const OrtApi* ort;

// The library's last error.
OrtStatus* failed();

// An error of the caller, formatted like printf.
OrtStatus* refused(const char* format, ...) __attribute__((format(printf, 1, 2)));

// A tensor as it lies in memory, row-major.
struct Tensor {
  bool there = false;
  void* data = nullptr;
  int64_t shape[kMostDimensions] = {};
  size_t dimensions = 0;
  int64_t elements = 0;

  // 1 for a scalar.
  int64_t last() const { return dimensions > 0 ? shape[dimensions - 1] : 1; }
  // How many vectors along the last dimension there are; 0 when that has no elements.
  int64_t vectors() const { return last() > 0 ? elements / last() : 0; }
};

// Input `index` of an operator that runs now. Its type has been checked by ONNX Runtime.
OrtStatus* get_input(const OrtKernelContext* context, size_t index, Tensor* out);

// The same for one that a node may leave out: it is not `there` then.
OrtStatus* get_optional(const OrtKernelContext* context, size_t index, Tensor* out);

// Input `index` where it is an initializer of the graph, while an operator is made; `there` is false for any other, and
// for one that the node does not have.
OrtStatus* get_constant(const OrtKernelInfo* info, size_t index, Tensor* out, bool* there);

// Makes output `index` with that shape. Where the caller of the session has bound memory to it, that is the data.
OrtStatus* make_output(OrtKernelContext* context, size_t index, const int64_t* shape, size_t dimensions, Tensor* out);

// An attribute that a node must have, or may have.
OrtStatus* get_attribute(const OrtKernelInfo* info, const char* name, int64_t* out);
int64_t attribute_or(const OrtKernelInfo* info, const char* name, int64_t otherwise);
float attribute_or(const OrtKernelInfo* info, const char* name, float otherwise);
std::vector<int64_t> attribute_or(const OrtKernelInfo* info, const char* name, std::vector<int64_t> otherwise);

// The types of an operator's inputs and outputs, in order.
struct Signature {
  const char* name;
  const ONNXTensorElementDataType* inputs;
  size_t input_count;
  const ONNXTensorElementDataType* outputs;
  size_t output_count;
};

// An operator in the form that ONNX Runtime wants: a table of functions, from a class with
//   static const Signature& signature();
//   OrtStatus* read(const OrtKernelInfo* info);      once, when a session is made
//   OrtStatus* compute(OrtKernelContext* context);   may run on several threads at once
template <class Kernel>
struct Op : OrtCustomOp {
  Op() : OrtCustomOp{} {
    version = kApiVersion;
    GetName = [](const OrtCustomOp*) { return Kernel::signature().name; };
    GetExecutionProviderType = [](const OrtCustomOp*) -> const char* { return nullptr; };  // CPU
    GetInputType = [](const OrtCustomOp*, size_t index) { return Kernel::signature().inputs[index]; };
    GetInputTypeCount = [](const OrtCustomOp*) { return Kernel::signature().input_count; };
    GetOutputType = [](const OrtCustomOp*, size_t index) { return Kernel::signature().outputs[index]; };
    GetOutputTypeCount = [](const OrtCustomOp*) { return Kernel::signature().output_count; };
    GetInputCharacteristic = [](const OrtCustomOp*, size_t) { return INPUT_OUTPUT_REQUIRED; };
    GetOutputCharacteristic = [](const OrtCustomOp*, size_t) { return INPUT_OUTPUT_REQUIRED; };
    GetInputMemoryType = [](const OrtCustomOp*, size_t) { return OrtMemTypeDefault; };
    GetVariadicInputMinArity = [](const OrtCustomOp*) { return 0; };
    GetVariadicInputHomogeneity = [](const OrtCustomOp*) { return 0; };
    GetVariadicOutputMinArity = [](const OrtCustomOp*) { return 0; };
    GetVariadicOutputHomogeneity = [](const OrtCustomOp*) { return 0; };
    GetStartVersion = [](const OrtCustomOp*) { return 1; };
    GetEndVersion = [](const OrtCustomOp*) { return 0x7fffffff; };
    CreateKernelV2 = [](const OrtCustomOp*, const OrtApi*, const OrtKernelInfo* info, void** out) -> OrtStatus* {
      Kernel* kernel = new (std::nothrow) Kernel;
      if (kernel == nullptr) return refused("no memory for an operator");
      OrtStatus* status = kernel->read(info);
      if (status != nullptr) {
        delete kernel;
        return status;
      }
      *out = kernel;
      return nullptr;
    };
    KernelComputeV2 = [](void* kernel, OrtKernelContext* context) {
      return static_cast<Kernel*>(kernel)->compute(context);
    };
    KernelDestroy = [](void* kernel) { delete static_cast<Kernel*>(kernel); };
  }
};

// The operators of this library, one function each; library.cc registers them.
const OrtCustomOp* product_op();
const OrtCustomOp* attention_op();
const OrtCustomOp* attention_over_bytes_op();

}  // namespace ops
}  // namespace magnitude

#endif  // MAGNITUDE_KERNELS_OP_H_
