// One round: every member hands a piece of memory to every other member, and all meet. All host collectives are made of
// rounds, so their algorithms, and with them the order of summation, exist once, whatever carries the pieces.
#pragma once

#include <cstddef>

#include "runtime/comm/op_info.h"

namespace ashlar {

class Rounds {
 public:
  virtual ~Rounds() = default;

  // Most bytes of a piece, when each member is given its own and when all are given the same one.
  virtual size_t piece_capacity() const = 0;
  virtual size_t common_capacity() const = 0;

  // The operation that the next rounds belong to. The first exchange() throws Error(kCommunication) on all members when
  // they are not in the same one.
  virtual void begin(const OpInfo& op) = 0;
  // What this member hands out and (where the carrier needs to know) what it gets, this round. `data` stays as it is
  // until exchange() returns. A round is either of pieces or of common pieces.
  virtual void give(int to, const std::byte* data, size_t bytes) = 0;
  virtual void give_all(const std::byte* data, size_t bytes) = 0;
  virtual void expect(int from, size_t bytes) = 0;
  // Blocks the host until all members have given; throws Error(kTimeout) with a report at the deadline.
  virtual void exchange() = 0;
  // What `from` gave to this member, or to all. Valid until the next exchange().
  virtual const std::byte* piece(int from) const = 0;
  virtual const std::byte* common_piece(int from) const = 0;
};

}  // namespace ashlar
