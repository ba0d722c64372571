#include "checkpoint/checkpoint.hpp"

#include "checkpoint/index.hpp"
#include "checkpoint/mapped_file.hpp"
#include "checkpoint/shown.hpp"
#include "layout/problems.hpp"

#include <algorithm>
#include <filesystem>
#include <system_error>
#include <unordered_map>

namespace deltawire::checkpoint {
namespace {

constexpr std::string_view index_ending = ".safetensors.index.json";
constexpr std::string_view single_file = "model.safetensors";

/// The index or the file that a folder stands for.
Result<std::string> find_in_folder(const std::string& folder) {
  std::vector<std::string> indexes;
  bool has_single = false;
  std::error_code error;
  for (std::filesystem::directory_iterator entry(folder, error), end; !error && entry != end; entry.increment(error)) {
    const std::string name = entry->path().filename().string();
    if (name.ends_with(index_ending))
      indexes.push_back(name);
    has_single = has_single || name == single_file;
  }
  if (error)
    return fail(Code::invalid_input, "{}: cannot be read: {}", folder, error.message());
  std::sort(indexes.begin(), indexes.end());
  if (has_single)
    indexes.emplace_back(single_file);
  if (indexes.empty())
    return fail(Code::invalid_input, "{}: holds no *{} and no {}; name the file that is meant", folder, index_ending,
                single_file);
  if (indexes.size() > 1)
    return fail(Code::invalid_input, "{}: holds more than one checkpoint ({}); name the one that is meant", folder,
                fmt::join(indexes, ", "));
  return (std::filesystem::path(folder) / indexes.front()).string();
}

Result<Index> read_index(const std::string& path) {
  const Result<MappedFile> file = MappedFile::open(path);
  if (!file)
    return tl::make_unexpected(file.error());
  if (file->bytes().size() > max_index_bytes)
    return fail(Code::invalid_input, "{}: has {} bytes; an index may have {}", path, file->bytes().size(),
                max_index_bytes);
  Result<Index> index = parse_index({reinterpret_cast<const char*>(file->bytes().data()), file->bytes().size()});
  if (!index)
    return fail(index.error().code, "{}: {}", path, index.error().message);
  return index;
}

/// Opens the files of an index, in its order.
Result<std::vector<File>> open_files(const std::string& path, const Index& index) {
  const std::filesystem::path folder = std::filesystem::path(path).parent_path();
  layout::Problems problems;
  std::vector<File> files;
  for (const IndexedFile& indexed : index.files) {
    Result<File> file = File::open((folder / indexed.name).string());
    if (file)
      files.push_back(std::move(*file));
    else
      problems.add(file.error().code, "{} (one of the {} files of {})", file.error().message, index.files.size(), path);
  }
  if (problems.any())
    return tl::make_unexpected(problems.failure());
  return files;
}

/// Compares what the index says with what its files hold.
Result<void> check_against(const std::string& path, const Index& index, std::span<const File> files) {
  layout::Problems problems;
  std::unordered_map<std::string_view, std::size_t> file_of;
  for (std::size_t i = 0; i < files.size(); ++i)
    for (const std::string& tensor : index.files[i].tensors) {
      file_of.emplace(tensor, i);
      if (files[i].find(tensor) == nullptr)
        problems.add(Code::invalid_input, "{}: tensor {} is missing; weight_map of {} says that it is there",
                     files[i].path(), shown(tensor), path);
    }
  std::uint64_t bytes = 0;
  for (std::size_t i = 0; i < files.size(); ++i)
    for (const TensorView& tensor : files[i].tensors()) {
      bytes += tensor.data.size();
      const auto found = file_of.find(tensor.name);
      if (found == file_of.end())
        problems.add(Code::invalid_input, "{}: holds tensor {}, which weight_map of {} does not name", files[i].path(),
                     shown(tensor.name), path);
      else if (found->second != i)
        problems.add(Code::invalid_input, "{}: holds tensor {}, but weight_map of {} says that it is in {}",
                     files[i].path(), shown(tensor.name), path, index.files[found->second].name);
    }
  if (!problems.any() && index.total_size && *index.total_size != bytes)
    problems.add(Code::invalid_input, "{}: metadata says total_size {}, but the tensors of its files have {} bytes",
                 path, *index.total_size, bytes);
  if (problems.any())
    return tl::make_unexpected(problems.failure());
  return {};
}

Result<std::vector<File>> open_indexed(const std::string& path) {
  const Result<Index> index = read_index(path);
  if (!index)
    return tl::make_unexpected(index.error());
  Result<std::vector<File>> files = open_files(path, *index);
  if (!files)
    return files;
  if (Result<void> agrees = check_against(path, *index, *files); !agrees)
    return pass_on(std::move(agrees));
  return files;
}

Result<std::vector<File>> open_single(const std::string& path) {
  Result<File> file = File::open(path);
  if (!file)
    return pass_on(std::move(file));
  return std::vector<File>{std::move(*file)};
}

} // namespace

struct Checkpoint::Contents {
  std::string path;
  std::vector<File> files;
  std::vector<TensorView> tensors;                           ///< data points into `files`
  std::unordered_map<std::string_view, std::size_t> by_name; ///< keys point into `tensors`
};

Result<Checkpoint> Checkpoint::open(const std::string& path) {
  std::string file = path;
  std::error_code ignored; // what cannot be examined is reported where it is opened
  if (std::filesystem::is_directory(path, ignored)) {
    Result<std::string> found = find_in_folder(path);
    if (!found)
      return pass_on(std::move(found));
    file = std::move(*found);
  }
  Result<std::vector<File>> files = file.ends_with(".json") ? open_indexed(file) : open_single(file);
  if (!files)
    return pass_on(std::move(files));

  auto contents = std::make_shared<Contents>();
  contents->path = path;
  contents->files = std::move(*files);
  for (const File& opened : contents->files)
    contents->tensors.insert(contents->tensors.end(), opened.tensors().begin(), opened.tensors().end());
  for (std::size_t i = 0; i < contents->tensors.size(); ++i)
    contents->by_name.emplace(contents->tensors[i].name, i);
  Checkpoint checkpoint;
  checkpoint.contents_ = std::move(contents);
  return checkpoint;
}

const std::string& Checkpoint::path() const noexcept {
  return contents_->path;
}

std::span<const TensorView> Checkpoint::tensors() const noexcept {
  return contents_->tensors;
}

const TensorView* Checkpoint::find(std::string_view name) const noexcept {
  const auto found = contents_->by_name.find(name);
  return found == contents_->by_name.end() ? nullptr : &contents_->tensors[found->second];
}

} // namespace deltawire::checkpoint
