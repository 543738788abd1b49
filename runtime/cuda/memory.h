// memory.h - a plan's arenas on a GPU, and what the host sees of them.
//
// A mirror is the host's copy of an arena, made when it is first asked for. It is behind once the
// device has written to the arena, and ahead once it was handed out to be changed. Arguments and
// results have a mirror of their own rules: arguments go to the device with every run of their
// function, by way of a staging buffer that is there twice, so that the next ones may be written
// while these travel; small results come back behind the run, large ones when they are asked for.
//
// Many arguments (a batch's) travel on a stream of their own to a second staging buffer on the
// device, while what ran before still computes with its own; on the stream of the steps they then
// only move to their places, which graphs know:
//
//   host buffer --copies--> device buffer --stream--> arena       the host's is free behind `sent`,
//   the device's behind `taken`
#ifndef LM_CUDA_MEMORY_H
#define LM_CUDA_MEMORY_H
#include "runtime/cuda/builtin.h"

typedef struct lm_cuda_mirror {
  char *host;
  bool ahead, behind;
} lm_cuda_mirror;
typedef struct lm_cuda_range {
  int64_t offset, bytes;
} lm_cuda_range; // of the arena IO

typedef struct lm_cuda_io { // of one function
  lm_cuda_range *in;
  int n_in;
  int64_t in_bytes;
  lm_cuda_range *out;
  int n_out;    // small results
  bool *behind; // by result: a large one that the device has written
} lm_cuda_io;

typedef struct lm_cuda_memory {
  const lm_plan *plan;
  const lm_cuda_driver *driver;
  const lm_cuda_device *device;
  void *stream, *copies; // of the steps; of arguments on their way
  lm_arena *arena;
  lm_cuda_address at[LM_ARENAS], workspace;
  int64_t workspace_bytes;
  lm_cuda_mirror mirrors[LM_ARENAS]; // IO: pinned
  lm_cuda_io *io;                    // by function
  struct {
    char *host;
    lm_cuda_address device;
    void *sent, *taken;
  } staging[2];
  int turn;
} lm_cuda_memory;

// Every arena, zeroed. LM_ENV naming the sizes if they do not fit. What was made is freed by the
// other, also after a failure.
lm_status lm_cuda_memory_make(lm_cuda_memory *m, const lm_plan *plan, const lm_cuda_driver *d,
                              const lm_cuda_device *device, void *stream, int64_t workspace);
void lm_cuda_memory_free(lm_cuda_memory *m);
lm_status
lm_cuda_memory_begin(lm_cuda_memory *m,
                     const lm_plan_func *f); // enqueues what goes to the device before a run
lm_status lm_cuda_memory_end(lm_cuda_memory *m, const lm_plan_func *f,
                             const bool *writes); // and back, by arena: whether f writes to it
// The stream is at rest for these.
lm_status lm_cuda_memory_fetch(lm_cuda_memory *m, lm_arena_id id); // the mirror is no longer behind
lm_status lm_cuda_memory_result(lm_cuda_memory *m, const lm_plan_port *p);
bool lm_cuda_memory_is_argument(const lm_cuda_memory *m, const lm_plan_port *p);
char *lm_cuda_memory_mirror(lm_cuda_memory *m, lm_arena_id id);
lm_status lm_cuda_memory_clear(lm_cuda_memory *m, lm_arena_id id);
#endif
