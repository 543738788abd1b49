// comm_test.c - collectives of 1 to 8 ranks against sums that are computed here, and runs in which
// a rank is killed, stopped, cut off or fails.
//
// Started alone, the program starts itself under mpirun, once for each number of ranks and for each
// fault. Skipped where lmc was built without MPI.
#define _GNU_SOURCE // program_invocation_short_name
#include <dirent.h>
#include <errno.h>
#include <math.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "runtime/base/dtype.h"
#include "runtime/comm/comm_state.h"
#include "runtime/comm/ordered.h"
#include "tests/comm/mpirun.h"
#include "tests/comm/expect.h"

// ---- values, as a function of the rank and the element

static uint64_t bits_of(int rank, int64_t i) {
  uint64_t x = ((uint64_t)rank + 1) * 0xbf58476d1ce4e5b9u + (uint64_t)i * 0x9e3779b97f4a7c15u;
  x = (x ^ x >> 30) * 0x94d049bb133111ebu;
  return x ^ x >> 31;
}

// Of very different sizes, so that another order of the sums gives other bits.
static double value_of(int rank, int64_t i) {
  uint64_t b = bits_of(rank, i);
  return ((double)(b >> 12 & 0xfffff) / 0x100000 - 0.5) * (double)(1 << (b & 15));
}

static void store(lm_dtype t, void *at, int64_t i, double x) {
  switch (t) {
  case LM_F32: ((float *)at)[i] = (float)x; return;
  case LM_BF16: ((uint16_t *)at)[i] = lm_bf16_from_f32((float)x); return;
  case LM_F16: ((uint16_t *)at)[i] = lm_f16_round((float)x); return;
  case LM_F64: ((double *)at)[i] = x; return;
  default: ((int32_t *)at)[i] = (int32_t)(x * 1e6); return;
  }
}

static double load(lm_dtype t, const void *at, int64_t i) {
  switch (t) {
  case LM_F32: return ((const float *)at)[i];
  case LM_BF16: return lm_bf16_to_f32(((const uint16_t *)at)[i]);
  case LM_F16: return lm_f16_load(((const uint16_t *)at)[i]);
  case LM_F64: return ((const double *)at)[i];
  default: return ((const int32_t *)at)[i];
  }
}

typedef union element {
  float f32;
  uint16_t bf16;
  double f64;
  int32_t i32;
  uint8_t bytes[8];
} element;

// What rank `rank` gives as element i, as its type holds it.
static double given(lm_dtype t, int rank, int64_t i) {
  element one;
  store(t, &one, 0, value_of(rank, i));
  return load(t, &one, 0);
}

// Combines x[0 … ranks - 1] one after the other, in the type of sums: correct for up to 8 ranks.
static double combined(lm_dtype t, lm_coll_op op, int ranks, int64_t i, bool reversed) {
  double d = 0;
  float f = 0;
  for (int k = 0; k < ranks; k++) {
    double x = given(t, reversed ? ranks - 1 - k : k, i);
    if (op == LM_COLL_MAX)
      d = k == 0 || x > d ? x : d;
    else if (t == LM_F64 || t == LM_INT)
      d = d + x;
    else
      f = k == 0 ? (float)x : f + (float)x;
  }
  bool in_f32 = op == LM_COLL_SUM && (t == LM_F32 || t == LM_BF16);
  return in_f32 ? (double)f : d;
}

// ---- one collective

typedef struct test {
  lm_comm *c;
  int rank, size;
  bool reversed; // planted: sums are expected in the reverse order
  int bad;       // elements that differ
  uint64_t hash; // of all results
} test;

static void element_check(test *t, lm_dtype type, const void *to, int64_t i, double expected) {
  element want = {.f64 = 0}, is = {.f64 = 0};
  int n = lm_dtype_bytes(type);
  if (type == LM_INT)
    want.i32 = (int32_t)(uint32_t)(int64_t)expected; // wraps around
  else
    store(type, &want, 0, expected);
  memcpy(&is, (const char *)to + i * n, (size_t)n);
  t->hash = lm_hash(&is, sizeof is, t->hash);
  if (!memcmp(&is, &want, sizeof is) || t->bad++ > 3)
    return;
  fprintf(stderr, "rank %d of %d: %s element %lld is %.17g, not %.17g\n", t->rank, t->size,
          lm_dtype_name(type), (long long)i, load(type, to, i), expected);
}

