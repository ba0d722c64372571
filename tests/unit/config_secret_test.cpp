// Contracts: src/config/secret_file.hpp, and what [transport] makes of secret_file and master.
#include "config/secret_file.hpp"

#include "catch.hpp"
#include "config_files.hpp"
#include "text_matchers.hpp"

#include <sys/stat.h>

namespace deltawire::config {

using test::contains;

namespace {

struct SecretFile {
  TopologyFiles files;

  [[nodiscard]] std::string path() const { return files.path("secret"); }
  void write(std::string_view text, mode_t mode = 0600) const {
    files.write("secret", text);
    REQUIRE(::chmod(path().c_str(), mode) == 0);
  }
  [[nodiscard]] std::string error() const {
    const auto secret = read_secret(path());
    return secret ? "(accepted)" : secret.error().message;
  }
};

const std::string long_enough(32, 'k');

} // namespace

TEST_CASE("a secret is the file without white space at its ends") {
  const SecretFile file;
  for (const std::string& text : {long_enough, long_enough + "\n", " \t\r\n" + long_enough + "\r\n\n"}) {
    file.write(text);
    CHECK(read_secret(file.path()).value() == long_enough);
  }
  const std::string sentence = "a passphrase of some words, with  spaces and\nlines in it";
  file.write(sentence + "\n");
  CHECK(read_secret(file.path()).value() == sentence);
  std::string bytes;
  for (int i = 255; i >= 0; --i)
    bytes += static_cast<char>(i);
  file.write(bytes);
  CHECK(read_secret(file.path()).value() == bytes);
  file.write(std::string(most_secret, 'k'), 0400);
  CHECK(read_secret(file.path()).value().size() == most_secret);
}

TEST_CASE("a file that is no secret is refused by its path, with what to do") {
  const SecretFile file;
  CHECK_THAT(file.error(), contains(file.path()) && contains("No such file"));
  file.write(std::string(31, 'k') + "\n      ");
  CHECK_THAT(file.error(), contains(file.path()) && contains("has 31 bytes") && contains("the least is 32") &&
                             contains("openssl rand -hex 32"));
  file.write("");
  CHECK_THAT(file.error(), contains("has 0 bytes"));
  file.write(std::string(200, '\n'));
  CHECK_THAT(file.error(), contains("has 0 bytes"));
  file.write(std::string(most_secret + 1, 'k'));
  CHECK_THAT(file.error(), contains("more than 65536 bytes"));
  for (const mode_t mode : {0640, 0604, 0620, 0602, 0644, 0601}) {
    file.write(long_enough, mode);
    CHECK_THAT(file.error(), contains(fmt::format("mode {:04o}", mode)) && contains("chmod 600 " + file.path()));
  }
  const auto folder = read_secret(std::filesystem::path(file.path()).parent_path().string());
  REQUIRE_FALSE(folder);
  CHECK_THAT(folder.error().message, contains("no regular file"));
  const std::string pipe = file.files.path("pipe");
  REQUIRE(::mkfifo(pipe.c_str(), 0600) == 0);
  const auto waiting = read_secret(pipe);
  REQUIRE_FALSE(waiting);
  CHECK_THAT(waiting.error().message, contains("no regular file"));
}

TEST_CASE("an address that is not loopback needs a secret, and a secret is legal anywhere") {
  const std::string error = errors_of("[transport]\nmaster = \"10.0.0.1:29500\"");
  CHECK_THAT(error, contains("t.toml:2: transport.master: \"10.0.0.1:29500\" is not a loopback address") &&
                      contains("transport.secret_file") && contains("chmod 600"));
  CHECK(load_text("[transport]\nmaster = \"10.0.0.1:29500\"\nsecret_file = \"/key\"")->transport.master ==
        "10.0.0.1:29500");
  CHECK(load_text("[transport]\nmaster = \"127.0.0.1:1\"\nsecret_file = \"/key\"")->transport.secret_file == "/key");
  CHECK(load_text("[transport]\nsecret_file = \"\"")->transport.secret_file.empty());
  CHECK_THAT(errors_of("[transport]\nmaster = \"10.0.0.1\"\nsecret_file = \"/key\""), contains("it has no port"));
}

TEST_CASE("a secret's path is relative to the file that names it, and as written with --set") {
  TopologyFiles files;
  files.write("job/t.toml", "include = [\"parts/net.toml\"]");
  files.write("job/parts/net.toml", "[transport]\nsecret_file = \"../key\"");
  CHECK(files.load("job/t.toml")->transport.secret_file == files.path("job/key"));
  CHECK(files.load("job/t.toml", {"transport.secret_file=other/key"})->transport.secret_file == "other/key");
}

TEST_CASE("processes may keep the secret at different paths: the fingerprint does not know it") {
  CHECK(fingerprint(*load_text("[transport]\nsecret_file = \"/a\"")) ==
        fingerprint(*load_text("[transport]\nsecret_file = \"/b\"")));
}

} // namespace deltawire::config
