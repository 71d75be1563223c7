// The tensors that `engine run` reads and writes.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "engine/cli/common.h"
#include "engine/io/npy.h"
#include "engine/model/graph.h"

namespace me::cli {

// A value for one input of the model.
struct InputArray {
  Array array;
  std::string source;  // the file, for messages
};

// Adds --input and --seed to a sub-command.
void add_input_options(CLI::App& command, std::vector<std::string>& inputs, uint64_t& seed);

// Reads what --input says: NAME=FILE.npy, NAME=FILE.safetensors (its tensor NAME), or
// FILE.safetensors (every tensor in it that is an input of the graph). By input name.
Result<std::map<std::string, InputArray>> read_inputs(const Graph& graph,
                                                      const std::vector<std::string>& args);

// Copies `array` into `buffer`, of the same shape. Floating-point types other than the buffer's are
// rounded once to nearest even, and `notice` says so; integers are refused.
Status copy_array(const Array& array, const TensorView& buffer, std::string& notice);

// Normal(0, 1), the same for the same seed.
void fill_random(const TensorView& buffer, uint64_t seed);

// Fills a buffer for each of the graph's inputs from the arrays, or at random with a notice.
// Returns where each one came from.
Result<std::vector<std::string>> fill_inputs(const Graph& graph,
                                             const std::vector<TensorView>& buffers,
                                             const std::map<std::string, InputArray>& arrays,
                                             uint64_t seed);

// The shapes of the arrays, by input.
std::map<std::string, Dims> shapes_of(const std::map<std::string, InputArray>& arrays);

// Whether write_tensor knows the file's ending.
Status check_output_path(const std::string& path);

// Writes to FILE.npy or FILE.safetensors (there under `name`).
Status write_tensor(const std::string& path, const std::string& name, const TensorView& tensor);

struct TensorSummary {
  int64_t count = 0;
  int64_t nan = 0;
  int64_t infinite = 0;
  double min = 0;  // these three over the finite elements; 0 where there are none
  double max = 0;
  double mean = 0;
};
TensorSummary summarize(const TensorView& tensor);

// Index of the largest element in a row of the last axis; the first of equals; -1 where the row is
// empty or holds a NaN.
int64_t argmax_of_row(const TensorView& tensor, int64_t row);

// Rows along the last axis.
int64_t row_count(const TensorDesc& tensor);

}  // namespace me::cli
