// What a step found: tables for people, the same as JSON for programs.
#pragma once

#include <string>
#include <vector>

namespace ashlar {

struct Cell {
  Cell(std::string text_) : text(std::move(text_)) {}  // NOLINT: cells are written as plain lists
  Cell(const char* text_) : text(text_) {}             // NOLINT
  Cell(double value_, int digits_ = 1) : value(value_), digits(digits_), is_number(true) {}  // NOLINT

  std::string shown() const;

  std::string text;
  double value = 0;
  int digits = 0;
  bool is_number = false;
};

struct Table {
  std::string title;
  std::vector<std::string> columns;
  std::vector<std::vector<Cell>> rows;
};

// The outcome of one step.
class StepReport {
 public:
  explicit StepReport(std::string step) : step_(std::move(step)) {}

  // Prints the head of a table; its rows are printed as they are measured.
  void begin(std::string title, std::vector<std::string> columns);
  void add(std::vector<Cell> row);
  void fail(const std::string& what);  // a result is wrong
  bool passed() const { return failures_.empty(); }

  void write(const std::string& path) const;  // JSON; throws kUsage when the file cannot be written

 private:
  std::string step_;
  std::vector<Table> tables_;
  std::vector<std::string> failures_;
};

}  // namespace ashlar
