// control.c - see control.h: the thread, failures, and values of the host.
#include "runtime/comm/control.h"

#include <errno.h>
#include <linux/sockios.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/ioctl.h>
#include <time.h>
#include <unistd.h>

#include "runtime/comm/control_state.h"

enum {
  BEATS_OF_SILENCE = 10
};
#define REPORTED 0.8   // of the silence: others report a process that was stopped for as long
#define HEAD_START 0.2 // of the silence: how long rank 0 may report a failure that it has too
#define LATER 1.5      // times the grace: when other ranks end, since mpirun then ends rank 0

// ---- limits

static double seconds_of(const char *name, double normal) {
  const char *text = getenv(name);
  double x = text ? strtod(text, NULL) : normal;
  return x > 0 && x < 1e9 ? x : normal;
}

lm_control_limits lm_control_limits_of_environment(double start) {
  lm_control_limits l = {.start = seconds_of("LMC_COMM_START", start),
                         .silence = seconds_of("LMC_COMM_SILENCE", 10),
                         .stuck = seconds_of("LMC_COMM_STUCK", 20),
                         .connect = seconds_of("LMC_COMM_CONNECT", 120)};
  l.grace = l.silence;
  return l;
}

// ---- failures; with the lock held

void lm_control_wake(lm_control *c) {
  uint64_t one = 1;
  ssize_t n = write(c->wake, &one, sizeof one);
  (void)n; // if it is full, the thread is awake
}

void lm_control_failed(lm_control *c, lm_kind kind, const char *text) {
  if (c->failed)
    return;
  int32_t k = (int32_t)kind;
  c->kind = kind;
  c->why = lm_strdup(text);
  c->failed_at = lm_now();
  atomic_store(&c->failed, true);
  for (int i = 0; i < c->n_peers; i++)
    lm_wire_send(&c->peers[i].wire, LM_FRAME_FAIL, c->seq, &k, sizeof k, text, strlen(text));
  pthread_cond_broadcast(&c->changed);
  lm_control_wake(c);
}

static int rank_of(const lm_control *c, const lm_peer *p) {
  return lm_control_is_first(c) ? (int)(p - c->peers) : 0;
}

// "in X" or "behind X": where a rank was when it last reported.
static const char *where_text(const lm_beat *b) {
  return !*b->label ? "at the start" : b->waits ? "in" : "behind";
}

// "rank 3 (host b, process 17) WHAT. It was in X; rank 0 is in Y"
static void peer_lost(lm_control *c, lm_peer *p, const char *what) {
  int rank = rank_of(c, p);
  const lm_control_member *m = &c->members[rank];
  lm_buf b = {0};
  if (c->failed) {
    lm_wire_close(&p->wire);
    return;
  }
  lm_buf_printf(&b, "rank %d (host %s, process %d) %s. It was %s%s%s; rank %d is %s%s%s", rank,
                m->host, m->pid, what, where_text(&p->beat), *p->beat.label ? " " : "",
                p->beat.label, c->rank, where_text(&c->own), *c->own.label ? " " : "",
                c->own.label);
  c->lost_first |= rank == 0;
  lm_wire_close(&p->wire);
  lm_control_failed(c, LM_ENV, b.p);
  lm_buf_free(&b);
}

// A machine that is silent acknowledges none of the beats sent to it, while the kernel of a stopped
// process does, if perhaps not yet the last one. Without a link, beats are not even sent.
static bool machine_answers(const lm_peer *p, double silent_s) {
  struct tcp_info t = {0};
  socklen_t n = sizeof t;
  int unacknowledged = 0;
  if (getsockopt(p->wire.fd, IPPROTO_TCP, TCP_INFO, &t, &n) ||
      ioctl(p->wire.fd, SIOCOUTQ, &unacknowledged))
    return true;
  return !unacknowledged || 1e-3 * t.tcpi_last_ack_recv < silent_s / 2;
}

static void peer_silent(lm_control *c, lm_peer *p, double seconds) {
  char text[160];
  snprintf(text, sizeof text, "has been silent for %.3g s: %s", seconds,
           machine_answers(p, seconds) ? "its process is stopped, or gets no processor time"
                                       : "its machine does not answer");
  peer_lost(c, p, text);
}

