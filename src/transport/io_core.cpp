#include "transport/io_core.hpp"

#include <algorithm>

#include <fcntl.h>
#include <pthread.h>

namespace deltawire::transport {
namespace {

void run(asio::io_context& context) {
  for (;;)
    try {
      context.run();
      return;
    } catch (...) { // callbacks are guarded: this is memory that ran out, and the operation it hit is lost, not us
    }
}

} // namespace

std::string to_text(const tcp::endpoint& endpoint) {
  error_code ignored;
  const std::string address = endpoint.address().to_string(ignored);
  return endpoint.address().is_v6() ? fmt::format("[{}]:{}", address, endpoint.port())
                                    : fmt::format("{}:{}", address, endpoint.port());
}

void close_on_exec(int descriptor) {
  ::fcntl(descriptor, F_SETFD, FD_CLOEXEC);
}

void prepare(Socket& socket) {
  error_code ignored;
  socket.set_option(tcp::no_delay(true), ignored);
  close_on_exec(socket.native_handle());
}

IoCore::IoCore(Framing frames, unsigned threads, std::shared_ptr<const TlsContext> tls_context,
               std::shared_ptr<Arena> sends_from)
  : framing(frames), tls(std::move(tls_context)), arena(std::move(sends_from)) {
  for (unsigned i = 0; i < std::max(threads, 1u); ++i) {
    contexts_.push_back(std::make_unique<asio::io_context>(1));
    work_.emplace_back(contexts_.back()->get_executor());
  }
}

bool IoCore::add(const std::shared_ptr<Ended>& object) {
  const std::lock_guard lock(mutex_);
  return !down_ && objects_.insert(object).second;
}

void IoCore::remove(const std::shared_ptr<Ended>& object) {
  const std::lock_guard lock(mutex_);
  objects_.erase(object);
}

void IoCore::start(const std::string& name) {
  for (std::size_t i = 0; i < contexts_.size(); ++i) {
    threads_.emplace_back([context = contexts_[i].get()] { run(*context); });
    // Linux takes 15 characters.
    const std::string numbered = contexts_.size() == 1 ? name : fmt::format("{}-{}", name.substr(0, 11), i);
    pthread_setname_np(threads_.back().native_handle(), numbered.substr(0, 15).c_str());
  }
}

void IoCore::shutdown(const Failure& reason) {
  std::set<std::shared_ptr<Ended>> objects;
  {
    const std::lock_guard lock(mutex_);
    down_ = true;
    objects = objects_;
  }
  for (const auto& object : objects)
    object->end(reason);
  {
    const std::lock_guard lock(post_mutex_);
    posts_closed_ = true;
  }
  work_.clear();
  for (std::thread& thread : threads_)
    thread.join();
  threads_.clear();
  // What no posted call could end any more would hold on to us, and we to it. Destroyed without the lock.
  objects.clear();
  const std::lock_guard lock(mutex_);
  objects.swap(objects_);
}

} // namespace deltawire::transport
