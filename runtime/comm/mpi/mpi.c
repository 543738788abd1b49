// mpi.c - the engine over MPI: the plugin liblm_mpi.so (engine.h).
//
// Each lane is a communicator. Waiting processes call MPI_Testany through `test`, which
// also makes the library progress.
#include <mpi.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/base/dtype.h"
#include "runtime/comm/engine.h"

#ifndef LM_MPI_SUM_MAX // a test makes pieces of few elements
#define LM_MPI_SUM_MAX (1 << 28)
#endif

enum {
  REQUESTS = 128,           // collectives that may be under way at a time
  MESSAGE_MAX = 64 << 20,   // bytes; larger messages are sent in pieces
  SUM_MAX = LM_MPI_SUM_MAX, // elements; larger sums are made in pieces, since MPI counts in an int
};

typedef struct request {
  MPI_Request *v; // NULL: the slot is free
  int *bytes;     // that each receives; -1: it sends
  int n;
} request;

typedef struct engine {
  MPI_Comm lanes[LM_ENGINE_LANES];
  int n_lanes;
  request requests[REQUESTS];
  bool sums; // the types and operations are made
  struct {
    MPI_Datatype type;
    MPI_Op add;
  } of[LM_ENGINE_TYPES];
} engine;

static bool succeeded(int code, const char *what, char *error) {
  char text[MPI_MAX_ERROR_STRING];
  int n = 0;
  if (code == MPI_SUCCESS)
    return true;
  MPI_Error_string(code, text, &n);
  snprintf(error, LM_ENGINE_TEXT, "%s: %.*s", what, n, text);
  return false;
}

static bool refused(char *error, const char *text) {
  snprintf(error, LM_ENGINE_TEXT, "%s", text);
  return false;
}

static bool mpi_open(void **out, int *rank, int *size, char *error) {
  int provided = 0;
  if (!succeeded(MPI_Init_thread(NULL, NULL, MPI_THREAD_SERIALIZED, &provided), "MPI_Init", error))
    return false;
  if (provided < MPI_THREAD_SERIALIZED)
    return refused(error, "this MPI library does not allow a program to have threads");
  MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
  MPI_Comm_rank(MPI_COMM_WORLD, rank);
  MPI_Comm_size(MPI_COMM_WORLD, size);
  *out = calloc(1, sizeof(engine));
  return *out ? true : refused(error, "no memory is left");
}

static bool mpi_share(void *user, void *data, size_t bytes, char *error) {
  (void)user;
  return succeeded(MPI_Bcast(data, (int)bytes, MPI_BYTE, 0, MPI_COMM_WORLD), "MPI_Bcast", error);
}

static bool mpi_split(void *user, int color, int *lane, char *error) {
  engine *e = user;
  int rank;
  if (e->n_lanes == LM_ENGINE_LANES)
    return refused(error, "there are too many groups of ranks");
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm *made = &e->lanes[e->n_lanes];
  if (!succeeded(MPI_Comm_split(MPI_COMM_WORLD, color, rank, made), "MPI_Comm_split", error))
    return false;
  MPI_Comm_set_errhandler(*made, MPI_ERRORS_RETURN);
  *lane = e->n_lanes++;
  return true;
}

static int pieces_of(size_t bytes) {
  return (int)((bytes + MESSAGE_MAX - 1) / MESSAGE_MAX);
}

// Starts the pieces of one message at r->v[r->n …].
static bool message_start(MPI_Comm lane, int tag, const lm_message *m, request *r, char *error) {
  for (size_t at = 0; at < m->bytes; at += MESSAGE_MAX) {
    size_t n = m->bytes - at < MESSAGE_MAX ? m->bytes - at : MESSAGE_MAX;
    uint8_t *p = (uint8_t *)m->data + at;
    int code = m->sends ? MPI_Isend(p, (int)n, MPI_BYTE, m->peer, tag, lane, &r->v[r->n])
                        : MPI_Irecv(p, (int)n, MPI_BYTE, m->peer, tag, lane, &r->v[r->n]);
    if (!succeeded(code, m->sends ? "MPI_Isend" : "MPI_Irecv", error))
      return false;
    r->bytes[r->n++] = m->sends ? -1 : (int)n;
  }
  return true;
}

static void request_free(request *r) {
  free(r->v);
  free(r->bytes);
  *r = (request){0};
}