static double expected_of(const test *t, const lm_coll *x, int64_t i) {
  int64_t n = x->count;
  switch (x->kind) {
  case LM_COLL_ALL_REDUCE: return combined(x->dtype, x->op, t->size, i, t->reversed);
  case LM_COLL_REDUCE_SCATTER:
    return combined(x->dtype, x->op, t->size, t->rank * n + i, t->reversed);
  case LM_COLL_ALL_GATHER: return given(x->dtype, (int)(i / n), i % n);
  case LM_COLL_ALL_TO_ALL: return given(x->dtype, (int)(i / n), t->rank * n + i % n);
  case LM_COLL_RING_SHIFT: return given(x->dtype, (t->rank + t->size - x->peer) % t->size, i);
  default: return given(x->dtype, x->peer, i);
  }
}

static lm_status coll_try(test *t, lm_coll x, bool in_place) {
  int64_t all = x.count * t->size;
  bool wide_from = x.kind == LM_COLL_REDUCE_SCATTER || x.kind == LM_COLL_ALL_TO_ALL;
  bool wide_to = x.kind == LM_COLL_ALL_GATHER || x.kind == LM_COLL_ALL_TO_ALL;
  size_t width = (size_t)lm_dtype_bytes(x.dtype);
  char *from = lm_calloc((size_t)all + 1, width), *to = lm_calloc((size_t)all + 1, width);
  for (int64_t i = 0; i < (wide_from ? all : x.count); i++)
    store(x.dtype, from, i, value_of(t->rank, i));
  x.from = from;
  x.to = in_place ? from : to;
  x.label = "collective of the test";
  lm_status s = lm_comm_run(t->c, &x);
  int64_t n = wide_to ? all : x.count, step = n > 100000 ? 97 : 1; // of a large one, a sample
  for (int64_t i = 0; !s && i < n; i += step)
    element_check(t, x.dtype, x.to, i, expected_of(t, &x, i));
  lm_free(from);
  lm_free(to);
  return s;
}

// Everyone sends to the next rank and receives from the one before, at the same time.
static lm_status ring_try(test *t, lm_dtype type, int64_t n) {
  int next = (t->rank + 1) % t->size, before = (t->rank + t->size - 1) % t->size;
  char *from = lm_calloc((size_t)n + 1, 8), *to = lm_calloc((size_t)n + 1, 8);
  lm_coll send = {LM_COLL_SEND, type, 0, 0, n, from, NULL, next, "ring"};
  lm_coll receive = {LM_COLL_RECEIVE, type, 0, 0, n, NULL, to, before, "ring"};
  int handles[2];
  for (int64_t i = 0; i < n; i++)
    store(type, from, i, value_of(t->rank, i));
  bool sends_first = t->rank % 2;
  LM_TRY(lm_comm_start(t->c, sends_first ? &send : &receive, &handles[0]));
  LM_TRY(lm_comm_start(t->c, sends_first ? &receive : &send, &handles[1]));
  LM_TRY(lm_comm_wait(t->c, handles[1]));
  LM_TRY(lm_comm_wait(t->c, handles[0]));
  for (int64_t i = 0; i < n; i++)
    element_check(t, type, to, i, given(type, before, i));
  lm_free(from);
  lm_free(to);
  return NULL;
}

// Every rank sends (rank + peer) % 3 rows to each peer: 0 to some. The rest of `to` is cleared.
static lm_status rows_try(test *t, lm_dtype type, int64_t n) {
  int32_t send[16], receive[16];
  int64_t rows = 3 * t->size, sent = 0, at = 0; // of up to 16 ranks
  for (int i = 0; i < t->size; i++)
    sent += send[i] = receive[i] = (t->rank + i) % 3;
  char *from = lm_calloc((size_t)(rows * n) + 1, 8), *to = lm_calloc((size_t)(rows * n) + 1, 8);
  for (int64_t i = 0; i < rows * n; i++) {
    store(type, from, i, value_of(t->rank, i));
    store(type, to, i, 1);
  }
  lm_coll x = {LM_COLL_EXCHANGE_ROWS, type, 0, 0, n, from, to, 0, "rows"};
  x.send = send;
  x.receive = receive;
  x.from_rows = x.to_rows = rows;
  LM_TRY(lm_comm_run(t->c, &x));
  for (int k = 0; k < t->size; k++) {
    int64_t first = 0;
    for (int i = 0; i < t->rank; i++)
      first += (k + i) % 3;
    for (int64_t i = 0; i < receive[k] * n; i++)
      element_check(t, type, to, at++, given(type, k, first * n + i));
  }
  while (at < rows * n)
    element_check(t, type, to, at++, 0);
  lm_free(from);
  lm_free(to);
  x.to_rows = sent - 1; // planted: a row too many
  lm_status s = lm_comm_run(t->c, &x);
  t->bad += !s;
  lm_status_free(s);
  return NULL;
}

