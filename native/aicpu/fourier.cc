// dft: discrete Fourier transforms of any length along one axis; complex numbers are pairs in the last
// dimension.
#include <complex>
#include <memory>
#include <numbers>

#include "aicpu/dispatch.h"
#include "core/parallel.h"

namespace npu::aicpu {
namespace {

constexpr double kCycles = 15;  // of a number

using Complex = std::complex<double>;

bool is_power_of_two(std::int64_t n) { return n > 0 && (n & (n - 1)) == 0; }

Complex unit_root(double turns) { return std::polar(1.0, 2.0 * std::numbers::pi * turns); }

// Powers of two by radix-2 butterflies; other lengths as a convolution of one (Bluestein).
class Transform {
 public:
  Transform(std::int64_t n, bool inverse) : n_(n), sign_(inverse ? 1 : -1) {
    if (is_power_of_two(n)) {
      for (std::int64_t k = 0; k < n / 2; ++k)
        roots_.push_back(unit_root(sign_ * static_cast<double>(k) / static_cast<double>(n)));
      return;
    }
    std::int64_t m = 1;
    while (m < 2 * n - 1) m *= 2;
    forward_ = std::make_unique<Transform>(m, false);
    backward_ = std::make_unique<Transform>(m, true);
    chirp_.resize(static_cast<std::size_t>(n));
    spectrum_.assign(static_cast<std::size_t>(m), {});
    for (std::int64_t k = 0; k < n; ++k) {
      const std::int64_t square = k * k % (2 * n);  // keeps the angle small and exact
      const Complex w = unit_root(sign_ * static_cast<double>(square) / static_cast<double>(2 * n));
      chirp_[static_cast<std::size_t>(k)] = w;
      spectrum_[static_cast<std::size_t>(k)] = std::conj(w);
      if (k) spectrum_[static_cast<std::size_t>(m - k)] = std::conj(w);
    }
    forward_->run(spectrum_.data());
  }

  void run(Complex* values) const {
    if (forward_) {
      run_bluestein(values);
    } else {
      run_radix2(values);
    }
  }

 private:
  void run_radix2(Complex* v) const {
    for (std::int64_t i = 1, j = 0; i < n_; ++i) {
      std::int64_t bit = n_ >> 1;
      for (; j & bit; bit >>= 1) j ^= bit;
      j ^= bit;
      if (i < j) std::swap(v[i], v[j]);
    }
    for (std::int64_t length = 2; length <= n_; length *= 2) {
      const std::int64_t half = length / 2, step = n_ / length;
      for (std::int64_t start = 0; start < n_; start += length) {
        for (std::int64_t k = 0; k < half; ++k) {
          const Complex odd = v[start + k + half] * roots_[static_cast<std::size_t>(k * step)];
          const Complex even = v[start + k];
          v[start + k] = even + odd;
          v[start + k + half] = even - odd;
        }
      }
    }
  }

  void run_bluestein(Complex* v) const {
    std::vector<Complex> work(spectrum_.size());
    for (std::size_t k = 0; k < chirp_.size(); ++k) work[k] = v[k] * chirp_[k];
    forward_->run(work.data());
    for (std::size_t k = 0; k < work.size(); ++k) work[k] *= spectrum_[k];
    backward_->run(work.data());
    const double scale = 1.0 / static_cast<double>(work.size());
    for (std::size_t k = 0; k < chirp_.size(); ++k) v[k] = work[k] * scale * chirp_[k];
  }

  std::int64_t n_;
  int sign_;
  std::vector<Complex> roots_;
  std::unique_ptr<Transform> forward_, backward_;
  std::vector<Complex> chirp_, spectrum_;
};

// A view of a complex or real tensor along one axis.
template <class T>
struct Lanes {
  T* data;
  AxisView view;
  std::int64_t parts;  // 1: real, 2: complex

  std::int64_t place(std::int64_t lane, std::int64_t i) const {
    return ((lane / view.inner * view.size + i) * view.inner + lane % view.inner) * parts;
  }
  Complex read(std::int64_t lane, std::int64_t i) const {
    const T* at = data + place(lane, i);
    return {static_cast<double>(at[0]), parts == 2 ? static_cast<double>(at[1]) : 0.0};
  }
  void write(std::int64_t lane, std::int64_t i, Complex value) const {
    T* at = data + place(lane, i);
    at[0] = static_cast<T>(value.real());
    if (parts == 2) at[1] = static_cast<T>(value.imag());
  }
};

template <class T>
Status transform(Call& call) {
  const Tensor& x = call.inputs[0];
  const Tensor& y = call.outputs[0];
  const auto is_pair = [](const Tensor& t) {
    return t.rank() >= 2 && (t.dims.back() == 1 || t.dims.back() == 2);
  };
  if (!is_pair(x) || !is_pair(y) || x.rank() != y.rank() || x.dtype != y.dtype) {
    return Status::error("the last dimension of input and output must be 1 (real) or 2 (complex)");
  }
  std::int64_t axis = call.attrs.integer("axis", -2);
  if (axis < 0) axis += static_cast<std::int64_t>(x.rank());
  if (axis < 0 || axis + 1 >= static_cast<std::int64_t>(x.rank())) return bad_axis(axis, x);
  const auto without_pair = [](const Tensor& t) { return Dims(t.dims.begin(), t.dims.end() - 1); };
  const Lanes<T> in{x.as<T>(), AxisView(without_pair(x), axis), x.dims.back()};
  const Lanes<T> out{y.as<T>(), AxisView(without_pair(y), axis), y.dims.back()};
  const bool inverse = call.attrs.flag("inverse"), onesided = call.attrs.flag("onesided");
  const std::int64_t n = call.attrs.integer("length", onesided && inverse ? out.view.size : in.view.size);
  const std::int64_t lanes = in.view.outer * in.view.inner;
  if (n < 1) return Status::error("the length must be positive");
  if (out.view.outer * out.view.inner != lanes)
    return Status::error("input and output differ in more than the axis");
  if (out.view.size != (onesided && !inverse ? n / 2 + 1 : n))
    return Status::error("the output has the wrong length");

  const Transform plan(n, inverse);
  const double scale = inverse ? 1.0 / static_cast<double>(n) : 1.0;
  parallel_for(lanes, grain(kCycles, n), [&](std::int64_t lo, std::int64_t hi) {
    std::vector<Complex> work(static_cast<std::size_t>(n));
    for (std::int64_t lane = lo; lane < hi; ++lane) {
      const std::int64_t given = std::min(n, in.view.size);
      for (std::int64_t i = 0; i < n; ++i) {
        work[static_cast<std::size_t>(i)] = i < given ? in.read(lane, i) : Complex{};
      }
      if (onesided && inverse) {  // the missing half mirrors the given one
        for (std::int64_t i = n / 2 + 1; i < n; ++i) {
          work[static_cast<std::size_t>(i)] = std::conj(work[static_cast<std::size_t>(n - i)]);
        }
      }
      plan.run(work.data());
      for (std::int64_t i = 0; i < out.view.size; ++i)
        out.write(lane, i, work[static_cast<std::size_t>(i)] * scale);
    }
  });
  return Status::ok();
}

// Attributes: axis (of the input with its pair dimension), length, inverse, onesided. The input is cut or
// filled with zeros to the length.
Status dft(Call& call) {
  NPU_RETURN_IF_ERROR(call.expect(1, 1));
  return with_real(call, [](auto zero, Call& real) { return transform<decltype(zero)>(real); });
}

NPU_AICPU_KERNEL("dft", dft);

}  // namespace
}  // namespace npu::aicpu
