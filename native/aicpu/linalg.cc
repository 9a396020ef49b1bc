// det, inverse, solve, cholesky, triangular_solve: batches of small dense matrices, computed in double.
#include <algorithm>
#include <atomic>
#include <cmath>
#include <limits>
#include <utility>

#include "aicpu/dispatch.h"
#include "core/parallel.h"

namespace npu::aicpu {
namespace {

constexpr double kCycles = 15;  // of an elimination step

struct Matrix {
  std::int64_t rows, columns;
  std::vector<double> values;

  Matrix(std::int64_t r, std::int64_t c) : rows(r), columns(c), values(static_cast<std::size_t>(r * c)) {}
  double& at(std::int64_t r, std::int64_t c) { return values[static_cast<std::size_t>(r * columns + c)]; }
  double at(std::int64_t r, std::int64_t c) const {
    return values[static_cast<std::size_t>(r * columns + c)];
  }

  template <class T>
  void load(const T* from) {
    std::copy_n(from, values.size(), values.begin());
  }
  template <class T>
  void store(T* to) const {
    std::transform(values.begin(), values.end(), to, [](double v) { return static_cast<T>(v); });
  }
};

// Gaussian elimination with partial pivoting; `b` takes part in every row operation. Returns the determinant.
double eliminate(Matrix& a, Matrix& b) {
  double determinant = 1;
  for (std::int64_t k = 0; k < a.rows; ++k) {
    std::int64_t pivot = k;
    for (std::int64_t r = k + 1; r < a.rows; ++r) {
      if (std::fabs(a.at(r, k)) > std::fabs(a.at(pivot, k))) pivot = r;
    }
    if (a.at(pivot, k) == 0) return 0;
    if (pivot != k) {
      determinant = -determinant;
      for (std::int64_t c = 0; c < a.columns; ++c) std::swap(a.at(k, c), a.at(pivot, c));
      for (std::int64_t c = 0; c < b.columns; ++c) std::swap(b.at(k, c), b.at(pivot, c));
    }
    determinant *= a.at(k, k);
    for (std::int64_t r = k + 1; r < a.rows; ++r) {
      const double factor = a.at(r, k) / a.at(k, k);
      if (factor == 0) continue;
      for (std::int64_t c = k; c < a.columns; ++c) a.at(r, c) -= factor * a.at(k, c);
      for (std::int64_t c = 0; c < b.columns; ++c) b.at(r, c) -= factor * b.at(k, c);
    }
  }
  return determinant;
}

// Solves a x = b in place for a triangular `a`.
bool substitute(const Matrix& a, Matrix& b, bool lower, bool transposed, bool unit_diagonal) {
  const bool forward = lower != transposed;
  for (std::int64_t step = 0; step < a.rows; ++step) {
    const std::int64_t r = forward ? step : a.rows - 1 - step;
    const double diagonal = unit_diagonal ? 1 : a.at(r, r);
    if (diagonal == 0) return false;
    for (std::int64_t c = 0; c < b.columns; ++c) {
      double value = b.at(r, c);
      for (std::int64_t k = forward ? 0 : r + 1; k < (forward ? r : a.rows); ++k) {
        value -= (transposed ? a.at(k, r) : a.at(r, k)) * b.at(k, c);
      }
      b.at(r, c) = value / diagonal;
    }
  }
  return true;
}

// Batches of square matrices.
struct Batch {
  std::int64_t count = 0, n = 0;