// A bucket of sums, of which the last one takes more rounds than the others, and one is empty.
static lm_status bucket_try(test *t, lm_coll_kind kind) {
  enum {
    BUCKET = 4
  };
  static const int64_t counts[BUCKET] = {7, 0, 4099, 2100001};
  lm_coll x[BUCKET];
  int handle;
  int ranks = kind == LM_COLL_REDUCE_SCATTER ? t->size : 1;
  for (int k = 0; k < BUCKET; k++) {
    int64_t n = counts[k] / ranks;
    float *from = lm_calloc((size_t)(n * ranks) + 1, sizeof *from);
    float *to = lm_calloc((size_t)n + 1, sizeof *to);
    for (int64_t i = 0; i < n * ranks; i++)
      store(LM_F32, from, i, value_of(t->rank, i));
    x[k] = (lm_coll){kind, LM_F32, LM_COLL_SUM, 0, n, from, to, 0, "bucket"};
  }
  lm_status s = lm_comm_start_bucket(t->c, x, BUCKET, &handle);
  s = s ? s : lm_comm_wait(t->c, handle);
  for (int k = 0; k < BUCKET; k++) {
    for (int64_t i = 0; !s && i < x[k].count; i += 97)
      element_check(t, LM_F32, x[k].to, i, expected_of(t, &x[k], i));
    lm_free((void *)x[k].from);
    lm_free(x[k].to);
  }
  return s;
}

// Two sums by the engine in a bucket, of integers, which are exact in any order.
static lm_status sums_by_library_try(test *t, lm_coll_kind kind, lm_dtype type, int64_t count,
                                     bool in_place) {
  lm_coll x[2];
  int handle, of_ranks = t->size * (t->size - 1) / 2;
  bool scatters = kind == LM_COLL_REDUCE_SCATTER;
  for (int k = 0; k < 2; k++) {
    int64_t n = k ? 7 : count, all = scatters ? n * t->size : n;
    char *from = lm_calloc((size_t)all + 1, 8), *to = lm_calloc((size_t)n + 1, 8);
    for (int64_t i = 0; i < all; i++)
      store(type, from, i, (double)(t->rank + i % 5));
    x[k] = (lm_coll){kind, type, LM_COLL_LIBRARY_SUM, 0, n, from, to, 0, "sums"};
    if (in_place)
      memcpy(to, from, (size_t)all * 8);
    if (in_place)
      x[k].from = to;
    lm_free(in_place ? from : NULL);
  }
  lm_status s = lm_comm_start_bucket(t->c, x, 2, &handle);
  s = s ? s : lm_comm_wait(t->c, handle);
  for (int k = 0; k < 2; k++) {
    int64_t first = scatters ? t->rank * x[k].count : 0;
    for (int64_t i = 0; !s && i < x[k].count; i++)
      element_check(t, type, x[k].to, i, of_ranks + t->size * (double)((first + i) % 5));
    lm_free(in_place ? NULL : (void *)x[k].from);
    lm_free(x[k].to);
  }
  return s;
}

// An engine without sums refuses.
static lm_status library_missing_try(test *t) {
  lm_status s = sums_by_library_try(t, LM_COLL_ALL_REDUCE, LM_F32, 1, false);
  t->bad += !s || !strstr(s->text, "TCP makes no sums");
  lm_status_free(s);
  return NULL;
}

static lm_status library_try(test *t) {
  static const lm_dtype types[] = {LM_F32, LM_BF16, LM_F16, LM_F64};
  static const int64_t counts[] = {0, 1, 4099};
  if (t->c && !t->c->engine->sum)
    return library_missing_try(t);
  for (size_t d = 0; d < LM_COUNT(types); d++)
    for (size_t n = 0; n < LM_COUNT(counts); n++) {
      LM_TRY(sums_by_library_try(t, LM_COLL_ALL_REDUCE, types[d], counts[n], false));
      LM_TRY(sums_by_library_try(t, LM_COLL_ALL_REDUCE, types[d], counts[n], true));
      LM_TRY(sums_by_library_try(t, LM_COLL_REDUCE_SCATTER, types[d], counts[n], false));
    }
  return NULL;
}

