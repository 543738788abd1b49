// tcp.c - see tcp.h.
//
// A message is a head and its bytes. What arrives is stored where a receive of that lane and tag
// wants it, or, if none has been started, kept until one is. Only connections of which a receive
// waits are read, so a rank that is ahead of this one stops when the system's buffers are full.
#include "runtime/comm/tcp.h"

#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "runtime/comm/rendezvous.h"
#include "runtime/comm/tcp_connect.h"

enum {
  REQUESTS = 128,     // collectives that may be under way at a time
  WORLD = 0,          // the lane of all ranks
  VISIT_MAX = 4 << 20 // bytes that one visit reads of a connection
};
#define START_S 30.0 // for the values that `share` and `split` exchange
#define LOST_S 3.0   // in which the control channel reports a rank that has ended, with its name

typedef struct head {
  uint32_t lane, tag;
  uint64_t bytes;
} head;

typedef struct sending {
  struct sending *next;
  int request;
  head head;
  const uint8_t *data;
  size_t sent; // of the head and the data
} sending;

typedef struct receiving {
  struct receiving *next;
  int request;
  head head; // of the expected message
  uint8_t *data;
} receiving;

// The other end of a connection.
typedef struct peer {
  int fd;
  double closed;       // when the connection was found to be closed; 0: it is open
  sending *sends;      // in their order
  receiving *receives; // started ones whose message has not begun to arrive
  receiving *early;    // complete messages that no receive has been started for, in their memory
  head head;           // of the message that arrives
  size_t head_got, got;
  receiving *now; // where its bytes go; NULL: the head is not complete
  bool now_early; // no receive has been started for it
} peer;

typedef struct lane {
  int *members; // ranks; [n]
  int n;
} lane;

typedef struct engine {
  int rank, size;
  peer *peers; // [size]
  lane lanes[LM_ENGINE_LANES];
  int n_lanes;
  struct {
    bool used;
    int left;
  } requests[REQUESTS];
} engine;

static bool refused(char *error, const char *text) {
  snprintf(error, LM_ENGINE_TEXT, "%s", text);
  return false;
}

// ---- lists

static void receiving_append(receiving **list, receiving *x) {
  while (*list)
    list = &(*list)->next;
  x->next = NULL;
  *list = x;
}

// Takes the first one of that lane and tag out of the list; NULL.
static receiving *receiving_take(receiving **list, const head *h) {
  while (*list && ((*list)->head.lane != h->lane || (*list)->head.tag != h->tag))
    list = &(*list)->next;
  receiving *x = *list;
  if (x)
    *list = x->next;
  return x;
}

// ---- sending

static bool is_later(int error) {
  return error == EAGAIN || error == EWOULDBLOCK || error == EINTR;
}

static void peer_close(peer *p) {
  if (!p->closed)
    p->closed = lm_now();
}

static ssize_t piece_send(const peer *p, const sending *x) {
  size_t h = x->sent < sizeof x->head ? sizeof x->head - x->sent : 0;
  size_t at = h ? 0 : x->sent - sizeof x->head;
  struct iovec v[2] = {{(char *)&x->head + sizeof x->head - h, h},
                       {(void *)(x->data + at), x->head.bytes - at}};
  struct msghdr m = {
      .msg_iov = v,
      .msg_iovlen = 2,
  };
  return sendmsg(p->fd, &m, MSG_NOSIGNAL);
}

static void sends_visit(engine *e, peer *p) {
  while (p->sends && !p->closed) {
    sending *x = p->sends;
    ssize_t n = piece_send(p, x);
    if (n < 0 && !is_later(errno))
      peer_close(p);
    if (n < 0)
      return;
    x->sent += (size_t)n;
    if (x->sent < sizeof x->head + x->head.bytes)
      continue;
    e->requests[x->request].left--;
    p->sends = x->next;
    lm_free(x);
  }
}

static void send_start(engine *e, int to, const head *h, const void *data, int request) {
  sending *x = lm_alloc(sizeof *x), **at = &e->peers[to].sends;
  *x = (sending){
      .request = request,
      .head = *h,
      .data = data,
  };
  while (*at)
    at = &(*at)->next;
  *at = x;
  sends_visit(e, &e->peers[to]);
}

// ---- receiving

static bool bytes_check(const engine *e, const peer *p, const head *is, const head *want,
                        char *error) {
  if (is->bytes == want->bytes)
    return true;
  snprintf(error, LM_ENGINE_TEXT, "rank %d sent %llu bytes for %llu: it is at another step",
           (int)(p - e->peers), (unsigned long long)is->bytes, (unsigned long long)want->bytes);
  return false;
}

static receiving *early_make(const head *h) {
  receiving *x = lm_alloc(sizeof *x);
  *x = (receiving){
      .request = -1,
      .head = *h,
      .data = lm_alloc(h->bytes),
  };
  return x;
}