static request *request_new(engine *e, int pieces, int *slot, char *error) {
  *slot = 0;
  while (*slot < REQUESTS && e->requests[*slot].v)
    ++*slot;
  if (*slot == REQUESTS) {
    refused(error, "too many collectives are under way");
    return NULL;
  }
  request *r = &e->requests[*slot];
  *r = (request){malloc(sizeof *r->v * (size_t)(pieces + 1)),
                 malloc(sizeof *r->bytes * (size_t)(pieces + 1)), 0};
  if (r->v && r->bytes)
    return r;
  request_free(r);
  refused(error, "no memory is left");
  return NULL;
}

// Receives are started first, so that what arrives is stored where it belongs.
static bool mpi_start(void *user, int lane, int tag, const lm_message *m, int n, int *out,
                      char *error) {
  engine *e = user;
  int pieces = 0;
  for (int i = 0; i < n; i++)
    pieces += pieces_of(m[i].bytes);
  request *r = request_new(e, pieces, out, error);
  if (!r)
    return false;
  for (int sends = 0; sends < 2; sends++)
    for (int i = 0; i < n; i++)
      if (m[i].sends == sends && !message_start(e->lanes[lane], tag, &m[i], r, error))
        return false;
  return true;
}

// ---- sums in the order of the library. MPI has no floats of 16 bits: these functions add them,
// and round each sum.

static void bf16_add(void *in, void *inout, int *n, MPI_Datatype *type) {
  const uint16_t *x = in;
  uint16_t *y = inout;
  (void)type;
  for (int i = 0; i < *n; i++)
    y[i] = lm_bf16_from_f32(lm_bf16_to_f32(x[i]) + lm_bf16_to_f32(y[i]));
}

static void f16_add(void *in, void *inout, int *n, MPI_Datatype *type) {
  const uint16_t *x = in;
  uint16_t *y = inout;
  (void)type;
  for (int i = 0; i < *n; i++)
    y[i] = lm_f16_round(lm_f16_load(x[i]) + lm_f16_load(y[i]));
}

static bool half_make(engine *e, int type, MPI_User_function *add, char *error) {
  MPI_Datatype *t = &e->of[type].type;
  return succeeded(MPI_Type_contiguous(2, MPI_BYTE, t), "MPI_Type_contiguous", error) &&
         succeeded(MPI_Type_commit(t), "MPI_Type_commit", error) &&
         succeeded(MPI_Op_create(add, 1, &e->of[type].add), "MPI_Op_create", error);
}

static bool sums_make(engine *e, char *error) {
  if (e->sums)
    return true;
  e->of[LM_ENGINE_F32].type = MPI_FLOAT;
  e->of[LM_ENGINE_F64].type = MPI_DOUBLE;
  e->of[LM_ENGINE_F32].add = e->of[LM_ENGINE_F64].add = MPI_SUM;
  e->sums =
      half_make(e, LM_ENGINE_BF16, bf16_add, error) && half_make(e, LM_ENGINE_F16, f16_add, error);
  return e->sums;
}

static void sums_free(engine *e) {
  static const int halves[] = {LM_ENGINE_BF16, LM_ENGINE_F16};
  for (int i = 0; e->sums && i < 2; i++) {
    MPI_Op_free(&e->of[halves[i]].add);
    MPI_Type_free(&e->of[halves[i]].type);
  }
}

static size_t width_of(const lm_engine_sum *x) {
  return x->type == LM_ENGINE_F64 ? 8 : x->type == LM_ENGINE_F32 ? 4 : 2;
}

static size_t piece_of(const lm_engine_sum *x, size_t at) {
  return x->count - at < SUM_MAX ? x->count - at : SUM_MAX;
}

static MPI_Request *request_next(request *r) {
  r->bytes[r->n] = -1;
  return &r->v[r->n++];
}

static bool scatters_whole(const lm_engine_sum *x, int ranks) {
  return x->scatters && x->count <= SUM_MAX / (size_t)ranks;
}

static int requests_of(const lm_engine_sum *x, int ranks) {
  int pieces = (int)((x->count + SUM_MAX - 1) / SUM_MAX);
  return scatters_whole(x, ranks) ? 1 : x->scatters ? pieces * ranks : pieces;
}

static bool scatter_start(const engine *e, MPI_Comm lane, const lm_engine_sum *x, request *r,
                          char *error) {
  return succeeded(MPI_Ireduce_scatter_block(x->from, x->to, (int)x->count, e->of[x->type].type,
                                             e->of[x->type].add, lane, request_next(r)),
                   "MPI_Ireduce_scatter_block", error);
}

