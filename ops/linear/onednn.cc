#include "ops/linear/onednn.h"

#include <omp.h>
#include <oneapi/dnnl/dnnl.h>

#include <array>
#include <stdexcept>
#include <string>
#include <type_traits>

namespace me {
namespace {

// oneDNN reads the calling thread's OpenMP setting, both when it plans and when it runs.
class ThreadScope {
 public:
  explicit ThreadScope(int threads) : before_(omp_get_max_threads()) {
    omp_set_num_threads(threads);
  }
  ~ThreadScope() { omp_set_num_threads(before_); }
  ThreadScope(const ThreadScope&) = delete;
  ThreadScope& operator=(const ThreadScope&) = delete;

 private:
  int before_;
};

// Thrown within this file only, but for a failure while running, which nothing can foresee.
struct OneDnnError : std::runtime_error {
  using std::runtime_error::runtime_error;
};

void check(dnnl_status_t status, const char* call) {
  if (status != dnnl_success) {
    throw OneDnnError(std::string(call) + " failed with status " + std::to_string(status));
  }
}
#define ME_DNNL_CHECK(call) check(call, #call)

Error as_error(const OneDnnError& error) {
  return {ErrorKind::kDevice, std::string("oneDNN: ") + error.what()};
}

template <class Pointer, auto destroy>
struct Destroy {
  void operator()(Pointer p) const { destroy(p); }
};
template <class Pointer, auto destroy>
using Owned = std::unique_ptr<std::remove_pointer_t<Pointer>, Destroy<Pointer, destroy>>;

using Engine = Owned<dnnl_engine_t, dnnl_engine_destroy>;
using Stream = Owned<dnnl_stream_t, dnnl_stream_destroy>;
using Attributes = Owned<dnnl_primitive_attr_t, dnnl_primitive_attr_destroy>;
using PrimitiveDesc = Owned<dnnl_primitive_desc_t, dnnl_primitive_desc_destroy>;
using Primitive = Owned<dnnl_primitive_t, dnnl_primitive_destroy>;
using Memory = Owned<dnnl_memory_t, dnnl_memory_destroy>;

// ---- where versions 2 and 3 differ ----

#if DNNL_VERSION_MAJOR >= 3

using DescArg = const_dnnl_memory_desc_t;

class Desc {
 public:
  Desc(std::initializer_list<int64_t> dims, std::initializer_list<int64_t> strides) {
    dnnl_memory_desc_t desc = nullptr;
    ME_DNNL_CHECK(dnnl_memory_desc_create_with_strides(&desc, static_cast<int>(dims.size()),
                                                       dims.begin(), dnnl_f32, strides.begin()));
    desc_.reset(desc);
  }
  // The layout is oneDNN's choice.
  Desc(std::initializer_list<int64_t> dims) {
    dnnl_memory_desc_t desc = nullptr;
    ME_DNNL_CHECK(dnnl_memory_desc_create_with_tag(&desc, static_cast<int>(dims.size()),
                                                   dims.begin(), dnnl_f32, dnnl_format_tag_any));
    desc_.reset(desc);
  }
  DescArg get() const { return desc_.get(); }

 private:
  Owned<dnnl_memory_desc_t, dnnl_memory_desc_destroy> desc_;
};

PrimitiveDesc matmul_desc(dnnl_engine_t engine, DescArg a, DescArg b, DescArg bias, DescArg c,
                          const_dnnl_primitive_attr_t attributes) {
  dnnl_primitive_desc_t out = nullptr;
  ME_DNNL_CHECK(dnnl_matmul_primitive_desc_create(&out, engine, a, b, bias, c, attributes));
  return PrimitiveDesc(out);
}

// Nothing where oneDNN has no such primitive.
PrimitiveDesc inner_product_desc(dnnl_engine_t engine, DescArg a, DescArg b, DescArg bias,
                                 DescArg c, const_dnnl_primitive_attr_t attributes) {
  dnnl_primitive_desc_t out = nullptr;
  const dnnl_status_t status = dnnl_inner_product_forward_primitive_desc_create(
      &out, engine, dnnl_forward_inference, a, b, bias, c, attributes);
  return PrimitiveDesc(status == dnnl_success ? out : nullptr);
}

#else

using DescArg = const dnnl_memory_desc_t*;

class Desc {
 public:
  Desc(std::initializer_list<int64_t> dims, std::initializer_list<int64_t> strides) {
    ME_DNNL_CHECK(dnnl_memory_desc_init_by_strides(&desc_, static_cast<int>(dims.size()),
                                                   dims.begin(), dnnl_f32, strides.begin()));
  }
  // The layout is oneDNN's choice.
  Desc(std::initializer_list<int64_t> dims) {
    ME_DNNL_CHECK(dnnl_memory_desc_init_by_tag(&desc_, static_cast<int>(dims.size()), dims.begin(),
                                               dnnl_f32, dnnl_format_tag_any));
  }
  DescArg get() const { return &desc_; }

