// Task kind "matmul".
#include <algorithm>

#include "onednn/engine.h"
#include "onednn/primitive.h"
#include "product/lower.h"

namespace npu {
namespace {

Matrix padded(const View& view, std::size_t rank) {
  Matrix m{view.dims, view.strides};
  while (m.dims.size() < rank) {
    m.strides.insert(m.strides.begin(), std::max<std::int64_t>(m.dims.front() * m.strides.front(), 1));
    m.dims.insert(m.dims.begin(), 1);
  }
  return m;
}

// True if dimension i and the next one can be merged: dense, or both of size one.
bool joins_next(const Matrix& m, std::size_t i) {
  return m.dims[i] == 1 || m.strides[i] == m.dims[i + 1] * m.strides[i + 1];
}

// The stride of a column of one element says nothing; one below the number of rows, as a transposed row has
// it, is not valid for the library.
void join_next(Matrix& m, std::size_t i) {
  m.dims[i + 1] *= m.dims[i];
  m.dims.erase(m.dims.begin() + static_cast<std::ptrdiff_t>(i));
  m.strides.erase(m.strides.begin() + static_cast<std::ptrdiff_t>(i));
  if (m.dims.back() == 1) m.strides.back() = 1;
}

bool is_full(const Matrix& m, const Matrix& like, std::size_t i) {
  return m.dims[i] == like.dims[i] && m.dims[i + 1] == like.dims[i + 1];
}

bool is_one(const Matrix& m, std::size_t i) { return m.dims[i] == 1 && m.dims[i + 1] == 1; }

// The operands of one multiplication with as few dimensions as their strides allow: leading dimensions of `a`
// and the output become rows when `b` has none of them, otherwise they join each other.
class Operands {
 public:
  explicit Operands(Lowering& low) {
    std::size_t rank = low.output(0).dims.size();
    if (rank < 2 || low.input(0).dims.size() < 2 || low.input(1).dims.size() < 2) {
      low.reject("operands must have at least two dimensions");
    }
    if (low.input(0).dims.size() > rank || low.input(1).dims.size() > rank) {
      low.reject("operands have more dimensions than the output");
    }
    a = padded(low.input(0), rank);
    b = padded(low.input(1), rank);
    y = padded(low.output(0), rank);
    check(low);
    const std::size_t first =
        2 + (low.attrs().flag("has_bias") ? 1 : 0) + (low.attrs().flag("has_weight_scales") ? 1 : 0);
    for (std::size_t i = first; i < low.input_count(); ++i) {
      if (low.input(i).dims.size() > rank)
        low.reject("a post-op operand has more dimensions than the output");
      View view = low.input(i);
      if (view.dims.empty()) view.dims = view.strides = {1};
      posts.push_back(padded(view, rank));
    }
    while (y.dims.size() > 2 && (join_rows() || join_batches())) {
    }
  }

  Matrix a, b, y;
  std::vector<Matrix> posts;

 private:
  void check(const Lowering& low) const {
    const std::size_t n = y.dims.size();
    bool agrees =
        a.dims[n - 1] == b.dims[n - 2] && y.dims[n - 2] == a.dims[n - 2] && y.dims[n - 1] == b.dims[n - 1];
    for (std::size_t i = 0; i + 2 < n; ++i) {
      agrees = agrees && y.dims[i] == std::max(a.dims[i], b.dims[i]) &&
               (a.dims[i] == y.dims[i] || a.dims[i] == 1) && (b.dims[i] == y.dims[i] || b.dims[i] == 1);
    }
    if (!agrees) low.reject("the shapes do not multiply");
    if (a.dims[n - 1] == 0) low.reject("there is nothing to sum over");
  }

  // Merges the last leading dimension into the rows.
  bool join_rows() {
    const std::size_t i = y.dims.size() - 3;
    if (b.dims[i] != 1 || a.dims[i] != y.dims[i] || !joins_next(a, i) || !joins_next(y, i)) return false;
    for (const Matrix& post : posts) {
      if (!is_one(post, i) && !(is_full(post, y, i) && joins_next(post, i))) return false;
    }
    join_next(a, i);
    join_next(y, i);
    b.dims.erase(b.dims.begin() + static_cast<std::ptrdiff_t>(i));
    b.strides.erase(b.strides.begin() + static_cast<std::ptrdiff_t>(i));
    for (Matrix& post : posts) join_next(post, i);
    return true;
  }

