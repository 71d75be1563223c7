// Files for one test.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace me::testing {

// A folder that is removed, with all it holds, at the end.
class TempFolder {
 public:
  TempFolder();
  ~TempFolder();
  TempFolder(const TempFolder&) = delete;
  TempFolder& operator=(const TempFolder&) = delete;

  const std::string& path() const { return path_; }
  std::string path(std::string_view name) const { return path_ + "/" + std::string(name); }

  // Writes a file and returns its path.
  std::string write(std::string_view name, std::string_view content) const;

  // How many files it holds: a temporary that was left behind shows.
  std::ptrdiff_t files() const;

 private:
  std::string path_;
};

// The content of a file; fails the test where there is none.
std::string read_bytes(const std::string& path);

}  // namespace me::testing
