// memory.h - a plan's arenas on a GPU, and their exchange with the host.
//
// Slices of arenas are copied through a pinned buffer. The host has a copy of the IO arena only.
// An arena that the plan has on the host is pinned memory, without a copy on the device; its
// address in `at` is the host's.
//
// Arguments are copied to the device with every run of
// their function, through one of several staging buffers, so that the next arguments can be written
// during the copy. Small results are copied back after the run, large ones on access.
//
// Large arguments (a batch) are copied on a separate stream to a second staging buffer on the
// device, while previous runs still compute with the current arguments. The main stream then copies
// them to their addresses in the arena, which are fixed in CUDA graphs:
//
//   host buffer --copies--> device buffer --stream--> arena
//
// The host's buffer can be reused after the event `sent`, the device's after `taken`.
#ifndef LM_CUDA_MEMORY_H
#define LM_CUDA_MEMORY_H
#include "runtime/cuda/builtin.h"

// A range of the IO arena.
typedef struct lm_cuda_range {
  int64_t offset, bytes;
} lm_cuda_range;

// Arguments and results of one function.
typedef struct lm_cuda_io {
  lm_cuda_range *in;
  int n_in;
  int64_t in_bytes;
  lm_cuda_range *out;
  int n_out;    // small results
  bool *behind; // by result: the device has written it, and it is not copied back yet
} lm_cuda_io;

enum {
  LM_CUDA_FEW = 8
};

typedef struct lm_cuda_memory {
  const lm_plan *plan;
  const lm_cuda_driver *driver;
  const lm_cuda_device *device;
  void *stream; // of the steps
  void *copies; // for arguments
  lm_arena *arena;
  lm_cuda_address at[LM_ARENAS], workspace;
  int64_t workspace_bytes;
  char *io_host;  // pinned copy of the IO arena
  char *transfer; // pinned buffer of slices; NULL before the first
  lm_cuda_io *io; // by function
  struct {
    char *host;
    lm_cuda_address device;
    void *sent, *taken;
  } staging[2];
  // Of few arguments, which are copied in the order of the stream: more, so that the host does not
  // wait for a run that it has not started yet.
  struct {
    char *host;
    void *sent;
  } few[LM_CUDA_FEW];
  int slot, few_slot; // of the last run
} lm_cuda_memory;

// Allocates every arena, zeroed. LM_ENV with the sizes, about the plan, if memory does not suffice.
// Also after an error, lm_cuda_memory_free must be called.
lm_status lm_cuda_memory_make(lm_cuda_memory *m, const lm_plan *plan, const lm_cuda_driver *d,
                              const lm_cuda_device *device, void *stream, int64_t workspace);
void lm_cuda_memory_free(lm_cuda_memory *m);
// The event after which the host's copy of the arguments of f may be written; NULL: it may be now.
void *lm_cuda_memory_sent(const lm_cuda_memory *m, const lm_plan_func *f);
// Enqueues the copies to the device before a run of f, after that event. Large results are behind
// from then on.
lm_status lm_cuda_memory_begin(lm_cuda_memory *m, const lm_plan_func *f);
// Enqueues the copies from the device after a run of f.
lm_status lm_cuda_memory_end(lm_cuda_memory *m, const lm_plan_func *f);
// The following functions require that the stream is idle. Slices lie within their arena.
lm_status lm_cuda_memory_read(lm_cuda_memory *m, lm_arena_id id, int64_t offset, int64_t bytes,
                              void *to);
lm_status lm_cuda_memory_write(lm_cuda_memory *m, lm_arena_id id, int64_t offset, int64_t bytes,
                               const void *from);
lm_status lm_cuda_memory_result(lm_cuda_memory *m, const lm_plan_port *p);
bool lm_cuda_memory_is_argument(const lm_cuda_memory *m, const lm_plan_port *p);
lm_status lm_cuda_memory_clear(lm_cuda_memory *m, lm_arena_id id);
#endif