  bool join_batches() {
    for (std::size_t i = 0; i + 3 < y.dims.size(); ++i) {
      const auto fits = [&](const Matrix& m) {
        return is_one(m, i) || (is_full(m, y, i) && joins_next(m, i));
      };
      if (!fits(a) || !fits(b) || !fits(y) || !std::all_of(posts.begin(), posts.end(), fits)) continue;
      join_next(a, i);
      join_next(b, i);
      join_next(y, i);
      for (Matrix& post : posts) join_next(post, i);
      return true;
    }
    return false;
  }
};

// Post-op operands in the order of the attributes.
class JoinedOperandShape : public PostOperandShape {
 public:
  explicit JoinedOperandShape(const std::vector<Matrix>& posts) : posts_(posts) {}
  Desc describe_operand(const Lowering& low, const View& view) const override {
    if (next_ >= posts_.size()) low.reject("a post-op operand is missing");
    const Matrix& m = posts_[next_++];
    // Normalise strides of size-one dimensions: odd ones make the library use its reference implementation.
    Dims strides = m.strides;
    for (std::size_t i = strides.size(); i-- > 1;) {
      if (m.dims[i - 1] == 1) strides[i - 1] = m.dims[i] * strides[i];
    }
    return describe(low, view.dtype, m.dims, strides);
  }

 private:
  const std::vector<Matrix>& posts_;
  mutable std::size_t next_ = 0;
};

Desc bias_desc(Lowering& low, const View& bias, const Matrix& y) {
  Dims dims(y.dims.size(), 1);
  dims.back() = y.dims.back();
  if (bias.elements() != dims.back()) low.reject("the bias must have one value for each column");
  return describe(low, bias.dtype, dims, contiguous_strides(dims));
}

void lower_library(Lowering& low) {
  const Operands shapes(low);
  const bool has_bias = low.attrs().flag("has_bias");
  const Desc a = describe(low, low.input(0).dtype, shapes.a.dims, shapes.a.strides);
  const Desc b = describe(low, low.input(1).dtype, shapes.b.dims, shapes.b.strides);
  const Desc y = describe(low, low.output(0).dtype, shapes.y.dims, shapes.y.strides);
  const Desc bias = has_bias ? bias_desc(low, low.input(2), shapes.y) : Desc();
  const int columns_mask = 1 << (static_cast<int>(shapes.y.dims.size()) - 1);
  const JoinedOperandShape post_shape(shapes.posts);
  const AttributeSet attributes = make_attributes(low, has_bias ? 3 : 2, columns_mask, post_shape);

  const double flops =
      2.0 * static_cast<double>(low.output(0).elements()) * static_cast<double>(shapes.a.dims.back());
  const TeamScope team(team_of(low));
  const bool packs_once = low.is_constant(low.input(1)) || low.is_steady(low.input(1));
  const dnnl::matmul::primitive_desc desc(onednn_engine(), a, packs_once ? any_layout(b) : b, bias, y,
                                          attributes.attr);

  PrimitiveBuilder builder(low);
  builder.read(DNNL_ARG_SRC, low.input(0), a, desc.src_desc());
  builder.read(DNNL_ARG_WEIGHTS, low.input(1), b, desc.weights_desc());
  if (has_bias) builder.read(DNNL_ARG_BIAS, low.input(2), bias, desc.bias_desc());
  builder.write(DNNL_ARG_DST, low.output(0), y, desc.dst_desc());
  builder.add(attributes);
  const auto again = [desc](const dnnl::primitive_attr& attr) {
    const dnnl::matmul::primitive_desc same(onednn_engine(), desc.src_desc(), desc.weights_desc(),
                                            desc.bias_desc(), desc.dst_desc(), attr);
    return NanRepair::Primitive(dnnl::matmul(same), same.scratchpad_desc());
  };
  builder.finish<dnnl::matmul>(
      desc, layout_name(desc.src_desc()) + "," + layout_name(desc.weights_desc()), flops,
      {attributes.before_bounds, again, attributes.accumulates, low.attrs().flag("addend_raises_on_nan")});
}

void lower_strassen_product(Lowering& low) {
  const Operands shapes(low);
  lower_strassen(low, shapes.a, shapes.b, shapes.y, shapes.posts);
}

void lower_narrow(Lowering& low) {
  const Operands shapes(low);
  lower_narrow_product(low, shapes.a, shapes.b, shapes.y);
}

constexpr Implementation kImplementations[] = {
    {"strassen", lower_strassen_product}, {"narrow", lower_narrow}, {"onednn", lower_library}};

}  // namespace

void lower_matmul(Lowering& low) { lower_named(low, kImplementations); }

}  // namespace npu
