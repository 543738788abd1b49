// control_join.c - how the ranks find each other: rank 0 listens, the others connect.
#define _GNU_SOURCE // CPU_SET
#include <errno.h>
#include <poll.h>
#include <sched.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "runtime/comm/control_state.h"

enum {
  HELLO_BYTES = 4096,
  RETRY_MS = 100
};

// ---- rank 0 listens

lm_status lm_control_listen(lm_control *c, lm_address *out) {
  LM_TRY(lm_socket_listen(out, &c->listener));
  memcpy(c->cookie, out->cookie, sizeof c->cookie);
  return NULL;
}

// ---- what a rank says about itself

static uint64_t machine_hash(const char *host) {
  lm_buf id = {0};
  lm_status s = lm_file_read("/proc/sys/kernel/random/boot_id", 256, &id);
  lm_status_free(s); // without it, the host's name identifies the machine
  lm_buf_puts(&id, host);
  uint64_t hash = lm_hash(id.p, id.n, 0);
  lm_buf_free(&id);
  return hash;
}

static lm_hello hello_of(const lm_control *c, const uint8_t *cookie) {
  lm_hello h = {
      .rank = c->rank,
      .size = c->size,
      .pid = (int32_t)getpid(),
  };
  cpu_set_t set;
  CPU_ZERO(&set);
  sched_getaffinity(0, sizeof set, &set);
  memcpy(h.cookie, cookie, sizeof h.cookie);
  lm_socket_host(h.host, sizeof h.host);
  h.machine = machine_hash(h.host);
  h.processors = lm_hash(&set, sizeof set, 0);
  return h;
}

// ---- rank 0 accepts

typedef struct lobby {
  lm_wire *v; // connections that have not sent their hello
  int n;
} lobby;

// Takes the connection if its first frame is a hello of a rank that is missing.
static bool hello_take(lm_control *c, lm_wire *w) {
  lm_frame f;
  lm_hello h;
  bool bad;
  if (!lm_wire_next(w, &f, &bad))
    return false;
  if (f.head.type != LM_FRAME_HELLO || f.head.bytes != sizeof h)
    return false;
  memcpy(&h, f.data, sizeof h);
  if (memcmp(h.cookie, c->cookie, sizeof h.cookie) || h.rank <= 0 || h.rank >= c->size ||
      h.size != c->size || c->peers[h.rank].wire.fd >= 0)
    return false;
  h.host[sizeof h.host - 1] = 0;
  c->peers[h.rank].wire = *w;
  c->peers[h.rank].hello = h;
  c->peers[h.rank].heard = lm_now();
  return true;
}

static int joined_count(const lm_control *c) {
  int n = 1;
  for (int r = 1; r < c->size; r++)
    n += c->peers[r].wire.fd >= 0;
  return n;
}

static void lobby_add(lobby *l, int fd) {
  l->v = lm_realloc(l->v, sizeof *l->v * (size_t)(l->n + 1));
  lm_wire_open(&l->v[l->n++], fd, HELLO_BYTES);
}

static void lobby_visit(lm_control *c, lobby *l) {
  int n = 0;
  for (int i = 0; i < l->n; i++) {
    bool open = lm_wire_receive(&l->v[i]);
    if (hello_take(c, &l->v[i]))
      continue;
    if (open && l->v[i].in.n <= HELLO_BYTES)
      l->v[n++] = l->v[i];
    else
      lm_wire_close(&l->v[i]);
  }
  l->n = n;
}

static lm_status missing_report(const lm_control *c) {
  lm_buf names = {0};
  for (int r = 1; r < c->size; r++)
    if (c->peers[r].wire.fd < 0)
      lm_buf_printf(&names, "%s%d", names.n ? ", " : "", r);
  lm_status s = lm_fail(LM_ENV,
                        "rank %s did not join within %g s (LMC_COMM_START): it is stopped, or its "
                        "machine cannot reach rank 0's port %s",
                        names.p, c->limits.start, "over TCP");
  lm_buf_free(&names);
  return s;
}

static lm_status all_accept(lm_control *c) {
  lobby l = {0};
  lm_status s = NULL;
  while (joined_count(c) < c->size && !s) {
    struct pollfd p = {
        .fd = c->listener,
        .events = POLLIN,
    };
    poll(&p, 1, l.n ? 1 : RETRY_MS);
    int fd = accept4(c->listener, NULL, NULL, SOCK_CLOEXEC);
    if (fd >= 0)
      lobby_add(&l, fd);
    else if (errno == EMFILE || errno == ENFILE)
      s = lm_fail_errno("rank 0 cannot accept the connections of %d ranks", c->size);
    lobby_visit(c, &l);
    if (!s && lm_now() - c->begun > c->limits.start)
      s = missing_report(c);
  }
  for (int i = 0; i < l.n; i++)
    lm_wire_close(&l.v[i]);
  lm_free(l.v);
  close(c->listener);
  c->listener = -1;
  return s;
}

