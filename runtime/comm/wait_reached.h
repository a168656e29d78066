// How the host waits for work of a stream that may depend on other ranks: with the job's deadline.
#pragma once

#include <string_view>

#include "runtime/comm/flight_recorder.h"
#include "runtime/device/device.h"

namespace ashlar {

// Blocks the host until `stream` has come to the last record of `event`. Throws what failed in the stream, what ended
// the job on another rank, and Error(kTimeout) naming `what` at the recorder's deadline. Allocates nothing.
void wait_reached(const Event& event, Stream& stream, FlightRecorder& recorder, std::string_view what);

}  // namespace ashlar
