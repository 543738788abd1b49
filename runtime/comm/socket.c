// socket.c - see socket.h.
#define _GNU_SOURCE // SOCK_CLOEXEC
#include "runtime/comm/socket.h"

#include <arpa/inet.h>
#include <errno.h>
#include <ifaddrs.h>
#include <netinet/in.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <unistd.h>

// The number of an interface; false for one that other machines or processes cannot use as it is.
static bool number_of(const struct sockaddr *a, bool *loopback, char *out, socklen_t bytes) {
  if (a && a->sa_family == AF_INET) {
    const struct in_addr *v4 = &((const struct sockaddr_in *)a)->sin_addr;
    *loopback = ntohl(v4->s_addr) >> 24 == 127;
    return inet_ntop(AF_INET, v4, out, bytes);
  }
  if (!a || a->sa_family != AF_INET6)
    return false;
  const struct in6_addr *v6 = &((const struct sockaddr_in6 *)a)->sin6_addr;
  *loopback = IN6_IS_ADDR_LOOPBACK(v6);
  return !IN6_IS_ADDR_LINKLOCAL(v6) && inet_ntop(AF_INET6, v6, out, bytes);
}

// IPv4 before IPv6, and the loopback last: of use on this machine only.
static void addresses_list(lm_address *out) {
  static const int order[][2] = {
      {AF_INET, false}, {AF_INET6, false}, {AF_INET, true}, {AF_INET6, true}};
  struct ifaddrs *all = NULL;
  int n = 0;
  if (getifaddrs(&all))
    all = NULL;
  for (size_t k = 0; k < LM_COUNT(order); k++)
    for (const struct ifaddrs *i = all; i && n < LM_ADDRESSES; i = i->ifa_next) {
      bool loopback;
      char number[sizeof *out->host] = {0};
      if (!number_of(i->ifa_addr, &loopback, number, sizeof number))
        continue;
      if (i->ifa_addr->sa_family == order[k][0] && loopback == order[k][1])
        memcpy(out->host[n++], number, sizeof number);
    }
  freeifaddrs(all);
}

// A port of a run that has just ended can be used again.
static int listen_with(int family, const void *address, socklen_t bytes) {
  int on = 1;
  int off = 0;
  int fd = socket(family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  if (fd < 0)
    return -1;
  bool open = family != AF_INET6 || !setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &off, sizeof off);
  if (open && !setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on) &&
      !bind(fd, address, bytes) && !listen(fd, 1024))
    return fd;
  int error = errno;
  close(fd);
  errno = error;
  return -1;
}

// A socket of IPv6 takes connections of IPv4 too.
int lm_socket_listen_at(int port) {
  struct sockaddr_in6 both = {
      .sin6_family = AF_INET6,
      .sin6_port = htons((uint16_t)port),
  };
  struct sockaddr_in v4 = {
      .sin_family = AF_INET, .sin_port = htons((uint16_t)port), .sin_addr = {htonl(INADDR_ANY)}};
  int fd = listen_with(AF_INET6, &both, sizeof both);
  bool in_use = fd < 0 && errno == EADDRINUSE;
  return fd >= 0 || in_use ? fd : listen_with(AF_INET, &v4, sizeof v4);
}

lm_status lm_socket_listen(lm_address *out, int *fd) {
  struct sockaddr_storage a;
  socklen_t n = sizeof a;
  *out = (lm_address){0};
  *fd = -1;
  if (getrandom(out->cookie, sizeof out->cookie, 0) != sizeof out->cookie)
    return lm_fail_errno("there are no random bytes for the connections of the ranks");
  *fd = lm_socket_listen_at(0);
  if (*fd < 0 || getsockname(*fd, (struct sockaddr *)&a, &n))
    return lm_fail_errno("a rank cannot listen for connections of the others");
  out->port = ntohs(a.ss_family == AF_INET6 ? ((struct sockaddr_in6 *)&a)->sin6_port
                                            : ((struct sockaddr_in *)&a)->sin_port);
  addresses_list(out);
  return NULL;
}

// Returns the bytes of the address; 0: `host` is no number.
static socklen_t address_make(const char *host, int port, struct sockaddr_storage *out) {
  struct sockaddr_in *v4 = (struct sockaddr_in *)out;
  struct sockaddr_in6 *v6 = (struct sockaddr_in6 *)out;
  *out = (struct sockaddr_storage){0};
  if (inet_pton(AF_INET, host, &v4->sin_addr) == 1) {
    v4->sin_family = AF_INET;
    v4->sin_port = htons((uint16_t)port);
    return sizeof *v4;
  }
  if (inet_pton(AF_INET6, host, &v6->sin6_addr) != 1)
    return 0;
  v6->sin6_family = AF_INET6;
  v6->sin6_port = htons((uint16_t)port);
  return sizeof *v6;
}

int lm_socket_connect(const char *host, int port) {
  struct sockaddr_storage a;
  socklen_t bytes = address_make(host, port, &a);
  int error = 0;
  int fd = bytes ? socket(a.ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0) : -1;
  socklen_t n = sizeof error;
  if (fd < 0)
    return -1;
  if (connect(fd, (struct sockaddr *)&a, bytes) && errno != EINPROGRESS)
    error = errno;
  struct pollfd p = {
      .fd = fd,
      .events = POLLOUT,
  };
  if (!error && (poll(&p, 1, 2000) != 1 || getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &n)))
    error = ETIMEDOUT;
  if (!error)
    return fd;
  close(fd);
  return -1;
}

void lm_socket_host(char *name, size_t n) {
  if (gethostname(name, n))
    snprintf(name, n, "unknown");
  name[n - 1] = 0;
}
