// non_max_suppression in ONNX's and TensorFlow's forms, for one class or for all of them.
#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "aicpu/dispatch.h"
#include "core/parallel.h"

namespace npu::aicpu {
namespace {

struct Box {
  float y1, x1, y2, x2;
  float area() const { return (y2 - y1) * (x2 - x1); }
};

// Corners may come in either order; the other form is (x centre, y centre, width, height).
Box to_box(const float* v, bool center_point) {
  if (center_point) {
    return {v[1] - v[3] / 2, v[0] - v[2] / 2, v[1] + v[3] / 2, v[0] + v[2] / 2};
  }
  return {std::min(v[0], v[2]), std::min(v[1], v[3]), std::max(v[0], v[2]), std::max(v[1], v[3])};
}

float overlap(const Box& a, const Box& b) {
  const float height = std::min(a.y2, b.y2) - std::max(a.y1, b.y1);
  const float width = std::min(a.x2, b.x2) - std::max(a.x1, b.x1);
  const float area_a = a.area(), area_b = b.area();
  if (height <= 0 || width <= 0 || area_a <= 0 || area_b <= 0) return 0;
  const float common = height * width;
  return common / (area_a + area_b - common);
}

struct Limits {
  std::int64_t most = 0;
  float overlap = 0;
  float score = -std::numeric_limits<float>::infinity();
  float sigma = 0;  // above zero: scores decay instead of boxes being dropped
};

struct Chosen {
  std::int64_t index;
  float score;
};

// True if a comes after b: candidates are ordered by descending score, then by index.
bool later(const Chosen& a, const Chosen& b) {
  return a.score < b.score || (a.score == b.score && a.index > b.index);
}

std::vector<Chosen> candidates(const float* scores, std::int64_t n, float threshold) {
  std::vector<Chosen> list;
  for (std::int64_t i = 0; i < n; ++i) {
    if (scores[i] > threshold) list.push_back({i, scores[i]});
  }
  return list;
}

std::vector<Chosen> suppress(const std::vector<Box>& boxes, const float* scores, const Limits& limits) {
  const auto box = [&](const Chosen& c) -> const Box& { return boxes[static_cast<std::size_t>(c.index)]; };
  std::vector<Chosen> kept;
  std::vector<Chosen> heap = candidates(scores, static_cast<std::int64_t>(boxes.size()), limits.score);
  std::make_heap(heap.begin(), heap.end(), later);  // only a few are taken: a heap avoids a full sort
  while (!heap.empty() && static_cast<std::int64_t>(kept.size()) < limits.most) {
    std::pop_heap(heap.begin(), heap.end(), later);
    const Chosen candidate = heap.back();
    heap.pop_back();
    const bool covered = std::any_of(kept.begin(), kept.end(), [&](const Chosen& other) {
      return overlap(box(candidate), box(other)) > limits.overlap;
    });
    if (!covered) kept.push_back(candidate);
  }
  return kept;
}

// Soft NMS: every kept box lowers the scores of overlapping boxes.
std::vector<Chosen> suppress_softly(const std::vector<Box>& boxes, const float* scores,
                                    const Limits& limits) {
  std::vector<Chosen> rest = candidates(scores, static_cast<std::int64_t>(boxes.size()), limits.score);
  std::vector<Chosen> kept;
  while (!rest.empty() && static_cast<std::int64_t>(kept.size()) < limits.most) {
    const auto best = std::max_element(rest.begin(), rest.end(), later);
    const Chosen taken = *best;
    rest.erase(best);
    kept.push_back(taken);
    std::vector<Chosen> left;
    for (Chosen other : rest) {
      const float common =
          overlap(boxes[static_cast<std::size_t>(taken.index)], boxes[static_cast<std::size_t>(other.index)]);
      other.score *= std::exp(-0.5f / limits.sigma * common * common);
      if (other.score > limits.score) left.push_back(other);
    }
    rest = std::move(left);
  }
  return kept;
}

std::vector<Box> read_boxes(const float* values, std::int64_t n, bool center_point) {
  std::vector<Box> boxes;
  boxes.reserve(static_cast<std::size_t>(n));
  for (std::int64_t i = 0; i < n; ++i) boxes.push_back(to_box(values + 4 * i, center_point));
  return boxes;
}

// Limits come as inputs 2 to 4 (largest number, overlap, score) where given, else as attributes.
Status read_limits(const Call& call, Limits& limits) {
  limits.most = call.attrs.integer("max_output_boxes", 0);
  limits.overlap = static_cast<float>(call.attrs.real("iou_threshold", 0));
  if (call.attrs.has("score_threshold"))
    limits.score = static_cast<float>(call.attrs.real("score_threshold"));
  limits.sigma = static_cast<float>(call.attrs.real("soft_nms_sigma", 0));
  if (const Tensor* most = call.given(2); most && most->elements()) {
    std::vector<std::int64_t> number;
    NPU_RETURN_IF_ERROR(read_indices(*most, number));
    limits.most = number[0];
  }
  for (const std::size_t position : {std::size_t{3}, std::size_t{4}}) {
    const Tensor* given = call.given(position);
    if (!given || !given->elements()) continue;
    if (given->dtype != DType::Float32) return Status::error("thresholds must be float32");
    (position == 3 ? limits.overlap : limits.score) = given->as<float>()[0];
  }
  return Status::ok();
}

// Inputs: boxes (B, N, 4), scores (B, C, N). Output: int64 rows (batch, class, box).
Status non_max_suppression(Call& call) {
  if (call.inputs.size() < 2 || call.inputs.size() > 5 || call.outputs.size() != 1) {
    return Status::error("takes boxes, scores and up to three limits, gives one output");
  }
  const Tensor& boxes = call.inputs[0];
  const Tensor& scores = call.inputs[1];
  const bool sound = boxes.dtype == DType::Float32 && scores.dtype == DType::Float32 && boxes.rank() == 3 &&
                     scores.rank() == 3 && boxes.dims[2] == 4 && boxes.dims[0] == scores.dims[0] &&
                     boxes.dims[1] == scores.dims[2];
  if (!sound) return Status::error("boxes must be float32 (B, N, 4) and scores float32 (B, C, N)");
  if (call.outputs[0].dtype != DType::Int64) return Status::error("the output must be int64");
  Limits limits;
  NPU_RETURN_IF_ERROR(read_limits(call, limits));
  const std::int64_t n = boxes.dims[1], classes = scores.dims[1];
  const std::int64_t room = call.outputs[0].elements() / 3;
  std::int64_t* out = call.outputs[0].as<std::int64_t>();
  std::int64_t count = 0;
  for (std::int64_t b = 0; b < boxes.dims[0]; ++b) {
    const auto list =
        read_boxes(boxes.as<float>() + b * n * 4, n, call.attrs.integer("center_point_box", 0) != 0);
    for (std::int64_t c = 0; c < classes; ++c) {
      for (const Chosen& chosen : suppress(list, scores.as<float>() + (b * classes + c) * n, limits)) {
        if (count >= room) return Status::error("the output is too small");
        out[3 * count] = b;
        out[3 * count + 1] = c;
        out[3 * count + 2] = chosen.index;
        ++count;
      }
    }
  }
  call.set_shape(0, {count, 3});
  return Status::ok();
}

// Inputs: boxes (N, 4), scores (N), limits as above. Outputs: indices, then, if given, scores and the number
// of valid ones. With `pad` the outputs keep their full size.
Status non_max_suppression_tf(Call& call) {
  if (call.inputs.size() < 2 || call.inputs.size() > 5 || call.outputs.empty() || call.outputs.size() > 3) {
    return Status::error("takes boxes, scores and up to three limits, gives one to three outputs");
  }
  const Tensor& boxes = call.inputs[0];
  const Tensor& scores = call.inputs[1];
  const bool sound = boxes.dtype == DType::Float32 && scores.dtype == DType::Float32 && boxes.rank() == 2 &&
                     scores.rank() == 1 && boxes.dims[1] == 4 && boxes.dims[0] == scores.dims[0];
  if (!sound) return Status::error("boxes must be float32 (N, 4) and scores float32 (N)");
  Limits limits;
  NPU_RETURN_IF_ERROR(read_limits(call, limits));
  limits.most = std::min(limits.most, call.outputs[0].elements());
  const auto list = read_boxes(boxes.as<float>(), boxes.dims[0], false);
  const auto kept = limits.sigma > 0 ? suppress_softly(list, scores.as<float>(), limits)
                                     : suppress(list, scores.as<float>(), limits);
  const auto count = static_cast<std::int64_t>(kept.size());
  call.set_shape(0, {count});
  NPU_RETURN_IF_ERROR(with_index_type(call.outputs[0].dtype, [&](auto zero) {
    using Index = decltype(zero);
    for (std::size_t i = 0; i < kept.size(); ++i) {
      call.outputs[0].as<Index>()[i] = static_cast<Index>(kept[i].index);
    }
    return Status::ok();
  }));
  if (call.outputs.size() > 1) {
    if (call.outputs[1].dtype != DType::Float32 || call.outputs[1].elements() < count) {
      return Status::error("the scores output must be float32 and as large as the first");
    }
    call.set_shape(1, {count});
    for (std::size_t i = 0; i < kept.size(); ++i) call.outputs[1].as<float>()[i] = kept[i].score;
  }
  if (call.outputs.size() > 2) {
    NPU_RETURN_IF_ERROR(with_index_type(call.outputs[2].dtype, [&](auto zero) {
      call.outputs[2].as<decltype(zero)>()[0] = static_cast<decltype(zero)>(count);
      return Status::ok();
    }));
  }
  if (call.attrs.flag("pad")) std::fill(call.reported.begin(), call.reported.end(), 0);
  return Status::ok();
}

struct Detection {
  Chosen chosen;
  std::int64_t label;
};

// The boxes of one label. `stride` is the number of boxes that each place has: one for all labels, or one
// each.
std::vector<Box> boxes_of(const float* values, std::int64_t n, std::int64_t stride, std::int64_t label) {
  std::vector<Box> boxes;
  boxes.reserve(static_cast<std::size_t>(n));
  const std::int64_t column = stride == 1 ? 0 : label;
  for (std::int64_t i = 0; i < n; ++i) boxes.push_back(to_box(values + 4 * (i * stride + column), false));
  return boxes;
}

// Kept boxes of all labels of one image, by descending score, then by label.
std::vector<Detection> detections(const float* boxes, const float* scores, std::int64_t n,
                                  std::int64_t stride, std::int64_t labels, const Limits& limits,
                                  std::int64_t most) {
  std::vector<Detection> found;
  std::vector<Box> list;
  std::vector<float> column(static_cast<std::size_t>(n));
  for (std::int64_t label = 0; label < labels; ++label) {
    if (label == 0 || stride > 1) list = boxes_of(boxes, n, stride, label);
    for (std::int64_t i = 0; i < n; ++i) column[static_cast<std::size_t>(i)] = scores[i * labels + label];
    for (const Chosen& chosen : suppress(list, column.data(), limits)) found.push_back({chosen, label});
  }
  const auto better = [](const Detection& a, const Detection& b) { return a.chosen.score > b.chosen.score; };
  std::stable_sort(found.begin(), found.end(), better);
  if (static_cast<std::int64_t>(found.size()) > most) found.resize(static_cast<std::size_t>(most));
  return found;
}

// Inputs: boxes (B, N, 1 or C, 4), scores (B, N, C). Outputs: boxes (B, M, 4), scores and labels (B, M),
// counts (B); what is left over is zero.
Status combined_non_max_suppression(Call& call) {
  NPU_RETURN_IF_ERROR(call.expect(2, 4));
  const Tensor &boxes = call.inputs[0], &scores = call.inputs[1];
  const bool floats = boxes.dtype == DType::Float32 && scores.dtype == DType::Float32 &&
                      call.outputs[0].dtype == DType::Float32 && call.outputs[1].dtype == DType::Float32 &&
                      call.outputs[2].dtype == DType::Float32 && call.outputs[3].dtype == DType::Int32;
  const bool sound = floats && boxes.rank() == 4 && scores.rank() == 3 && call.outputs[1].rank() == 2;
  if (!sound) return Status::error("boxes must be float32 (B, N, 1 or C, 4) and scores float32 (B, N, C)");
  Limits limits;
  NPU_RETURN_IF_ERROR(read_limits(call, limits));
  const bool clip = call.attrs.flag("clip");
  const std::int64_t n = scores.dims[1], labels = scores.dims[2], stride = boxes.dims[2];
  const std::int64_t most = call.outputs[1].dims[1];
  for (std::size_t i = 0; i < 3; ++i) {
    std::fill_n(call.outputs[i].as<float>(), call.outputs[i].elements(), 0.0f);
  }
  parallel_for(scores.dims[0], 1, [&](std::int64_t lo, std::int64_t hi) {
    for (std::int64_t b = lo; b < hi; ++b) {
      const float* own = boxes.as<float>() + b * n * stride * 4;
      const float* rates = scores.as<float>() + b * n * labels;
      const auto found = detections(own, rates, n, stride, labels, limits, most);
      std::int64_t place = b * most;
      for (const Detection& each : found) {
        const float* box = own + 4 * (each.chosen.index * stride + (stride == 1 ? 0 : each.label));
        for (std::int64_t k = 0; k < 4; ++k) {
          call.outputs[0].as<float>()[4 * place + k] = clip ? std::clamp(box[k], 0.0f, 1.0f) : box[k];
        }
        call.outputs[1].as<float>()[place] = each.chosen.score;
        call.outputs[2].as<float>()[place++] = static_cast<float>(each.label);
      }
      call.outputs[3].as<std::int32_t>()[b] = static_cast<std::int32_t>(found.size());
    }
  });
  return Status::ok();
}

NPU_AICPU_KERNEL("non_max_suppression", non_max_suppression);
NPU_AICPU_KERNEL("non_max_suppression_tf", non_max_suppression_tf);
NPU_AICPU_KERNEL("combined_non_max_suppression", combined_non_max_suppression);

}  // namespace
}  // namespace npu::aicpu
