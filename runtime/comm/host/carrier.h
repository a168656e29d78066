// How the pieces of a collective travel between ranks.
#pragma once

namespace ashlar {

// Through a region of shared memory, or as messages, which is what groups that span hosts do. The results are the same
// bits. Under mpirun, ASHLAR_MPI_TRANSPORT=p2p asks for messages.
enum class Carrier { kRegion, kMessages };

}  // namespace ashlar