static lm_status all_try(test *t) {
  static const lm_dtype types[] = {LM_F32, LM_BF16, LM_F64, LM_INT};
  static const int64_t counts[] = {0, 1, 7, 1025, 4099};
  for (size_t d = 0; d < LM_COUNT(types); d++)
    for (size_t n = 0; n < LM_COUNT(counts); n++) {
      for (int k = 0; k <= LM_COLL_ALL_TO_ALL; k++)
        for (int op = 0; op < (k <= LM_COLL_REDUCE_SCATTER ? 2 : 1); op++)
          LM_TRY(coll_try(t, (lm_coll){k, types[d], op, 0, counts[n]}, false));
      LM_TRY(coll_try(t, (lm_coll){LM_COLL_ALL_REDUCE, types[d], 0, 0, counts[n]}, true));
      for (int by = 0; by < t->size; by++)
        LM_TRY(coll_try(t, (lm_coll){LM_COLL_RING_SHIFT, types[d], 0, 0, counts[n], .peer = by},
                        false));
      LM_TRY(rows_try(t, types[d], counts[n]));
      if (t->size > 1)
        LM_TRY(ring_try(t, types[d], counts[n]));
    }
  LM_TRY(library_try(t));
  LM_TRY(bucket_try(t, LM_COLL_REDUCE_SCATTER));
  LM_TRY(bucket_try(t, LM_COLL_ALL_REDUCE));
  // more than the workspace holds
  return coll_try(t, (lm_coll){LM_COLL_REDUCE_SCATTER, LM_BF16, 0, 0, 4200001 / t->size}, false);
}

// ---- collectives beside the computation

static lm_status agree(test *t, const char *what) {
  int done = 1, dones[8];
  return lm_comm_agree(t->c, what, &done, sizeof done, dones);
}

// How often the threads of this process have waited and continued.
static long wakes_count(void) {
  long sum = 0, n;
  struct dirent *entry;
  DIR *tasks = opendir("/proc/self/task");
  while (tasks && (entry = readdir(tasks))) {
    lm_buf path = {0}, text = {0};
    lm_buf_printf(&path, "/proc/self/task/%s/status", entry->d_name);
    lm_status_free(lm_file_read(path.p, 1 << 16, &text));
    const char *line = text.p ? strstr(text.p, "\nvoluntary_ctxt_switches:") : NULL;
    sum += line && sscanf(line, "%*s %ld", &n) == 1 ? n : 0;
    lm_buf_free(&path);
    lm_buf_free(&text);
  }
  if (tasks)
    closedir(tasks);
  return sum;
}

static void wakes_check(test *t, const char *when, int most) {
  enum {
    WAIT_MS = 100
  };
  long before = wakes_count();
  poll(NULL, 0, WAIT_MS);
  long wakes = wakes_count() - before;
  if (wakes <= most)
    return;
  t->bad++;
  fprintf(stderr, "rank %d of %d: its threads wake %ld times %s\n", t->rank, t->size, wakes, when);
}

// The thread of collectives sleeps while none is under way. While rank 0 has not started its part
// of one, it wakes less often than every 50 us.
static lm_status late_try(test *t) {
  enum {
    IDLE = 50, // MPI and the control channel have threads, too
    LATE = 400
  };
  float x = 1;
  lm_coll c = {LM_COLL_ALL_REDUCE, LM_F32, 0, 0, 1, &x, &x, 0, "late", true};
  int handle;
  wakes_check(t, "without a collective", IDLE);
  if (t->rank)
    LM_TRY(lm_comm_start(t->c, &c, &handle));
  if (t->rank)
    wakes_check(t, "while rank 0 is late", LATE);
  LM_TRY(agree(t, "rank 0 is late"));
  if (!t->rank)
    LM_TRY(lm_comm_start(t->c, &c, &handle));
  LM_TRY(lm_comm_wait(t->c, handle));
  t->bad += x != (float)t->size;
  return NULL;
}

