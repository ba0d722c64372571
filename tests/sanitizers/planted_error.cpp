// One error of each kind that the address run must report, for it to prove itself on: planted_error KIND.
#include <climits>
#include <cstdio>
#include <memory>
#include <string>
#include <vector>

namespace {

int use_after_free() {
  auto owner = std::make_unique<int>(1);
  const volatile int* freed = owner.get();
  owner.reset();
  return *freed;
}

int out_of_bounds() {
  const std::vector<int> values(4);
  const volatile int* first = values.data();
  return first[4];
}

int leak() {
  int* volatile lost = new int(1);
  lost = nullptr;
  return lost == nullptr ? 0 : 1;
}

int overflow() {
  volatile int most = INT_MAX;
  return most + 1;
}

} // namespace

int main(int count, char** words) {
  const std::string kind = count > 1 ? words[1] : "";
  if (kind == "use-after-free")
    return use_after_free();
  if (kind == "out-of-bounds")
    return out_of_bounds();
  if (kind == "leak")
    return leak();
  if (kind == "overflow")
    return overflow() == INT_MIN ? 0 : 1;
  std::fputs("usage: planted_error use-after-free|out-of-bounds|leak|overflow\n", stderr);
  return 2;
}
