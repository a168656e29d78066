// Schedules as CSV files, in the dialect of PyTorch's pipelining schedules: one row per pipeline rank, no header, one
// action per cell, spaces ignored. B is the full backward, I and W its two halves (in the zero-bubble papers' own files
// B means I and BW means B).
#pragma once

#include <istream>
#include <ostream>
#include <string>

#include "parallel/schedule/schedule.h"

namespace ashlar {

enum class CsvForm {
  kComputeOnly,   // F, B, I, W; an empty cell is an idle slot and carries no meaning
  kComputeComms,  // every action explicit; an empty cell is an error
};

// Writes one row per rank. kComputeOnly leaves out what lowering adds.
void write_csv(std::ostream& out, const Schedule& schedule, CsvForm form);

// Reads until the end of the stream. Stages, their ranks and the number of micro-batches follow from the cells; whether
// the schedule is complete is validate()'s question. Throws Error(kUsage) with file name, row and column (both from 1).
Schedule read_csv(std::istream& in, CsvForm form, const std::string& file_name);

}  // namespace ashlar
