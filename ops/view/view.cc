#include "ops/view/view.h"

#include <fmt/format.h>

#include <algorithm>

namespace me {
namespace {

Error refuse(std::string_view field, std::string message) {
  Error error = invalid(std::move(message));
  error.field = field;
  return error;
}

std::string in_words(const Dim& dim) {
  return dim.symbol.empty() ? std::to_string(dim.size) : in_quotes(dim.symbol);
}
std::string in_words(int64_t number) { return std::to_string(number); }

// "[2, "batch", -1]"
template <class T>
std::string in_words(const std::vector<T>& items) {
  std::string out = "[";
  for (const T& item : items) {
    if (out.size() > 1) out += ", ";
    out += in_words(item);
  }
  return out + "]";
}

// The dims of a message, their number checked.
Result<std::vector<Dim>> parse_dims(const AttrMap& fields, std::string_view field) {
  auto dims = find_attr<std::vector<Dim>>(fields, "dims").value_or(std::vector<Dim>{});
  if (dims.empty() || dims.size() > kMaxRank) {
    return refuse(field, fmt::format("found {} dims, expected 1 to {}", dims.size(), kMaxRank));
  }
  return dims;
}

// Requires a shape with every dimension known.
Status check_count(const Dims& shape, std::string_view field) {
  if (checked_count(shape)) return Ok{};
  return refuse(field, fmt::format("found the shape {}, expected fewer than 2^60 elements",
                                   to_string(shape)));
}

// Every dim under `symbols`. Unknown ones stay unknown.
Result<Dims> resolve_all(const std::vector<Dim>& dims, const Symbols& symbols,
                         std::string_view field) {
  Dims shape;
  for (const Dim& dim : dims) {
    shape.push_back(resolve(dim, symbols));
    if (shape.back() < kUnknownDim) {
      return refuse(field, fmt::format("found {} = {}, expected 0 or more", in_quotes(dim.symbol),
                                       shape.back()));
    }
  }
  return shape;
}

Work work(const Problem& p) {
  const int64_t elements = std::min(p.inputs[0].count(), p.outputs[0].count());
  return {0, static_cast<double>(elements * size_of(p.inputs[0].dtype) + p.outputs[0].bytes())};
}

// ---- reshape ----

Result<std::unique_ptr<Attrs>> parse_reshape(const AttrMap& fields) {
  auto attrs = std::make_unique<ReshapeAttrs>();
  ME_ASSIGN_OR_RETURN(attrs->dims, parse_dims(fields, "reshape.dims"));
  for (size_t i = 0; i < attrs->dims.size(); ++i) {
    const Dim& dim = attrs->dims[i];
    if (!dim.symbol.empty() || dim.size >= 0) continue;
    if (dim.size != -1 || attrs->inferred >= 0) {
      return refuse("reshape.dims", fmt::format("found {}, expected at most one -1 and no other "
                                                "negative size",
                                                in_words(attrs->dims)));
    }
    attrs->inferred = static_cast<int>(i);
  }
  return {std::move(attrs)};
}

Result<std::vector<TensorType>> infer_reshape(const Attrs& attrs,
                                              std::span<const TensorType> inputs,
                                              const Symbols& symbols) {
  const auto& reshape = attrs_as<ReshapeAttrs>(attrs);
  const TensorType& x = inputs[0];
  ME_ASSIGN_OR_RETURN(Dims shape, resolve_all(reshape.dims, symbols, "reshape.dims"));
  Dims given = shape;
  if (reshape.inferred >= 0) given[reshape.inferred] = 1;
  if (!all_known(given)) return std::vector{TensorType{x.dtype, shape}};
  ME_RETURN_IF_ERROR(check_count(given, "reshape.dims"));
  if (!all_known(x.shape)) return std::vector{TensorType{x.dtype, shape}};

  const int64_t have = count(x.shape);
  const int64_t taken = count(given);
  const auto found = [&](std::string_view expected) {
    return refuse("reshape.dims",
                  fmt::format("found {} for {} of {} elements, expected {}", in_words(reshape.dims),
                              to_string(x), have, expected));
  };
  if (reshape.inferred < 0) {
    if (taken != have) return found(fmt::format("as many elements (dims give {})", taken));
  } else {
    if (taken == 0) return found("no zero beside -1, which could be any size");
    if (have % taken != 0) return found(fmt::format("the other dims' {} to divide them", taken));
    shape[reshape.inferred] = have / taken;
  }
  ME_RETURN_IF_ERROR(check_count(shape, "reshape.dims"));
  return std::vector{TensorType{x.dtype, shape}};
}

// ---- transpose ----

Result<std::unique_ptr<Attrs>> parse_transpose(const AttrMap& fields) {
  auto attrs = std::make_unique<TransposeAttrs>();
  attrs->permutation =
      find_attr<std::vector<int64_t>>(fields, "permutation").value_or(std::vector<int64_t>{});
  const auto rank = static_cast<int64_t>(attrs->permutation.size());
  std::vector<int64_t> sorted = attrs->permutation;
  std::sort(sorted.begin(), sorted.end());
  bool each_once = rank >= 1 && rank <= kMaxRank;
  for (int64_t i = 0; each_once && i < rank; ++i) each_once = sorted[static_cast<size_t>(i)] == i;
  if (!each_once) {
    return refuse("transpose.permutation",
                  fmt::format("found {}, expected each of 1 to {} axes, counted from 0, once",
                              in_words(attrs->permutation), kMaxRank));
  }
  return {std::move(attrs)};
}

Result<std::vector<TensorType>> infer_transpose(const Attrs& attrs,
                                                std::span<const TensorType> inputs,
                                                const Symbols&) {
  const auto& permutation = attrs_as<TransposeAttrs>(attrs).permutation;
  const TensorType& x = inputs[0];
  if (static_cast<int>(permutation.size()) != x.shape.rank()) {
    return refuse("transpose.permutation",
                  fmt::format("found {} for {}, expected {} axes", in_words(permutation),
                              to_string(x), x.shape.rank()));
  }
  TensorType y{x.dtype, {}};
  for (int64_t axis : permutation) y.shape.push_back(x.shape[static_cast<int>(axis)]);
  return std::vector{y};
}

// ---- slice ----

Result<std::unique_ptr<Attrs>> parse_slice(const AttrMap& fields) {
  auto attrs = std::make_unique<SliceAttrs>();
  attrs->axis = find_attr<int64_t>(fields, "axis").value_or(0);
  attrs->start = find_attr<int64_t>(fields, "start").value_or(0);
  attrs->end = find_attr<int64_t>(fields, "end");
  attrs->step = find_attr<int64_t>(fields, "step").value_or(1);
  if (attrs->axis < -kMaxRank || attrs->axis >= kMaxRank) {
    return refuse("slice.axis",
                  fmt::format("found {}, expected {} to {}", attrs->axis, -kMaxRank, kMaxRank - 1));
  }
  if (attrs->step < 1) {
    return refuse("slice.step", fmt::format("found {}, expected 1 or more", attrs->step));
  }
  return {std::move(attrs)};
}

// start, start + step, … before end.
int64_t slice_length(int64_t start, int64_t end, int64_t step) {
  return start >= end ? 0 : (end - start - 1) / step + 1;
}

Result<std::vector<TensorType>> infer_slice(const Attrs& attrs, std::span<const TensorType> inputs,
                                            const Symbols&) {
  const auto& slice = attrs_as<SliceAttrs>(attrs);
  const TensorType& x = inputs[0];
  const int rank = x.shape.rank();
  if (slice.axis < -rank || slice.axis >= rank) {
    return refuse("slice.axis", fmt::format("found {} for {}, expected {} to {}", slice.axis,
                                            to_string(x), -rank, rank - 1));
  }
  const int axis = static_cast<int>(slice.axis < 0 ? slice.axis + rank : slice.axis);
  const int64_t extent = x.shape[axis];
  TensorType y = x;

  int64_t start = slice.start;
  int64_t end = slice.end.value_or(extent);
  if (extent == kUnknownDim) {
    // Counted from the same side, start and end give the length all the same.
    if (!slice.end || (start < 0) != (end < 0)) return std::vector{y};
  } else {
    // In range before any sum, so that no sum overflows.
    if (start < -extent || start > extent) {
      return refuse("slice.start", fmt::format("found {} for axis {} of {}, expected {} to {}",
                                               start, axis, to_string(x), -extent, extent));
    }
    if (end < -extent || end > extent) {
      return refuse("slice.end", fmt::format("found {} for axis {} of {}, expected {} to {}", end,
                                             axis, to_string(x), -extent, extent));
    }
    if (start < 0) start += extent;
    if (slice.end && end < 0) end += extent;
  }
  if (start > end) {
    return refuse("slice.end",
                  fmt::format("found {} with start {} for axis {} of {}, expected an end at or "
                              "after the start",
                              slice.end.value_or(extent), slice.start, axis, to_string(x)));
  }
  y.shape[axis] = slice_length(start, end, slice.step);
  return std::vector{y};
}

// ---- broadcast ----

Result<std::unique_ptr<Attrs>> parse_broadcast(const AttrMap& fields) {
  auto attrs = std::make_unique<BroadcastAttrs>();
  ME_ASSIGN_OR_RETURN(attrs->dims, parse_dims(fields, "broadcast.dims"));
  for (const Dim& dim : attrs->dims) {
    if (dim.symbol.empty() && dim.size < 0) {
      return refuse("broadcast.dims",
                    fmt::format("found {}, expected no negative size", in_words(attrs->dims)));
    }
  }
  return {std::move(attrs)};
}

Result<std::vector<TensorType>> infer_broadcast(const Attrs& attrs,
                                                std::span<const TensorType> inputs,
                                                const Symbols& symbols) {
  const auto& dims = attrs_as<BroadcastAttrs>(attrs).dims;
  const TensorType& x = inputs[0];
  ME_ASSIGN_OR_RETURN(const Dims shape, resolve_all(dims, symbols, "broadcast.dims"));
  const int added = shape.rank() - x.shape.rank();
  bool fits = added >= 0;
  for (int i = 0; fits && i < x.shape.rank(); ++i) {
    fits = x.shape[i] == 1 || dims_agree(x.shape[i], shape[added + i]);
  }
  if (!fits) {
    return refuse("broadcast.dims",
                  fmt::format("found {} for {}, expected each of its extents, aligned at the last "
                              "axis, or anything where it has 1",
                              to_string(shape), to_string(x)));
  }
  if (all_known(shape)) ME_RETURN_IF_ERROR(check_count(shape, "broadcast.dims"));
  return std::vector{TensorType{x.dtype, shape}};
}

int64_t sum_length(const Problem&) { return 0; }

}  // namespace

const OpDef kReshapeOp = {
    .name = "reshape",
    .input_names = "x",
    .parse = parse_reshape,
    .infer = infer_reshape,
    .work = work,
    .sum_length = sum_length,
    .oracle = view_oracle,
    .view = view_of_reshape,
};

const OpDef kTransposeOp = {
    .name = "transpose",
    .input_names = "x",
    .parse = parse_transpose,
    .infer = infer_transpose,
    .work = work,
    .sum_length = sum_length,
    .oracle = view_oracle,
    .view = view_of_transpose,
};

const OpDef kSliceOp = {
    .name = "slice",
    .input_names = "x",
    .parse = parse_slice,
    .infer = infer_slice,
    .work = work,
    .sum_length = sum_length,
    .oracle = view_oracle,
    .view = view_of_slice,
};

const OpDef kBroadcastOp = {
    .name = "broadcast",
    .input_names = "x",
    .parse = parse_broadcast,
    .infer = infer_broadcast,
    .work = work,
    .sum_length = sum_length,
    .oracle = view_oracle,
    .view = view_of_broadcast,
};

}  // namespace me
