#include "cuda/product.h"

#include <algorithm>
#include <map>
#include <mutex>

#include "cuda/library.h"

namespace npu::cuda {
namespace {

using Handle = struct LtTag*;
using Object = void*;

// What is used of cuBLASLt; numbers are those of its published interface.
constexpr int kFloat32 = 0, kFloat16 = 2, kInt8 = 3, kInt32 = 10, kBfloat16 = 14;
constexpr int kComputeFloat32 = 68, kComputeInt32 = 72;  // true float32: no TF32
constexpr int kTransposeA = 3, kTransposeB = 4, kEpilogue = 7, kBiasPointer = 8;
constexpr int kBatchCount = 5, kBatchStride = 6;
constexpr int kMaxWorkspace = 1, kAlignmentA = 5, kAlignmentB = 6, kAlignmentC = 7, kAlignmentD = 8;
constexpr int kReductionMask = 3;
constexpr std::uint32_t kWideReductions = 2;  // parts of a sum are added as float32, in a fixed order
constexpr std::uint32_t kAlignment = 16;      // bytes; operands may be views
constexpr int kEpilogueDefault = 1, kEpilogueRelu = 2, kEpilogueBias = 4, kEpilogueGelu = 32;
constexpr int kMostCandidates = 24;
constexpr int kAlgorithmSettings = 9;  // identity, tile, split, reduction, swizzle, option, stages, shapes

struct Heuristic {
  std::uint64_t algorithm[8];
  std::size_t workspace;
  int state;
  float waves;
  int reserved[4];
};

struct Lt {
  explicit Lt(const std::string& path) : library(path) {
    library.find("cublasLtCreate", create);
    library.find("cublasLtMatmulDescCreate", desc_create);
    library.find("cublasLtMatmulDescDestroy", desc_destroy);
    library.find("cublasLtMatmulDescSetAttribute", desc_set);
    library.find("cublasLtMatrixLayoutCreate", layout_create);
    library.find("cublasLtMatrixLayoutDestroy", layout_destroy);
    library.find("cublasLtMatrixLayoutSetAttribute", layout_set);
    library.find("cublasLtMatmulPreferenceCreate", preference_create);
    library.find("cublasLtMatmulPreferenceDestroy", preference_destroy);
    library.find("cublasLtMatmulPreferenceSetAttribute", preference_set);
    library.find("cublasLtMatmulAlgoGetHeuristic", heuristic);
    library.find("cublasLtMatmulAlgoConfigGetAttribute", setting);
    library.find("cublasLtMatmul", matmul);
  }

  Library library;
  int (*create)(Handle*);
  int (*desc_create)(Object*, int compute, int scale);
  int (*desc_destroy)(Object);
  int (*desc_set)(Object, int, const void*, std::size_t);
  int (*layout_create)(Object*, int type, std::uint64_t rows, std::uint64_t columns, std::int64_t lead);
  int (*layout_destroy)(Object);
  int (*layout_set)(Object, int, const void*, std::size_t);
  int (*preference_create)(Object*);
  int (*preference_destroy)(Object);
  int (*preference_set)(Object, int, const void*, std::size_t);
  int (*heuristic)(Handle, Object, Object, Object, Object, Object, Object, int, Heuristic*, int*);
  int (*setting)(const void*, int, void*, std::size_t, std::size_t*);
  int (*matmul)(Handle, Object, const void*, Address, Object, Address, Object, const void*, Address, Object,
                Address, Object, const void*, Address, std::size_t, StreamHandle);
};

void ok(int status, const char* what) {
  if (status != 0) throw CudaError(std::string(what) + " failed with status " + std::to_string(status));
}

const Lt& lt(const std::string& path) {
  static const Lt library(path);
  return library;
}

int type_of(const std::string& dtype) {
  static const std::map<std::string, int> types = {{"float32", kFloat32},
                                                   {"float16", kFloat16},
                                                   {"bfloat16", kBfloat16},
                                                   {"int8", kInt8},
                                                   {"int32", kInt32}};
  const auto found = types.find(dtype);
  if (found == types.end()) throw Unsupported("cuBLASLt products of " + dtype + " are not implemented");
  return found->second;
}

Handle handle_of(const Lt& library, Device& device) {
  static std::mutex mutex;
  static std::map<int, Handle> handles;
  const std::scoped_lock lock(mutex);
  Handle& handle = handles[device.index()];
  if (handle == nullptr) ok(library.create(&handle), "cublasLtCreate");
  return handle;
}

}  // namespace

struct Product::Parts {
  Parts(const Lt& lt, Device& on) : library(lt), device(on) {}

  const Lt& library;
  Device& device;
  Handle handle = nullptr;
  Object desc = nullptr, a = nullptr, b = nullptr, residual = nullptr, y = nullptr;
  bool has_bias = false;
  bool integer = false;  // factors and sums are int32
  bool has_residual = false;
  std::vector<Heuristic> found;

  ~Parts() {
    for (Object layout : {a, b, residual, y}) {
      if (layout != nullptr) library.layout_destroy(layout);
    }
    if (desc != nullptr) library.desc_destroy(desc);
  }

  template <typename Value>
  void set(int attribute, const Value& value) {
    ok(library.desc_set(desc, attribute, &value, sizeof value), "cublasLtMatmulDescSetAttribute");
  }

