// Pictures of a timeline: one row per rank, time to the right. Actions that take no time are not drawn.
#pragma once

#include <string>

#include "parallel/schedule/simulate.h"

namespace ashlar {

// Pure. For a terminal. An action is "|F3" and spaces up to its end, idle time is dots; the stage stands in front
// ("|2F3") where a rank has several. The shortest compute action is as wide as the longest label.
std::string render_text(const Timeline& timeline);

// Pure. A whole SVG file. Moving the mouse over an action shows it with its times.
std::string render_svg(const Timeline& timeline);

}  // namespace ashlar
