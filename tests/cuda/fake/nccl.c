// nccl.c - the fake NCCL: messages between processes through shared memory; see fake.h.
//
// An id names a file of shared memory with a mailbox for each pair of ranks, of one message part at
// a time. A group of calls is one operation of the fake driver's stream, which copies parts
// whenever the stream is waited for. The mailbox states the size of its message, so that a send and
// a receive that differ are reported. Communicators connect, and groups are launched, only after
// some polls, as in NCCL with blocking = 0.
//
// A sum is such messages too. The terms are added in the opposite order of the ranks, so that a sum
// of three or more has other bits than one that lmc makes.
//
// FAKE_NCCL in the environment, words separated by commas: version=N (ncclGetVersion),
// error=N (the N-th group of this process fails some time after it was queued), stall=N (it never
// ends), die=N (the process is killed when it runs), hang=C (ncclCommInitRankConfig does not
// return, C: call, or never finishes, C: join), unordered (it ignores NCCL_LAUNCH_ORDER_IMPLICIT),
// on=R (only on rank R of its communicator). A group
// that a graph has counts in each launch.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include "runtime/base/dtype.h"
#include "tests/cuda/fake/fake.h"

enum {
  SUCCESS = 0,
  SYSTEM_ERROR = 2,
  INVALID_ARGUMENT = 4,
  INVALID_USAGE = 5,
  REMOTE_ERROR = 6,
  IN_PROGRESS = 7,
  PART = 1 << 16, // bytes of a mailbox
  POLLS = 3,
  CALLS = 256,
  SUMS = 16
};

typedef struct mailbox {
  _Atomic size_t sent, taken; // bytes since the beginning
  size_t message, part;       // bytes of the message that the part belongs to, and of the part
  long graph;                 // of the sender's group
  char data[PART];
} mailbox;

typedef struct shared {
  _Atomic int joined;
  mailbox box[]; // from * ranks + to
} shared;

typedef struct comm {
  shared *s;
  size_t bytes;
  int rank, ranks, polls;
  int failed; // a result, reported by ncclCommGetAsyncError
  _Atomic bool aborted;
  int held;               // by graphs: groups
  long recording, graphs; // the last recording with a group, and the number of these
  uint64_t name;          // a hash of the id, which all ranks have
  struct comm *next;
} comm;
static comm *comms; // that are open

typedef struct id {
  char name[128];
} id;
typedef struct config {
  size_t size;
  unsigned magic, version;
  int blocking;
} config;

typedef struct call {
  unsigned long long at;
  size_t bytes, done;
  int peer;
  bool sends;
  int sum; // receives a term of sum - 1; 0: into device memory
  char *term;
} call;
typedef struct sum {
  unsigned long long from, to; // from: the own term
  size_t n, bytes;
  lm_dtype type;
  char *terms; // of all ranks, while the group runs
} sum;
typedef struct group {
  comm *c;
  int n;
  bool begun, stalls, dies;
  long graph; // the number of its graph among those with groups of c; 0: none
  call call[CALLS];
  sum sum[SUMS];
  int n_sums;
} group;

// Of the fake driver, which lmc has loaded with local visibility.
static struct {
  fake_memory_fn *memory;
  fake_copy_fn *copy;
  fake_enqueue_try_fn *enqueue;
  fake_recording_fn *recording;
  fake_records_fn *records;
  fake_order_exclusive_fn *exclusive;
} driver;

static group current;
static void *current_stream;
static int depth;

static void complain(const char *what) {
  fprintf(stderr, "fake NCCL: %s\n", what);
  _exit(99);
}

static long word(const char *key) {
  const char *text = getenv("FAKE_NCCL"), *at = text ? strstr(text, key) : NULL;
  while (at && at > text && at[-1] != ',')
    at = strstr(at + 1, key);
  return at ? atol(at + strlen(key)) : -1;
}

// ---- communicators

static bool driver_find(void) {
  void *library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD);
  if (!library)
    return false;
  *(void **)&driver.memory = dlsym(library, "fake_memory");
  *(void **)&driver.copy = dlsym(library, "fake_order_copy");
  *(void **)&driver.enqueue = dlsym(library, "fake_enqueue_try");
  *(void **)&driver.recording = dlsym(library, "fake_recording");
  *(void **)&driver.records = dlsym(library, "fake_records");
  *(void **)&driver.exclusive = dlsym(library, "fake_order_exclusive");
  return driver.memory && driver.copy && driver.enqueue && driver.records && driver.exclusive;
}

