// Task kinds "pool" and "lrn".
#include <functional>
#include <string_view>

#include "onednn/engine.h"
#include "onednn/pool_kinds.h"
#include "onednn/primitive.h"

namespace npu {
namespace {

struct Named {
  std::string_view name;
  dnnl::algorithm algorithm;
};

constexpr Named kPools[] = {
    {"max", dnnl::algorithm::pooling_max},
    {"avg_include", dnnl::algorithm::pooling_avg_include_padding},
    {"avg_exclude", dnnl::algorithm::pooling_avg_exclude_padding},
};
constexpr Named kNorms[] = {
    {"across", dnnl::algorithm::lrn_across_channels},
    {"within", dnnl::algorithm::lrn_within_channel},
};

template <std::size_t N>
dnnl::algorithm find_algorithm(const Lowering& low, const Named (&table)[N], const std::string& name) {
  for (const Named& entry : table) {
    if (entry.name == name) return entry.algorithm;
  }
  low.reject("unknown algorithm '" + name + "'");
}

double work(const Lowering& low, double each) { return static_cast<double>(low.output(0).elements()) * each; }

// How to restore NaN that a primitive loses, depending on layouts and implementation.
using RepairOf = std::function<NanRepair(const Desc& source, const Desc& target, std::string_view name)>;

// Lowers single-source primitives in the given layouts, or channels-last with reorders where the task says
// so.
template <class Primitive, class Make>
void lower_simple(Lowering& low, const AttributeSet& attributes, double flops, const Make& make,
                  const RepairOf& repair = {}) {
  const Desc source = describe(low, low.input(0));
  const Desc target = describe(low, low.output(0));
  const bool reorders = low.attrs().flag("channels_last") && !attributes.accumulates;
  const TeamScope team(team_of(low));
  const auto desc = reorders ? make(channels_last(source), channels_last(target)) : make(source, target);
  PrimitiveBuilder builder(low);
  builder.read(DNNL_ARG_SRC, low.input(0), source, desc.src_desc());
  builder.write(DNNL_ARG_DST, low.output(0), target, desc.dst_desc());
  builder.add(attributes);
  builder.finish<Primitive>(
      desc, layout_name(desc.src_desc()), flops,
      repair ? repair(desc.src_desc(), desc.dst_desc(), desc.impl_info_str()) : NanRepair());
}

void check_image(const Lowering& low) {
  const std::size_t rank = low.input(0).dims.size();
  if (rank < 3 || rank > 5 || low.output(0).dims.size() != rank) {
    low.reject("source and output need one to three spatial dimensions");
  }
}

}  // namespace

PoolGeometry::PoolGeometry(const Lowering& low, std::size_t spatial) {
  const Attrs& attrs = low.attrs();
  algorithm = find_algorithm(low, kPools, attrs.text("kind"));
  kernel = attrs.integers("kernel");
  strides = attrs.integers("strides", Dims(spatial, 1));
  dilations = attrs.integers("dilations", Dims(spatial, 1));
  pads_begin = attrs.integers("pads_begin", Dims(spatial, 0));
  pads_end = attrs.integers("pads_end", Dims(spatial, 0));
  for (std::int64_t& dilation : dilations) --dilation;
  for (const Dims* list : {&kernel, &strides, &dilations, &pads_begin, &pads_end}) {
    if (list->size() != spatial) low.reject("kernel, strides, dilations and pads need a number a dimension");
  }
}

double PoolGeometry::window() const {
  double size = 1;
  for (const std::int64_t k : kernel) size *= static_cast<double>(k);
  return size;
}

namespace {

dnnl::pooling_forward::primitive_desc pool_desc(const PoolGeometry& pool, const Desc& source,
                                                const Desc& target, const dnnl::primitive_attr& attr) {
  return {onednn_engine(),
          dnnl::prop_kind::forward_inference,
          pool.algorithm,
          source,
          target,
          pool.strides,
          pool.kernel,
          pool.dilations,
          pool.pads_begin,
          pool.pads_end,
          attr};
}

// The library's maxima pass over NaN and begin with the lowest number. With "keeps_nan" a result is NaN
// wherever its window has it, and -inf where its window has nothing else. Generated code (jit) raises the
// flag on NaN, compiled code compares quietly.
NanRepair repair_of_maxima(const PoolGeometry& pool, const Desc& source, const Desc& target,
                           std::string_view name) {
  NanRepair repair;
  repair.pools_marks = true;
  repair.raises = name.starts_with("jit");
  repair.make = [pool, source, target](const dnnl::primitive_attr& attr) -> NanRepair::Primitive {
    const auto desc = pool_desc(pool, source, target, attr);
    return {dnnl::pooling_forward(desc), desc.scratchpad_desc()};
  };
  return repair;
}

void lower_library_pool(Lowering& low) {
  check_image(low);
  const std::size_t rank = low.input(0).dims.size();
  const PoolGeometry pool(low, rank - 2);
  const AttributeSet attributes = make_attributes(low, 1, 0, PaddedOperandShape(rank));
  RepairOf repair;
  if (low.attrs().flag("keeps_nan")) {
    if (!low.attrs().texts("post_ops").empty()) low.reject("maxima that keep NaN have no post-ops");
    repair = [&](const Desc& source, const Desc& target, std::string_view name) {
      return repair_of_maxima(pool, source, target, name);
    };
  }
  lower_simple<dnnl::pooling_forward>(
      low, attributes, work(low, pool.window()),
      [&](const Desc& source, const Desc& target) {
        return pool_desc(pool, source, target, attributes.attr);
      },
      repair);
}

void lower_library_lrn(Lowering& low) {
  check_image(low);
  const Attrs& attrs = low.attrs();
  const auto algorithm = find_algorithm(low, kNorms, attrs.text("kind", "across"));
  const AttributeSet attributes = make_attributes(low, 1, 0, PaddedOperandShape(low.input(0).dims.size()));
  const std::int64_t size = attrs.integer("size");
  lower_simple<dnnl::lrn_forward>(
      low, attributes, work(low, static_cast<double>(size)), [&](const Desc& source, const Desc& target) {
        return dnnl::lrn_forward::primitive_desc(
            onednn_engine(), dnnl::prop_kind::forward_inference, algorithm, source, target, size,
            static_cast<float>(attrs.real("alpha", 1e-4)), static_cast<float>(attrs.real("beta", 0.75)),
            static_cast<float>(attrs.real("k", 1.0)), attributes.attr);
      });
}

constexpr Implementation kPool[] = {{"onednn", lower_library_pool}};
constexpr Implementation kLrn[] = {{"onednn", lower_library_lrn}};

}  // namespace

void lower_pool(Lowering& low) { lower_named(low, kPool); }

void lower_lrn(Lowering& low) { lower_named(low, kLrn); }

}  // namespace npu
