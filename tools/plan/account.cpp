#include "account.hpp"

#include "remarks.hpp"

namespace deltawire::plan {

Account account_of(config::Topology topology, std::optional<Coverage> coverage) {
  Account account;
  account.topology = std::move(topology);
  account.coverage = std::move(coverage);
  const Coverage* tensors = account.coverage ? &*account.coverage : nullptr;
  account.graph = graph_of(account.topology);
  account.memory = memory_of(account.topology, account.graph, tensors);
  account.remarks = remarks_on(account.topology, tensors);
  account.trusted_planes = trusted_planes(account.topology);
  return account;
}

} // namespace deltawire::plan
