// Whole files.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "ops/base/status.h"

namespace me {

// The content of the regular file at `path`, refused where it is larger than `max_bytes`.
Result<std::string> read_file(const std::string& path, int64_t max_bytes);

// Writes the parts one behind another to a temporary file in the same folder, flushes it to disk
// and renames it to `path`: whole, or the old file stays. A symbolic link is followed, not
// replaced. /dev/stdout, other character devices and pipes cannot be replaced and are written
// directly; a folder and anything else is refused. Errors are of kind kRuntime.
Status write_file(const std::string& path, std::span<const std::span<const std::byte>> parts);

}  // namespace me
