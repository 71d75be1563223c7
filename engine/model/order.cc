#include "engine/model/order.h"

#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <queue>

namespace me {
namespace {

constexpr size_t kMaxNamedNodes = 8;  // of a cycle, in the message

size_t at(int index) { return static_cast<size_t>(index); }

// Every node in `waiting` waits for another one in it, so walking against the arrows must come
// back.
Error cycle_error(const std::vector<Node>& nodes, const std::vector<Value>& values,
                  const std::vector<int>& waiting) {
  const auto producer_waited_for = [&](int node) {
    for (int input : nodes[at(node)].inputs) {
      const int producer = values[at(input)].producer;
      if (producer >= 0 && waiting[at(producer)] > 0) return producer;
    }
    return -1;
  };
  int node = 0;
  while (waiting[at(node)] == 0) ++node;
  std::vector<bool> visited(nodes.size(), false);
  while (!visited[at(node)]) {
    visited[at(node)] = true;
    node = producer_waited_for(node);
  }

  std::vector<int> cycle{node};
  for (int n = producer_waited_for(node); n != node; n = producer_waited_for(n)) cycle.push_back(n);
  std::reverse(cycle.begin(), cycle.end());  // now each feeds the next, and the last the first
  std::rotate(cycle.begin(), std::min_element(cycle.begin(), cycle.end()), cycle.end());

  std::string path;
  for (size_t i = 0; i < cycle.size() && i < kMaxNamedNodes; ++i) {
    path += in_quotes(nodes[at(cycle[i])].name) + " -> ";
  }
  if (cycle.size() > kMaxNamedNodes) {
    path += fmt::format("{} more -> ", cycle.size() - kMaxNamedNodes);
  }
  path += in_quotes(nodes[at(cycle[0])].name);
  Error error = invalid(fmt::format("found the cycle {}, expected none", path));
  error.node = nodes[at(cycle[0])].name;
  return error;
}

}  // namespace

Result<std::vector<int>> topological_order(const std::vector<Node>& nodes,
                                           const std::vector<Value>& values) {
  // The consumers of node n, once per edge: consumers[first[n]] up to consumers[first[n + 1]].
  std::vector<int> waiting(nodes.size(), 0);  // inputs that no ordered node has made yet
  std::vector<size_t> first(nodes.size() + 1, 0);
  const auto for_each_edge = [&](const auto& visit) {
    for (size_t n = 0; n < nodes.size(); ++n) {
      for (int input : nodes[n].inputs) {
        if (values[at(input)].producer >= 0) visit(at(values[at(input)].producer), n);
      }
    }
  };
  for_each_edge([&](size_t from, size_t to) {
    ++first[from + 1];
    ++waiting[to];
  });
  for (size_t n = 0; n < nodes.size(); ++n) first[n + 1] += first[n];
  std::vector<int> consumers(first.back());
  std::vector<size_t> next(first.begin(), first.end() - 1);
  for_each_edge([&](size_t from, size_t to) { consumers[next[from]++] = static_cast<int>(to); });

  std::priority_queue<int, std::vector<int>, std::greater<>> ready;
  for (size_t n = 0; n < nodes.size(); ++n) {
    if (waiting[n] == 0) ready.push(static_cast<int>(n));
  }
  std::vector<int> order;
  order.reserve(nodes.size());
  while (!ready.empty()) {
    const int node = ready.top();
    ready.pop();
    order.push_back(node);
    for (size_t i = first[at(node)]; i < first[at(node) + 1]; ++i) {
      if (--waiting[at(consumers[i])] == 0) ready.push(consumers[i]);
    }
  }
  if (order.size() < nodes.size()) return cycle_error(nodes, values, waiting);
  return order;
}

}  // namespace me
