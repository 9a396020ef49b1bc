// Attention by cuDNN: softmax(q k' * scale + mask) v as one operation graph, scores never in memory.
#pragma once

#include <cstdint>
#include <string>

#include "cuda/dnn.h"

namespace npu::cuda {

struct AttentionSpec {
  std::string library;                                          // path of libcudnn
  std::string dtype;                                            // of q, k, v and y: float16 or bfloat16
  Dims q, q_strides, k, k_strides, v, v_strides, y, y_strides;  // stack, heads, rows, columns
  std::string mask_dtype;  // "" without a mask, which is added to the scores
  Dims mask, mask_strides;
  double scale = 1;
  bool causal = false;    // keys after a query are hidden
  bool has_sums = false;  // whether the logarithms of the sums of exponentials are wanted
};

class Attention {
 public:
  // Raises Unsupported when cuDNN proposes no engine.
  Attention(Device& device, const AttentionSpec& spec);

  std::size_t candidates() const { return graph_.candidates(); }
  std::string describe(std::size_t candidate) const { return graph_.describe(candidate); }
  std::int64_t prepare(std::size_t candidate) { return graph_.prepare(candidate); }
  void enqueue(const Stream& stream, std::size_t candidate, Address q, Address k, Address v, Address mask,
               Address y, Address sums, Address workspace) const;

 private:
  DnnGraph graph_;
  bool has_mask_, has_sums_;
};

}  // namespace npu::cuda
