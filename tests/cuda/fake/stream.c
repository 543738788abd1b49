// stream.c - the fake CUDA driver: streams, events, graphs, copies and fills; see fake.h.
#define _GNU_SOURCE
#include "tests/cuda/fake/driver.h"

#include <math.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum {
  RECORDS = 256,
  PATIENCE_S = 2, // that an eager stream waits for other processes
  STEPS = 4       // of all streams, at most, when an operation is enqueued at random
};

typedef struct event {
  bool done;
  double time;
  struct stream *stream;
  long recorded, ran;
  fake_clock clock[RECORDS]; // by number of the record, of the last ones that ran
  struct graph *capture;     // that it was recorded in last, as operation `at`; NULL: in none
  bool in_graph;             // it was recorded in a recording, which may have ended
  int at;
} event; // counts of records
// `number` is the number of the record. In a graph: `on` is the stream; it is not set in a queue.
typedef struct op {
  void (*fn)(void *args);
  bool (*try)(void *args); // called instead of fn, again until it returns true
  bool begun;
  void *args;
  size_t bytes; // of them
  event *record, *wait;
  long number;
  struct stream *on;
  struct stream *of;                    // which records the event that is waited for
  bool of_graph;                        // which owns the arguments
  struct graph *graph;                  // in a queue: that one
  void (*hold)(void *args, bool holds); // a graph has the operation, or not any more
  fake_clock host;                      // when it was enqueued
} op;
// `users`: handles, `queued`: operations of launches.
typedef struct graph {
  op *ops;
  int n, cap, users;
  long queued, id;
  struct stream *origin; // whose recording it is
} graph;
typedef struct stream {
  graph queue;
  int done, number;
  graph *capture;   // the recording in which it is
  int last, joined; // its last operation in the recording, and the last that the origin waits for
  bool eager;
  fake_clock clock;
} stream;
static fake_clock host; // what the host has waited for
static stream *streams[FAKE_STREAMS];
// ---- streams

