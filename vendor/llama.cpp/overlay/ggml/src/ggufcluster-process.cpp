#include "ggufcluster.h"

#include <arpa/inet.h>
#include <netdb.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdarg>
#include <cstdlib>
#include <cstring>

static void write_line(const char * format, va_list arguments) {
    char text[1024];
    vsnprintf(text, sizeof(text), format, arguments);
    const std::string line = std::string("ggufcluster: ") + text + "\n";
    size_t done = 0;
    while (done < line.size()) {
        const ssize_t n = write(STDERR_FILENO, line.data() + done, line.size() - done);
        if (n < 0 && errno == EINTR) {
            continue;
        }
        if (n <= 0) {
            return;
        }
        done += n;
    }
}

void ggufcluster::print_identity(FILE * stream) {
    fprintf(stream, "ggufcluster: build %s, fingerprint %s\n", build_id(), fingerprint());
}

void ggufcluster::say(const char * format, ...) {
    va_list arguments;
    va_start(arguments, format);
    write_line(format, arguments);
    va_end(arguments);
}

void ggufcluster::fail(int exit_code, const char * format, ...) {
    va_list arguments;
    va_start(arguments, format);
    write_line(format, arguments);
    va_end(arguments);
    std::_Exit(exit_code);
}

void ggufcluster::ignore_sigpipe() {
    struct sigaction current = {};
    if (sigaction(SIGPIPE, nullptr, &current) == 0 && current.sa_handler == SIG_DFL) {
        signal(SIGPIPE, SIG_IGN);
    }
}

int ggufcluster::option_number(const std::string & option, const char * text, int low, int high) {
    char * end = nullptr;
    errno = 0;
    const long value = strtol(text, &end, 10);
    if (end == text || *end != '\0' || errno != 0 || value < low || value > high) {
        fail(exit_usage, "error: %s takes a whole number from %d to %d, not '%s'", option.c_str(), low, high, text);
    }
    return (int) value;
}

std::string ggufcluster::listen_address(const std::string & host) {
    addrinfo hints = {};
    hints.ai_family   = AF_INET;
    hints.ai_socktype = SOCK_STREAM;
    addrinfo * found  = nullptr;
    const int error = getaddrinfo(host.c_str(), nullptr, &hints, &found);
    if (host.empty() || error != 0) {
        fail(exit_no_host, "error: cannot listen on host '%s': no IPv4 address for it (%s); "
             "give an IPv4 address of this machine", host.c_str(), host.empty() ? "empty name" : gai_strerror(error));
    }
    char text[INET_ADDRSTRLEN] = {};
    inet_ntop(AF_INET, &((const sockaddr_in *) found->ai_addr)->sin_addr, text, sizeof(text));
    freeaddrinfo(found);
    return text;
}
