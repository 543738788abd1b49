// socket.c - see socket.h.
#define _GNU_SOURCE // SOCK_CLOEXEC
#include "runtime/comm/socket.h"

#include <arpa/inet.h>
#include <errno.h>
#include <ifaddrs.h>
#include <poll.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <unistd.h>

static void addresses_list(lm_address *out) {
  struct ifaddrs *all = NULL;
  int n = 0;
  if (getifaddrs(&all))
    all = NULL;
  for (int local = 0; local < 2; local++) // the loopback last: of use on this machine only
    for (const struct ifaddrs *i = all; i && n < LM_ADDRESSES; i = i->ifa_next) {
      if (!i->ifa_addr || i->ifa_addr->sa_family != AF_INET)
        continue;
      const struct sockaddr_in *a = (const struct sockaddr_in *)i->ifa_addr;
      bool loopback = ntohl(a->sin_addr.s_addr) >> 24 == 127;
      if (loopback == local)
        inet_ntop(AF_INET, &a->sin_addr, out->host[n++], sizeof *out->host);
    }
  freeifaddrs(all);
}

int lm_socket_listen_at(int port) {
  struct sockaddr_in a = {
      .sin_family = AF_INET, .sin_port = htons((uint16_t)port), .sin_addr = {htonl(INADDR_ANY)}};
  int on = 1, fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  if (fd < 0)
    return -1;
  // A port of a run that has just ended can be used again.
  if (!setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on) &&
      !bind(fd, (struct sockaddr *)&a, sizeof a) && !listen(fd, 1024))
    return fd;
  int error = errno;
  close(fd);
  errno = error;
  return -1;
}

lm_status lm_socket_listen(lm_address *out, int *fd) {
  struct sockaddr_in a;
  socklen_t n = sizeof a;
  *out = (lm_address){0};
  *fd = -1;
  if (getrandom(out->cookie, sizeof out->cookie, 0) != sizeof out->cookie)
    return lm_fail_errno("there are no random bytes for the connections of the ranks");
  *fd = lm_socket_listen_at(0);
  if (*fd < 0 || getsockname(*fd, (struct sockaddr *)&a, &n))
    return lm_fail_errno("a rank cannot listen for connections of the others");
  out->port = ntohs(a.sin_port);
  addresses_list(out);
  return NULL;
}

int lm_socket_connect(const char *host, int port) {
  struct sockaddr_in a = {
      .sin_family = AF_INET,
      .sin_port = htons((uint16_t)port),
  };
  int error = 0, fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  socklen_t n = sizeof error;
  if (fd < 0 || inet_pton(AF_INET, host, &a.sin_addr) != 1)
    error = EINVAL;
  else if (connect(fd, (struct sockaddr *)&a, sizeof a) && errno != EINPROGRESS)
    error = errno;
  struct pollfd p = {
      .fd = fd,
      .events = POLLOUT,
  };
  if (!error && (poll(&p, 1, 2000) != 1 || getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &n)))
    error = ETIMEDOUT;
  if (!error)
    return fd;
  if (fd >= 0)
    close(fd);
  return -1;
}
