// tcp_connect.c - see tcp_connect.h. Each rank connects to those before it, which answer with one
// byte, and then accepts those behind it. Rank 0 waits for none, rank 1 for rank 0 alone, and so
// on.
#define _GNU_SOURCE // accept4
#include "runtime/comm/tcp_connect.h"

#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

enum {
  POLL_MS = 20
};

typedef struct greeting {
  uint8_t cookie[sizeof((lm_address *)0)->cookie];
  int32_t rank;
} greeting;

// ---- to the ranks before this one

// True once the other end has accepted the greeting: the address may lead to another machine.
static bool accepted_await(int fd, double until) {
  while (lm_now() < until) {
    struct pollfd p = {
        .fd = fd,
        .events = POLLIN,
    };
    char answer;
    poll(&p, 1, POLL_MS);
    ssize_t n = recv(fd, &answer, 1, 0);
    if (n == 1)
      return true;
    if (n == 0 || (errno != EAGAIN && errno != EINTR))
      return false;
  }
  return false;
}

static int connect_one(const char *host, const lm_address *to, int rank, double until) {
  greeting g = {.rank = rank};
  int on = 1, fd = lm_socket_connect(host, to->port);
  if (fd < 0)
    return -1;
  memcpy(g.cookie, to->cookie, sizeof g.cookie);
  setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
  if (send(fd, &g, sizeof g, MSG_NOSIGNAL) == sizeof g && accepted_await(fd, until))
    return fd;
  close(fd);
  return -1;
}

static lm_status connect_to(int rank, int other, const lm_address *to, double until, int *fd) {
  do {
    for (int i = 0; i < LM_ADDRESSES && *to->host[i] && *fd < 0; i++)
      *fd = connect_one(to->host[i], to, rank, until);
    if (*fd >= 0)
      return NULL;
    poll(NULL, 0, POLL_MS);
  } while (lm_now() < until);
  return lm_fail(LM_ENV,
                 "rank %d cannot connect to rank %d at %s, port %d: it has ended, there are "
                 "too many open files (ulimit -n), or a firewall is between them",
                 rank, other, to->host[0], to->port);
}

// ---- from the ranks behind this one

typedef struct guest {
  int fd;
  size_t got; // bytes of the greeting
  greeting g;
} guest;

typedef struct guests {
  guest *v;
  int n;
} guests;

static void guests_accept(guests *all, int listener) {
  struct pollfd p = {
      .fd = listener,
      .events = POLLIN,
  };
  poll(&p, 1, all->n ? 1 : POLL_MS);
  for (int fd; (fd = accept4(listener, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK)) >= 0;) {
    all->v = lm_realloc(all->v, sizeof *all->v * (size_t)(all->n + 1));
    all->v[all->n++] = (guest){.fd = fd};
  }
}

// Reads no byte behind the greeting. True if the guest stays.
static bool greeting_read(guest *x) {
  ssize_t n = recv(x->fd, (char *)&x->g + x->got, sizeof x->g - x->got, 0);
  if (n > 0)
    x->got += (size_t)n;
  return n > 0 || (n < 0 && (errno == EAGAIN || errno == EINTR));
}

static bool greeting_good(const guest *x, int rank, int size, const lm_address *own) {
  return !memcmp(x->g.cookie, own->cookie, sizeof own->cookie) && x->g.rank > rank &&
         x->g.rank < size;
}

// Returns how many ranks are connected now that were not before.
static int guests_visit(guests *all, int rank, int size, const lm_address *own, int *fds) {
  int n = 0, on = 1, made = 0;
  for (int i = 0; i < all->n; i++) {
    guest *x = &all->v[i];
    bool stays = greeting_read(x);
    bool whole = x->got == sizeof x->g;
    if (stays && whole && greeting_good(x, rank, size, own) &&
        send(x->fd, "", 1, MSG_NOSIGNAL) == 1) {
      int *fd = &fds[x->g.rank];
      made += *fd < 0;
      if (*fd >= 0)
        close(*fd);
      *fd = x->fd;
      setsockopt(*fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    } else if (stays && !whole) {
      all->v[n++] = *x;
    } else {
      close(x->fd);
    }
  }
  all->n = n;
  return made;
}

static int next_missing(int rank, int size, const int *fds) {
  int r = rank + 1;
  while (r < size && fds[r] >= 0)
    r++;
  return r;
}

static lm_status others_accept(int rank, int size, const lm_address *own, int listener,
                               double until, int *fds) {
  guests all = {0};
  for (int left = size - 1 - rank; left && lm_now() < until;) {
    guests_accept(&all, listener);
    left -= guests_visit(&all, rank, size, own, fds);
  }
  for (int i = 0; i < all.n; i++)
    close(all.v[i].fd);
  lm_free(all.v);
  int missing = next_missing(rank, size, fds);
  return missing == size ? NULL
                         : lm_fail(LM_ENV,
                                   "rank %d has not connected to rank %d: it has ended, or "
                                   "a firewall is between them",
                                   missing, rank);
}

lm_status lm_tcp_connect(int rank, int size, const lm_address *all, int listener, double until,
                         int *fds) {
  for (int r = 0; r < size; r++)
    fds[r] = -1;
  for (int r = 0; r < rank; r++)
    LM_TRY(connect_to(rank, r, &all[r], until, &fds[r]));
  return others_accept(rank, size, &all[rank], listener, until, fds);
}