// Rank 0 does not call the comm again before all others have waited for their results, which need
// both phases of rank 0's messages.
static lm_status apart_try(test *t) {
  enum {
    KINDS = 3,
    COUNT = 100003
  };
  static const lm_coll_kind kinds[KINDS] = {LM_COLL_ALL_REDUCE, LM_COLL_ALL_GATHER,
                                            LM_COLL_REDUCE_SCATTER};
  int64_t all = (int64_t)COUNT * t->size;
  float *from = lm_calloc((size_t)all, sizeof *from), *to[KINDS];
  int handles[KINDS], done = 1, dones[8];
  lm_coll x[KINDS];
  for (int64_t i = 0; i < all; i++)
    store(LM_F32, from, i, value_of(t->rank, i));
  for (int k = 0; k < KINDS; k++) {
    to[k] = lm_calloc((size_t)all, sizeof **to);
    x[k] = (lm_coll){kinds[k], LM_F32, 0, 0, COUNT, from, to[k], 0, "apart", true};
    LM_TRY(lm_comm_start(t->c, &x[k], &handles[k]));
  }
  if (!t->rank)
    LM_TRY(lm_comm_agree(t->c, "others have results", &done, sizeof done, dones));
  for (int k = KINDS - 1; k >= 0; k--)
    LM_TRY(lm_comm_wait(t->c, handles[k]));
  if (t->rank)
    LM_TRY(lm_comm_agree(t->c, "others have results", &done, sizeof done, dones));
  LM_TRY(late_try(t));
  for (int k = 0; k < KINDS; k++) {
    for (int64_t i = 0; i < COUNT; i += 997)
      element_check(t, LM_F32, to[k], i, expected_of(t, &x[k], i));
    lm_free(to[k]);
  }
  lm_free(from);
  return NULL;
}

// Rank 1 stops in a gather, of which rank 0 sends its part later.
static lm_status stopped_try(test *t) {
  enum {
    COUNT = 100
  };
  static const float zeros[COUNT];
  static float x[2 * COUNT];
  lm_coll c = {LM_COLL_ALL_GATHER, LM_F32, 0, 0, COUNT, x + t->rank * COUNT, x, 0, "part", true};
  int handle;
  for (int i = 0; i < COUNT; i++)
    x[t->rank * COUNT + i] = 1;
  if (t->rank)
    LM_TRY(lm_comm_start(t->c, &c, &handle));
  if (t->rank)
    lm_comm_stop(t->c);
  LM_TRY(agree(t, "rank 1 has stopped"));
  if (!t->rank)
    LM_TRY(lm_comm_start(t->c, &c, &handle));
  poll(NULL, 0, 100);
  bool same = !memcmp(x, zeros, sizeof zeros);
  if (t->rank)
    return lm_fail(LM_ENV, "the memory %s", same ? "is unchanged" : "has changed");
  return agree(t, "rank 1 has failed");
}

// ---- groups of a mesh: the sum of the ranks along each axis

static lm_status mesh_try(test *t, int a, int b) {
  lm_comm_mesh m = {2, {a, b}};
  LM_TRY(lm_comm_groups(t->c, &m));
  int outer = t->rank / b, inner = t->rank % b;
  int32_t sums[2], expected[2] = {a * inner + b * (a * (a - 1) / 2), b * b * outer};
  expected[1] += b * (b - 1) / 2;
  for (int g = 0; g < 2; g++) {
    int32_t own = t->rank;
    lm_coll x = {LM_COLL_ALL_REDUCE, LM_INT, 0, 1 + g, 1, &own, &sums[g], 0, "mesh"};
    LM_TRY(lm_comm_run(t->c, &x));
    t->bad += sums[g] != expected[g];
  }
  t->bad += lm_comm_group_rank(t->c, 1) != outer || lm_comm_group_rank(t->c, 2) != inner;
  return NULL;
}

// ---- values of the host

