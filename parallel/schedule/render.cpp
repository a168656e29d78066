#include "parallel/schedule/render.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <string_view>

#include "runtime/base/error.h"

namespace ashlar {
namespace {

bool has_several_stages(const Timeline& timeline) {
  for (const std::vector<TimedAction>& rank : timeline.ranks) {
    for (const TimedAction& timed : rank) {
      if (timed.action.stage != rank.front().action.stage) return true;
    }
  }
  return false;
}

// "F3", with the stage in front where rows hold several. What is not compute has a short name: "s" send, "r" receive,
// "R" reduction (of the step, "R3" of a micro-batch), "u" parameters gathered or given back.
std::string label(const Action& action, bool with_stage) {
  const std::string stage = with_stage ? std::to_string(action.stage) : std::string();
  if (is_compute(action.kind)) return fmt::format("{}{}{}", stage, kind_text(action.kind), action.microbatch);
  if (is_send(action.kind)) return fmt::format("{}s{}", stage, action.microbatch);
  if (is_receive(action.kind)) return fmt::format("{}r{}", stage, action.microbatch);
  if (action.kind != ActionKind::kReduceGrads) return fmt::format("{}u", stage);
  return action.microbatch < 0 ? fmt::format("{}R", stage) : fmt::format("{}R{}", stage, action.microbatch);
}

struct Scale {
  size_t longest_label = 1;
  double shortest = std::numeric_limits<double>::infinity();  // compute action that takes time
};

Scale scale_of(const Timeline& timeline, bool with_stage) {
  Scale scale;
  for (const std::vector<TimedAction>& rank : timeline.ranks) {
    for (const TimedAction& timed : rank) {
      if (!is_compute(timed.action.kind) || timed.end <= timed.start) continue;
      scale.longest_label = std::max(scale.longest_label, label(timed.action, with_stage).size());
      scale.shortest = std::min(scale.shortest, timed.end - timed.start);
    }
  }
  if (!std::isfinite(scale.shortest)) scale.shortest = std::max(timeline.total, 1.0);
  return scale;
}

std::string summary(const Timeline& timeline) {
  return fmt::format("{}: total {:.6g}, bubble {:.1f} %", timeline.name, timeline.total,
                     100 * timeline.bubble_fraction());
}

// Near Okabe and Ito's palette, which stays apart for colour-blind readers; light enough for black text.
std::string_view colour(ActionKind kind) {
  switch (kind) {
    case ActionKind::kForward:
      return "#56b4e9";
    case ActionKind::kBackward:
      return "#5fc9a8";
    case ActionKind::kBackwardInput:
      return "#f0e442";
    case ActionKind::kBackwardWeight:
      return "#e69f00";
    case ActionKind::kReduceGrads:
      return "#cc79a7";
    default:
      return "#bbbbbb";
  }
}

std::string escaped(std::string_view text) {
  std::string out;
  for (char c : text) {
    if (c == '&') {
      out += "&amp;";
    } else if (c == '<') {
      out += "&lt;";
    } else {
      out += c;
    }
  }
  return out;
}

}  // namespace

std::string render_text(const Timeline& timeline) {
  const bool with_stage = has_several_stages(timeline);
  const Scale scale = scale_of(timeline, with_stage);
  const double columns_per_time = static_cast<double>(scale.longest_label + 1) / scale.shortest;
  const auto column = [&](double time) { return static_cast<size_t>(std::llround(time * columns_per_time)); };
  const size_t rank_digits = std::to_string(timeline.ranks.size()).size();
  std::string out;
  for (size_t rank = 0; rank < timeline.ranks.size(); ++rank) {
    std::string row(column(timeline.total), '.');
    for (const TimedAction& timed : timeline.ranks[rank]) {
      const size_t begin = column(timed.start);
      const size_t width = std::min(column(timed.end), row.size()) - begin;
      if (width == 0) continue;
      std::string cell(1, '|');
      cell += label(timed.action, with_stage);
      cell.resize(width, ' ');
      row.replace(begin, width, cell);
    }
    out += fmt::format("rank {:>{}} {}|\n", rank, rank_digits, row);
  }
  out += summary(timeline);
  out += '\n';
  return out;
}

std::string render_svg(const Timeline& timeline) {
  constexpr double kRowHeight = 26;
  constexpr double kLeft = 64;
  constexpr double kTop = 34;
  constexpr double kCharacter = 8;  // width of one character of a label
  const bool with_stage = has_several_stages(timeline);
  const Scale scale = scale_of(timeline, with_stage);
  const double pixels_per_time = kCharacter * static_cast<double>(scale.longest_label + 1) / scale.shortest;
  const double right = kLeft + timeline.total * pixels_per_time;
  const double bottom = kTop + kRowHeight * static_cast<double>(timeline.ranks.size());
  std::string out = fmt::format(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{0:.0f}\" height=\"{1:.0f}\" viewBox=\"0 0 {0:.0f} {1:.0f}\" "
      "font-family=\"monospace\" font-size=\"12\">\n<rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n"
      "<text x=\"8\" y=\"20\">{2}</text>\n",
      std::max(right + 16, 420.0), bottom + 12, escaped(summary(timeline)));
  for (size_t rank = 0; rank < timeline.ranks.size(); ++rank) {
    const double top = kTop + kRowHeight * static_cast<double>(rank);
    out += fmt::format("<text x=\"8\" y=\"{:.0f}\">rank {}</text>\n", top + 17, rank);
    out += fmt::format("<rect x=\"{:.2f}\" y=\"{:.0f}\" width=\"{:.2f}\" height=\"{:.0f}\" fill=\"#eeeeee\"/>\n", kLeft,
                       top + 1, right - kLeft, kRowHeight - 2);
    for (const TimedAction& timed : timeline.ranks[rank]) {
      const double width = (timed.end - timed.start) * pixels_per_time;
      if (width <= 0) continue;
      const double left = kLeft + timed.start * pixels_per_time;
      const std::string text = label(timed.action, with_stage);
      out += fmt::format(
          "<g><title>{} {:.6g} to {:.6g}</title><rect x=\"{:.2f}\" y=\"{:.0f}\" width=\"{:.2f}\" height=\"{:.0f}\" "
          "fill=\"{}\" stroke=\"white\"/>",
          action_text(timed.action), timed.start, timed.end, left, top + 1, width, kRowHeight - 2,
          colour(timed.action.kind));
      if (width >= kCharacter * static_cast<double>(text.size())) {
        out += fmt::format("<text x=\"{:.2f}\" y=\"{:.0f}\" text-anchor=\"middle\">{}</text>", left + width / 2,
                           top + 17, text);
      }
      out += "</g>\n";
    }
  }
  out += "</svg>\n";
  return out;
}

}  // namespace ashlar
