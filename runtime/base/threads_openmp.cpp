#include <omp.h>

#include <cstdlib>

#include "runtime/base/threads.h"

namespace ashlar {

int use_threads(int num_threads) {
  if (std::getenv("OMP_NUM_THREADS") == nullptr) {
    omp_set_num_threads(num_threads);
  }
  return omp_get_max_threads();
}

}  // namespace ashlar
