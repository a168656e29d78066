#include "tests/support/process.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <stdexcept>
#include <string_view>
#include <thread>

extern char** environ;

namespace ashlar {
namespace {

namespace fs = std::filesystem;

constexpr const char* kMarkName = "ASHLAR_TEST_PROCESS";

double seconds_now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

std::string read_whole(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

fs::path temporary_file(const char* what) {
  std::string name = (fs::temp_directory_path() / (std::string("ashlar_") + what + "_XXXXXX")).string();
  const int file = mkstemp(name.data());
  if (file < 0) {
    throw std::runtime_error("mkstemp failed for " + name);
  }
  close(file);
  return name;
}

// "NAME=value" among the zero-terminated words of /proc/PID/environ; empty when it is not there.
std::string value_in_environment(const std::string& words, const std::string& name) {
  const std::string start = name + "=";
  for (size_t at = 0; at < words.size();) {
    const size_t end = std::min(words.find('\0', at), words.size());
    if (words.compare(at, start.size(), start) == 0) {
      return words.substr(at + start.size(), end - at - start.size());
    }
    at = end + 1;
  }
  return "";
}

std::vector<pid_t> all_pids() {
  std::vector<pid_t> pids;
  std::error_code code;
  for (const auto& entry : fs::directory_iterator("/proc", code)) {
    const std::string name = entry.path().filename().string();
    if (name.find_first_not_of("0123456789") == std::string::npos) {
      pids.push_back(std::stoi(name));
    }
  }
  return pids;
}

std::string proc_text(pid_t pid, const char* file) {
  return read_whole(fs::path("/proc") / std::to_string(pid) / file);
}

[[noreturn]] void become(const Command& command, const fs::path& out, const fs::path& err,
                         const std::vector<std::string>& variables) {
  setpgid(0, 0);
  const int empty = open("/dev/null", O_RDONLY);
  const int out_file = open(out.c_str(), O_WRONLY | O_APPEND);
  const int err_file = open(err.c_str(), O_WRONLY | O_APPEND);
  const bool here = command.directory.empty() || chdir(command.directory.c_str()) == 0;
  if (empty < 0 || out_file < 0 || err_file < 0 || !here) {
    _exit(127);
  }
  dup2(empty, STDIN_FILENO);
  dup2(out_file, STDOUT_FILENO);
  dup2(err_file, STDERR_FILENO);
  if (command.limit_file_bytes) {
    signal(SIGXFSZ, SIG_IGN);
    const rlimit limit{static_cast<rlim_t>(command.max_file_bytes), static_cast<rlim_t>(command.max_file_bytes)};
    setrlimit(RLIMIT_FSIZE, &limit);
  }
  std::vector<char*> words;
  for (const std::string& word : command.words) {
    words.push_back(const_cast<char*>(word.c_str()));
  }
  words.push_back(nullptr);
  std::vector<char*> environment;
  for (const std::string& variable : variables) {
    environment.push_back(const_cast<char*>(variable.c_str()));
  }
  environment.push_back(nullptr);
  execvpe(words[0], words.data(), environment.data());
  _exit(127);
}

}  // namespace

Process::Process(Command command)
    : command_(std::move(command)), out_path_(temporary_file("out")), err_path_(temporary_file("err")) {
  static int count = 0;
  mark_ = std::to_string(getpid()) + "." + std::to_string(++count);
  std::vector<std::string> variables;
  for (char** variable = environ; *variable != nullptr; ++variable) {
    const std::string text = *variable;
    if (!command_.environment.contains(text.substr(0, text.find('=')))) {
      variables.push_back(text);
    }
  }
  for (const auto& [name, value] : command_.environment) {
    variables.push_back(name + "=" + value);
  }
  variables.push_back(std::string(kMarkName) + "=" + mark_);
  deadline_ = seconds_now() + command_.timeout_seconds;
  pid_ = fork();
  if (pid_ == 0) {
    become(command_, out_path_, err_path_, variables);
  }
  if (pid_ < 0) {
    throw std::runtime_error("fork failed");
  }
}

Process::~Process() {
  kill_all();
  std::error_code code;
  fs::remove(out_path_, code);
  fs::remove(err_path_, code);
}

bool Process::running() {
  if (!reaped_ && waitpid(pid_, &status_, WNOHANG) == pid_) {
    reaped_ = true;
  }
  return !reaped_;
}

std::string Process::out() const {
  return read_whole(out_path_);
}

std::string Process::err() const {
  return read_whole(err_path_);
}

bool Process::wait_for(const std::function<bool()>& done) {
  while (!done()) {
    if (!running() || seconds_now() > deadline_) {
      return done();
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  return true;
}

bool Process::wait_for_output(const std::string& text) {
  return wait_for([&] { return out().find(text) != std::string::npos || err().find(text) != std::string::npos; });
}

Ended Process::wait() {
  Ended ended;
  while (running() && !ended.timed_out) {
    ended.timed_out = seconds_now() > deadline_;
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  constexpr double kPatience = 3;  // killed processes need a moment to go
  for (const double deadline = seconds_now() + kPatience; !ranks().empty() && seconds_now() < deadline;) {
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  ended.ranks_left = static_cast<int>(ranks().size());
  kill_all();
  ended.exit_code = WIFEXITED(status_) ? WEXITSTATUS(status_) : 128 + WTERMSIG(status_);
  ended.out = out();
  ended.err = err();
  return ended;
}

void Process::kill_all() {
  if (!reaped_) {
    kill(pid_, SIGKILL);
    waitpid(pid_, &status_, 0);
    reaped_ = true;
  }
  for (const double deadline = seconds_now() + 10; !family().empty() && seconds_now() < deadline;) {
    signal_all(SIGKILL);
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
}

std::vector<pid_t> Process::family() const {
  std::vector<pid_t> found;
  for (const pid_t pid : all_pids()) {
    if (value_in_environment(proc_text(pid, "environ"), kMarkName) == mark_) {
      found.push_back(pid);
    }
  }
  return found;
}

std::map<int, pid_t> Process::ranks() const {
  std::map<int, pid_t> by_rank;
  for (const pid_t pid : family()) {
    const std::string rank = value_in_environment(proc_text(pid, "environ"), "OMPI_COMM_WORLD_RANK");
    if (!rank.empty() && proc_text(pid, "comm") != "orted\n") {  // MPI's helper of a process without mpirun
      by_rank[std::stoi(rank)] = pid;
    }
  }
  return by_rank;
}

pid_t Process::mpirun() const {
  for (const pid_t pid : family()) {
    const std::string name = proc_text(pid, "comm");
    if (name == "mpirun\n" || name == "orterun\n") {
      return pid;
    }
  }
  return 0;
}

void Process::signal_all(int signal) const {
  for (const pid_t pid : family()) {
    kill(pid, signal);
  }
}

Ended run_command(Command command) {
  return Process(std::move(command)).wait();
}

}  // namespace ashlar
