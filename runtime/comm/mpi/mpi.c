// mpi.c - the engine over MPI: the plugin liblm_mpi.so (engine.h).
//
// Each lane is a communicator. Waiting processes call MPI_Testany through `test`, which
// also makes the library progress.
#include <mpi.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/comm/engine.h"

enum {
  REQUESTS = 128,         // collectives that may be under way at a time
  MESSAGE_MAX = 64 << 20, // bytes; larger messages are sent in pieces
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

// Receives are started first, so that what arrives is stored where it belongs.
static bool mpi_start(void *user, int lane, int tag, const lm_message *m, int n, int *out,
                      char *error) {
  engine *e = user;
  int slot = 0, pieces = 0;
  while (slot < REQUESTS && e->requests[slot].v)
    slot++;
  if (slot == REQUESTS)
    return refused(error, "too many collectives are under way");
  for (int i = 0; i < n; i++)
    pieces += pieces_of(m[i].bytes);
  request *r = &e->requests[slot];
  *r = (request){malloc(sizeof *r->v * (size_t)(pieces + 1)),
                 malloc(sizeof *r->bytes * (size_t)(pieces + 1)), 0};
  if (!r->v || !r->bytes) {
    request_free(r);
    return refused(error, "no memory is left");
  }
  for (int sends = 0; sends < 2; sends++)
    for (int i = 0; i < n; i++)
      if (m[i].sends == sends && !message_start(e->lanes[lane], tag, &m[i], r, error))
        return false;
  *out = slot;
  return true;
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
  for (int i = 0; i < e->n_lanes; i++)
    MPI_Comm_free(&e->lanes[i]);
  free(e);
  MPI_Finalize();
}

__attribute__((visibility("default"))) const lm_engine_ops *lm_engine_table(void);
const lm_engine_ops *lm_engine_table(void) {
  static const lm_engine_ops table = {LM_ENGINE_VERSION, "MPI",    mpi_open,  mpi_share, mpi_split,
                                      mpi_start,         mpi_test, mpi_close, NULL};
  return &table;
}
