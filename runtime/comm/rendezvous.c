// rendezvous.c - see rendezvous.h.
#define _GNU_SOURCE // accept4
#include "runtime/comm/rendezvous.h"

#include <errno.h>
#include <netdb.h>
#include <poll.h>
#include <string.h>
#include <strings.h>
#include <sys/socket.h>
#include <unistd.h>

#include "runtime/comm/wire.h"

enum {
  HELLO_BYTES = 4096,
  POLL_MS = 20,
  NAMED = 16 // missing ranks that a message lists
};
#define RETURN_S 2.0 // in which a rank whose connection has closed may connect again
#define ANSWER_S 2.0 // in which rank 0 answers; else another program listens at that port
#define REPORT_S 5.0 // in which rank 0's message about missing ranks arrives

static const char MAGIC[16] = "lmc rendezvous1";

typedef struct hello {
  char magic[sizeof MAGIC];
  uint64_t job;
  int32_t rank, size, pid;
  char host[64];
  lm_address address;
} hello;

static hello hello_of(const lm_launch *l, const lm_address *own) {
  hello h;
  memset(&h, 0, sizeof h);
  memcpy(h.magic, MAGIC, sizeof h.magic);
  h.job = l->job;
  h.rank = l->rank;
  h.size = l->size;
  h.pid = (int32_t)getpid();
  h.address = *own;
  lm_socket_host(h.host, sizeof h.host);
  return h;
}

// ---- rank 0

typedef struct seat {
  lm_wire wire;
  hello hello;
  bool taken;
  double ended; // when the connection of the rank that had it closed; 0: never
} seat;

typedef struct meeting {
  const lm_launch *l;
  double seconds, until;
  int listener;
  seat *seats;    // [size]
  lm_wire *lobby; // connections that have not sent their hello
  int n_lobby;
} meeting;

static lm_status port_open(meeting *m) {
  const lm_launch *l = m->l;
  for (int i = 0; i < l->ports && m->listener < 0; i++)
    m->listener = lm_socket_listen_at(l->port + i);
  if (m->listener >= 0)
    return NULL;
  return lm_fail(LM_ENV,
                 "rank 0 cannot listen at port %d: %s; another run uses it, or MASTER_PORT "
                 "should be another one",
                 l->port, strerror(errno));
}

static lm_status rank_check(const meeting *m, const hello *h) {
  const hello *o = &m->seats[h->rank < m->l->size ? h->rank : 0].hello;
  if (h->size != m->l->size)
    return lm_fail(LM_USER,
                   "rank %d (host %s, process %d) was started as one of %d ranks, rank 0 "
                   "as one of %d",
                   h->rank, h->host, h->pid, h->size, m->l->size);
  if (m->seats[h->rank].taken && (o->pid != h->pid || strcmp(o->host, h->host) != 0))
    return lm_fail(LM_USER,
                   "two processes are rank %d: process %d of host %s and process %d of "
                   "host %s; another run may use the same MASTER_PORT",
                   h->rank, o->pid, o->host, h->pid, h->host);
  return NULL;
}

// Takes the connection if its first frame is the hello of a rank of this launch.
static bool hello_take(meeting *m, lm_wire *w, lm_status *s) {
  lm_frame f;
  hello h;
  bool bad;
  if (!lm_wire_next(w, &f, &bad) || f.head.type != LM_FRAME_HELLO || f.head.bytes != sizeof h)
    return false;
  memcpy(&h, f.data, sizeof h);
  h.host[sizeof h.host - 1] = 0;
  for (int i = 0; i < LM_ADDRESSES; i++)
    h.address.host[i][sizeof *h.address.host - 1] = 0;
  if (memcmp(h.magic, MAGIC, sizeof MAGIC) != 0 || h.job != m->l->job || h.rank <= 0 ||
      (h.rank >= m->l->size && h.size == m->l->size))
    return false;
  *s = rank_check(m, &h);
  if (*s)
    return false;
  seat *to = &m->seats[h.rank];
  lm_wire_close(&to->wire);
  *to = (seat){
      .wire = *w,
      .hello = h,
      .taken = true,
  };
  lm_wire_send(&to->wire, LM_FRAME_BEAT, 0, NULL, 0, NULL, 0); // this is rank 0
  return true;
}

static void lobby_accept(meeting *m) {
  struct pollfd p = {
      .fd = m->listener,
      .events = POLLIN,
  };
  poll(&p, 1, POLL_MS);
  for (int fd; (fd = accept4(m->listener, NULL, NULL, SOCK_CLOEXEC)) >= 0;) {
    m->lobby = lm_realloc(m->lobby, sizeof *m->lobby * (size_t)(m->n_lobby + 1));
    lm_wire_open(&m->lobby[m->n_lobby++], fd, HELLO_BYTES);
  }
}