  static Status of(const Tensor& a, Batch& batch) {
    if (a.rank() < 2 || a.dims[a.rank() - 1] != a.dims[a.rank() - 2]) {
      return Status::error("square matrices are expected, not " + to_string(a.dims));
    }
    batch.n = a.dims.back();
    batch.count = batch.n ? a.elements() / (batch.n * batch.n) : 0;
    return Status::ok();
  }
};

// Runs body(i) for every matrix of a batch; fails with `message` if a result is false.
template <class Body>
Status for_batch(const Batch& batch, const char* message, const Body& body) {
  std::atomic<bool> sound{true};
  parallel_for(batch.count, grain(kCycles, batch.n * batch.n * batch.n),
               [&](std::int64_t lo, std::int64_t hi) {
                 for (std::int64_t i = lo; i < hi; ++i) {
                   if (!body(i)) sound = false;
                 }
               });
  return sound ? Status::ok() : Status::error(message);
}

template <class T>
Status determinants(Call& call) {
  Batch batch;
  NPU_RETURN_IF_ERROR(Batch::of(call.inputs[0], batch));
  const Tensor& y = call.outputs[0];
  if (batch.n == 0) {
    std::fill_n(y.as<T>(), y.elements(), T{1});
    return Status::ok();
  }
  if (y.dtype != call.inputs[0].dtype || y.elements() != batch.count) {
    return Status::error("the output must hold one value for each matrix");
  }
  return for_batch(batch, "", [&](std::int64_t i) {
    Matrix a(batch.n, batch.n), none(batch.n, 0);
    a.load(call.inputs[0].as<T>() + i * batch.n * batch.n);
    y.as<T>()[i] = static_cast<T>(eliminate(a, none));
    return true;
  });
}

template <class T>
Status inverses(Call& call) {
  Batch batch;
  NPU_RETURN_IF_ERROR(Batch::of(call.inputs[0], batch));
  if (call.outputs[0].dtype != call.inputs[0].dtype ||
      call.outputs[0].elements() != call.inputs[0].elements()) {
    return Status::error("the output must match the input");
  }
  return for_batch(batch, "a matrix is not invertible", [&](std::int64_t i) {
    Matrix a(batch.n, batch.n), b(batch.n, batch.n);
    a.load(call.inputs[0].as<T>() + i * batch.n * batch.n);
    for (std::int64_t d = 0; d < batch.n; ++d) b.at(d, d) = 1;
    if (eliminate(a, b) == 0 || !substitute(a, b, false, false, false)) return false;
    b.store(call.outputs[0].as<T>() + i * batch.n * batch.n);
    return true;
  });
}

// Shapes of a x = b: batches of both sides agree.
Status check_system(const Call& call, const Batch& batch, std::int64_t& columns) {
  const Tensor& b = call.inputs[1];
  if (b.dtype != call.inputs[0].dtype || call.outputs[0].dtype != b.dtype ||
      b.rank() != call.inputs[0].rank() || b.dims[b.rank() - 2] != batch.n ||
      call.outputs[0].elements() != b.elements()) {
    return Status::error("the right-hand sides do not match the matrices");
  }
  columns = b.dims.back();
  if (b.elements() != batch.count * batch.n * columns) return Status::error("the batches differ");
  return Status::ok();
}

template <class T, class Solve>
Status solve_systems(Call& call, const char* message, const Solve& solve) {
  Batch batch;
  std::int64_t columns = 0;
  NPU_RETURN_IF_ERROR(Batch::of(call.inputs[0], batch));
  NPU_RETURN_IF_ERROR(check_system(call, batch, columns));
  return for_batch(batch, message, [&](std::int64_t i) {
    Matrix a(batch.n, batch.n), b(batch.n, columns);
    a.load(call.inputs[0].as<T>() + i * batch.n * batch.n);
    b.load(call.inputs[1].as<T>() + i * batch.n * columns);
    if (!solve(a, b)) return false;
    b.store(call.outputs[0].as<T>() + i * batch.n * columns);
    return true;
  });
}

template <class T>
Status factorise(Call& call) {
  Batch batch;
  NPU_RETURN_IF_ERROR(Batch::of(call.inputs[0], batch));
  if (call.outputs[0].dtype != call.inputs[0].dtype ||
      call.outputs[0].elements() != call.inputs[0].elements()) {
    return Status::error("the output must match the input");
  }
  const bool upper = call.attrs.flag("upper"), lenient = call.attrs.flag("nan_if_indefinite");
  const auto no_factor = [&](Matrix& l, std::int64_t i) {
    if (!lenient) return false;
    for (std::int64_t r = 0; r < batch.n; ++r) {
      for (std::int64_t c = 0; c < batch.n; ++c) {
        l.at(r, c) = (upper ? r > c : r < c) ? 0.0 : std::numeric_limits<double>::quiet_NaN();
      }
    }
    l.store(call.outputs[0].as<T>() + i * batch.n * batch.n);
    return true;
  };
  return for_batch(batch, "a matrix is not positive definite", [&](std::int64_t i) {
    Matrix a(batch.n, batch.n), l(batch.n, batch.n);
    a.load(call.inputs[0].as<T>() + i * batch.n * batch.n);
    for (std::int64_t r = 0; r < batch.n; ++r) {
      for (std::int64_t c = 0; c <= r; ++c) {
        double value = a.at(r, c);
        for (std::int64_t k = 0; k < c; ++k) value -= l.at(r, k) * l.at(c, k);
        if (r == c && !(value > 0)) return no_factor(l, i);
        l.at(r, c) = r == c ? std::sqrt(value) : value / l.at(c, c);
      }
    }
    if (upper) {
      for (std::int64_t r = 0; r < batch.n; ++r) {
        for (std::int64_t c = 0; c < r; ++c) std::swap(l.at(r, c), l.at(c, r));
      }
    }
    l.store(call.outputs[0].as<T>() + i * batch.n * batch.n);
    return true;
  });
}

Status det(Call& call) {
  NPU_RETURN_IF_ERROR(call.expect(1, 1));
  return with_real(call, [](auto zero, Call& real) { return determinants<decltype(zero)>(real); });
}

Status inverse(Call& call) {
  NPU_RETURN_IF_ERROR(call.expect(1, 1));
  return with_real(call, [](auto zero, Call& real) { return inverses<decltype(zero)>(real); });
}

// Inputs: a (..., n, n), b (..., n, m).
Status solve(Call& call) {
  NPU_RETURN_IF_ERROR(call.expect(2, 1));
  return with_real(call, [](auto zero, Call& real) {
    return solve_systems<decltype(zero)>(real, "a matrix is not invertible", [](Matrix& a, Matrix& b) {
      return eliminate(a, b) != 0 && substitute(a, b, false, false, false);
    });
  });
}

Status cholesky(Call& call) {
  NPU_RETURN_IF_ERROR(call.expect(1, 1));
  return with_real(call, [](auto zero, Call& real) { return factorise<decltype(zero)>(real); });
}

// Inputs: a (..., n, n) of which one triangle is read, b (..., n, m).
Status triangular_solve(Call& call) {
  NPU_RETURN_IF_ERROR(call.expect(2, 1));
  return with_real(call, [](auto zero, Call& real) {
    const bool lower = real.attrs.flag("lower", true);
    const bool transposed = real.attrs.flag("transposed");
    const bool unit = real.attrs.flag("unit_diagonal");
    return solve_systems<decltype(zero)>(real, "a matrix is not invertible", [=](const Matrix& a, Matrix& b) {
      return substitute(a, b, lower, transposed, unit);
    });
  });
}

NPU_AICPU_KERNEL("det", det);
NPU_AICPU_KERNEL("inverse", inverse);
NPU_AICPU_KERNEL("solve", solve);
NPU_AICPU_KERNEL("cholesky", cholesky);
NPU_AICPU_KERNEL("triangular_solve", triangular_solve);

}  // namespace
}  // namespace npu::aicpu
