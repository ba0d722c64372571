// safetensors files for the process tests, written and read by code of their own.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace deltawire::test {

struct FileTensor {
  std::string name;
  std::string dtype; ///< as the format spells it, e.g. "BF16"
  std::vector<std::int64_t> shape;
  std::string data;
};

/// The bytes of a file that holds the tensors in this order.
[[nodiscard]] std::string file_of(const std::vector<FileTensor>& tensors);

/// A file's bytes from a header text and data, right or wrong.
[[nodiscard]] std::string file_of(const std::string& header, const std::string& data);

/// The tensors of a file, by name.
[[nodiscard]] std::map<std::string, FileTensor> tensors_of(const std::string& path);

/// Version `version` of a small model: "a" [4, 3] BF16 and "b" [2] F32; some elements differ from version to version.
[[nodiscard]] std::vector<FileTensor> small_model(int version);

/// A topology for it: 2 trainer ranks, 2 workers.
extern const char* const small_topology;

} // namespace deltawire::test