static void peer_closed(lm_control *c, lm_peer *p) {
  if (c->ended || c->closing) {
    lm_wire_close(&p->wire);
    return;
  }
  peer_lost(c, p, "has closed its connection: its process has ended");
}

// ---- values that rank 0 gathers; with the lock held

static void result_add(lm_control *c, uint64_t seq, const char *label, const void *values,
                       size_t n) {
  lm_result *r = lm_alloc(sizeof *r);
  lm_result **at = &c->results;
  r->seq = seq;
  lm_label_copy(r->label, label);
  if (n)
    lm_buf_add(&r->values, values, n);
  while (*at)
    at = &(*at)->next;
  *at = r;
  c->own.progress++;
  pthread_cond_broadcast(&c->changed);
}

void lm_control_result_send(lm_control *c, uint64_t seq, const char *label, const lm_buf *values) {
  char text[LM_CONTROL_LABEL] = {0};
  lm_label_copy(text, label);
  c->ended |= !strcmp(text, LM_CONTROL_END);
  for (int r = 1; r < c->size; r++)
    lm_wire_send(&c->peers[r].wire, LM_FRAME_RESULT, seq, text, sizeof text, values->p, values->n);
}

static void mismatch_report(lm_control *c, const lm_peer *a, const lm_peer *b) {
  lm_buf text = {0};
  lm_buf_printf(&text, "rank %d is in '%s' with %zu bytes while rank %d is in '%s' with %zu",
                rank_of(c, a), a->label, a->given.n, rank_of(c, b), b->label, b->given.n);
  lm_control_failed(c, LM_BUG_STATUS, text.p);
  lm_buf_free(&text);
}

// Sends the values once every rank has given its own.
static void gather_finish(lm_control *c) {
  lm_buf all = {0};
  for (int r = 0; r < c->size; r++)
    if (!c->peers[r].gave)
      return;
  for (int r = 0; r < c->size; r++) {
    const lm_peer *p = &c->peers[r];
    const lm_peer *first = &c->peers[0];
    if (p->seq != first->seq || strcmp(p->label, first->label) || p->given.n != first->given.n) {
      mismatch_report(c, p, first);
      lm_buf_free(&all);
      return;
    }
    lm_buf_add(&all, p->given.p, p->given.n);
  }
  for (int r = 0; r < c->size; r++) {
    c->peers[r].gave = false;
    lm_buf_free(&c->peers[r].given);
  }
  lm_control_result_send(c, c->peers[0].seq, c->peers[0].label, &all);
  result_add(c, c->peers[0].seq, c->peers[0].label, all.p, all.n);
  lm_buf_free(&all);
}

static void value_give(lm_peer *p, uint64_t seq, const char *label, const void *value, size_t n) {
  lm_buf_free(&p->given);
  lm_buf_add(&p->given, value, n);
  p->gave = true;
  p->seq = seq;
  lm_label_copy(p->label, label);
}

void lm_control_give(lm_control *c, const char *label, const void *own, size_t bytes) {
  value_give(&c->peers[0], c->seq, label, own, bytes);
  gather_finish(c);
}

// ---- frames; with the lock held

static bool label_take(const lm_frame *f, char *out) {
  if (f->head.bytes < LM_CONTROL_LABEL)
    return false;
  memcpy(out, f->data, LM_CONTROL_LABEL);
  out[LM_CONTROL_LABEL - 1] = 0;
  return true;
}

static bool fail_take(lm_control *c, const lm_frame *f, int rank) {
  int32_t kind;
  lm_buf text = {0};
  if (f->head.bytes < sizeof kind)
    return false;
  memcpy(&kind, f->data, sizeof kind);
  if (lm_control_is_first(c))
    lm_buf_printf(&text, "rank %d (host %s) failed: ", rank, c->members[rank].host);
  lm_buf_add(&text, f->data + sizeof kind, f->head.bytes - sizeof kind);
  lm_control_failed(c, kind == LM_USER || kind == LM_BUG_STATUS ? (lm_kind)kind : LM_ENV, text.p);
  lm_buf_free(&text);
  return true;
}