static double now(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static bool stream_step(stream *s);

// Runs what must come before a wait for the event: the other stream, up to the record. False: that
// waits for other processes.
static bool event_reach(const event *e, long number, stream *s) {
  while (e->ran < number && s->done < s->queue.n)
    if (!stream_step(s))
      return false;
  return true;
}

// Sets the clock of the operation that runs.
static void op_begin(stream *s, op *o) {
  if (o->begun)
    return fake_order_set(s->number, &s->clock);
  o->begun = true;
  fake_clock_join(&s->clock, &o->host);
  if (o->wait)
    fake_clock_join(&s->clock, &o->wait->clock[o->number % RECORDS]);
  s->clock.at[s->number]++;
  fake_order_set(s->number, &s->clock);
}

static bool op_run(stream *s, op *o) {
  if (o->wait && !event_reach(o->wait, o->number, o->of))
    return false;
  op_begin(s, o);
  if (o->try && !fake.sticky && !o->try(o->args))
    return false;
  if (o->fn && !fake.sticky)
    o->fn(o->args);
  if (o->record) {
    o->record->ran = o->number;
    o->record->time = now();
    o->record->clock[o->number % RECORDS] = s->clock;
  }
  return true;
}

static void graph_free(graph *g) {
  if (g->users || g->queued)
    return;
  for (int i = 0; i < g->n; i++)
    free(g->ops[i].args);
  free(g->ops);
  free(g);
}

static void queue_end(stream *s) {
  if (s->done < s->queue.n)
    return;
  for (int i = 0; i < s->queue.n; i++) {
    op *o = &s->queue.ops[i];
    if (!o->of_graph) {
      free(o->args);
      continue;
    }
    o->graph->queued--;
    graph_free(o->graph);
  }
  s->queue.n = s->done = 0;
}

// Runs the next operation. False: there is none, or it waits for other processes.
static bool stream_step(stream *s) {
  if (s->done == s->queue.n || !op_run(s, &s->queue.ops[s->done]))
    return false;
  s->done++;
  queue_end(s);
  return true;
}

static unsigned drawn(void) {
  fake.seed = fake.seed * 1103515245 + 12345;
  return (unsigned)(fake.seed >> 16) & 0x7fff;
}

// With a seed: some operations of any streams, as far as they may run.
static void some_run(void) {
  for (unsigned i = fake.seed ? drawn() % (STEPS + 1) : 0; i > 0; i--) {
    stream *s = streams[drawn() % FAKE_STREAMS];
    if (s)
      stream_step(s);
  }
}

// Runs all operations of the stream. False: after some seconds it waits for other processes.
static bool stream_run(stream *s, double seconds) {
  double end = now() + seconds;
  while (s->done < s->queue.n && now() < end) {
    some_run();
    if (!stream_step(s))
      sched_yield();
  }
  return s->done == s->queue.n;
}

static void op_push(graph *g, op o) {
  if (g->n == g->cap)
    g->ops = realloc(g->ops, (size_t)(g->cap = g->cap * 2 + 64) * sizeof *g->ops);
  g->ops[g->n++] = o;
}

static void capture_push(stream *s, op o) {
  o.on = s;
  o.of_graph = true;
  s->last = s->capture->n;
  op_push(s->capture, o);
}

// An eager stream executes an operation at once, after the operations that it must wait for: as
// early as allowed.
static void stream_push(stream *s, op o) {
  o.host = host;
  op_push(&s->queue, o);
  if (s->eager)
    stream_run(s, PATIENCE_S);
  some_run();
}

static void recorded_check(const stream *s, const char *name) {
  if (s->capture)
    fake_complain("recorded", name);
}

static void *copy_of(const void *args, size_t bytes) {
  return memcpy(malloc(bytes + 1), args, bytes);
}

static int op_enqueue(stream *s, op o, const void *args) {
  if (fake.sticky)
    return fake.sticky;
  if (!s)
    fake_complain("the default stream, which is never synchronized", "enqueue");
  o.args = copy_of(args, o.bytes);
  if (s->capture && o.hold)
    o.hold(o.args, true);
  if (s->capture)
    capture_push(s, o);
  else
    stream_push(s, o);
  return 0;
}

bool fake_records_behind_other(void *handle, void (*fn)(void *args)) {
  const stream *s = handle;
  const graph *g = s->capture;
  bool any = g && s->last < g->n && g->ops[s->last].on == s;
  return g && (!any || g->ops[s->last].fn != fn);
}

FAKE_API int fake_enqueue(void *handle, void (*fn)(void *args), const void *args, size_t bytes) {
  return op_enqueue(handle, (op){.fn = fn, .bytes = bytes}, args);
}

FAKE_API int fake_enqueue_try(void *handle, bool (*fn)(void *args),
                              void (*hold)(void *args, bool holds), const void *args,
                              size_t bytes) {
  return op_enqueue(handle, (op){.try = fn, .hold = hold, .bytes = bytes}, args);
}

FAKE_API long fake_records(void *handle) {
  const stream *s = handle;
  return s->capture ? s->capture->id : 0;
}

FAKE_API int fake_recording(void) {
  return fake.recording;
}

FAKE_API int cuStreamCreate(void **out, unsigned flags) {
  if (fake.sticky)
    return fake.sticky;
  stream *s = *out = calloc(1, sizeof *s);
  s->eager = fake.eager && fake.streams;
  while (s->number < FAKE_STREAMS && streams[s->number])
    s->number++;
  if (s->number == FAKE_STREAMS)
    fake_complain("too many streams", "cuStreamCreate");
  streams[s->number] = s;
  s->clock = host;
  fake.streams++;
  return 0;
}

FAKE_API int cuCtxGetStreamPriorityRange(int *least, int *greatest) {
  *least = 0;
  *greatest = -5;
  return fake.sticky;
}

FAKE_API int cuStreamCreateWithPriority(void **out, unsigned flags, int priority) {
  return priority > 0 || priority < -5 ? INVALID : cuStreamCreate(out, flags);
}

FAKE_API int cuStreamDestroy_v2(void *handle) {
  stream *s = handle;
  stream_run(s, HUGE_VAL);
  streams[s->number] = NULL;
  free(s->queue.ops);
  free(s);
  fake.streams--;
  return 0;
}

FAKE_API int cuStreamSynchronize(void *handle) {
  stream *s = handle;
  recorded_check(s, "a wait for a stream");
  stream_run(s, HUGE_VAL);
  fake_clock_join(&host, &s->clock);
  return fake.sticky;
}

// Runs the stream up to an operation that waits for other processes.
FAKE_API int cuStreamQuery(void *handle) {
  stream *s = handle;
  recorded_check(s, "a query of a stream");
  while (s->done < s->queue.n) {
    some_run();
    if (!stream_step(s))
      return NOT_READY;
  }
  fake_clock_join(&host, &s->clock);
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
  e->capture = s->capture;
  e->in_graph = s->capture != NULL;
  e->stream = s;
  if (s->capture)
    capture_push(s, (op){.record = e});
  else
    stream_push(s, (op){.record = e, .number = ++e->recorded});
  e->at = s->last;
  return 0;
}

// A stream that waits for an event of a recording is in it, too.
static void capture_wait(stream *s, event *e) {
  s->capture = e->capture;
  capture_push(s, (op){.wait = e});
  if (s == s->capture->origin && e->stream->joined < e->at)
    e->stream->joined = e->at;
}

FAKE_API int cuStreamWaitEvent(void *handle, void *event_handle, unsigned flags) {
  event *e = event_handle;
  stream *s = handle;
  if (fake.sticky)
    return fake.sticky;
  if ((e->stream && e->stream->number == fake.unseen) || s->number == fake.blind)
    return 0;
  if (e->capture)
    capture_wait(s, e);
  else if (s->capture)
    fake_complain("waits for an event outside of the recording", "a stream in a recording");
  else if (e->in_graph)
    fake_complain("waits for an event that a recording has", "a stream");
  else if (e->recorded)
    stream_push(s, (op){.wait = e, .number = e->recorded, .of = e->stream});
  return 0;
}

static void event_check(const event *e) {
  if (e->in_graph)
    fake_complain("of an event that a recording has", "a query");
}

FAKE_API int cuEventSynchronize(void *handle) {
  event *e = handle;
  event_check(e);
  while (!event_reach(e, e->recorded, e->stream))
    sched_yield();
  fake_clock_join(&host, &e->clock[e->recorded % RECORDS]);
  return fake.sticky;
}

FAKE_API int cuEventQuery(void *handle) {
  event *e = handle;
  event_check(e);
  if (!event_reach(e, e->recorded, e->stream))
    return NOT_READY;
  fake_clock_join(&host, &e->clock[e->recorded % RECORDS]);
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
  recorded_check(s, "the begin of a recording");
  static long captures;
  s->capture = calloc(1, sizeof *s->capture);
  s->capture->id = ++captures;
  s->capture->users = 1;
  s->capture->origin = s;
  fake.recording++;
  fake.graphs++;
  return 0;
}

FAKE_API int cuGraphDestroy(void *handle);

// All streams in the recording leave it.
FAKE_API int cuStreamEndCapture(void *handle, void **out) {
  stream *s = handle;
  graph *g = s->capture;
  bool unjoined = false;
  if (!g)
    fake_complain("does not record", "the end of a recording");
  for (int i = 0; i < g->n; i++) {
    stream *on = g->ops[i].on;
    unjoined |= on->capture && on != s && on->joined < on->last;
    on->capture = NULL;
    on->last = on->joined = 0;
    if (g->ops[i].record)
      g->ops[i].record->capture = NULL;
  }
  *out = unjoined ? NULL : g;
  s->capture = NULL;
  fake.recording--;
  if (unjoined)
    cuGraphDestroy(g);
  return unjoined ? UNJOINED : fake.sticky;
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
    if (g->ops[i].hold)
      g->ops[i].hold(g->ops[i].args, false);
  fake.graphs--;
  graph_free(g);
  return 0;
}

FAKE_API int cuGraphExecDestroy(void *handle) {
  return cuGraphDestroy(handle);
}

// The operations go to the streams from which they were recorded.
FAKE_API int cuGraphLaunch(void *handle, void *to) {
  graph *g = handle;
  stream *s = to;
  if (fake.sticky)
    return fake.sticky;
  recorded_check(s, "a launch of a graph");
  fake.replays++;
  for (int i = 0; i < g->n; i++) {
    op o = g->ops[i];
    if (o.try) { // the arguments are the state of a run
      o.args = copy_of(o.args, o.bytes);
      o.of_graph = false;
    }
    o.graph = g;
    g->queued += o.of_graph;
    stream *on = o.on == g->origin ? s : o.on;
    if (o.record) {
      o.number = ++o.record->recorded;
      o.record->stream = on;
    }
    if (o.wait) {
      o.number = o.wait->recorded;
      o.of = o.wait->stream;
    }
    stream_push(on, o);
  }
  return 0;
}

// ---- copies and fills

typedef struct copy {
  address to_device, from_device;
  char *to;
  const char *from;
  size_t bytes;
} copy;

static void order_touch_both(const char *to, const char *from, size_t bytes) {
  fake_order_touch(from, bytes, false, "a copy on the device");
  fake_order_touch(to, bytes, true, "a copy on the device");
}

static void copy_run(void *args) {
  const copy *c = args;
  char *to = c->to ? c->to : fake_memory(c->to_device, c->bytes, "a copy's destination");
  const char *from = c->from          ? c->from
                     : c->from_device ? fake_memory(c->from_device, c->bytes, "a copy's source")
                                      : (const char *)(c + 1);
  if (c->to || c->from)
    fake_order_copy(to, from, c->bytes);
  else
    order_touch_both(to, from, c->bytes);
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
  fake_order_touch(to, f->n * (size_t)f->bytes, true, "a fill");
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