FAKE_API int ncclGetVersion(int *version) {
  long v = word("version=");
  *version = v > 0 ? (int)v : 23004;
  return SUCCESS;
}

// No other process has had the name: one that was killed while it connected leaves its memory
// behind, with ranks that have joined, and its number is given to another process later.
FAKE_API int ncclGetUniqueId(id *out) {
  struct timespec t;
  clock_gettime(CLOCK_REALTIME, &t);
  snprintf(out->name, sizeof out->name, "/lmc-fake-nccl-%d-%lld-%ld", (int)getpid(),
           (long long)t.tv_sec, t.tv_nsec);
  return SUCCESS;
}

// The first process makes the memory, which the system fills with zeros; the last one unlinks it.
FAKE_API int ncclCommInitRankConfig(void **out, int ranks, id name, int rank, config *o) {
  const char *how = getenv("FAKE_NCCL");
  bool hangs = how && strstr(how, "hang=") && (word("on=") < 0 || word("on=") == rank);
  while (hangs && strstr(how, "hang=call"))
    pause();
  if (!driver_find() || o->magic != 0xcafebeef || o->blocking || rank < 0 || rank >= ranks)
    return INVALID_ARGUMENT;
  comm *c = *out = calloc(1, sizeof *c);
  *c = (comm){.rank = rank, .ranks = ranks, .polls = POLLS};
  for (const char *at = name.name; *at; at++)
    c->name = 31 * c->name + (unsigned char)*at;
  c->bytes = sizeof(shared) + (size_t)(ranks * ranks) * sizeof(mailbox);
  int fd = shm_open(name.name, O_RDWR | O_CREAT, 0600);
  if (fd < 0 || ftruncate(fd, (off_t)c->bytes))
    return SYSTEM_ERROR;
  c->s = mmap(NULL, c->bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  close(fd);
  if (c->s == MAP_FAILED)
    return SYSTEM_ERROR;
  c->next = comms;
  comms = c;
  if (!hangs && atomic_fetch_add(&c->s->joined, 1) + 1 == ranks)
    shm_unlink(name.name);
  return IN_PROGRESS;
}

FAKE_API int ncclCommGetAsyncError(void *handle, int *out) {
  comm *c = handle;
  *out = c->failed                               ? c->failed
         : atomic_load(&c->s->joined) < c->ranks ? IN_PROGRESS
         : c->polls > 0                          ? (c->polls--, IN_PROGRESS)
                                                 : SUCCESS;
  return SUCCESS;
}

// NCCL waits until no graph has operations of the communicator.
static void held_check(const comm *c) {
  if (c->held)
    complain("a communicator is closed before the graphs with its operations are destroyed");
}

FAKE_API int ncclCommFinalize(void *handle) {
  comm *c = handle;
  held_check(c);
  c->polls = POLLS;
  return IN_PROGRESS;
}

static void comm_free(comm *c) {
  for (comm **at = &comms; *at; at = &(*at)->next)
    if (*at == c) {
      *at = c->next;
      break;
    }
  munmap(c->s, c->bytes);
  free(c);
}

FAKE_API int ncclCommDestroy(void *handle) {
  comm *c = handle;
  if (c->polls)
    complain("ncclCommDestroy before ncclCommFinalize is complete");
  comm_free(c);
  return SUCCESS;
}

static bool all_aborted(void) {
  for (const comm *c = comms; c; c = c->next)
    if (!atomic_load(&c->aborted))
      return false;
  return true;
}

// Operations that are queued still refer to it, and end without an effect. NCCL waits for them, and
// so for operations of other communicators in front of them on the GPU.
FAKE_API int ncclCommAbort(void *handle) {
  enum {
    PATIENCE = 3000 // milliseconds
  };
  comm *c = handle;
  held_check(c);
  atomic_store(&c->aborted, true);
  for (int i = 0; !all_aborted(); i++) {
    usleep(1000);
    if (i == PATIENCE)
      complain("ncclCommAbort waits for operations of a communicator that is not aborted");
  }
  return SUCCESS;
}

FAKE_API const char *ncclGetErrorString(int result) {
  return result == SYSTEM_ERROR       ? "unhandled system error"
         : result == INVALID_ARGUMENT ? "invalid argument"
         : result == INVALID_USAGE    ? "invalid usage"
         : result == REMOTE_ERROR     ? "remote process exited or there was a network error"
                                      : "no error";
}

FAKE_API const char *ncclGetLastError(void *handle) {
  return handle && ((comm *)handle)->failed ? "the fake was asked to fail" : "";
}

// ---- messages

static bool send_part(comm *c, call *x, long graph) {
  mailbox *m = &c->s->box[c->rank * c->ranks + x->peer];
  size_t sent = atomic_load(&m->sent);
  if (sent != atomic_load(&m->taken))
    return false;
  m->message = x->bytes;
  m->graph = graph;
  m->part = x->bytes - x->done < PART ? x->bytes - x->done : PART;
  memcpy(m->data, driver.memory(x->at, x->bytes, "a message to send") + x->done, m->part);
  x->done += m->part;
  atomic_store(&m->sent, sent + m->part);
  return true;
}

static bool receive_part(comm *c, call *x, long graph) {
  mailbox *m = &c->s->box[x->peer * c->ranks + c->rank];
  size_t taken = atomic_load(&m->taken);
  if (atomic_load(&m->sent) == taken)
    return false;
  if (m->message != x->bytes)
    complain("a receive of another size than the send");
  if (m->graph != graph)
    complain("a message that one rank alone has recorded, or in another graph");
  char *to = x->sum ? x->term : driver.memory(x->at, x->bytes, "a message to receive");
  memcpy(to + x->done, m->data, m->part);
  x->done += m->part;
  atomic_store(&m->taken, taken + m->part);
  return true;
}

// True if an earlier call of the group to the same rank is not complete: messages are in order.
static bool is_behind(const group *g, int i) {
  for (int k = 0; k < i; k++)
    if (g->call[k].peer == g->call[i].peer && g->call[k].sends == g->call[i].sends &&
        g->call[k].done < g->call[k].bytes)
      return true;
  return false;
}

// The word asks for the group of this number, on this rank.
static bool is_asked(const char *key, long number, const comm *c) {
  return number == word(key) && (word("on=") < 0 || word("on=") == c->rank);
}

static bool nccl_orders(void) {
  const char *implicit = getenv("NCCL_LAUNCH_ORDER_IMPLICIT");
  int version;
  ncclGetVersion(&version);
  const char *how = getenv("FAKE_NCCL");
  bool planted = how && strstr(how, "unordered");
  return version >= 22600 && implicit && !strcmp(implicit, "1") && !planted;
}

static size_t width(lm_dtype t) {
  return t == LM_F64 ? 8 : t == LM_F32 ? 4 : 2;
}

static double element(const char *p, size_t i, lm_dtype t) {
  uint32_t bits = 0; // little-endian: a 16-bit element is in the lower half
  double d = 0;
  memcpy(t == LM_F64 ? (void *)&d : &bits, p + i * width(t), width(t));
  return t == LM_F64 ? d : lm_dtype_value(t, bits);
}

static void element_set(char *p, size_t i, lm_dtype t, double v) {
  uint32_t bits = t == LM_F64 ? 0 : lm_dtype_bits(t, v);
  memcpy(p + i * width(t), t == LM_F64 ? (void *)&v : &bits, width(t));
}

static void sum_begin(group *g, sum *s) {
  s->terms = calloc((size_t)g->c->ranks, s->bytes);
  memcpy(s->terms + (size_t)g->c->rank * s->bytes, driver.memory(s->from, s->bytes, "a term"),
         s->bytes);
  driver.copy(driver.memory(s->to, s->bytes, "a sum"), NULL, s->bytes);
  for (int i = 0; i < g->n; i++)
    if (g->call[i].sum == 1 + (int)(s - g->sum))
      g->call[i].term = s->terms + (size_t)g->call[i].peer * s->bytes;
}

static void sum_end(const group *g, sum *s) {
  char *to = driver.memory(s->to, s->bytes, "a sum");
  for (size_t i = 0; i < s->n; i++) {
    double total = 0;
    for (int r = g->c->ranks - 1; r >= 0; r--) {
      double x = element(s->terms + (size_t)r * s->bytes, i, s->type);
      total = r == g->c->ranks - 1 ? x : total + x;
      total = s->type == LM_F64 ? total : lm_dtype_round(s->type, total);
    }
    element_set(to, i, s->type, total);
  }
  free(s->terms);
}

static void group_begin(group *g) {
  static long groups;
  groups++;
  g->begun = true;
  g->stalls = is_asked("stall=", groups, g->c);
  g->dies = is_asked("die=", groups, g->c);
  if (!nccl_orders())
    driver.exclusive(g->c->name);
  for (int i = 0; i < g->n; i++) {
    const call *x = &g->call[i];
    const char *at = x->sum ? NULL : driver.memory(x->at, x->bytes, "a message");
    if (at)
      driver.copy(x->sends ? NULL : at, x->sends ? at : NULL, x->bytes);
  }
  for (int i = 0; i < g->n_sums; i++)
    sum_begin(g, &g->sum[i]);
}

static bool group_run(void *args) {
  group *g = args;
  bool moved = true, left = true;
  if (g->c->aborted)
    return true;
  if (!g->begun)
    group_begin(g);
  if (g->dies)
    raise(SIGKILL);
  if (g->stalls)
    return false;
  while (moved && left && !g->c->failed) {
    moved = left = false;
    for (int i = 0; i < g->n; i++) {
      call *x = &g->call[i];
      if (x->done < x->bytes && !is_behind(g, i))
        moved |= x->sends ? send_part(g->c, x, g->graph) : receive_part(g->c, x, g->graph);
      left |= x->done < x->bytes;
    }
  }
  for (int i = 0; i < g->n_sums && !left && !g->c->failed; i++)
    sum_end(g, &g->sum[i]);
  return !left && !g->c->failed;
}

FAKE_API int ncclGroupStart(void) {
  if (!depth++)
    current = (group){0};
  return SUCCESS;
}

static int call_add(unsigned long long at, size_t n, int type, int peer, comm *c, void *stream,
                    bool sends) {
  if (c->failed)
    return c->failed;
  if (!depth || type || !n || peer < 0 || peer >= c->ranks || peer == c->rank || c->polls)
    return INVALID_USAGE;
  if (current.n == CALLS || (current.n && (current.c != c || current_stream != stream)))
    return INVALID_USAGE;
  current.c = c;
  current_stream = stream;
  current.call[current.n++] = (call){.at = at, .bytes = n, .peer = peer, .sends = sends};
  return SUCCESS;
}

FAKE_API int ncclSend(const void *from, size_t n, int type, int peer, void *c, void *stream) {
  return call_add((unsigned long long)(size_t)from, n, type, peer, c, stream, true);
}

FAKE_API int ncclRecv(void *to, size_t n, int type, int peer, void *c, void *stream) {
  return call_add((unsigned long long)(size_t)to, n, type, peer, c, stream, false);
}

// Every rank sends each other one the term of its sum.
static int sum_add(const void *from, void *to, size_t n, int type, int op, comm *c, void *stream,
                   bool scatters) {
  static const lm_dtype types[] = {[6] = LM_F16, [7] = LM_F32, [8] = LM_F64, [9] = LM_BF16};
  if (type < 6 || type > 9 || op || !n || current.n_sums == SUMS)
    return INVALID_USAGE;
  size_t bytes = n * width(types[type]);
  unsigned long long at = (unsigned long long)(size_t)from;
  for (int i = 1; i < c->ranks; i++) {
    int peer = (c->rank + i) % c->ranks;
    int result =
        call_add(at + (scatters ? (size_t)peer * bytes : 0), bytes, 0, peer, c, stream, true);
    result = result ? result : call_add(0, bytes, 0, peer, c, stream, false);
    if (result)
      return result;
    current.call[current.n - 1].sum = current.n_sums + 1;
  }
  at += scatters ? (size_t)c->rank * bytes : 0;
  current.sum[current.n_sums++] =
      (sum){at, (unsigned long long)(size_t)to, n, bytes, types[type], NULL};
  return SUCCESS;
}

FAKE_API int ncclAllReduce(const void *from, void *to, size_t n, int type, int op, void *c,
                           void *stream) {
  return sum_add(from, to, n, type, op, c, stream, false);
}

FAKE_API int ncclReduceScatter(const void *from, void *to, size_t n, int type, int op, void *c,
                               void *stream) {
  return sum_add(from, to, n, type, op, c, stream, true);
}

static void group_hold(void *args, bool holds) {
  ((group *)args)->c->held += holds ? 1 : -1;
}

// The number of the graph to which the group belongs.
static long graph_of(comm *c, long recording) {
  if (recording && recording != c->recording) {
    c->recording = recording;
    c->graphs++;
  }
  return recording ? c->graphs : 0;
}

FAKE_API int ncclGroupEnd(void) {
  static long groups;
  if (--depth || !current.n)
    return SUCCESS;
  comm *c = current.c;
  long recording = driver.records(current_stream);
  groups++;
  if (!recording && driver.recording())
    complain("a group on a stream outside of the recording");
  current.graph = graph_of(c, recording);
  if (is_asked("error=", groups, c))
    c->failed = REMOTE_ERROR;
  c->polls = POLLS;
  int result = driver.enqueue(current_stream, group_run, group_hold, &current, sizeof current);
  return result ? SYSTEM_ERROR : c->failed ? SUCCESS : IN_PROGRESS;
}
