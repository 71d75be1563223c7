#include "engine/runtime/session_cache.h"

#include <algorithm>

namespace me {

SessionCache::SessionCache(std::shared_ptr<const Graph> graph, PlanOptions options, size_t capacity)
    : graph_(std::move(graph)),
      options_(std::move(options)),
      capacity_(std::max<size_t>(1, capacity)) {}

Result<Session*> SessionCache::get(const Symbols& symbols) {
  const auto found = std::ranges::find_if(
      sessions_, [&](const auto& session) { return session->plan().symbols() == symbols; });
  if (found != sessions_.end()) {
    sessions_.splice(sessions_.begin(), sessions_, found);
    return sessions_.front().get();
  }
  PlanOptions options = options_;
  options.symbols = symbols;
  ME_ASSIGN_OR_RETURN(const auto plan, Plan::make(graph_, options));
  // The old one first: both might not fit into the device's memory.
  if (sessions_.size() == capacity_) sessions_.pop_back();
  ME_ASSIGN_OR_RETURN(auto session, Session::create(plan));
  sessions_.push_front(std::move(session));
  return sessions_.front().get();
}

}  // namespace me
