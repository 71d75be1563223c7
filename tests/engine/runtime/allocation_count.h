// Counts operator new of the whole test program. Libraries that call malloc themselves are not
// seen.
#pragma once

namespace me::testing {

void start_counting_allocations();
// Allocations since the start, on all threads; stops counting.
int stop_counting_allocations();

}  // namespace me::testing