static void early_free(receiving *x) {
  lm_free(x->data);
  lm_free(x);
}

static bool head_take(engine *e, peer *p, char *error) {
  const head *h = &p->head;
  p->got = 0;
  if (h->lane >= LM_ENGINE_LANES || !h->bytes || h->bytes > SIZE_MAX / 2)
    return refused(error, "bytes that are no message have arrived");
  p->now = receiving_take(&p->receives, h);
  p->now_early = !p->now;
  if (p->now_early)
    p->now = early_make(h);
  return p->now_early || bytes_check(e, p, h, &p->now->head, error);
}

static void message_finish(engine *e, peer *p) {
  if (p->now_early) {
    receiving_append(&p->early, p->now);
  } else {
    e->requests[p->now->request].left--;
    lm_free(p->now);
  }
  p->now = NULL;
  p->head_got = 0;
}

// Reads what the connection has of the head or of the bytes of one message; 0: nothing.
static size_t piece_receive(peer *p) {
  bool in_head = !p->now;
  char *to = in_head ? (char *)&p->head + p->head_got : (char *)p->now->data + p->got;
  size_t most = in_head ? sizeof p->head - p->head_got : p->head.bytes - p->got;
  ssize_t n = recv(p->fd, to, most, 0);
  if (n == 0 || (n < 0 && !is_later(errno)))
    peer_close(p);
  if (n <= 0)
    return 0;
  *(in_head ? &p->head_got : &p->got) += (size_t)n;
  return (size_t)n;
}

static bool receives_visit(engine *e, peer *p, char *error) {
  size_t all = 0, n;
  while (!p->closed && (p->receives || (p->now && !p->now_early)) && all < VISIT_MAX &&
         (n = piece_receive(p))) {
    all += n;
    if (!p->now && p->head_got == sizeof p->head && !head_take(e, p, error))
      return false;
    if (p->now && p->got == p->head.bytes)
      message_finish(e, p);
  }
  return true;
}

// The message that arrives, or is there, for a receive that is started now.
static bool early_use(engine *e, peer *p, receiving *x, bool *used, char *error) {
  receiving *early = receiving_take(&p->early, &x->head);
  bool arrives = !early && p->now && p->now_early && p->now->head.lane == x->head.lane &&
                 p->now->head.tag == x->head.tag;
  early = arrives ? p->now : early;
  *used = early != NULL;
  if (!early)
    return true;
  if (!bytes_check(e, p, &early->head, &x->head, error)) {
    if (!arrives)
      early_free(early);
    return false;
  }
  memcpy(x->data, early->data, arrives ? p->got : early->head.bytes);
  early_free(early);
  if (arrives) {
    p->now = x;
    p->now_early = false;
  } else {
    e->requests[x->request].left--;
    lm_free(x);
  }
  return true;
}

static bool receive_start(engine *e, int from, const head *h, void *data, int request,
                          char *error) {
  peer *p = &e->peers[from];
  receiving *x = lm_alloc(sizeof *x);
  *x = (receiving){
      .request = request,
      .head = *h,
      .data = data,
  };
  bool used = false;
  if (!early_use(e, p, x, &used, error)) {
    lm_free(x);
    return false;
  }
  if (!used)
    receiving_append(&p->receives, x);
  return true;
}

// ---- requests

static bool tcp_start(void *user, int lane_index, int tag, const lm_message *m, int n, int *out,
                      char *error) {
  engine *e = user;
  const lane *l = &e->lanes[lane_index];
  int slot = 0;
  while (slot < REQUESTS && e->requests[slot].used)
    slot++;
  if (slot == REQUESTS)
    return refused(error, "too many collectives are under way");
  e->requests[slot].used = true;
  e->requests[slot].left = n;
  for (int sends = 0; sends < 2; sends++)
    for (int i = 0; i < n; i++) {
      head h = {(uint32_t)lane_index, (uint32_t)tag, m[i].bytes};
      int other = l->members[m[i].peer];
      if (m[i].sends != sends)
        continue;
      if (sends)
        send_start(e, other, &h, m[i].data, slot);
      else if (!receive_start(e, other, &h, m[i].data, slot, error))
        return false;
    }
  *out = slot;
  return true;
}

static bool tcp_test(void *user, int slot, int *left, char *error) {
  engine *e = user;
  for (int r = 0; r < e->size; r++) {
    peer *p = &e->peers[r];
    sends_visit(e, p);
    if (!receives_visit(e, p, error))
      return false;
    if (p->closed && lm_now() - p->closed > LOST_S && (p->sends || p->receives || p->now)) {
      snprintf(error, LM_ENGINE_TEXT, "the connection to rank %d is closed", r);
      return false;
    }
  }
  *left = e->requests[slot].left;
  if (!*left)
    e->requests[slot].used = false;
  return true;
}

