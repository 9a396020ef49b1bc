// What follows a product, as its task asks for it, and the step that makes both.
#pragma once

#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "product/lower.h"
#include "product/product.h"
#include "runtime/lowering.h"

namespace npu {

// What follows the product: a row and a matrix that are added at most, one that is multiplied, an activation.
struct Finish {
  product::Epilogue epilogue;
  bool accumulates = false;
  std::optional<std::size_t> bias, residual;  // the inputs that are added
  std::optional<std::size_t> factor;          // the one that is multiplied
};

// Nothing where something else follows, or an operand of it is of a type that is not accepted.
std::optional<Finish> read_finish(const Lowering& low, const Matrix& y, const std::vector<Matrix>& posts,
                                  bool (*accepts)(DType));

// Whether nothing is scaled, and the bias lies in memory as one row.
bool is_unscaled(const Lowering& low);

// Whether both operands lie in memory by rows or by columns, and the result by rows.
bool lie_in_lines(const Matrix& a, const Matrix& b, const Matrix& y);

product::Problem problem_of(const Matrix& a, const Matrix& b, const Matrix& y, const Finish& finish);
double flops_of(const product::Problem& problem);

// The layouts of both operands in oneDNN's manner.
std::string layout_of(const Matrix& a, const Matrix& b);

// Where a product's operands lie in one run; those that it has not are null.
struct Addresses {
  void* a = nullptr;
  void* b = nullptr;
  void* bias = nullptr;
  void* residual = nullptr;
  void* factor = nullptr;
  void* y = nullptr;
  void* buffers = nullptr;
};

struct Places {
  Places(Lowering& low, const Finish& finish, std::size_t buffer_bytes);

  void bind(Binder& binder, Addresses& to) const;

  Location a, b, y, buffers;
  std::optional<Location> bias, residual, factor;
};

// Runs a plan, which has a method for it.
template <class Plan>
class ProductStep : public Step {
 public:
  ProductStep(Plan plan, Places places) : plan_(std::move(plan)), places_(std::move(places)) {}

  std::unique_ptr<BoundStep> bind(Binder& binder) const override {
    auto bound = std::make_unique<Bound>(plan_);
    places_.bind(binder, bound->addresses);
    return bound;
  }

 private:
  class Bound : public BoundStep {
   public:
    explicit Bound(const Plan& plan) : plan_(plan) {}
    void run(RunState&) override { plan_.run(addresses); }

    Addresses addresses;

   private:
    const Plan& plan_;
  };

  Plan plan_;
  Places places_;
};

}  // namespace npu
