// What this engine is, and how a program of it ends when it cannot go on.
#pragma once

#include "ggml.h"

#include <cstdio>
#include <string>

namespace ggufcluster {

// Exit codes of our own; 2 and the sysexits numbers, so that scripts can tell them apart.
constexpr int exit_usage       = 2;   // unknown option, value missing or out of range
constexpr int exit_no_host     = 68;  // a host name has no IPv4 address
constexpr int exit_unavailable = 69;  // worker not reachable, silent, or lost
constexpr int exit_cannot_bind = 71;  // the server's address and port cannot be had
constexpr int exit_protocol    = 76;  // the other side is not this engine

// Pin, patch series and overlay in 16 hex digits, or "unset". Head and worker must agree on it.
GGML_API const char * fingerprint();

// The fingerprint with the options of this build, for people.
GGML_API const char * build_id();

// Print one line with both.
GGML_API void print_identity(FILE * stream);

// Write one line to stderr. One write, so that lines of other threads do not cut through it.
GGML_API void say(const char * format, ...) __attribute__((format(printf, 1, 2)));

// Say why and end the process. No abort: this is no bug, and a core dump of a head
// with a model loaded fills a disk. No destructors: other threads still run.
[[noreturn]] GGML_API void fail(int exit_code, const char * format, ...) __attribute__((format(printf, 2, 3)));

// Ignore SIGPIPE unless the program already handles it.
GGML_API void ignore_sigpipe();

// Whole number `text` of `option`, from `low` to `high`; else fail with exit_usage.
GGML_API int option_number(const std::string & option, const char * text, int low, int high);

// Dotted IPv4 form of `host`; else fail with exit_no_host.
GGML_API std::string listen_address(const std::string & host);

}  // namespace ggufcluster
