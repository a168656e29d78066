#include "runtime/base/log.h"

#include <spdlog/logger.h>
#include <spdlog/sinks/stdout_color_sinks.h>

namespace ashlar {

struct Log::Sink {
  std::shared_ptr<spdlog::logger> logger;
};

namespace {

spdlog::level::level_enum spdlog_level(LogLevel level) {
  switch (level) {
    case LogLevel::kDebug:
      return spdlog::level::debug;
    case LogLevel::kInfo:
      return spdlog::level::info;
    case LogLevel::kWarning:
      return spdlog::level::warn;
    case LogLevel::kError:
      return spdlog::level::err;
  }
  return spdlog::level::info;
}

}  // namespace

Log::Log(std::string who, LogLevel level) : sink_(std::make_unique<Sink>()) {
  sink_->logger = std::make_shared<spdlog::logger>("ashlar", std::make_shared<spdlog::sinks::stderr_color_sink_mt>());
  sink_->logger->set_level(spdlog_level(level));
  sink_->logger->flush_on(spdlog::level::debug);
  set_who(std::move(who));
}

Log::~Log() = default;

void Log::set_who(std::string who) {
  sink_->logger->set_pattern("[%Y-%m-%d %H:%M:%S.%e] [" + who + "] [%^%l%$] %v");
}

void Log::write(LogLevel level, std::string_view text) const {
  sink_->logger->log(spdlog_level(level), spdlog::string_view_t(text.data(), text.size()));
}

}  // namespace ashlar
