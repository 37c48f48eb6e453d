#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <sys/time.h>

#include <cstdlib>

#include "ggufcluster-rpc.h"

// A worker waits for a head that has just connected; a head may wait for a
// worker that is still freeing the buffers of its last connection.
static constexpr int default_server_deadline = 10;
static constexpr int default_client_deadline = 20;

static thread_local std::string last_peer = "unknown address";

static int deadline_or(int default_seconds) {
    const char * text = std::getenv("GGUFCLUSTER_HANDSHAKE_SECONDS");
    const int seconds = text ? std::atoi(text) : 0;
    return seconds > 0 && seconds <= 3600 ? seconds : default_seconds;
}

static void set_deadline(int fd, int seconds) {
    timeval limit = {};
    limit.tv_sec = seconds;
    setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof(limit));
    setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof(limit));
}

// Probes run only while nothing is in flight, so a worker busy with a long
// computation is never cut off. Not TCP_USER_TIMEOUT: that also fires on a
// full receive window, which a computing worker has.
static void set_keepalive(int fd) {
    const auto set = [fd](int level, int name, int value) {
        setsockopt(fd, level, name, &value, sizeof(value));
    };
    set(SOL_SOCKET, SO_KEEPALIVE, 1);
#ifdef TCP_KEEPIDLE
    set(IPPROTO_TCP, TCP_KEEPIDLE, 30);
    set(IPPROTO_TCP, TCP_KEEPINTVL, 10);
    set(IPPROTO_TCP, TCP_KEEPCNT, 6);
#endif
}

static std::string peer_of(int fd) {
    sockaddr_in address = {};
    socklen_t size = sizeof(address);
    char text[INET_ADDRSTRLEN] = {};
    if (getpeername(fd, (sockaddr *) &address, &size) != 0 ||
        inet_ntop(AF_INET, &address.sin_addr, text, sizeof(text)) == nullptr) {
        return "unknown address";
    }
    return std::string(text) + ":" + std::to_string(ntohs(address.sin_port));
}

int ggufcluster::client_deadline() {
    return deadline_or(default_client_deadline);
}

int ggufcluster::server_deadline() {
    return deadline_or(default_server_deadline);
}

void ggufcluster::client_connecting(int fd) {
    set_keepalive(fd);
    set_deadline(fd, client_deadline());
}

void ggufcluster::server_accepted(int fd) {
    last_peer = peer_of(fd);
    set_keepalive(fd);
    set_deadline(fd, server_deadline());
}

void ggufcluster::handshake_done(int fd) {
    set_deadline(fd, 0);
}

const std::string & ggufcluster::accepted_peer() {
    return last_peer;
}