static lm_status host_try(test *t) {
  int64_t own = t->rank * 10, all[8], chosen = t->rank + 5;
  lm_comm_self p = lm_comm_self_of(t->c);
  for (int times = 0; times < 20; times++) {
    LM_TRY(lm_comm_agree(t->c, "numbers", &own, sizeof own, all));
    for (int r = 0; r < t->size; r++)
      t->bad += all[r] != r * 10;
    chosen = t->rank + 5;
    LM_TRY(lm_comm_decide(t->c, "a choice", &chosen, sizeof chosen));
    LM_TRY(lm_comm_decide(t->c, "another choice", &chosen, sizeof chosen));
    t->bad += chosen != 5;
  }
  t->bad += p.rank != t->rank || p.local_rank != t->rank || p.local_size != t->size;
  LM_TRY(lm_comm_equal(t->c, "the plan", 7));
  LM_TRY(lm_comm_settle(t->c, "nothing failed", NULL));
  lm_status mine = t->rank == t->size - 1 ? lm_fail(LM_USER, "the disk is full") : NULL;
  lm_status s = lm_comm_settle(t->c, "a disk", mine);
  bool named = t->rank == t->size - 1 || (s && strstr(s->text, "host"));
  t->bad += !s || s->kind != LM_USER || !strstr(s->text, "the disk is full") || !named;
  lm_status_free(s);
  s = t->size > 1 ? lm_comm_equal(t->c, "the plan", (uint64_t)t->rank / 2) : NULL;
  t->bad += t->size > 2 && (!s || !strstr(s->text, "the plan of rank 2"));
  lm_status_free(s);
  return NULL;
}

// ---- faults: the last rank has one in its third step

enum {
  FAULT_STEP = 3,
  COMPUTES_S = 60,
  BYTES_OF_1_S = 50000000
};
#define STUCK_S 0.5
#define CONNECT_S 1.0

static void sockets_close(void) {
  for (int fd = 3; fd < 1024; fd++) {
    int type;
    socklen_t n = sizeof type;
    if (!getsockopt(fd, SOL_SOCKET, SO_TYPE, &type, &n) && type == SOCK_STREAM)
      shutdown(fd, SHUT_RDWR);
  }
}

static lm_status fault_make(const char *fault, const test *t) {
  int64_t own = 0, all[8];
  if (!strcmp(fault, "kill"))
    raise(SIGKILL);
  if (!strcmp(fault, "stop"))
    raise(SIGSTOP);
  if (!strcmp(fault, "cut"))
    sockets_close();
  if (!strcmp(fault, "exit"))
    _exit(0);
  if (!strcmp(fault, "fail") || !strcmp(fault, "busy"))
    return lm_fail(LM_USER, "there is no such file");
  if (!strcmp(fault, "apart")) // waits in another call than the others
    return lm_comm_agree(t->c, "another agreement", &own, sizeof own, all);
  return NULL;
}

// Waits in a collective, or while devices connect. The limit is longer by the time of its bytes.
static lm_status wait_run(test *t, bool connects) {
  double begin = lm_now(), least = connects ? CONNECT_S : STUCK_S + 1;
  lm_status s = NULL;
  if (connects)
    lm_comm_connects(t->c, t->rank ? "a call that hangs" : "connecting");
  else
    lm_comm_waits(t->c, "a large transfer", BYTES_OF_1_S);
  for (int times = 0; !s; times++) {
    s = lm_comm_check(t->c);
    lm_pause(times);
  }
  if (lm_now() - begin < least)
    fprintf(stderr, "too early\n");
  return s;
}

// Stops where the control channel does not carry beats: before the ranks have found each other, or
// when all have left it and wait for each other in MPI_Finalize.
static void early_stop(const char *what) {
  const char *rank = getenv("OMPI_COMM_WORLD_RANK");
  if (!strcmp(what, "early") && rank && !strcmp(rank, "1"))
    raise(SIGSTOP);
}

static lm_status late_stop(test *t) {
  if (t->rank != t->size - 1)
    return NULL;
  LM_TRY(lm_control_end(t->c->control));
  raise(SIGSTOP);
  _exit(2);
}

static lm_status steps_run(test *t, const char *fault) {
  float x = 1;
  for (int step = 1;; step++) {
    char label[32];
    snprintf(label, sizeof label, "gradients of step %d", step);
    bool planted = t->rank == (strcmp(fault, "first") ? t->size - 1 : 0);
    if (step == FAULT_STEP && planted)
      LM_TRY(fault_make(strcmp(fault, "first") ? fault : "kill", t));
    if (step == FAULT_STEP && !strcmp(fault, "compute") && planted)
      raise(SIGKILL);
    if (step == FAULT_STEP && (!strcmp(fault, "compute") || (!strcmp(fault, "busy") && !t->rank)))
      sleep(COMPUTES_S);
    int64_t count = step == FAULT_STEP && planted && !strcmp(fault, "count") ? 0 : 1;
    lm_coll c = {LM_COLL_ALL_REDUCE, LM_F32, 0, 0, count, &x, &x, 0, label};
    LM_TRY(lm_comm_run(t->c, &c));
  }
}

