// ME_HD marks a function that host and device share.
#pragma once

#ifdef __CUDACC__
#define ME_HD __host__ __device__
#else
#define ME_HD
#endif
