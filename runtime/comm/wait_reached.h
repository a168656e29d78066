// Waits of the host for its device that come to an end whatever happens: those of Event and Stream block for ever when
// an operation on the device waits for a rank that never comes.
#pragma once

#include <string_view>

#include "runtime/comm/flight_recorder.h"
#include "runtime/device/device.h"

namespace ashlar {

// Blocks the host until `stream` has come to the last record of `event`. Throws what failed in the stream; when the job
// was ended, by another rank or by this rank's watchdog; and Error(kTimeout) naming `what` when no operation of any
// communicator of this rank has ended for the recorder's time. Allocates nothing.
void wait_reached(const Event& event, Stream& stream, FlightRecorder& recorder, std::string_view what);

// Throws when the job was ended.
void check_job_runs(FlightRecorder& recorder);

}  // namespace ashlar
