// A file in memory for targets whose product reads paths: bytes go in, a path comes out, nothing is left behind.
#pragma once

#include <cstddef>
#include <span>
#include <string>

namespace deltawire::fuzz {

/// A folder of this process, removed when the process ends; in memory where the machine has /dev/shm.
[[nodiscard]] const std::string& scratch_folder();

/// Replaces the file `name` of that folder, and returns its path.
[[nodiscard]] std::string scratch_file(const std::string& name, std::span<const std::byte> bytes);

} // namespace deltawire::fuzz
