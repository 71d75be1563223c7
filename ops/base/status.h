// Errors as values. A bad model, a bad input or a device that cannot run it is an Error; nothing in
// the project throws for those. (A failed CUDA call throws CudaError: see ops/cuda.)
#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <variant>

namespace me {

// What went wrong. The numeric value is the exit status of the `engine` program.
enum class ErrorKind {
  kMismatch = 1,  // a comparison, an expectation or a regression check that failed
  kInvalid = 2,   // usage, a bad model or a bad input
  kDevice = 3,    // a device that cannot run it
  kRuntime = 4,   // a failure while running (a file that cannot be written included)
};

// One fault. `message` says what was found and what was expected; the other fields say where and
// may be empty. Names in them are untrusted: to_string() escapes them.
struct Error {
  ErrorKind kind = ErrorKind::kInvalid;
  std::string message;
  std::string file = {};   // path of the model or input file
  std::string node = {};   // name of the node, or of the value where no node is to blame
  std::string field = {};  // field of the schema, for example "linear.activation"

  // One line: `models/bad.pb: node "fc1": linear.activation: found 7, expected NONE or RELU`.
  std::string to_string() const;
};

inline Error invalid(std::string message) { return {ErrorKind::kInvalid, std::move(message)}; }
inline Error runtime_error(std::string message) {
  return {ErrorKind::kRuntime, std::move(message)};
}

// `text` in double quotes, with control characters, quotes, backslashes and invalid UTF-8 written
// as escapes and anything over 128 bytes cut, so that a name out of a file is safe to print.
std::string in_quotes(std::string_view text);

// Whether `text` is UTF-8 (RFC 3629: no overlong forms, no surrogates).
bool is_utf8(std::string_view text);

// Either a T or an Error.
template <class T>
class [[nodiscard]] Result {
 public:
  Result(T value) : state_(std::in_place_index<0>, std::move(value)) {}      // NOLINT: implicit
  Result(Error error) : state_(std::in_place_index<1>, std::move(error)) {}  // NOLINT: implicit

  bool ok() const { return state_.index() == 0; }
  T& value() & { return std::get<0>(state_); }
  const T& value() const& { return std::get<0>(state_); }
  T&& value() && { return std::get<0>(std::move(state_)); }
  Error& error() { return std::get<1>(state_); }
  const Error& error() const { return std::get<1>(state_); }

 private:
  std::variant<T, Error> state_;
};

struct Ok {};
// Success without a value: `return Ok{};`
using Status = Result<Ok>;

}  // namespace me

#define ME_CONCAT_INNER(a, b) a##b
#define ME_CONCAT(a, b) ME_CONCAT_INNER(a, b)

// Evaluates `expr` (a Result); returns its error from the enclosing function, or goes on.
#define ME_RETURN_IF_ERROR(expr)                              \
  do {                                                        \
    auto&& me_status = (expr);                                \
    if (!me_status.ok()) return std::move(me_status.error()); \
  } while (0)

// ME_ASSIGN_OR_RETURN(auto x, f()): x becomes f()'s value, or f()'s error is returned.
#define ME_ASSIGN_OR_RETURN(lhs, expr) \
  ME_ASSIGN_OR_RETURN_IMPL(ME_CONCAT(me_result_, __LINE__), lhs, expr)
#define ME_ASSIGN_OR_RETURN_IMPL(result, lhs, expr)   \
  auto result = (expr);                               \
  if (!result.ok()) return std::move(result.error()); \
  lhs = std::move(result).value()