static lm_status lobby_visit(meeting *m) {
  lm_status s = NULL;
  int n = 0;
  for (int i = 0; i < m->n_lobby; i++) {
    lm_wire *w = &m->lobby[i];
    bool open = s || lm_wire_receive(w);
    size_t before = w->in.n;
    if (!s && hello_take(m, w, &s))
      continue;
    if (open && !w->used && before <= HELLO_BYTES)
      m->lobby[n++] = *w;
    else
      lm_wire_close(w);
  }
  m->n_lobby = n;
  return s;
}

// A rank may connect again where rank 0's answer came too late for it.
static lm_status seats_visit(meeting *m) {
  for (int r = 1; r < m->l->size; r++) {
    seat *x = &m->seats[r];
    if (x->taken && !lm_wire_receive(&x->wire)) {
      x->taken = false;
      x->ended = lm_now();
    }
    if (!x->taken && x->ended && lm_now() - x->ended > RETURN_S)
      return lm_fail(LM_ENV, "rank %d (host %s, process %d) has ended before all ranks had joined",
                     r, x->hello.host, x->hello.pid);
  }
  return NULL;
}

static lm_status missing_report(const meeting *m) {
  lm_buf names = {0};
  int n = 0;
  for (int r = 1; r < m->l->size; r++)
    if (!m->seats[r].taken && n++ < NAMED)
      lm_buf_printf(&names, "%s%d", n > 1 ? ", " : "", r);
  if (n > NAMED)
    lm_buf_printf(&names, " and %d more", n - NAMED);
  lm_status s = lm_fail(LM_ENV,
                        "of %d ranks, %s did not join within %g s (LMC_COMM_START): not "
                        "started, stopped, or without a connection to port %d of rank 0's machine",
                        m->l->size, names.p, m->seconds, m->l->port);
  lm_buf_free(&names);
  return s;
}

static int seats_free(const meeting *m) {
  int n = 0;
  for (int r = 1; r < m->l->size; r++)
    n += !m->seats[r].taken;
  return n;
}

static lm_status all_await(meeting *m) {
  while (seats_free(m)) {
    lobby_accept(m);
    LM_TRY(lobby_visit(m));
    LM_TRY(seats_visit(m));
    if (lm_now() > m->until)
      return seats_free(m) ? missing_report(m) : NULL;
  }
  return NULL;
}

// Sends all ranks where the others listen, or why they cannot start.
static void answer(meeting *m, const lm_address *all, lm_status failed) {
  size_t bytes = sizeof *all * (size_t)m->l->size;
  int32_t kind = failed ? (int32_t)failed->kind : 0;
  bool left = true;
  for (int r = 1; r < m->l->size; r++) {
    lm_wire *w = &m->seats[r].wire;
    if (m->seats[r].taken && failed)
      lm_wire_send(w, LM_FRAME_FAIL, 0, &kind, sizeof kind, failed->text, strlen(failed->text));
    else if (m->seats[r].taken)
      lm_wire_send(w, LM_FRAME_WELCOME, 0, all, bytes, NULL, 0);
  }
  for (double end = lm_now() + REPORT_S; left && lm_now() < end;) {
    left = false;
    for (int r = 1; r < m->l->size; r++)
      left |= lm_wire_flush(&m->seats[r].wire) && m->seats[r].wire.out.n;
    if (left)
      poll(NULL, 0, 1);
  }
}

static lm_status first_meet(const lm_launch *l, double seconds, const lm_address *own,
                            lm_address *all) {
  meeting m = {
      .l = l,
      .seconds = seconds,
      .until = lm_now() + seconds,
      .listener = -1,
  };
  LM_TRY(port_open(&m));
  m.seats = lm_calloc((size_t)l->size, sizeof *m.seats);
  for (int r = 0; r < l->size; r++)
    m.seats[r].wire.fd = -1;
  lm_status s = all_await(&m);
  all[0] = *own;
  for (int r = 1; r < l->size; r++)
    all[r] = m.seats[r].hello.address;
  answer(&m, all, s);
  close(m.listener);
  for (int r = 0; r < l->size; r++)
    lm_wire_close(&m.seats[r].wire);
  for (int i = 0; i < m.n_lobby; i++)
    lm_wire_close(&m.lobby[i]);
  lm_free(m.lobby);
  lm_free(m.seats);
  return s;
}

// ---- the other ranks

typedef enum {
  STRANGE, // no rank 0 of this launch is there
  SEATED,  // it is, and waits for others
  OVER     // it has sent all addresses, or why there are none
} answered;

typedef struct guest {
  const lm_launch *l;
  hello hello;
  double seconds, until;
  lm_address *all;
  bool *reported;
} guest;

