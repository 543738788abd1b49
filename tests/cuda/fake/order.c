// order.c - the fake CUDA driver: the order of operations on several streams; see fake.h.
//
// Each stream has a vector clock: how many operations of every stream come before the one that it
// executes next. A record of an event keeps it, a wait for the event joins it, and so does the host
// when it synchronizes. Two operations are concurrent if neither is before the other by these
// clocks, whatever the order in which the fake runs them. Two concurrent accesses of the same
// bytes, one of them by a copy between host and device, or by a message of NCCL, and one of them a
// write, are a race. (A launch is compared with the copies before it; the schedule `eager` runs
// copies as early as allowed.)
#include <stdio.h>
#include <string.h>

#include "tests/cuda/fake/driver.h"
#include "tests/cuda/simt.h"

enum {
  RECENT = 256 // operations of which the order is known
};

// A copy, a message or a launch. from: NULL for a launch or a received message; to: for a launch or
// a sent one.
typedef struct operation {
  int stream;
  uint64_t time; // of its stream's clock
  fake_clock clock;
  const char *from, *to;
  size_t bytes;
  bool beside; // another stream's launch is concurrent to this copy
} operation;

// An operation of NCCL, and its communicator.
typedef struct exclusive {
  operation of;
  uint64_t owner;
} exclusive;

static struct {
  exclusive exclusive[RECENT];
  long n_exclusive;
  operation copies[RECENT], launches[RECENT];
  long n_copies, n_launches, beside[FAKE_STREAMS], all[FAKE_STREAMS];
  operation now; // running
} order;

void fake_clock_join(fake_clock *a, const fake_clock *b) {
  for (int i = 0; i < FAKE_STREAMS; i++)
    a->at[i] = b->at[i] > a->at[i] ? b->at[i] : a->at[i];
}

static bool is_before(const operation *a, const operation *b) {
  return a->time <= b->clock.at[a->stream];
}

static bool are_concurrent(const operation *a, const operation *b) {
  return a->stream != b->stream && !is_before(a, b) && !is_before(b, a);
}

static bool meet(const char *a, size_t n, const char *b, size_t m) {
  return a && b && a < b + m && b < a + n;
}

static int recent(long n) {
  return n < RECENT ? (int)n : RECENT;
}

void fake_order_set(int stream, const fake_clock *clock) {
  order.now = (operation){.stream = stream, .time = clock->at[stream], .clock = *clock};
}

// ---- races

static void complain(const char *what, const char *name) {
  char text[200];
  snprintf(text, sizeof text, "%s the memory of a copy that nothing orders before or after it",
           what);
  fake_complain(text, name);
}

static bool races(const operation *copy, const char *at, size_t bytes, bool write) {
  return are_concurrent(copy, &order.now) && (meet(copy->to, copy->bytes, at, bytes) ||
                                              (write && meet(copy->from, copy->bytes, at, bytes)));
}

FAKE_API void fake_order_touch(const char *at, size_t bytes, bool write, const char *name) {
  for (int i = 0; order.now.time && i < recent(order.n_copies); i++)
    if (races(&order.copies[i], at, bytes, write))
      complain(write ? "writes" : "reads", name);
}

static void kernel_touches(const void *at, size_t bytes, bool write) {
  fake_order_touch(at, bytes, write, simt_kernel_name());
}

// ---- operations

static void beside_note(operation *copy, const operation *launch) {
  if (copy->beside || !are_concurrent(copy, launch))
    return;
  copy->beside = true;
  order.beside[copy->stream]++;
}

FAKE_API void fake_order_copy(const char *to, const char *from, size_t bytes) {
  if (from)
    fake_order_touch(from, bytes, false, "a copy");
  if (to)
    fake_order_touch(to, bytes, true, "a copy");
  operation *x = &order.copies[order.n_copies++ % RECENT];
  *x = order.now;
  x->from = from;
  x->to = to;
  x->bytes = bytes;
  order.all[x->stream]++;
  for (int i = 0; i < recent(order.n_launches); i++)
    beside_note(x, &order.launches[i]);
}

FAKE_API void fake_order_exclusive(uint64_t owner) {
  for (int i = 0; i < recent(order.n_exclusive); i++)
    if (order.exclusive[i].owner != owner && are_concurrent(&order.exclusive[i].of, &order.now))
      fake_complain("is not ordered before or after one of another communicator",
                    "an operation of NCCL");
  order.exclusive[order.n_exclusive++ % RECENT] = (exclusive){order.now, owner};
}

void fake_order_launch(void) {
  bool any = false;
  order.launches[order.n_launches++ % RECENT] = order.now;
  for (int i = 0; i < recent(order.n_copies); i++) {
    beside_note(&order.copies[i], &order.now);
    any |= are_concurrent(&order.copies[i], &order.now);
  }
  simt_watch_set(any ? kernel_touches : NULL);
}

void fake_order_print(void) {
  for (int i = 1; i < FAKE_STREAMS; i++)
    if (order.all[i])
      fprintf(stderr, "stream %d: %ld copies, %ld beside kernels\n", i, order.all[i],
              order.beside[i]);
}