 private:
  dnnl_memory_desc_t desc_{};
};

PrimitiveDesc matmul_desc(dnnl_engine_t engine, DescArg a, DescArg b, DescArg bias, DescArg c,
                          const_dnnl_primitive_attr_t attributes) {
  dnnl_matmul_desc_t desc;
  ME_DNNL_CHECK(dnnl_matmul_desc_init(&desc, a, b, bias, c));
  dnnl_primitive_desc_t out = nullptr;
  ME_DNNL_CHECK(dnnl_primitive_desc_create(&out, &desc, attributes, engine, nullptr));
  return PrimitiveDesc(out);
}

// Nothing where oneDNN has no such primitive.
PrimitiveDesc inner_product_desc(dnnl_engine_t engine, DescArg a, DescArg b, DescArg bias,
                                 DescArg c, const_dnnl_primitive_attr_t attributes) {
  dnnl_inner_product_desc_t desc;
  dnnl_primitive_desc_t out = nullptr;
  if (dnnl_inner_product_forward_desc_init(&desc, dnnl_forward_inference, a, b, bias, c) !=
          dnnl_success ||
      dnnl_primitive_desc_create(&out, &desc, attributes, engine, nullptr) != dnnl_success) {
    return nullptr;
  }
  return PrimitiveDesc(out);
}

#endif

// ---- the same in both ----

Engine make_engine() {
  dnnl_engine_t out = nullptr;
  ME_DNNL_CHECK(dnnl_engine_create(&out, dnnl_cpu, 0));
  return Engine(out);
}

Stream make_stream(dnnl_engine_t engine) {
  dnnl_stream_t out = nullptr;
  ME_DNNL_CHECK(dnnl_stream_create(&out, engine, dnnl_stream_in_order));
  return Stream(out);
}

Attributes make_attributes() {
  dnnl_primitive_attr_t out = nullptr;
  ME_DNNL_CHECK(dnnl_primitive_attr_create(&out));
  Attributes attributes(out);
  ME_DNNL_CHECK(dnnl_primitive_attr_set_scratchpad_mode(out, dnnl_scratchpad_mode_user));
  // The environment (ONEDNN_DEFAULT_FPMATH_MODE) could otherwise turn fp32 into bf16.
  ME_DNNL_CHECK(dnnl_primitive_attr_set_fpmath_mode(out, dnnl_fpmath_mode_strict));
  return attributes;
}

Primitive make_primitive(const_dnnl_primitive_desc_t desc) {
  dnnl_primitive_t out = nullptr;
  ME_DNNL_CHECK(dnnl_primitive_create(&out, desc));
  return Primitive(out);
}

Memory make_memory(dnnl_engine_t engine, DescArg desc, void* data) {
  dnnl_memory_t out = nullptr;
  ME_DNNL_CHECK(dnnl_memory_create(&out, desc, engine, data));
  return Memory(out);
}

std::string_view implementation_of(const_dnnl_primitive_desc_t desc) {
  const char* name = nullptr;
  ME_DNNL_CHECK(dnnl_primitive_desc_query(desc, dnnl_query_impl_info_str, 0, &name));
  return name;
}

void set_data(const Memory& memory, const void* data) {
  void* before = nullptr;
  ME_DNNL_CHECK(dnnl_memory_get_data_handle(memory.get(), &before));
  if (before == data) return;
  ME_DNNL_CHECK(dnnl_memory_set_data_handle(memory.get(), const_cast<void*>(data)));
}

// Rows up to which B in oneDNN's own layout pays: see Product::Impl::choose_packed.
int64_t max_packed_rows(std::string_view implementation) {
  if (!implementation.starts_with("brg")) return 0;
  return implementation.find("avx512") != std::string_view::npos ? 1024 : 256;
}

}  // namespace

struct Product::Impl {
  ProductSpec spec;
  Engine engine;
  Stream stream;
  PrimitiveDesc desc;
  Primitive primitive;
  bool packs = false;
  Memory a, b, bias, c, scratchpad;
  std::array<dnnl_exec_arg_t, 5> args;
  int arg_count = 0;

  explicit Impl(const ProductSpec& s)
      : spec(s), engine(make_engine()), stream(make_stream(engine.get())) {
    const Attributes attributes = make_attributes();
    if (spec.may_pack_b) choose_packed(attributes.get());
    if (!desc) choose_plain(attributes.get());
    primitive = make_primitive(desc.get());
    make_arguments();
  }

