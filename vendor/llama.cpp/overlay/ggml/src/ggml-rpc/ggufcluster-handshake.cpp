#include "ggufcluster-rpc.h"

#include <cerrno>
#include <chrono>
#include <cstring>

using clock_type = std::chrono::steady_clock;

static thread_local clock_type::time_point hello_sent;

static const char * const same_source =
    "build head and workers from one source: `ggufcluster build --worker HOST`";

static std::string readable(const char * field) {
    std::string text;
    for (size_t i = 0; i < ggufcluster::fingerprint_size && field[i] != '\0'; i++) {
        const char c = field[i];
        text += (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') ? c : '?';
    }
    return text.empty() ? "(none)" : text;
}

static bool is_ours(const char * field) {
    char ours[ggufcluster::fingerprint_size];
    ggufcluster::put_fingerprint(ours);
    return memcmp(ours, field, sizeof(ours)) == 0;
}

void ggufcluster::put_fingerprint(char * field) {
    // Exactly fingerprint_size bytes; strncpy pads with zeros and adds no terminator.
    strncpy(field, fingerprint(), fingerprint_size);
}

void ggufcluster::begin_hello(char * field) {
    put_fingerprint(field);
    hello_sent = clock_type::now();
}

void ggufcluster::check_worker(const std::string & endpoint, bool answered, const char * field) {
    const char * worker = endpoint.c_str();
    if (!answered && clock_type::now() - hello_sent >= std::chrono::seconds(client_deadline())) {
        fail(exit_unavailable, "error: worker %s did not answer the handshake within %d s: "
             "busy with another head, or frozen", worker, client_deadline());
    }
    if (!answered) {
        fail(exit_protocol, "error: worker %s does not speak ggufcluster's handshake: not our engine, or another "
             "version of it; this head runs engine %s; %s", worker, fingerprint(), same_source);
    }
    if (!is_ours(field)) {
        fail(exit_protocol, "error: worker %s runs engine %s, this head runs engine %s; %s",
             worker, readable(field).c_str(), fingerprint(), same_source);
    }
}

void ggufcluster::bad_endpoint(const std::string & endpoint) {
    fail(exit_usage, "error: '%s' is no worker endpoint: expected HOST:PORT", endpoint.c_str());
}

void ggufcluster::cannot_resolve(const char * host) {
    fail(exit_no_host, "error: cannot resolve worker host '%s' to an IPv4 address", host);
}

void ggufcluster::cannot_connect(const std::string & endpoint) {
    const int error = errno;
    if (error == EINPROGRESS || error == EAGAIN) {
        fail(exit_unavailable, "error: cannot connect to worker %s: no answer within %d s; is the host up and the "
             "port reachable?", endpoint.c_str(), client_deadline());
    }
    fail(exit_unavailable, "error: cannot connect to worker %s: %s; is its RPC server running?",
         endpoint.c_str(), strerror(error));
}

void ggufcluster::other_protocol(const std::string & endpoint) {
    fail(exit_protocol, "error: worker %s speaks another version of the RPC protocol; %s",
         endpoint.c_str(), same_source);
}

void ggufcluster::worker_lost(const std::string & endpoint) {
    fail(exit_unavailable, "error: lost worker %s: its RPC server ended, or the connection broke; "
         "see the worker's log", endpoint.c_str());
}

void ggufcluster::refuse_hello_size(uint64_t size) {
    say("refused the head at %s: it runs an engine without ggufcluster's patches, or another version of them "
        "(HELLO of %llu bytes); this worker runs engine %s; %s",
        accepted_peer().c_str(), (unsigned long long) size, fingerprint(), same_source);
}

bool ggufcluster::accept_head(const char * field) {
    if (is_ours(field)) {
        return true;
    }
    say("refused the head at %s: it runs engine %s, this worker runs engine %s; %s",
        accepted_peer().c_str(), readable(field).c_str(), fingerprint(), same_source);
    return false;
}

void ggufcluster::announce_listening(const std::string & host, int port) {
    printf("ggufcluster: listening on %s:%d, build %s, fingerprint %s\n", host.c_str(), port, build_id(), fingerprint());
    fflush(stdout);
}

void ggufcluster::cannot_listen(const std::string & host, int port) {
    const int error = errno;
    const char * hint = "";
    if (error == EADDRINUSE) {
        hint = "; another process, perhaps another worker, holds this port";
    } else if (error == EADDRNOTAVAIL) {
        hint = "; no interface of this machine has this address";
    } else if (error == EACCES) {
        hint = "; ports below 1024 need more rights";
    }
    fail(exit_cannot_bind, "error: cannot listen on %s:%d: %s%s", host.c_str(), port, strerror(error), hint);
}