// False if the frame is not what a rank sends.
static bool frame_take(lm_control *c, lm_peer *p, const lm_frame *f) {
  char label[LM_CONTROL_LABEL];
  switch (f->head.type) {
  case LM_FRAME_BEAT:
    if (f->head.bytes != sizeof p->beat)
      return false;
    memcpy(&p->beat, f->data, sizeof p->beat);
    p->beat.label[sizeof p->beat.label - 1] = 0;
    return true;
  case LM_FRAME_GATHER:
    if (!label_take(f, label) || !lm_control_is_first(c))
      return false;
    value_give(p, f->head.seq, label, f->data + LM_CONTROL_LABEL, f->head.bytes - LM_CONTROL_LABEL);
    lm_label_copy(p->beat.label, label);
    p->beat.waits = true;
    gather_finish(c);
    return true;
  case LM_FRAME_RESULT:
    if (!label_take(f, label) || lm_control_is_first(c))
      return false;
    c->ended |= !strcmp(label, LM_CONTROL_END);
    result_add(c, f->head.seq, label, f->data + LM_CONTROL_LABEL, f->head.bytes - LM_CONTROL_LABEL);
    return true;
  case LM_FRAME_FAIL: return fail_take(c, f, rank_of(c, p));
  default: return false;
  }
}

static void peer_read(lm_control *c, lm_peer *p) {
  lm_frame f;
  bool bad;
  bool open = lm_wire_receive(&p->wire) && lm_wire_flush(&p->wire);
  p->heard = lm_now();
  while (p->wire.fd >= 0 && lm_wire_next(&p->wire, &f, &bad))
    if (!frame_take(c, p, &f)) {
      peer_lost(c, p, "has sent bytes that are no frame of the control channel");
      return;
    }
  if (!open && p->wire.fd >= 0)
    peer_closed(c, p);
}

// ---- the thread

static void beats_send(lm_control *c) {
  for (int i = 0; i < c->n_peers; i++)
    lm_wire_send(&c->peers[i].wire, LM_FRAME_BEAT, c->seq, &c->own, sizeof c->own, NULL, 0);
}

static void silence_check(lm_control *c, double now) {
  for (int i = 0; i < c->n_peers && !c->failed && !c->ended; i++)
    if (c->peers[i].wire.fd >= 0 && now - c->peers[i].heard > c->limits.silence)
      peer_silent(c, &c->peers[i], now - c->peers[i].heard);
}

static void stuck_report(lm_control *c) {
  lm_buf b = {0};
  lm_buf_printf(&b, "all ranks have waited for each other for %.3g s: rank 0 (host %s) in '%s'",
                lm_now() - c->moved, c->members[0].host, c->own.label);
  for (int r = 1; r < c->size; r++)
    lm_buf_printf(&b, ", rank %d (host %s) in '%s'", r, c->members[r].host, c->peers[r].beat.label);
  lm_control_failed(c, LM_ENV, b.p);
  lm_buf_free(&b);
}

// Ranks that compute may take as long as they need; if all wait, one of them has to progress.
static void stuck_check(lm_control *c, double now) {
  uint64_t progress = c->own.progress;
  double limit = c->own.limit > c->limits.stuck ? c->own.limit : c->limits.stuck;
  bool all = c->own.waits;
  for (int r = 1; r < c->size; r++) {
    const lm_beat *b = &c->peers[r].beat;
    progress += b->progress;
    all &= b->waits != 0;
    limit = b->limit > limit ? b->limit : limit;
  }
  if (!all || !c->all_wait || progress != c->progress)
    c->moved = now;
  c->all_wait = all;
  c->progress = progress;
  if (now - c->moved > limit && !c->ended)
    stuck_report(c);
}

// This process was stopped or suspended for some time, perhaps with all others: their silence means
// nothing. If only this one was stopped, they have reported it.
static void forgive(lm_control *c, double now, double stopped) {
  c->moved = now;
  if (stopped > REPORTED * c->limits.silence)
    c->woke = now;
  for (int i = 0; i < c->n_peers; i++)
    c->peers[i].heard = now;
}