static bool request_wait(engine *e, int slot, char *error) {
  double until = lm_now() + START_S;
  int left = 1;
  for (int times = 0; left && lm_now() < until; times++) {
    if (!tcp_test(e, slot, &left, error))
      return false;
    if (left)
      lm_pause(times);
  }
  return !left || refused(error, "a rank does not answer");
}

// ---- values of the start

// Sends `own` to, and receives into all[rank * bytes] from, every rank for which it is asked.
static bool values_exchange(engine *e, bool sends, bool receives, void *own, size_t bytes,
                            void *all, char *error) {
  lm_message *m = lm_calloc(2 * (size_t)e->size, sizeof *m);
  int n = 0, slot;
  for (int r = 0; r < e->size; r++) {
    uint8_t *to = (uint8_t *)all + (receives && sends ? bytes * (size_t)r : 0);
    if (r != e->rank && receives && (sends || r == 0))
      m[n++] = (lm_message){r, false, to, bytes};
    if (r != e->rank && sends)
      m[n++] = (lm_message){r, true, own, bytes};
  }
  bool good = tcp_start(e, WORLD, 0, m, n, &slot, error) && request_wait(e, slot, error);
  lm_free(m);
  return good;
}

static bool tcp_share(void *user, void *data, size_t bytes, char *error) {
  engine *e = user;
  return values_exchange(e, !e->rank, e->rank, data, bytes, data, error);
}

static void lane_add(engine *e, const int *colors, int color) {
  lane *l = &e->lanes[e->n_lanes++];
  l->members = lm_calloc((size_t)e->size, sizeof *l->members);
  for (int r = 0; r < e->size; r++)
    if (colors[r] == color)
      l->members[l->n++] = r;
}

static bool tcp_split(void *user, int color, int *out, char *error) {
  engine *e = user;
  if (e->n_lanes == LM_ENGINE_LANES)
    return refused(error, "there are too many groups of ranks");
  int *colors = lm_calloc((size_t)e->size, sizeof *colors);
  colors[e->rank] = color;
  bool good = values_exchange(e, true, true, &color, sizeof color, colors, error);
  if (good) {
    *out = e->n_lanes;
    lane_add(e, colors, color);
  }
  lm_free(colors);
  return good;
}

// ---- opening and closing

static void list_free(receiving *x, bool early) {
  while (x) {
    receiving *next = x->next;
    if (early)
      lm_free(x->data);
    lm_free(x);
    x = next;
  }
}

static void peer_free(peer *p) {
  if (p->fd >= 0)
    close(p->fd);
  while (p->sends) {
    sending *next = p->sends->next;
    lm_free(p->sends);
    p->sends = next;
  }
  list_free(p->receives, false);
  list_free(p->early, true);
  list_free(p->now, p->now_early);
}

static void tcp_close(void *user) {
  engine *e = user;
  for (int r = 0; r < e->size; r++)
    peer_free(&e->peers[r]);
  for (int i = 0; i < e->n_lanes; i++)
    lm_free(e->lanes[i].members);
  lm_free(e->peers);
  lm_free(e);
}

static engine *engine_make(const lm_launch *l, const int *fds) {
  engine *e = lm_alloc(sizeof *e);
  int *world = lm_calloc((size_t)l->size, sizeof *world);
  *e = (engine){
      .rank = l->rank,
      .size = l->size,
  };
  e->peers = lm_calloc((size_t)l->size, sizeof *e->peers);
  for (int r = 0; r < l->size; r++)
    e->peers[r].fd = fds[r];
  lane_add(e, world, 0);
  lm_free(world);
  return e;
}

lm_status lm_tcp_open(const lm_launch *l, double seconds, void **out, bool *reported) {
  double until = lm_now() + seconds;
  int listener;
  lm_address own, *all = lm_calloc((size_t)l->size, sizeof *all);
  int *fds = lm_calloc((size_t)l->size, sizeof *fds);
  *reported = false;
  for (int r = 0; r < l->size; r++)
    fds[r] = -1;
  lm_status s = lm_socket_listen(&own, &listener);
  if (!s)
    s = lm_rendezvous(l, seconds, &own, all, reported);
  if (!s)
    s = lm_tcp_connect(l->rank, l->size, all, listener, until, fds);
  if (listener >= 0)
    close(listener);
  if (!s)
    *out = engine_make(l, fds);
  for (int r = 0; s && r < l->size; r++)
    if (fds[r] >= 0)
      close(fds[r]);
  lm_free(fds);
  lm_free(all);
  return s;
}

const lm_engine_ops *lm_tcp_engine(void) {
  static const lm_engine_ops table = {
      .version = LM_ENGINE_VERSION,
      .name = "TCP",
      .share = tcp_share,
      .split = tcp_split,
      .start = tcp_start,
      .test = tcp_test,
      .close = tcp_close,
      .drop = tcp_close,
  };
  return &table;
}