// The members of the same machine are numbered in order of their ranks.
static void members_fill(lm_control *c) {
  for (int r = 0; r < c->size; r++) {
    const lm_hello *h = &c->peers[r].hello;
    lm_control_member *m = &c->members[r];
    *m = (lm_control_member){.pid = h->pid};
    memcpy(m->host, h->host, sizeof m->host);
    for (int i = 0; i < c->size; i++) {
      const lm_hello *x = &c->peers[i].hello;
      bool here = x->machine == h->machine;
      m->local_size += here;
      m->local_rank += here && i < r;
      m->sharing += here && x->processors == h->processors;
    }
  }
}

static lm_status first_join(lm_control *c) {
  c->peers[0].hello = hello_of(c, c->cookie);
  LM_TRY(all_accept(c));
  members_fill(c);
  for (int r = 1; r < c->size; r++) {
    c->peers[r].wire.bytes_max = SIZE_MAX;
    lm_wire_send(&c->peers[r].wire, LM_FRAME_WELCOME, 0, c->members,
                 sizeof *c->members * (size_t)c->size, NULL, 0);
  }
  return NULL;
}

// ---- the others connect

// True if rank 0 has answered with its members.
static bool welcome_take(lm_control *c, lm_wire *w, bool *lost) {
  size_t bytes = sizeof *c->members * (size_t)c->size;
  lm_frame f;
  bool bad;
  struct pollfd p = {
      .fd = w->fd,
      .events = POLLIN,
  };
  poll(&p, 1, RETRY_MS);
  *lost = !lm_wire_receive(w);
  if (!lm_wire_next(w, &f, &bad)) {
    *lost |= bad;
    return false;
  }
  *lost = f.head.type != LM_FRAME_WELCOME || f.head.bytes != bytes;
  if (!*lost)
    memcpy(c->members, f.data, bytes);
  return !*lost;
}

// An address may lead to another machine, such as the loopback: without a welcome, the next is
// tried.
static bool other_join(lm_control *c, const lm_address *a, const char *host) {
  lm_hello h = hello_of(c, a->cookie);
  bool lost = false;
  int fd = lm_socket_connect(host, a->port);
  if (fd < 0)
    return false;
  lm_wire *w = &c->peers[0].wire;
  lm_wire_open(w, fd, SIZE_MAX);
  lm_wire_send(w, LM_FRAME_HELLO, 0, &h, sizeof h, NULL, 0);
  while (!lost && lm_now() - c->begun < c->limits.start)
    if (welcome_take(c, w, &lost))
      return true;
  lm_wire_close(w);
  return false;
}

static lm_status others_join(lm_control *c, const lm_address *a) {
  while (lm_now() - c->begun < c->limits.start) {
    for (int i = 0; i < LM_ADDRESSES && *a->host[i]; i++)
      if (other_join(c, a, a->host[i]))
        return NULL;
    poll(NULL, 0, RETRY_MS);
  }
  return lm_fail(LM_ENV,
                 "rank %d did not reach rank 0 at %s, port %d, within %g s (LMC_COMM_START): rank "
                 "0 is stopped, or a firewall is between them",
                 c->rank, a->host[0], a->port, c->limits.start);
}

lm_status lm_control_join(lm_control *c, int rank, int size, const lm_address *a) {
  c->rank = rank;
  c->size = size;
  c->members = lm_calloc((size_t)size, sizeof *c->members);
  c->n_peers = rank ? 1 : size;
  c->peers = lm_calloc((size_t)c->n_peers, sizeof *c->peers);
  for (int i = 0; i < c->n_peers; i++)
    c->peers[i].wire.fd = -1;
  if (!c->has_thread)
    return lm_fail(LM_ENV, "the control channel cannot create a thread");
  LM_TRY(rank ? others_join(c, a) : first_join(c));
  pthread_mutex_lock(&c->lock);
  c->joined = true;
  c->moved = lm_now();
  for (int i = 0; i < c->n_peers; i++)
    c->peers[i].heard = c->moved;
  pthread_cond_broadcast(&c->changed);
  pthread_mutex_unlock(&c->lock);
  return NULL;
}