// The caller has not noticed the failure: it computes. Does not return.
static void process_end(lm_control *c) {
  lm_kind kind = c->kind;
  lm_buf text = {0};
  bool speaks = lm_control_speaks(c);
  lm_buf_puts(&text, c->why);
  pthread_mutex_unlock(&c->lock);
  c->o.end(c->o.user, kind, text.p, speaks);
  abort();
}

static int polled(const lm_control *c, struct pollfd *fds) {
  int n = 0;
  fds[n++] = (struct pollfd){
      .fd = c->wake,
      .events = POLLIN,
  };
  for (int i = 0; i < c->n_peers; i++)
    fds[n++] = (struct pollfd){.fd = c->peers[i].wire.fd,
                               .events = (short)(POLLIN | (c->peers[i].wire.out.n ? POLLOUT : 0))};
  return n;
}

static void events_take(lm_control *c, const struct pollfd *fds) {
  uint64_t count;
  if (fds[0].revents) {
    ssize_t n = read(c->wake, &count, sizeof count);
    (void)n;
  }
  for (int i = 0; i < c->n_peers; i++)
    if (fds[i + 1].revents && c->peers[i].wire.fd == fds[i + 1].fd && fds[i + 1].fd >= 0)
      peer_read(c, &c->peers[i]);
}

// How long after a failure this process may compute. Rank 0, which reports it, ends first.
static double grace_of(const lm_control *c) {
  bool reports = lm_control_is_first(c) || c->lost_first;
  return c->limits.grace * (reports ? 1 : LATER);
}

// One visit of the thread, after the ranks have joined. `beaten`: when the last beat was sent.
static void visit(lm_control *c, struct pollfd *fds, double *visited, double *beaten) {
  double every = c->limits.silence / BEATS_OF_SILENCE;
  int n = polled(c, fds);
  pthread_mutex_unlock(&c->lock);
  poll(fds, (nfds_t)n, (int)(every * 500) + 1);
  pthread_mutex_lock(&c->lock);
  double now = lm_now();
  if (now - *visited > c->limits.silence / 2)
    forgive(c, now, now - *visited);
  *visited = now;
  events_take(c, fds);
  if (now - *beaten >= every) {
    beats_send(c);
    *beaten = now;
  }
  silence_check(c, now);
  if (lm_control_is_first(c) && !c->failed)
    stuck_check(c, now);
  if (c->failed && !c->closing && now - c->failed_at > grace_of(c))
    process_end(c);
}

static void *watch(void *user) {
  lm_control *c = user;
  pthread_mutex_lock(&c->lock);
  lm_control_engine_watch(c);
  struct pollfd *fds = lm_calloc((size_t)c->n_peers + 1, sizeof *fds);
  double visited = lm_now(), beaten = 0;
  while (!c->closing && !c->leaving)
    visit(c, fds, &visited, &beaten);
  lm_free(fds);
  lm_control_engine_watch(c);
  pthread_mutex_unlock(&c->lock);
  return NULL;
}

// ---- opening and closing

lm_control *lm_control_create(const lm_comm_options *o, lm_control_limits limits, int rank,
                              const char *siblings) {
  lm_control *c = lm_alloc(sizeof *c);
  sigset_t all, old;
  *c = (lm_control){
      .o = *o,
      .limits = limits,
      .rank = rank,
      .siblings = siblings,
      .launcher = getppid(),
      .listener = -1,
      .begun = lm_now(),
  };
  c->wake = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  pthread_mutex_init(&c->lock, NULL);
  pthread_cond_init(&c->changed, NULL);
  sigfillset(&all); // signals are for the caller's thread
  pthread_sigmask(SIG_SETMASK, &all, &old);
  c->has_thread = !pthread_create(&c->thread, NULL, watch, c);
  pthread_sigmask(SIG_SETMASK, &old, NULL);
  return c;
}

