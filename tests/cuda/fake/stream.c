// stream.c - the fake CUDA driver: streams, events, graphs, copies and fills; see fake.h.
#define _GNU_SOURCE
#include "tests/cuda/fake/driver.h"

#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

typedef struct event {
  bool done;
  double time;
  struct stream *stream;
  long recorded, ran;
} event; // counts of records
// `number` is the number of the record.
typedef struct op {
  void (*fn)(void *args);
  bool (*try)(void *args); // called instead of fn, again until it returns true
  void *args;
  event *record, *wait;
  long number;
} op;
typedef struct graph {
  op *ops;
  int n, cap, users;
} graph;
typedef struct stream {
  graph queue;
  int done;
  graph *capture;
  bool eager;
} stream;
// ---- streams

static double now(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static void stream_run(stream *s, int to);

// Runs the operations that must come before: the other stream, up to the record that is waited for.
static void event_reach(event *e, long number) {
  stream *s = e->stream;
  while (e->ran < number && s->done < s->queue.n)
    stream_run(s, s->done + 1);
}

static void op_run(op *o) {
  if (o->wait)
    event_reach(o->wait, o->number);
  while (o->try && !fake.sticky && !o->try(o->args))
    sched_yield();
  if (o->fn && !fake.sticky)
    o->fn(o->args);
  if (o->record) {
    o->record->ran = o->number;
    o->record->time = now();
  }
}

static void stream_run(stream *s, int to) {
  while (s->done < to)
    op_run(&s->queue.ops[s->done++]);
  if (s->done < s->queue.n)
    return;
  for (int i = 0; i < s->queue.n; i++)
    free(s->queue.ops[i].args);
  s->queue.n = s->done = 0;
}

static void op_push(graph *g, op o) {
  if (g->n == g->cap)
    g->ops = realloc(g->ops, (size_t)(g->cap = g->cap * 2 + 64) * sizeof *g->ops);
  g->ops[g->n++] = o;
}

// An eager stream executes an operation at once, after the operations that it must wait for: as
// early as allowed.
static void stream_push(stream *s, op o) {
  op_push(&s->queue, o);
  if (s->eager)
    stream_run(s, s->queue.n);
}

FAKE_API int fake_enqueue(void *handle, void (*fn)(void *args), const void *args, size_t bytes) {
  stream *s = handle;
  if (fake.sticky)
    return fake.sticky;
  if (!s)
    fake_complain("the default stream, which is never synchronized", "enqueue");
  op o = {.fn = fn, .args = malloc(bytes + 1)};
  memcpy(o.args, args, bytes);
  if (s->capture)
    op_push(s->capture, o);
  else
    stream_push(s, o);
  return 0;
}

FAKE_API int fake_enqueue_try(void *handle, bool (*fn)(void *args), const void *args,
                              size_t bytes) {
  stream *s = handle;
  if (fake.sticky)
    return fake.sticky;
  if (s->capture)
    fake_complain("recorded", "a collective");
  op o = {.try = fn, .args = malloc(bytes + 1)};
  memcpy(o.args, args, bytes);
  op_push(&s->queue, o);
  return 0;
}

FAKE_API int fake_recording(void) {
  return fake.recording;
}

FAKE_API int cuStreamCreate(void **out, unsigned flags) {
  if (fake.sticky)
    return fake.sticky;
  stream *s = *out = calloc(1, sizeof *s);
  s->eager = fake.eager && fake.streams;
  fake.streams++;
  return 0;
}

FAKE_API int cuStreamDestroy_v2(void *handle) {
  stream *s = handle;
  stream_run(s, s->queue.n);
  free(s->queue.ops);
  free(s);
  fake.streams--;
  return 0;
}

FAKE_API int cuStreamSynchronize(void *handle) {
  stream *s = handle;
  if (s->capture)
    return CAPTURING;
  stream_run(s, s->queue.n);
  return fake.sticky;
}

// Runs the stream up to an operation that waits for other processes.
FAKE_API int cuStreamQuery(void *handle) {
  stream *s = handle;
  if (s->capture)
    return CAPTURING;
  while (s->done < s->queue.n) {
    op *o = &s->queue.ops[s->done];
    if (o->try && !fake.sticky && !o->try(o->args))
      return NOT_READY;
    o->try = NULL;
    stream_run(s, s->done + 1);
  }
  return fake.sticky;
}

FAKE_API int cuEventCreate(void **out, unsigned flags) {
  *out = calloc(1, sizeof(event));
  fake.events++;
  return fake.sticky;
}

FAKE_API int cuEventDestroy_v2(void *e) {
  free(e);
  fake.events--;
  return 0;
}

FAKE_API int cuEventRecord(void *handle, void *stream_handle) {
  event *e = handle;
  stream *s = stream_handle;
  if (fake.sticky)
    return fake.sticky;
  if (s->capture)
    return CAPTURING;
  e->stream = s;
  stream_push(s, (op){.record = e, .number = ++e->recorded});
  return 0;
}

FAKE_API int cuStreamWaitEvent(void *handle, void *event_handle, unsigned flags) {
  event *e = event_handle;
  if (fake.sticky)
    return fake.sticky;
  if (e->recorded)
    stream_push(handle, (op){.wait = e, .number = e->recorded});
  return 0;
}

FAKE_API int cuEventSynchronize(void *handle) {
  event *e = handle;
  event_reach(e, e->recorded);
  return fake.sticky;
}

FAKE_API int cuEventElapsedTime(float *out, void *from, void *to) {
  event *a = from, *b = to;
  if (fake.sticky)
    return fake.sticky;
  if (a->ran != a->recorded || b->ran != b->recorded)
    return NOT_READY;
  *out = (float)(1e3 * (b->time - a->time));
  return 0;
}

// ---- graphs

FAKE_API int cuStreamBeginCapture_v2(void *handle, int mode) {
  stream *s = handle;
  if (fake.sticky)
    return fake.sticky;
  if (s->capture)
    return CAPTURING;
  s->capture = calloc(1, sizeof *s->capture);
  s->capture->users = 1;
  fake.recording++;
  fake.graphs++;
  return 0;
}

FAKE_API int cuStreamEndCapture(void *handle, void **out) {
  stream *s = handle;
  if (!s->capture)
    return CAPTURING;
  *out = s->capture;
  s->capture = NULL;
  fake.recording--;
  return fake.sticky;
}

FAKE_API int cuGraphInstantiateWithFlags(void **out, void *handle, unsigned long long flags) {
  graph *g = handle;
  if (fake.sticky)
    return fake.sticky;
  g->users++;
  *out = g;
  return 0;
}

FAKE_API int cuGraphDestroy(void *handle) {
  graph *g = handle;
  if (--g->users)
    return 0;
  for (int i = 0; i < g->n; i++)
    free(g->ops[i].args);
  free(g->ops);
  free(g);
  fake.graphs--;
  return 0;
}

FAKE_API int cuGraphExecDestroy(void *handle) {
  return cuGraphDestroy(handle);
}

static void graph_run(void *args) {
  graph *g = *(graph **)args;
  for (int i = 0; i < g->n; i++)
    op_run(&g->ops[i]);
}

FAKE_API int cuGraphLaunch(void *handle, void *s) {
  return fake_enqueue(s, graph_run, &handle, sizeof handle);
}

// ---- copies and fills

typedef struct copy {
  address to_device, from_device;
  char *to;
  const char *from;
  size_t bytes;
} copy;

static void copy_run(void *args) {
  const copy *c = args;
  char *to = c->to ? c->to : fake_memory(c->to_device, c->bytes, "a copy's destination");
  const char *from = c->from          ? c->from
                     : c->from_device ? fake_memory(c->from_device, c->bytes, "a copy's source")
                                      : (const char *)(c + 1);
  memmove(to, from, c->bytes);
}

// Pageable memory is read at once.
FAKE_API int cuMemcpyHtoDAsync_v2(address to, const void *from, size_t bytes, void *handle) {
  stream *s = handle;
  fake_memory(to, bytes, "a copy to the device");
  fake_pinned_check(from, bytes);
  if (fake_is_pinned(from))
    return fake_enqueue(s, copy_run, &(copy){.to_device = to, .from = from, .bytes = bytes},
                        sizeof(copy));
  if (s->capture)
    fake_complain("pageable memory while recording", "a copy");
  copy *c = malloc(sizeof *c + bytes);
  *c = (copy){.to_device = to, .bytes = bytes};
  memcpy(c + 1, from, bytes);
  int result = fake_enqueue(s, copy_run, c, sizeof *c + bytes);
  free(c);
  return result;
}

// A copy to pageable memory is complete on return.
FAKE_API int cuMemcpyDtoHAsync_v2(void *to, address from, size_t bytes, void *handle) {
  stream *s = handle;
  fake_memory(from, bytes, "a copy from the device");
  fake_pinned_check(to, bytes);
  fake.sent += bytes;
  int result = fake_enqueue(s, copy_run, &(copy){.to = to, .from_device = from, .bytes = bytes},
                            sizeof(copy));
  if (result || fake_is_pinned(to))
    return result;
  if (s->capture)
    fake_complain("pageable memory while recording", "a copy");
  return cuStreamSynchronize(s);
}

FAKE_API int cuMemcpyDtoDAsync_v2(address to, address from, size_t bytes, void *s) {
  const char *a = fake_memory(to, bytes, "a copy to the device");
  const char *b = fake_memory(from, bytes, "a copy from the device");
  if (a < b + bytes && b < a + bytes)
    fake_complain("overlaps", "a copy on the device");
  return fake_enqueue(s, copy_run, &(copy){.to_device = to, .from_device = from, .bytes = bytes},
                      sizeof(copy));
}

typedef struct fill {
  address to;
  unsigned x;
  int bytes;
  size_t n;
} fill;

static void fill_run(void *args) {
  const fill *f = args;
  char *to = fake_memory(f->to, f->n * (size_t)f->bytes, "a fill");
  for (size_t i = 0; i < f->n; i++)
    memcpy(to + i * (size_t)f->bytes, &f->x, (size_t)f->bytes);
}

static int fill_enqueue(address to, unsigned x, int bytes, size_t n, void *s) {
  fake_memory(to, n * (size_t)bytes, "a fill");
  if (to % (address)bytes)
    return INVALID;
  return fake_enqueue(s, fill_run, &(fill){to, x, bytes, n}, sizeof(fill));
}

FAKE_API int cuMemsetD8Async(address to, unsigned char x, size_t n, void *s) {
  return fill_enqueue(to, x, 1, n, s);
}
FAKE_API int cuMemsetD16Async(address to, unsigned short x, size_t n, void *s) {
  return fill_enqueue(to, x, 2, n, s);
}
FAKE_API int cuMemsetD32Async(address to, unsigned x, size_t n, void *s) {
  return fill_enqueue(to, x, 4, n, s);
}
