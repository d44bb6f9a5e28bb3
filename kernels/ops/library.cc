// The way in for ONNX Runtime: SessionOptions.register_custom_ops_library() loads this library and calls
// RegisterCustomOps(). The operators are in the domain "ai.magnitude".
#include <cstdarg>
#include <cstdio>
#include <mutex>

#include "error.h"
#include "magnitude_kernels.h"
#include "op.h"

namespace magnitude {
namespace ops {

const OrtApi* ort = nullptr;

OrtStatus* failed() { return ort->CreateStatus(ORT_INVALID_ARGUMENT, last_error()); }

OrtStatus* refused(const char* format, ...) {
  char text[256];
  va_list arguments;
  va_start(arguments, format);
  std::vsnprintf(text, sizeof text, format, arguments);
  va_end(arguments);
  return ort->CreateStatus(ORT_INVALID_ARGUMENT, text);
}

namespace {

OrtStatus* fill_shape(const OrtValue* value, Tensor* out) {
  OrtTensorTypeAndShapeInfo* info = nullptr;
  OrtStatus* status = ort->GetTensorTypeAndShape(value, &info);
  if (status != nullptr) return status;
  status = ort->GetDimensionsCount(info, &out->dimensions);
  if (status == nullptr && out->dimensions > kMostDimensions) {
    status = refused("a tensor has %zu dimensions, more than %zu", out->dimensions, kMostDimensions);
  }
  if (status == nullptr) status = ort->GetDimensions(info, out->shape, out->dimensions);
  ort->ReleaseTensorTypeAndShapeInfo(info);
  out->elements = 1;
  for (size_t i = 0; i < out->dimensions && status == nullptr; ++i) out->elements *= out->shape[i];
  return status;
}

}  // namespace

OrtStatus* get_input(const OrtKernelContext* context, size_t index, Tensor* out) {
  OrtStatus* status = get_optional(context, index, out);
  if (status != nullptr || out->there) return status;
  return refused("input %zu is missing", index);
}

OrtStatus* get_optional(const OrtKernelContext* context, size_t index, Tensor* out) {
  size_t count = 0;
  OrtStatus* status = ort->KernelContext_GetInputCount(context, &count);
  if (status != nullptr || index >= count) return status;
  const OrtValue* value = nullptr;
  status = ort->KernelContext_GetInput(context, index, &value);
  if (status != nullptr || value == nullptr) return status;
  status = fill_shape(value, out);
  if (status != nullptr) return status;
  out->there = true;
  // The interface has no other way to data, written or not.
  return ort->GetTensorMutableData(const_cast<OrtValue*>(value), &out->data);
}

OrtStatus* get_constant(const OrtKernelInfo* info, size_t index, Tensor* out, bool* there) {
  *there = false;
  size_t count = 0;
  OrtStatus* status = ort->KernelInfo_GetInputCount(info, &count);
  if (status != nullptr || index >= count) return status;
  int constant = 0;
  const OrtValue* value = nullptr;
  status = ort->KernelInfoGetConstantInput_tensor(info, index, &constant, &value);
  if (status != nullptr || !constant || value == nullptr) return status;
  status = fill_shape(value, out);
  if (status != nullptr) return status;
  *there = out->there = true;
  return ort->GetTensorMutableData(const_cast<OrtValue*>(value), &out->data);
}

OrtStatus* make_output(OrtKernelContext* context, size_t index, const int64_t* shape, size_t dimensions, Tensor* out) {
  OrtValue* value = nullptr;
  OrtStatus* status = ort->KernelContext_GetOutput(context, index, shape, dimensions, &value);
  if (status != nullptr) return status;
  if (value == nullptr) return refused("output %zu is not wanted, but it is always made", index);
  status = fill_shape(value, out);
  if (status != nullptr) return status;
  out->there = true;
  return ort->GetTensorMutableData(value, &out->data);
}

OrtStatus* get_attribute(const OrtKernelInfo* info, const char* name, int64_t* out) {
  return ort->KernelInfoGetAttribute_int64(info, name, out);
}

int64_t attribute_or(const OrtKernelInfo* info, const char* name, int64_t otherwise) {
  int64_t value = otherwise;
  OrtStatus* status = ort->KernelInfoGetAttribute_int64(info, name, &value);
  if (status == nullptr) return value;
  ort->ReleaseStatus(status);
  return otherwise;
}

float attribute_or(const OrtKernelInfo* info, const char* name, float otherwise) {
  float value = otherwise;
  OrtStatus* status = ort->KernelInfoGetAttribute_float(info, name, &value);
  if (status == nullptr) return value;
  ort->ReleaseStatus(status);
  return otherwise;
}

std::vector<int64_t> attribute_or(const OrtKernelInfo* info, const char* name, std::vector<int64_t> otherwise) {
  size_t count = 0;
  OrtStatus* status = ort->KernelInfoGetAttributeArray_int64(info, name, nullptr, &count);
  if (status == nullptr) {
    std::vector<int64_t> values(count);
    status = ort->KernelInfoGetAttributeArray_int64(info, name, values.data(), &count);
    if (status == nullptr) return values;
  }
  ort->ReleaseStatus(status);
  return otherwise;
}

namespace {

// One domain for all sessions of the process: they keep pointers to it, and the library is never unloaded.
OrtStatus* make_domain(OrtCustomOpDomain** out) {
  OrtCustomOpDomain* domain = nullptr;
  OrtStatus* status = ort->CreateCustomOpDomain("ai.magnitude", &domain);
  if (status != nullptr) return status;
  for (const OrtCustomOp* op : {product_op(), attention_op(), attention_over_bytes_op()}) {
    status = ort->CustomOpDomain_Add(domain, op);
    if (status != nullptr) {
      ort->ReleaseCustomOpDomain(domain);
      return status;
    }
  }
  *out = domain;
  return nullptr;
}

}  // namespace
}  // namespace ops
}  // namespace magnitude

extern "C" MK_API OrtStatus* ORT_API_CALL RegisterCustomOps(OrtSessionOptions* options, const OrtApiBase* base) {
  using magnitude::ops::ort;
  static std::mutex making;
  static OrtCustomOpDomain* domain = nullptr;
  const std::lock_guard<std::mutex> mine(making);
  if (ort == nullptr) {
    ort = base->GetApi(magnitude::ops::kApiVersion);
    if (ort == nullptr) {
      // Not even a status can be made without an interface; version 1 has what that takes.
      const OrtApi* oldest = base->GetApi(1);
      if (oldest == nullptr) return nullptr;
      return oldest->CreateStatus(ORT_FAIL, "ONNX Runtime is older than 1.17, too old for these kernels");
    }
  }
  if (domain == nullptr) {
    OrtStatus* status = magnitude::ops::make_domain(&domain);
    if (status != nullptr) return status;
  }
  return ort->AddCustomOpDomain(options, domain);
}