  // The layout of a row-major matrix in cuBLASLt's column-major terms, where it appears transposed; whether
  // it must be transposed once more.
  bool layout(Object* made, int type, const Matrix& m, std::int64_t stack) {
    const bool plain = m.column_stride == 1 || m.columns == 1;
    if (!plain && m.row_stride != 1 && m.rows != 1) throw Unsupported("a matrix has no unit stride");
    const std::int64_t rows = plain ? m.columns : m.rows, columns = plain ? m.rows : m.columns;
    const std::int64_t lead = std::max(plain ? m.row_stride : m.column_stride, rows);
    ok(library.layout_create(made, type, rows, columns, lead), "cublasLtMatrixLayoutCreate");
    if (stack > 1) {
      const auto count = static_cast<std::int32_t>(stack);
      ok(library.layout_set(*made, kBatchCount, &count, sizeof count), "cublasLtMatrixLayoutSetAttribute");
      ok(library.layout_set(*made, kBatchStride, &m.stack_stride, sizeof m.stack_stride),
         "cublasLtMatrixLayoutSetAttribute");
    }
    return !plain;
  }
};

Product::Product(Device& device, const ProductSpec& spec) : parts_(new Parts(lt(spec.library), device)) {
  Parts& p = *parts_;
  device.use();
  p.handle = handle_of(p.library, device);
  const int type = type_of(spec.dtype), result = type_of(spec.result);
  p.integer = type == kInt8;
  if (p.integer != (result == kInt32)) throw Unsupported("products of int8 have int32 results");
  ok(p.library.desc_create(&p.desc, p.integer ? kComputeInt32 : kComputeFloat32,
                           p.integer ? kInt32 : kFloat32),
     "cublasLtMatmulDescCreate");
  // y^T = b^T a^T: the operands change places.
  const int turn_b = p.layout(&p.b, type, spec.b, spec.stack),
            turn_a = p.layout(&p.a, type, spec.a, spec.stack);
  if (p.layout(&p.y, result, spec.y, spec.stack))
    throw Unsupported("the result of a product is not row-major");
  if (p.layout(&p.residual, result, spec.has_residual ? spec.residual : spec.y, spec.stack)) {
    throw Unsupported("the summand of a product is not row-major");
  }
  p.set(kTransposeA, turn_b);
  p.set(kTransposeB, turn_a);
  p.has_bias = spec.has_bias;
  p.has_residual = spec.has_residual;
  int epilogue = spec.has_bias ? kEpilogueBias : 0;
  if (spec.activation == "relu") epilogue |= kEpilogueRelu;
  if (spec.activation == "gelu_tanh") epilogue |= kEpilogueGelu;
  p.set(kEpilogue, epilogue == 0 ? kEpilogueDefault : epilogue);
  if (spec.has_bias) p.set(kBiasPointer, Address{256});  // the heuristics want to see one
  Object preference = nullptr;
  ok(p.library.preference_create(&preference), "cublasLtMatmulPreferenceCreate");
  const std::size_t workspace = kWorkspace;
  p.library.preference_set(preference, kMaxWorkspace, &workspace, sizeof workspace);
  p.library.preference_set(preference, kReductionMask, &kWideReductions, sizeof kWideReductions);
  for (const int operand : {kAlignmentA, kAlignmentB, kAlignmentC, kAlignmentD}) {
    p.library.preference_set(preference, operand, &kAlignment, sizeof kAlignment);
  }
  p.found.resize(kMostCandidates);
  int count = 0;
  const int status = p.library.heuristic(p.handle, p.desc, p.b, p.a, p.residual, p.y, preference,
                                         kMostCandidates, p.found.data(), &count);
  p.library.preference_destroy(preference);
  if (status != 0 || count == 0) throw Unsupported("cuBLASLt has no algorithm for a product");
  p.found.resize(count);
}

Product::~Product() = default;

std::size_t Product::candidates() const { return parts_->found.size(); }

std::string Product::describe(std::size_t candidate) const {
  const Parts& p = *parts_;
  std::string text;
  for (int n = 0; n < kAlgorithmSettings; ++n) {
    std::uint32_t value = 0;
    std::size_t written = 0;
    // The two last ones have 16 bits, and older versions of the library have none.
    if (p.library.setting(p.found.at(candidate).algorithm, n, &value, n < 7 ? 4 : 2, &written) != 0) continue;
    text += (n == 0 ? "" : " ") + std::to_string(n) + "=" + std::to_string(value);
  }
  return text;
}

void Product::enqueue(const Stream& stream, std::size_t candidate, Address a, Address b, Address bias,
                      Address residual, Address y, Address workspace) const {
  Parts& p = *parts_;
  p.device.use();
  if (p.has_bias) p.set(kBiasPointer, bias);
  const float factors[] = {0.0f, 1.0f};
  const std::int32_t whole[] = {0, 1};
  const auto factor = [&](bool one) -> const void* {
    return p.integer ? static_cast<const void*>(&whole[one]) : &factors[one];
  };
  ok(p.library.matmul(p.handle, p.desc, factor(true), b, p.b, a, p.a, factor(p.has_residual),
                      residual != 0 ? residual : y, p.residual, y, p.y, p.found.at(candidate).algorithm,
                      workspace, kWorkspace, stream.handle()),
     "cublasLtMatmul");
}

}  // namespace npu::cuda
