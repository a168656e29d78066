// Waits of the host for its device that come to an end whatever happens: the ones of Event and Stream block for ever
// when an operation on the device waits for a rank that never comes.
#pragma once

#include "runtime/comm/flight_recorder.h"
#include "runtime/device/device.h"

namespace ashlar {

// Blocks the host until the device has come to the last record of `event`. Throws when the job was ended, by another
// rank or by this rank's watchdog, and Error(kTimeout) when no operation of any communicator of this rank has ended for
// the recorder's time. `what` names the wait: "the loss of step 7". Does not allocate.
void wait_until_reached(const Event& event, FlightRecorder& recorder, const char* what);

// The same for all work that is on the stream now. `event` is any event of the device that is free; it is recorded.
void wait_until_done(Stream& stream, Event& event, FlightRecorder& recorder, const char* what);

// Throws when the job was ended.
void check_job_runs(FlightRecorder& recorder);

}  // namespace ashlar
