// The order in which output tiles are visited. Host and device share it.
#pragma once

#include "ops/base/host_device.h"

namespace me {

template <class Int>
struct Tile {
  Int m;
  Int n;
};

// Tile number `index`, 0 <= index < m_tiles·n_tiles, of a grouped order: M-tiles come in groups of
// `group`, and a group is walked column by column, so that tiles which run at the same time share
// operands in L2. The last group holds whatever M-tiles are left; a walk that took it for a whole
// one would leave the output.
//
//   3 M-tiles, 2 N-tiles, group 2:   n:  0  1
//                               m = 0    0  2
//                                   1    1  3
//                                   2    4  5
template <class Int>
ME_HD constexpr Tile<Int> grouped_tile(Int index, Int m_tiles, Int n_tiles, Int group) {
  const Int per_group = group * n_tiles;
  const Int first_m = index / per_group * group;
  const Int rest = m_tiles - first_m;
  const Int height = rest < group ? rest : group;
  const Int local = index % per_group;
  return {first_m + local % height, local / height};
}

}  // namespace me
