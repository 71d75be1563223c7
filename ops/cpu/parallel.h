// Threads for the CPU kernels. OpenMP, so that one pool serves these loops and oneDNN.
#pragma once

#include <cstdint>

namespace me {

// Cuts [0, n) into at most `threads` contiguous parts of nearly equal size and calls
// body(begin, end, part) for each, on one thread apiece, `part` counting from 0. The cut depends on
// n and threads alone, so results do not depend on timing.
template <class Body>
void parallel_for(int threads, int64_t n, const Body& body) {
  const int64_t parts = n < threads ? n : threads;
  if (parts <= 1) {
    if (n > 0) body(int64_t{0}, n, 0);
    return;
  }
#pragma omp parallel for num_threads(static_cast <int>(parts)) schedule(static, 1)
  for (int64_t part = 0; part < parts; ++part) {
    // part·n/parts without overflow: n = q·parts + r
    const int64_t q = n / parts;
    const int64_t r = n % parts;
    const int64_t begin = part * q + (part < r ? part : r);
    const int64_t end = begin + q + (part < r ? 1 : 0);
    body(begin, end, static_cast<int>(part));
  }
}

}  // namespace me
