// Tensors of a device over a communicator in host memory: for several ranks on one GPU and for machines without NCCL.
#pragma once

#include <memory>

#include "runtime/comm/communicator.h"

namespace ashlar {

// Collective. Blocks the host. The group of `host`, for memory of `device`: each operation copies its operands to host
// memory that the device can pin, a group "NAME (host)" that is split from `host` carries them, and they are copied
// back. Results, deadlines and reports are those of that group; bits too, because sums are taken element by element in
// rank order, in pieces of any size. Groups that split from it share the host memory, and one thread of the rank starts
// all their operations.
//
// What blocks the host: a collective, until every member has come and the last piece is on its way back; an exchange
// that sends, until the stream before it has produced the data; waiting on an exchange that receives (wait(stream)
// too), until the peers have sent. Memory for exchanges is taken where more are in flight than ever before, so the
// first steps allocate and later ones do not.
std::unique_ptr<Communicator> make_staged(Communicator& host, Device& device, size_t staging_bytes);

}  // namespace ashlar
