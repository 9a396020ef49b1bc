/* Runs compiled models (`.om` files) from C, without Python.
 *
 * Every call that can fail returns a status: NPU_OK, or the number of an error code of the Graph Engine
 * (11003 is E11003). npu_last_error() tells the calling thread what went wrong and what to do. Handles may be
 * used by any thread; runs of one model go side by side. A handle that is freed must not be in use.
 *
 *     npu_model* model;
 *     if (npu_model_load("resnet50.om", NULL, &model) != NPU_OK) return fail(npu_last_error());
 *     npu_array input = {image, sizeof image}, output = {scores, sizeof scores};
 *     if (npu_model_run(model, 0, &input, 1, &output, 1) != NPU_OK) return fail(npu_last_error());
 *     npu_model_free(model);
 */
#ifndef NPU_NPU_H_
#define NPU_NPU_H_

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* The interface. Later versions with the same major number keep every function and field of this one. */
#define NPU_VERSION_MAJOR 1
#define NPU_VERSION_MINOR 0
#define NPU_MAX_RANK 32

typedef int32_t npu_status;

enum {
  NPU_OK = 0,
  NPU_INVALID_ARGUMENT = 10020, /* a null pointer, a wrong number, size or type */
  NPU_BAD_DATA = 10024,         /* an index out of range, a whole number divided by zero */
  NPU_OUT_OF_MEMORY = 10030,
  NPU_TASK_FAILED = 10032,
  NPU_NO_COMPILER = 10900, /* the compiler's process could not be started, or ended without a code */
  NPU_FILE_UNREADABLE = 11001,
  NPU_FILE_FOREIGN = 11002, /* another kind of file */
  NPU_FILE_TRUNCATED = 11003,
  NPU_FILE_CORRUPTED = 11004,
  NPU_FILE_NEWER = 11005,     /* written by a newer version */
  NPU_FILE_MALFORMED = 11006, /* content that makes no sense */
  NPU_KERNEL_UNFIT = 11007,   /* machine code that cannot be loaded */
  NPU_TASK_REFUSED = 11008,   /* the runtime cannot run a task on this processor */
  NPU_NOT_RUNNABLE = 11009,   /* for another target, not trusted, or in need of Python */
  NPU_NO_GEAR = 11101         /* no gear for these inputs */
};

typedef enum npu_dtype {
  NPU_FLOAT32 = 0,
  NPU_FLOAT64 = 1,
  NPU_FLOAT16 = 2,
  NPU_BFLOAT16 = 3,
  NPU_INT8 = 4,
  NPU_INT16 = 5,
  NPU_INT32 = 6,
  NPU_INT64 = 7,
  NPU_UINT8 = 8,
  NPU_UINT16 = 9,
  NPU_UINT32 = 10,
  NPU_UINT64 = 11,
  NPU_BOOL = 12
} npu_dtype;

typedef struct npu_model npu_model;
typedef struct npu_buffer npu_buffer;
typedef struct npu_stream npu_stream;

typedef struct npu_load_options {
  uint32_t size;  /* sizeof(npu_load_options) */
  int32_t device; /* its number, from 0 */
  int32_t trust;  /* not 0: machine code of a file that this user did not compile may run */
} npu_load_options;

/* An input or output. The pointers are valid as long as the model. */
typedef struct npu_tensor_info {
  uint32_t size; /* sizeof(npu_tensor_info), set by the caller */
  npu_dtype dtype;
  const char* name;
  const char* format; /* "NCHW", "NHWC", "ND", ... */
  const int64_t* dims;
  size_t rank;
  size_t bytes;
  int32_t dynamic; /* not 0: only the run decides the shape, and `dims` are the largest */
} npu_tensor_info;

/* Memory of the caller, contiguous. After a run, `dims` and `rank` are the shape of an output. */
typedef struct npu_array {
  void* data;
  size_t bytes;
  int64_t dims[NPU_MAX_RANK];
  size_t rank;
} npu_array;

/* The version of the library: major * 1000 + minor. */
uint32_t npu_version(void);
/* What the last failed call of this thread says; "" where none failed. Valid until its next failing call. */
const char* npu_last_error(void);
const char* npu_dtype_name(npu_dtype dtype);
size_t npu_dtype_bytes(npu_dtype dtype);
int32_t npu_device_count(void);

/* `options` may be null: device 0, and machine code runs only from files that this user has compiled. */
npu_status npu_model_load(const char* path, const npu_load_options* options, npu_model** model);
/* The same for a file's content, which is copied. */
npu_status npu_model_load_memory(const void* data, size_t bytes, const npu_load_options* options,
                                 npu_model** model);
void npu_model_free(npu_model* model);

const char* npu_model_name(const npu_model* model);
size_t npu_model_input_count(const npu_model* model);
size_t npu_model_output_count(const npu_model* model);
/* Gears are the input shapes that a model was compiled for; a model of one shape has one, number 0. */
size_t npu_model_gear_count(const npu_model* model);
npu_status npu_model_input(const npu_model* model, size_t gear, size_t index, npu_tensor_info* info);
npu_status npu_model_output(const npu_model* model, size_t gear, size_t index, npu_tensor_info* info);
/* The gear whose inputs have the shapes in `dims` and `rank` of the arrays. */
npu_status npu_model_find_gear(const npu_model* model, const npu_array* inputs, size_t input_count,
                               size_t* gear);

npu_status npu_model_run(npu_model* model, size_t gear, const npu_array* inputs, size_t input_count,
                         npu_array* outputs, size_t output_count);
/* Puts the run into a stream. The memory, and the array `outputs`, are in use until the stream is
 * synchronised. */
npu_status npu_model_run_async(npu_model* model, size_t gear, const npu_array* inputs, size_t input_count,
                               npu_array* outputs, size_t output_count, npu_stream* stream);

/* Memory of a device: aligned, zeroed, counted to the device's limit. */
npu_status npu_buffer_create(int32_t device, size_t bytes, npu_buffer** buffer);
void npu_buffer_free(npu_buffer* buffer);
void* npu_buffer_data(const npu_buffer* buffer);
size_t npu_buffer_bytes(const npu_buffer* buffer);

/* An ordered queue with a thread of its own. */
npu_status npu_stream_create(npu_stream** stream);
/* Calls a function of the host once everything put in before is done. */
npu_status npu_stream_call(npu_stream* stream, void (*function)(void*), void* argument);
/* Waits; returns the status of the first failed run since the last call. */
npu_status npu_stream_synchronize(npu_stream* stream);
/* Waits for what is in it. */
void npu_stream_free(npu_stream* stream);

/* Compiles a model file (ONNX, TensorFlow, AIR) to an `.om` file. The compiler (atc) runs in a process of its
 * own, by the Python interpreter in the environment variable NPU_PYTHON, else by that of the environment in
 * which this library is installed, else by python3 on the PATH. `options`: further options of atc, such as
 * "--input_shape=x:1,3,224,224"; null at the end, or null itself. */
npu_status npu_compile(const char* model_path, const char* om_path, const char* const* options);

#ifdef __cplusplus
}
#endif
#endif /* NPU_NPU_H_ */
