// Calls that the patched RPC backend makes. One peer per thread at a time, as upstream has it.
#pragma once

#include "ggufcluster.h"

#include <sys/socket.h>

#include <cstdint>
#include <string>

#ifdef MSG_NOSIGNAL
#  define GGUFCLUSTER_SEND_FLAGS MSG_NOSIGNAL
#else
#  define GGUFCLUSTER_SEND_FLAGS 0
#endif

namespace ggufcluster {

// Bytes of the fingerprint at the end of both HELLO messages, padded with zeros.
constexpr size_t fingerprint_size = 16;

// --- sockets (ggufcluster-socket.cpp) ---

// Watch for a vanished host, and bound every wait until handshake_done.
void client_connecting(int fd);
void server_accepted(int fd);

// Lift the deadline: computing may take as long as it takes.
void handshake_done(int fd);

// Seconds that each read of a handshake may take; GGUFCLUSTER_HANDSHAKE_SECONDS overrides.
int client_deadline();
int server_deadline();

// "address:port" of the head accepted last on this thread.
const std::string & accepted_peer();

// --- both ends of HELLO (ggufcluster-handshake.cpp) ---

void put_fingerprint(char * field);

// Head's side; what cannot go on ends the process.
void begin_hello(char * field);
void check_worker(const std::string & endpoint, bool answered, const char * field);
[[noreturn]] void bad_endpoint(const std::string & endpoint);
[[noreturn]] void cannot_resolve(const char * host);
[[noreturn]] void cannot_connect(const std::string & endpoint);
[[noreturn]] void other_protocol(const std::string & endpoint);
[[noreturn]] void worker_lost(const std::string & endpoint);

// Worker's side; the caller closes the connection and serves the next head.
void refuse_hello_size(uint64_t size);
bool accept_head(const char * field);
void announce_listening(const std::string & host, int port);
[[noreturn]] void cannot_listen(const std::string & host, int port);

}  // namespace ggufcluster