// A piece of the sum of one rank of the lane.
static bool slice_start(const engine *e, MPI_Comm lane, const lm_engine_sum *x, int rank, size_t at,
                        request *r, char *error) {
  const char *from = (const char *)x->from + ((size_t)rank * x->count + at) * width_of(x);
  char *to = (char *)x->to + at * width_of(x);
  return succeeded(MPI_Ireduce(from, to, (int)piece_of(x, at), e->of[x->type].type,
                               e->of[x->type].add, rank, lane, request_next(r)),
                   "MPI_Ireduce", error);
}

static bool slices_start(const engine *e, MPI_Comm lane, const lm_engine_sum *x, int ranks,
                         request *r, char *error) {
  for (int rank = 0; rank < ranks; rank++)
    for (size_t at = 0; at < x->count; at += SUM_MAX)
      if (!slice_start(e, lane, x, rank, at, r, error))
        return false;
  return true;
}

static bool whole_start(const engine *e, MPI_Comm lane, const lm_engine_sum *x, request *r,
                        char *error) {
  for (size_t at = 0; at < x->count; at += SUM_MAX) {
    const char *from = (const char *)x->from + at * width_of(x);
    char *to = (char *)x->to + at * width_of(x);
    int code = MPI_Iallreduce(from == to ? MPI_IN_PLACE : from, to, (int)piece_of(x, at),
                              e->of[x->type].type, e->of[x->type].add, lane, request_next(r));
    if (!succeeded(code, "MPI_Iallreduce", error))
      return false;
  }
  return true;
}

static bool sum_start(const engine *e, MPI_Comm lane, const lm_engine_sum *x, int ranks, request *r,
                      char *error) {
  if (!x->scatters)
    return whole_start(e, lane, x, r, error);
  return scatters_whole(x, ranks) ? scatter_start(e, lane, x, r, error)
                                  : slices_start(e, lane, x, ranks, r, error);
}

static bool mpi_sum(void *user, int lane, const lm_engine_sum *x, int n, int *out, char *error) {
  engine *e = user;
  int pieces = 0, ranks;
  MPI_Comm_size(e->lanes[lane], &ranks);
  for (int i = 0; i < n; i++)
    pieces += requests_of(&x[i], ranks);
  request *r = sums_make(e, error) ? request_new(e, pieces, out, error) : NULL;
  for (int i = 0; r && i < n; i++)
    if (!sum_start(e, e->lanes[lane], &x[i], ranks, r, error))
      return false;
  return r;
}

// A message that is too long is an error of the library; one that is too short is found here.
static bool message_check(const request *r, int index, const MPI_Status *status, char *error) {
  int bytes;
  if (r->bytes[index] < 0)
    return true;
  MPI_Get_count(status, MPI_BYTE, &bytes);
  if (bytes == r->bytes[index])
    return true;
  snprintf(error, LM_ENGINE_TEXT,
           "rank %d of the group sent %d bytes for %d: it is at another step", status->MPI_SOURCE,
           bytes, r->bytes[index]);
  return false;
}

static bool mpi_test(void *user, int slot, int *left, char *error) {
  request *r = &((engine *)user)->requests[slot];
  MPI_Status status;
  int done = 0, index;
  *left = 0;
  for (;;) {
    if (!succeeded(MPI_Testany(r->n, r->v, &index, &done, &status), "MPI_Testany", error))
      return false;
    if (!done || index == MPI_UNDEFINED)
      break;
    if (!message_check(r, index, &status, error))
      return false;
  }
  for (int i = 0; i < r->n; i++)
    *left += r->v[i] != MPI_REQUEST_NULL;
  if (!*left)
    request_free(r);
  return true;
}

static void mpi_close(void *user) {
  engine *e = user;
  sums_free(e);
  for (int i = 0; i < e->n_lanes; i++)
    MPI_Comm_free(&e->lanes[i]);
  free(e);
  MPI_Finalize();
}

__attribute__((visibility("default"))) const lm_engine_ops *lm_engine_table(void);
const lm_engine_ops *lm_engine_table(void) {
  static const lm_engine_ops table = {
      .version = LM_ENGINE_VERSION,
      .name = "MPI",
      .open = mpi_open,
      .share = mpi_share,
      .split = mpi_split,
      .start = mpi_start,
      .sum = mpi_sum,
      .test = mpi_test,
      .close = mpi_close,
  };
  return &table;
}
