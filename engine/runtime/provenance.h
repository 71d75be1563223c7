// Where and when figures were read, so that a reader can judge them and read them again.
#pragma once

#include <map>
#include <memory>
#include <string>

#include "ops/device/device.h"

namespace me {

// Commit and build of this program, date, machine, device, driver and library versions, the
// device's clocks now: every value as text, by name, in the order of their names.
std::map<std::string, std::string> provenance(const DeviceInfo& device);

// Why figures read now would be doubtful: the device's clocks are held back, and by what. "" where
// nothing is known against them.
std::string clock_warning(const DeviceInfo& device);

}  // namespace me