// ---- a rank

static void end(void *user, lm_kind kind, const char *text, bool speaks) {
  if (speaks)
    fprintf(stderr, "message: %s\n", text);
  fprintf(stderr, "exit %d\n", (int)kind);
  _exit((int)kind);
}

static int rank_main(const char *what) {
  test t = {0};
  early_stop(what);
  lm_status s = lm_comm_open(&(lm_comm_options){end, NULL}, &t.c);
  lm_comm_self p = s ? (lm_comm_self){0} : lm_comm_self_of(t.c);
  // As lmc does in training, a rank outlives the SIGTERM by which mpirun ends the others when one
  // has ended: they report it first.
  if (strcmp(what, "busy") != 0)
    signal(SIGTERM, SIG_IGN);
  t.rank = p.rank;
  t.size = p.size;
  t.reversed = !strcmp(what, "reversed");
  if (!s && (!strcmp(what, "all") || t.reversed)) {
    s = all_try(&t);
    s = s ? s : apart_try(&t);
    for (int a = 1; a <= t.size && !s && t.c; a++)
      s = t.size % a ? NULL : mesh_try(&t, a, t.size / a);
    s = s ? s : host_try(&t);
    if (!t.rank)
      printf("hash %016llx\n", (unsigned long long)t.hash);
  } else if (!s && !strcmp(what, "late")) {
    s = late_stop(&t);
  } else if (!s && !strcmp(what, "stopped")) {
    s = stopped_try(&t);
  } else if (!s && (!strcmp(what, "transfer") || !strcmp(what, "connect"))) {
    s = wait_run(&t, !strcmp(what, "connect"));
  } else if (!s) {
    s = steps_run(&t, what);
  }
  bool failed = s;
  bool ended = strcmp(what, "stopped") && failed; // a collective that fails has ended
  for (int i = 0; t.c && ended && i < LM_COMM_HANDLES; i++)
    LM_ASSERT(!t.c->colls[i].used);
  int kind = s ? (int)s->kind : t.bad > 0;
  char *text = lm_strdup(s ? s->text : "");
  lm_comm *c = t.c;
  if (failed && lm_comm_speaks(c))
    fprintf(stderr, "message: %s\n", text);
  lm_comm_close(c, s);
  if (failed)
    fprintf(stderr, "exit %d\n", kind);
  fflush(stdout);
  _exit(kind);
}

// ---- the program that starts the ranks

// Every rank that is left ends with status 2, and one of them says why.
static void fault_test(const char *fault, int ranks, int left, int status,
                       const char *const *words) {
  lm_buf out = {0};
  char exits[16], what[64];
  snprintf(exits, sizeof exits, "exit %d", status);
  snprintf(what, sizeof what, "fault %s", fault);
  double begin = lm_now();
  ranks_run(ranks, fault, &out);
  int said = count_of(out.p, "message: ");
  // Ranks that have left the control channel cannot agree on the one that says it.
  expect(said == 1 || (said > 1 && !strcmp(fault, "late")), what, out.p);
  expect(count_of(out.p, exits) >= left, what, out.p);
  for (; *words; words++)
    expect(strstr(out.p, *words) != NULL, *words, out.p);
  expect(!strstr(out.p, "too early"), what, out.p);
  if (getenv("COMM_TEST_SHOW"))
    printf("%s, %.1f s: %s", fault, lm_now() - begin, out.p);
  lm_buf_free(&out);
}
#define WORDS(...) ((const char *const[]){__VA_ARGS__, NULL})