static answered frames_take(const guest *g, lm_wire *w, answered before, lm_status *s) {
  size_t bytes = sizeof *g->all * (size_t)g->l->size;
  lm_frame f;
  bool bad;
  while (lm_wire_next(w, &f, &bad)) {
    int32_t kind;
    if (f.head.type == LM_FRAME_BEAT) {
      before = SEATED;
    } else if (f.head.type == LM_FRAME_WELCOME && f.head.bytes == bytes) {
      memcpy(g->all, f.data, bytes);
      return OVER;
    } else if (f.head.type == LM_FRAME_FAIL && f.head.bytes > sizeof kind) {
      memcpy(&kind, f.data, sizeof kind);
      *s = lm_fail(kind == LM_USER ? LM_USER : LM_ENV, "%.*s", (int)(f.head.bytes - sizeof kind),
                   (const char *)f.data + sizeof kind);
      *g->reported = true;
      return OVER;
    }
  }
  return before;
}

// Rank 0 reports ranks that are missing, so the others wait a little longer than it does. If it has
// ended itself, rank 1 reports that.
static answered rank0_await(const guest *g, lm_wire *w, lm_status *s) {
  answered now = STRANGE;
  double begin = lm_now();
  bool open = true;
  while (open && now != OVER && lm_now() < g->until + (now == SEATED ? REPORT_S : 0)) {
    struct pollfd p = {
        .fd = w->fd,
        .events = POLLIN,
    };
    poll(&p, 1, POLL_MS);
    open = lm_wire_receive(w) && lm_wire_flush(w);
    now = frames_take(g, w, now, s);
    if (now == STRANGE && lm_now() - begin > ANSWER_S)
      return STRANGE;
  }
  if (now != SEATED)
    return now;
  *s = lm_fail(LM_ENV, "rank 0 %s before all ranks had joined", open ? "was stopped" : "has ended");
  *g->reported = g->l->rank != 1;
  return OVER;
}

static bool rank0_ask(const guest *g, const char *host, int port, lm_status *s) {
  int fd = lm_socket_connect(host, port);
  lm_wire w;
  if (fd < 0)
    return false;
  lm_wire_open(&w, fd, sizeof *g->all * (size_t)g->l->size + HELLO_BYTES);
  lm_wire_send(&w, LM_FRAME_HELLO, 0, &g->hello, sizeof g->hello, NULL, 0);
  answered a = rank0_await(g, &w, s);
  lm_wire_close(&w);
  return a == OVER;
}

// The addresses of a name. Those of localhost need no /etc/hosts, which some containers lack.
static int addresses_find(const char *name, struct addrinfo **out) {
  const struct addrinfo want = {
      .ai_family = AF_UNSPEC,
      .ai_socktype = SOCK_STREAM,
  };
  bool own = !strcasecmp(name, "localhost");
  return own ? getaddrinfo(NULL, "0", &want, out) : getaddrinfo(name, NULL, &want, out);
}

// One attempt at each address of the name and each port.
static bool addresses_ask(const guest *g, const char **why, lm_status *s) {
  struct addrinfo *list = NULL;
  int error = addresses_find(g->l->address, &list);
  bool over = false;
  *why = error ? gai_strerror(error) : "nothing of this run listens there";
  if (error)
    return false;
  for (const struct addrinfo *i = list; i && !over; i = i->ai_next)
    for (int k = 0; k < g->l->ports && !over; k++) {
      char host[NI_MAXHOST];
      if (getnameinfo(i->ai_addr, i->ai_addrlen, host, sizeof host, NULL, 0, NI_NUMERICHOST))
        continue;
      over = rank0_ask(g, host, g->l->port + k, s);
    }
  freeaddrinfo(list);
  return over;
}

static lm_status other_meet(const guest *g) {
  const char *why = "";
  while (lm_now() < g->until) {
    lm_status s = NULL;
    if (addresses_ask(g, &why, &s))
      return s;
    poll(NULL, 0, 5 * POLL_MS);
  }
  return lm_fail(LM_ENV,
                 "rank %d did not find rank 0 at %s, port %d, within %g s "
                 "(LMC_COMM_START): %s. Was rank 0 started, on the machine that MASTER_ADDR names?",
                 g->l->rank, g->l->address, g->l->port, g->seconds, why);
}

lm_status lm_rendezvous(const lm_launch *l, double seconds, const lm_address *own, lm_address *all,
                        bool *reported) {
  *reported = false;
  if (!l->rank)
    return first_meet(l, seconds, own, all);
  guest g = {l, hello_of(l, own), seconds, lm_now() + seconds, all, reported};
  return other_meet(&g);
}
