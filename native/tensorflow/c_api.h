// TensorFlow's C API as far as the device needs it: declared here, found at run time in the libraries that
// the process has loaded. Nothing is linked, so one build serves every TensorFlow with this interface.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

extern "C" {

struct TF_Status;
struct TF_Tensor;
struct TFE_Context;
struct TFE_Op;
struct TFE_OpAttrs;
struct TFE_TensorHandle;
struct TF_KernelBuilder;
struct TF_OpKernelConstruction;
struct TF_OpKernelContext;
struct TF_OpDefinitionBuilder;
struct TF_ShapeInferenceContext;

struct TF_Buffer {
  const void* data;
  std::size_t length;
  void (*data_deallocator)(void* data, std::size_t length);
};

struct TFE_CustomDevice {
  int version;
  TFE_TensorHandle* (*copy_tensor_to_device)(TFE_Context*, TFE_TensorHandle*, TF_Status*, void* device_info);
  TFE_TensorHandle* (*copy_tensor_from_device)(TFE_Context*, TFE_TensorHandle*, const char* target,
                                               TF_Status*, void* device_info);
  void (*execute)(const TFE_Op*, int* num_outputs, TFE_TensorHandle** outputs, TF_Status*, void* device_info);
  void (*delete_device)(void* device_info);
  TFE_TensorHandle* (*pack)(TFE_Context*, TFE_TensorHandle**, int, TF_Status*, void* device_info);
  bool (*shall_pin_to_this_device)(const TFE_Op*, TF_Status*);
};

struct TFE_CustomDeviceTensorHandle {
  int version;
  int (*num_dims)(void* data, TF_Status*);
  std::int64_t (*dim)(void* data, int index, TF_Status*);
  void (*deallocator)(void* data);
  TF_Buffer* (*summarize)(void* data, TF_Status*);
};
}