  // An inner product whose weights oneDNN lays out as it likes. Worth it only for its blocked
  // kernels (their names start with "brg"), which read B in place where the plain product packs it
  // at every run. On AVX-512 they are 1.7 times as fast as that for 8 rows, 1.2 for 32 and 1.04 for
  // 1024 (bench/evidence), but no faster for 2048; on AVX2, whose plain product is the GEMM, 1.5
  // for 8, 1.04 for 64, 1 for 500 and 0.95 for 1000 (version 3.7). One row is best as a
  // matrix-vector product.
  void choose_packed(const_dnnl_primitive_attr_t attributes) {
    if (spec.m == 1 || spec.a_column != 1) return;
    const Desc a_desc({spec.m, spec.k}, {spec.a_row, 1});
    const Desc b_desc({spec.n, spec.k});
    const Desc bias_desc({spec.n}, {1});
    const Desc c_desc({spec.m, spec.n}, {spec.c_row, 1});
    PrimitiveDesc found =
        inner_product_desc(engine.get(), a_desc.get(), b_desc.get(),
                           spec.bias ? bias_desc.get() : nullptr, c_desc.get(), attributes);
    if (!found || spec.m > max_packed_rows(implementation_of(found.get()))) return;
    desc = std::move(found);
    packs = true;
  }

  void choose_plain(const_dnnl_primitive_attr_t attributes) {
    const Desc a_desc({spec.m, spec.k}, {spec.a_row, spec.a_column});
    const Desc b_desc({spec.k, spec.n}, {spec.b_row, spec.b_column});
    const Desc bias_desc({1, spec.n}, {spec.n, 1});
    const Desc c_desc({spec.m, spec.n}, {spec.c_row, 1});
    desc = matmul_desc(engine.get(), a_desc.get(), b_desc.get(),
                       spec.bias ? bias_desc.get() : nullptr, c_desc.get(), attributes);
  }

  DescArg query(dnnl_query_t what) const {
    return dnnl_primitive_desc_query_md(desc.get(), what, 0);
  }

  void make_arguments() {
    const auto add = [&](Memory& memory, dnnl_query_t what, int index, int arg) {
      const DescArg md = dnnl_primitive_desc_query_md(desc.get(), what, index);
      memory = make_memory(engine.get(), md, DNNL_MEMORY_NONE);
      args[static_cast<size_t>(arg_count++)] = {arg, memory.get()};
    };
    add(a, dnnl_query_src_md, 0, DNNL_ARG_SRC);
    add(b, dnnl_query_weights_md, 0, DNNL_ARG_WEIGHTS);
    if (spec.bias) add(bias, dnnl_query_weights_md, 1, DNNL_ARG_BIAS);
    add(c, dnnl_query_dst_md, 0, DNNL_ARG_DST);
    add(scratchpad, dnnl_query_scratchpad_md, 0, DNNL_ARG_SCRATCHPAD);
  }
};

Product::Product(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Product::~Product() = default;

Result<std::unique_ptr<Product>> Product::create(const ProductSpec& spec) {
  const ThreadScope scope(spec.threads);
  try {
    return std::unique_ptr<Product>(new Product(std::make_unique<Impl>(spec)));
  } catch (const OneDnnError& error) {
    return as_error(error);
  }
}

std::string_view Product::implementation() const { return implementation_of(impl_->desc.get()); }

int64_t Product::scratchpad_bytes() const {
  return static_cast<int64_t>(dnnl_memory_desc_get_size(impl_->query(dnnl_query_scratchpad_md)));
}

int64_t Product::packed_b_bytes() const {
  if (!impl_->packs) return 0;
  return static_cast<int64_t>(dnnl_memory_desc_get_size(impl_->query(dnnl_query_weights_md)));
}

Status Product::pack_b(const float* b, void* packed) try {
  const ProductSpec& spec = impl_->spec;
  const ThreadScope scope(spec.threads);
  dnnl_engine_t engine = impl_->engine.get();
  const Desc plain({spec.n, spec.k}, {spec.b_column, spec.b_row});
  const DescArg blocked = impl_->query(dnnl_query_weights_md);
  dnnl_primitive_desc_t out = nullptr;
  ME_DNNL_CHECK(
      dnnl_reorder_primitive_desc_create(&out, plain.get(), engine, blocked, engine, nullptr));
  const PrimitiveDesc desc(out);
  const Primitive reorder = make_primitive(desc.get());
  const Memory from = make_memory(engine, plain.get(), const_cast<float*>(b));
  const Memory to = make_memory(engine, blocked, packed);
  const dnnl_exec_arg_t args[] = {{DNNL_ARG_FROM, from.get()}, {DNNL_ARG_TO, to.get()}};
  ME_DNNL_CHECK(dnnl_primitive_execute(reorder.get(), impl_->stream.get(), 2, args));
  ME_DNNL_CHECK(dnnl_stream_wait(impl_->stream.get()));
  return Ok{};
} catch (const OneDnnError& error) {
  return as_error(error);
}

void Product::run(const float* a, const void* b, const float* bias, float* c, void* scratchpad) {
  const ThreadScope scope(impl_->spec.threads);
  set_data(impl_->a, a);
  set_data(impl_->b, b);
  if (impl_->spec.bias) set_data(impl_->bias, bias);
  set_data(impl_->c, c);
  set_data(impl_->scratchpad, scratchpad);
  ME_DNNL_CHECK(dnnl_primitive_execute(impl_->primitive.get(), impl_->stream.get(),
                                       impl_->arg_count, impl_->args.data()));
}

}  // namespace me
