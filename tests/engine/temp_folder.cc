#include "tests/engine/temp_folder.h"

#include <gtest/gtest.h>
#include <stdlib.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <stdexcept>

namespace me::testing {

TempFolder::TempFolder() : path_(::testing::TempDir() + "engine-test-XXXXXX") {
  if (::mkdtemp(path_.data()) == nullptr) throw std::runtime_error("mkdtemp failed: " + path_);
}

TempFolder::~TempFolder() {
  std::error_code ignored;
  std::filesystem::remove_all(path_, ignored);
}

std::string TempFolder::write(std::string_view name, std::string_view content) const {
  const std::string file = path(name);
  std::filesystem::remove(file);  // a new file each time: ext4 flushes one that was truncated
  std::ofstream(file, std::ios::binary) << content;
  return file;
}

std::ptrdiff_t TempFolder::files() const {
  return std::distance(std::filesystem::directory_iterator(path_),
                       std::filesystem::directory_iterator());
}

std::string read_bytes(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  EXPECT_TRUE(file.good()) << path;
  return {std::istreambuf_iterator<char>(file), {}};
}

}  // namespace me::testing
