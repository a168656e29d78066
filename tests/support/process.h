// Programs as real processes: started, watched, signalled, and never left behind.
#pragma once

#include <sys/types.h>

#include <filesystem>
#include <functional>
#include <map>
#include <string>
#include <vector>

namespace ashlar {

struct Command {
  std::vector<std::string> words;                    // program and arguments
  std::map<std::string, std::string> environment{};  // added to ours
  std::filesystem::path directory{};                 // where it runs; ours when empty
  double timeout_seconds = 60;                       // a limit for hangs; wait() kills at it
  bool limit_file_bytes = false;                     // files of at most max_file_bytes: what is beyond fails (EFBIG)
  long long max_file_bytes = 0;
};

struct Ended {
  int exit_code = -1;  // 128 + signal when a signal ended it
  bool timed_out = false;
  std::string out;     // stdout
  std::string err;     // stderr
  int ranks_left = 0;  // ranks that outlived the command (and were then killed)

  std::string all() const { return out + err; }
};

// A command and all that descends from it. Descendants are found by a variable in their environment, so that neither
// sessions of their own nor a dead parent hide them.
class Process {
 public:
  explicit Process(Command command);
  ~Process();  // kills what still runs
  Process(const Process&) = delete;
  Process& operator=(const Process&) = delete;

  pid_t pid() const { return pid_; }
  bool running();
  std::string out() const;  // so far
  std::string err() const;  // so far
  // Blocks the host, until done() or the command ended or its time is up. Returns done().
  bool wait_for(const std::function<bool()>& done);
  bool wait_for_output(const std::string& text);
  // Blocks the host until the command ended or its time is up; then nothing of it runs any more.
  Ended wait();

  // Pids of the job's ranks by rank number, as mpirun numbered them.
  std::map<int, pid_t> ranks() const;
  pid_t mpirun() const;  // 0: there is none
  void signal_all(int signal) const;

 private:
  std::vector<pid_t> family() const;
  void kill_all();

  Command command_;
  std::string mark_;
  std::filesystem::path out_path_, err_path_;
  double deadline_ = 0;
  pid_t pid_ = -1;
  bool reaped_ = false;
  int status_ = 0;
};

// Blocks the host. Process(command).wait().
Ended run_command(Command command);

}  // namespace ashlar