static void control_free(lm_control *c) {
  for (int i = 0; i < c->n_peers; i++) {
    lm_wire_close(&c->peers[i].wire);
    lm_buf_free(&c->peers[i].given);
  }
  while (c->results) {
    lm_result *next = c->results->next;
    lm_buf_free(&c->results->values);
    lm_free(c->results);
    c->results = next;
  }
  if (c->listener >= 0)
    close(c->listener);
  if (c->wake >= 0)
    close(c->wake);
  pthread_cond_destroy(&c->changed);
  pthread_mutex_destroy(&c->lock);
  lm_free(c->peers);
  lm_free(c->members);
  lm_free(c->why);
  lm_free(c);
}

// Waits until the run has failed, or for some seconds.
static void failure_await(lm_control *c, double seconds) {
  double end = lm_now() + seconds;
  while (!atomic_load(&c->failed) && lm_now() < end)
    poll(NULL, 0, 5);
}

static bool all_sent(const lm_control *c) {
  for (int i = 0; i < c->n_peers; i++)
    if (c->peers[i].wire.fd >= 0 && c->peers[i].wire.out.n)
      return false;
  return true;
}

// Gives the thread time to send all frames.
static void sends_await(lm_control *c) {
  double end = lm_now() + c->limits.grace / 2;
  bool sent = false;
  while (!sent && lm_now() < end) {
    pthread_mutex_lock(&c->lock);
    for (int i = 0; i < c->n_peers; i++)
      lm_wire_flush(&c->peers[i].wire);
    sent = all_sent(c);
    pthread_mutex_unlock(&c->lock);
    if (!sent)
      poll(NULL, 0, 5);
  }
}

static bool first_left(lm_control *c) {
  pthread_mutex_lock(&c->lock);
  bool left = c->peers[0].wire.fd < 0;
  pthread_mutex_unlock(&c->lock);
  return left;
}

// Waits until rank 0, which reports the failure, has ended. mpirun ends all processes as soon as
// one has failed, and a process that is not in training does not outlive its signal.
static void report_await(lm_control *c) {
  double end = lm_now() + LATER * c->limits.grace;
  while (!first_left(c) && lm_now() < end)
    poll(NULL, 0, 5);
}

// Rank 0 answers a failure with the same failure, which shows that it will be reported.
static void failure_report(lm_control *c, lm_status why) {
  if (!lm_control_is_first(c))
    failure_await(c, HEAD_START * c->limits.silence);
  pthread_mutex_lock(&c->lock);
  lm_peer *p = &c->peers[0];
  int32_t kind = (int32_t)why->kind;
  bool reported = c->failed;
  if (lm_control_is_first(c))
    lm_control_failed(c, why->kind, why->text);
  else if (!reported)
    lm_wire_send(&p->wire, LM_FRAME_FAIL, c->seq, &kind, sizeof kind, why->text, strlen(why->text));
  pthread_mutex_unlock(&c->lock);
  if (!lm_control_is_first(c) && !reported)
    failure_await(c, c->limits.grace);
  if (!lm_control_is_first(c) && atomic_load(&c->failed))
    report_await(c);
}

void lm_control_leave(lm_control *c) {
  sends_await(c);
  pthread_mutex_lock(&c->lock);
  c->leaving = true;
  lm_control_wake(c);
  pthread_mutex_unlock(&c->lock);
}

void lm_control_close(lm_control *c, lm_status failed) {
  if (c->joined && failed)
    failure_report(c, failed);
  if (c->joined)
    sends_await(c);
  pthread_mutex_lock(&c->lock);
  c->closing = true;
  pthread_cond_broadcast(&c->changed);
  lm_control_wake(c);
  pthread_mutex_unlock(&c->lock);
  if (c->has_thread)
    pthread_join(c->thread, NULL);
  control_free(c);
}

const lm_control_member *lm_control_members(const lm_control *c) {
  return c->members;
}

// Without rank 0, the first rank that is left on each machine reports: on rank 0's machine the
// second. A rank that was stopped finds that the others have failed because of it.
bool lm_control_speaks(lm_control *c) {
  const lm_control_member *m = c->members;
  if (c->woke > 0 && c->failed && c->failed_at - c->woke < c->limits.silence)
    return false;
  if (lm_control_is_first(c) || !c->lost_first)
    return lm_control_is_first(c);
  bool with_first = !strcmp(m[c->rank].host, m[0].host);
  return m[c->rank].local_rank == with_first;
}
