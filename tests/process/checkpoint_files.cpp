#include "checkpoint_files.hpp"

#include "command.hpp"

#include <nlohmann/json.hpp>

#include <cstring>

namespace deltawire::test {

const char* const small_topology = R"([trainer]
mesh = [["fsdp", 2]]

[[trainer.placement]]
parameter = "*"
shard = ["fsdp:0"]

[worker]
mesh = [["tp", 2]]

[[worker.placement]]
parameter = "a"
shard = ["tp:0"]

[transport]
master = "127.0.0.1:0"
)";

std::string file_of(const std::string& header, const std::string& data) {
  std::string bytes(8, '\0');
  for (std::size_t i = 0; i < 8; ++i)
    bytes[i] = static_cast<char>((header.size() >> (8 * i)) & 0xff);
  return bytes + header + data;
}

std::string file_of(const std::vector<FileTensor>& tensors) {
  nlohmann::json header = nlohmann::json::object();
  std::string data;
  for (const FileTensor& tensor : tensors) {
    header[tensor.name] = {{"dtype", tensor.dtype},
                           {"shape", tensor.shape},
                           {"data_offsets", {data.size(), data.size() + tensor.data.size()}}};
    data += tensor.data;
  }
  std::string text = header.dump();
  text.resize((text.size() + 7) / 8 * 8, ' ');
  return file_of(text, data);
}

std::map<std::string, FileTensor> tensors_of(const std::string& path) {
  const std::string bytes = read_file(path);
  std::uint64_t length = 0;
  std::memcpy(&length, bytes.data(), sizeof length);
  const auto header = nlohmann::json::parse(bytes.substr(8, length));
  std::map<std::string, FileTensor> tensors;
  for (const auto& [name, facts] : header.items()) {
    if (name == "__metadata__")
      continue;
    const std::size_t begin = facts.at("data_offsets").at(0);
    const std::size_t end = facts.at("data_offsets").at(1);
    tensors[name] = {name, facts.at("dtype"), facts.at("shape"), bytes.substr(8 + length + begin, end - begin)};
  }
  return tensors;
}

std::vector<FileTensor> small_model(int version) {
  FileTensor a{"a", "BF16", {4, 3}, std::string(24, '\0')};
  FileTensor b{"b", "F32", {2}, std::string(8, '\0')};
  for (std::size_t i = 0; i < a.data.size(); ++i)
    a.data[i] = static_cast<char>(i * 7 + 1);
  for (std::size_t i = 0; i < b.data.size(); ++i)
    b.data[i] = static_cast<char>(i * 11 + 3);
  for (int changed = 1; changed < version; ++changed) {
    a.data[static_cast<std::size_t>(changed * 5 % 24)] ^= 0x21;
    b.data[static_cast<std::size_t>(changed * 3 % 8)] ^= 0x42;
  }
  return {b, a};
}

} // namespace deltawire::test