// More ranks than eight are added in blocks; the test's own sum of blocks.
static void ordered_test(void) {
  enum {
    RANKS = 21,
    N = 1500
  };
  static float x[RANKS][N], to[N];
  const void *from[RANKS];
  int bad = 0, same_as_line = 0;
  for (int r = 0; r < RANKS; r++) {
    from[r] = x[r];
    for (int i = 0; i < N; i++)
      x[r][i] = (float)value_of(r, i);
  }
  lm_ordered_reduce(LM_F32, LM_COLL_SUM, from, RANKS, N, to);
  for (int i = 0; i < N; i++) {
    float b[3], line = x[0][i];
    for (int k = 0; k < 3; k++) {
      b[k] = x[8 * k][i];
      for (int r = 8 * k + 1; r < RANKS && r < 8 * k + 8; r++)
        b[k] += x[r][i];
    }
    for (int r = 1; r < RANKS; r++)
      line += x[r][i];
    bad += to[i] != (b[0] + b[1]) + b[2];
    same_as_line += to[i] == line;
  }
  expect(!bad, "sums of 21 ranks", "");
  expect(same_as_line < N, "planted: a sum without blocks was not noticed", "");
  float sum = to[5];
  lm_ordered_reduce(LM_F32, LM_COLL_LIBRARY_SUM, from, RANKS, N, to);
  expect(to[5] == sum, "a sum that no library makes", "");
  x[7][3] = NAN;
  lm_ordered_reduce(LM_F32, LM_COLL_MAX, from, RANKS, N, to);
  expect(isnan(to[3]) && !isnan(to[4]), "maximum of a NAN", "");
}

static void ranks_test(int ranks, lm_buf *out) {
  char what[32];
  snprintf(what, sizeof what, "%d ranks", ranks);
  int status = ranks_run(ranks, "all", out);
  expect(status == 0, what, out->p);
}

int main(int argc, char **argv) {
  lm_buf out = {0}, again = {0};
  if (argc > 1)
    return rank_main(argv[1]);
  ordered_test();
  if (!ranks_can_run()) {
    puts("comm_test: built without MPI, or there is no mpirun: ranks are not tested");
    return errors != 0;
  }
  for (int ranks = 1; ranks <= 8; ranks++) {
    lm_buf_free(&out);
    ranks_test(ranks, &out);
  }
  ranks_test(8, &again);
  expect(!strcmp(out.p, again.p), "two runs of 8 ranks", again.p);
  lm_buf_free(&out);
  int status = ranks_run(3, "reversed", &out);
  expect(status == 1, "planted: the order of sums was not noticed", out.p);
  setenv("LMC_COMM_SILENCE", "1", 1);
  fault_test("early", 3, 1, 2, WORDS("rank 1 (host ", "has been stopped", "found each other"));
  fault_test("late", 3, 1, 2, WORDS("rank 2 (host ", "has been stopped", "the end of the run"));
  setenv("LMC_COMM_STUCK", "2", 1);
  fault_test("kill", 3, 2, 2,
             WORDS("rank 2 (host ", "its process has ended", "gradients of step 3"));
  fault_test("stop", 3, 2, 2, WORDS("rank 2 (host ", "is stopped", "gradients of step 3"));
  // The ranks continue until the connection is missed.
  fault_test("cut", 3, 2, 2, WORDS("rank 2 (host ", "closed its connection", "gradients of step"));
  fault_test("exit", 2, 1, 2, WORDS("rank 1 (host ", "its process has ended"));
  fault_test("fail", 3, 2, 1, WORDS("rank 2 (host ", "there is no such file"));
  // Rank 0 computes, and would not outlive the end of another rank.
  fault_test("busy", 3, 3, 1, WORDS("rank 2 (host ", "there is no such file"));
  fault_test("stopped", 2, 1, 2, WORDS("rank 1 (host ", "the memory is unchanged"));
  fault_test("first", 3, 2, 2, WORDS("rank 0 (host ", "its process has ended"));
  // mpirun may end the rank that computes before that rank's own limit does.
  fault_test("compute", 3, 1, 2, WORDS("rank 2 (host ", "its process has ended"));
  fault_test("apart", 3, 3, 2,
             WORDS("waited for each other", "rank 2 (host ", "another agreement'"));
  fault_test("count", 2, 2, 2, WORDS("waited for each other", "gradients of step"));
  setenv("LMC_COMM_STUCK", "0.5", 1);
  setenv("LMC_COMM_CONNECT", "1", 1);
  fault_test("transfer", 2, 2, 2, WORDS("waited for each other", "in 'a large transfer'"));
  fault_test("connect", 2, 2, 2, WORDS("in 'connecting', rank 1 (host ", "in 'a call that hangs'"));
  lm_buf_free(&out);
  lm_buf_free(&again);
  printf("comm_test: %d errors\n", errors);
  return errors != 0;
}
