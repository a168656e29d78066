// Threads within a rank. Linked against OpenMP where it is found; one thread a rank otherwise.
#pragma once

namespace ashlar {

// Threads that parallel loops of this process use from now on, unless OMP_NUM_THREADS says otherwise: then nothing
// changes. Returns the number in force.
int use_threads(int num_threads);

}  // namespace ashlar
