/* What the runtime and a library of custom AI CPU kernels agree on: plain C, so that their compilers may
 * differ. */
#ifndef NPU_OPP_ABI_H_
#define NPU_OPP_ABI_H_

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define NPU_OPP_ABI_VERSION 1

/* A dense row-major operand; `data` is null for an optional input that was left out. */
typedef struct {
  int32_t dtype; /* numbers of aicpu::DataType */
  int32_t rank;
  const int64_t* dims;
  void* data;
  uint64_t nbytes;
} NpuOppTensor;

typedef enum {
  NPU_OPP_BOOL = 0,   /* values: int64_t[1] */
  NPU_OPP_INT = 1,    /* int64_t[1] */
  NPU_OPP_FLOAT = 2,  /* double[1] */
  NPU_OPP_STRING = 3, /* const char*[1] */
  NPU_OPP_INTS = 4,
  NPU_OPP_FLOATS = 5,
  NPU_OPP_STRINGS = 6
} NpuOppAttrKind;

typedef struct {
  const char* name;
  int32_t kind;
  int64_t count;
  const void* values;
} NpuOppAttr;

typedef void (*NpuOppRange)(void* work, int64_t begin, int64_t end);

/* One call of a kernel. An output's dims are the most it can hold. */
typedef struct {
  uint64_t num_inputs, num_outputs, num_attrs;
  const NpuOppTensor* inputs;
  const NpuOppTensor* outputs;
  const NpuOppAttr* attrs;
  int32_t threads;
  void* runtime;
  /* The actual dims of an output. */
  void (*set_shape)(void* runtime, uint64_t output, const int64_t* dims, int32_t rank);
  /* Calls `range` on disjoint parts of [0, total), none shorter than `grain`, on the runtime's threads. */
  void (*parallel_for)(void* runtime, int64_t total, int64_t grain, NpuOppRange range, void* work);
  char* message; /* what went wrong, for a status other than 0 */
  uint64_t message_size;
} NpuOppCall;

/* Symbols of a library. */
typedef uint32_t (*NpuOppVersionFn)(void);                          /* npu_opp_abi_version */
typedef uint64_t (*NpuOppCountFn)(void);                            /* npu_opp_kernel_count */
typedef const char* (*NpuOppNameFn)(uint64_t kernel);               /* npu_opp_kernel_name */
typedef uint32_t (*NpuOppRunFn)(uint64_t kernel, NpuOppCall* call); /* npu_opp_kernel_run: 0 is success */

/* One question of shape inference. Dimensions are known; `data` is null unless an input is a constant. */
typedef struct {
  uint64_t num_inputs, num_outputs, num_attrs;
  const char* const* input_names; /* of dynamic inputs: x0, x1, ... */
  const NpuOppTensor* inputs;     /* rank -1 for an optional input that was left out */
  const char* const* output_names;
  const NpuOppAttr* attrs;
  void* sink;
  void (*set_output)(void* sink, uint64_t output, int32_t dtype, const int64_t* dims, int32_t rank);
  char* message;
  uint64_t message_size;
} NpuOppInfer;

/* npu_opp_infer: 0 done, 1 refused (see message), 2 no function for the type. */
typedef uint32_t (*NpuOppInferFn)(const char* type, NpuOppInfer* question);

/* One node of a framework's graph for a parse function; set_attr gets the attributes of our operator. */
typedef struct {
  const char* framework; /* "onnx", "tensorflow" */
  const char* type;      /* as the plugin registers it */
  const char* name;
  uint64_t num_inputs, num_outputs, num_attrs;
  const NpuOppAttr* attrs;
  void* sink;
  void (*set_attr)(void* sink, const NpuOppAttr* attr);
  char* message;
  uint64_t message_size;
} NpuOppParse;

/* npu_opp_parse: 0 done, 1 refused (see message), 2 no function for the type. */
typedef uint32_t (*NpuOppParseFn)(NpuOppParse* question);

#ifdef __cplusplus
}
#endif

#endif /* NPU_OPP_ABI_H_ */