namespace npu::tf {

inline constexpr int kCustomDeviceVersion = 4;

// TF_DataType, the ones that are named here.
enum DataType : int {
  kFloat = 1,
  kDouble = 2,
  kInt32 = 3,
  kUInt8 = 4,
  kInt16 = 5,
  kInt8 = 6,
  kString = 7,
  kInt64 = 9,
  kBool = 10,
  kBFloat16 = 14,
  kUInt16 = 17,
  kHalf = 19,
  kResource = 20,
  kVariant = 21,
  kUInt32 = 22,
  kUInt64 = 23,
};

// TF_Code.
enum Code : int {
  kOk = 0,
  kCancelled = 1,
  kInvalidArgument = 3,
  kNotFound = 5,
  kResourceExhausted = 8,
  kFailedPrecondition = 9,
  kUnimplemented = 12,
  kInternal = 13,
};

// Every function used, as  name, result, (arguments).
// clang-format off
#define NPU_TENSORFLOW_FUNCTIONS(F)                                                                             \
  F(TF_NewStatus, TF_Status*, ())                                                                               \
  F(TF_DeleteStatus, void, (TF_Status*))                                                                        \
  F(TF_SetStatus, void, (TF_Status*, int code, const char* message))                                            \
  F(TF_GetCode, int, (const TF_Status*))                                                                        \
  F(TF_Message, const char*, (const TF_Status*))                                                                \
  F(TF_NewBuffer, TF_Buffer*, ())                                                                               \
  F(TF_DeleteBuffer, void, (TF_Buffer*))                                                                        \
  F(TF_DataTypeSize, std::size_t, (int dtype))                                                                  \
  F(TF_NewTensor, TF_Tensor*, (int dtype, const std::int64_t* dims, int rank, void* data, std::size_t bytes,    \
                               void (*free)(void*, std::size_t, void*), void* argument))                        \
  F(TF_DeleteTensor, void, (TF_Tensor*))                                                                        \
  F(TF_TensorType, int, (const TF_Tensor*))                                                                     \
  F(TF_NumDims, int, (const TF_Tensor*))                                                                        \
  F(TF_Dim, std::int64_t, (const TF_Tensor*, int))                                                              \
  F(TF_TensorByteSize, std::size_t, (const TF_Tensor*))                                                         \
  F(TF_AllocateTensor, TF_Tensor*, (int dtype, const std::int64_t* dims, int rank, std::size_t bytes))          \
  F(TF_TensorMaybeMove, TF_Tensor*, (TF_Tensor*))                                                               \
  F(TF_TensorData, void*, (const TF_Tensor*))                                                                   \
  F(TFE_NewOp, TFE_Op*, (TFE_Context*, const char* name, TF_Status*))                                           \
  F(TFE_DeleteOp, void, (TFE_Op*))                                                                              \
  F(TFE_OpGetName, const char*, (const TFE_Op*, TF_Status*))                                                    \
  F(TFE_OpGetContext, TFE_Context*, (const TFE_Op*, TF_Status*))                                                \
  F(TFE_OpGetDevice, const char*, (const TFE_Op*, TF_Status*))                                                  \
  F(TFE_OpSetDevice, void, (TFE_Op*, const char* device, TF_Status*))                                           \
  F(TFE_OpAddInput, void, (TFE_Op*, TFE_TensorHandle*, TF_Status*))                                             \
  F(TFE_OpGetFlatInputCount, int, (const TFE_Op*, TF_Status*))                                                  \
  F(TFE_OpGetFlatInput, TFE_TensorHandle*, (const TFE_Op*, int index, TF_Status*))                              \
  F(TFE_OpGetAttrs, const TFE_OpAttrs*, (const TFE_Op*))                                                        \
  F(TFE_OpAddAttrs, void, (TFE_Op*, const TFE_OpAttrs*))                                                        \
  F(TFE_OpAttrsSerialize, void, (const TFE_OpAttrs*, TF_Buffer*, TF_Status*))                                   \
  F(TFE_OpSetAttrType, void, (TFE_Op*, const char* name, int value))                                            \
  F(TFE_OpSetAttrInt, void, (TFE_Op*, const char* name, std::int64_t value))                                    \
  F(TFE_OpSetAttrTypeList, void, (TFE_Op*, const char* name, const int* values, int count))                     \
  F(TFE_OpSetAttrBool, void, (TFE_Op*, const char* name, unsigned char value))                                  \
  F(TFE_OpSetAttrValueProto, void,                                                                              \
    (const TFE_Op*, const char* name, const void* proto, std::size_t length, TF_Status*))                       \
  F(TFE_Execute, void, (TFE_Op*, TFE_TensorHandle** results, int* count, TF_Status*))                           \
  F(TFE_ContextHasFunction, unsigned char, (TFE_Context*, const char* name))                                    \
  F(TFE_NewTensorHandle, TFE_TensorHandle*, (const TF_Tensor*, TF_Status*))                                     \
  F(TFE_DeleteTensorHandle, void, (TFE_TensorHandle*))                                                          \
  F(TFE_TensorHandleDataType, int, (TFE_TensorHandle*))                                                         \
  F(TFE_TensorHandleNumDims, int, (TFE_TensorHandle*, TF_Status*))                                              \
  F(TFE_TensorHandleDim, std::int64_t, (TFE_TensorHandle*, int index, TF_Status*))                              \
  F(TFE_TensorHandleDeviceName, const char*, (TFE_TensorHandle*, TF_Status*))                                   \
  F(TFE_TensorHandleResolve, TF_Tensor*, (TFE_TensorHandle*, TF_Status*))                                       \
  F(TFE_TensorHandleCopyToDevice, TFE_TensorHandle*, (TFE_TensorHandle*, TFE_Context*, const char*, TF_Status*)) \
  F(TFE_TensorHandleCopySharingTensor, TFE_TensorHandle*, (TFE_TensorHandle*, TF_Status*))                      \
  F(TFE_TensorHandleDevicePointer, void*, (TFE_TensorHandle*, TF_Status*))                                      \
  F(TFE_NewCustomDeviceTensorHandle, TFE_TensorHandle*,                                                         \
    (TFE_Context*, const char* device, int dtype, void* data, TFE_CustomDeviceTensorHandle, TF_Status*))        \
  F(TF_NewKernelBuilder, TF_KernelBuilder*,                                                                     \
    (const char* op, const char* device, void* (*create)(TF_OpKernelConstruction*),                             \
     void (*compute)(void*, TF_OpKernelContext*), void (*destroy)(void*)))                                      \
  F(TF_RegisterKernelBuilder, void, (const char* name, TF_KernelBuilder*, TF_Status*))                          \
  F(TF_OpKernelConstruction_GetAttrInt64, void,                                                                 \
    (TF_OpKernelConstruction*, const char* name, std::int64_t* value, TF_Status*))                              \
  F(TF_OpKernelConstruction_GetAttrSize, void,                                                                  \
    (TF_OpKernelConstruction*, const char* name, std::int32_t* count, std::int32_t* bytes, TF_Status*))         \
  F(TF_OpKernelConstruction_GetAttrString, void,                                                                \
    (TF_OpKernelConstruction*, const char* name, char* value, std::size_t bytes, TF_Status*))                   \
  F(TF_OpKernelConstruction_Failure, void, (TF_OpKernelConstruction*, TF_Status*))                              \
  F(TF_OpKernelContext_Failure, void, (TF_OpKernelContext*, TF_Status*))                                        \
  F(TF_NumInputs, int, (TF_OpKernelContext*))                                                                   \
  F(TF_NumOutputs, int, (TF_OpKernelContext*))                                                                  \
  F(TF_GetInput, void, (TF_OpKernelContext*, int index, TF_Tensor**, TF_Status*))                               \
  F(TF_SetOutput, void, (TF_OpKernelContext*, int index, const TF_Tensor*, TF_Status*))                         \
  F(TF_NewOpDefinitionBuilder, TF_OpDefinitionBuilder*, (const char* name))                                     \
  F(TF_OpDefinitionBuilderAddAttr, void, (TF_OpDefinitionBuilder*, const char* spec))                           \
  F(TF_OpDefinitionBuilderAddInput, void, (TF_OpDefinitionBuilder*, const char* spec))                          \
  F(TF_OpDefinitionBuilderAddOutput, void, (TF_OpDefinitionBuilder*, const char* spec))                         \
  F(TF_OpDefinitionBuilderSetIsStateful, void, (TF_OpDefinitionBuilder*, bool is_stateful)) \
  F(TF_OpDefinitionBuilderSetShapeInferenceFunction, void,                                                      \
    (TF_OpDefinitionBuilder*, void (*infer)(TF_ShapeInferenceContext*, TF_Status*)))                            \
  F(TF_RegisterOpDefinition, void, (TF_OpDefinitionBuilder*, TF_Status*))                                       \
  F(TF_ShapeInferenceContextSetUnknownShape, void, (TF_ShapeInferenceContext*, TF_Status*))
// clang-format on

struct Api {
#define NPU_TENSORFLOW_MEMBER(name, result, arguments) result(*name) arguments = nullptr;
  NPU_TENSORFLOW_FUNCTIONS(NPU_TENSORFLOW_MEMBER)
#undef NPU_TENSORFLOW_MEMBER
};

// The functions; all null until load_api().
extern Api api;

// Finds every function in these libraries, which must be loaded already; raises InvalidArgument naming what
// is missing.
void load_api(const std::vector<std::string>& libraries);
bool api_loaded();

// A status of our own, for calls whose failure is looked at here.
class Status {
 public:
  Status() : status_(api.TF_NewStatus()) {}
  ~Status() { api.TF_DeleteStatus(status_); }
  Status(const Status&) = delete;
  Status& operator=(const Status&) = delete;
  operator TF_Status*() const { return status_; }
  bool ok() const { return api.TF_GetCode(status_) == kOk; }

 private:
  TF_Status* status_;
};

inline bool ok(const TF_Status* status) { return api.TF_GetCode(status) == kOk; }

// The runtime's name of an element type; empty when the NPU has no such type.
const char* type_name(int dtype);
// TensorFlow's number of a runtime type name; raises InvalidArgument.
int type_number(const std::string& name);
std::size_t type_size(int dtype);

}  // namespace npu::tf
