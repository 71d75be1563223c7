// Sessions of one graph, by the values of its symbols.
#pragma once

#include <list>
#include <memory>

#include "engine/runtime/session.h"

namespace me {

// A new shape makes a plan and a session, which are kept for when the shape comes again. Past
// `capacity` of them the one that was not asked for longest goes. Not for several threads at once.
class SessionCache {
 public:
  static constexpr size_t kCapacity = 8;

  // `options` holds for every plan; its symbols are replaced.
  SessionCache(std::shared_ptr<const Graph> graph, PlanOptions options,
               size_t capacity = kCapacity);

  // The session for these symbols; valid until `capacity` other shapes have been asked for.
  Result<Session*> get(const Symbols& symbols);

  size_t size() const { return sessions_.size(); }

 private:
  std::shared_ptr<const Graph> graph_;
  PlanOptions options_;
  size_t capacity_;
  std::list<std::unique_ptr<Session>> sessions_;  // asked for last at the front
};

}  // namespace me
