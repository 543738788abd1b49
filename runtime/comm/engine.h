// engine.h - what moves bytes between ranks: TCP (tcp.h), or MPI, which is loaded as a plugin.
//
// A plugin is a shared library with the function lm_engine_table. It is compiled without the rest
// of lmc, so this header needs nothing else, and errors are texts of at most LM_ENGINE_TEXT bytes.
// Collectives of comm.h are made of messages, so that two engines compute the same bits, except in
// sums that a recipe leaves to the engine (`sum`).
//
// Threads: one thread at a time calls an engine, not always the same.
#ifndef LM_COMM_ENGINE_H
#define LM_COMM_ENGINE_H
#include <stdbool.h>
#include <stddef.h>

enum {
  LM_ENGINE_VERSION = 4, // changes with this header
  LM_ENGINE_TEXT = 256,
  LM_ENGINE_LANES = 16, // maximum number of lanes of an engine
};

// Part of a collective. `peer` is a rank of the lane; `data` is read by a message that sends.
typedef struct lm_message {
  int peer;
  bool sends;
  void *data;
  size_t bytes; // at least 1
} lm_message;

// A sum over the ranks of a lane: of `count` elements, or, if it scatters, of as many for each
// rank, of which each receives its own.
typedef struct lm_engine_sum {
  bool scatters;
  enum {
    LM_ENGINE_F32,
    LM_ENGINE_F64,
    LM_ENGINE_BF16, // each addition is rounded
    LM_ENGINE_F16,
    LM_ENGINE_TYPES
  } type;
  const void *from;
  void *to; // may be `from`, unless it scatters
  size_t count;
} lm_engine_sum;

// Functions that return bool return true on success; otherwise they have filled `error`.
typedef struct lm_engine_ops {
  int version; // LM_ENGINE_VERSION
  const char *name;
  // Joins the other processes. *out is the engine; the ranks are those of the launcher.
  bool (*open)(void **out, int *rank, int *size, char *error);
  // Copies `bytes` from rank 0 to all.
  bool (*share)(void *engine, void *data, size_t bytes, char *error);
  // Every rank calls it: makes a lane of the ranks that give the same color, in order of their
  // ranks. A lane is a group with its own order of messages.
  bool (*split)(void *engine, int color, int *lane, char *error);
  // Starts all messages; their memory must remain until they are complete. Messages between two
  // ranks are matched in the order in which they were started with an equal tag (0 … 32767).
  bool (*start)(void *engine, int lane, int tag, const lm_message *m, int n, int *request,
                char *error);
  // Starts n sums, in an order that the engine chooses, as `start` does messages. All ranks of a
  // lane call it in one order. NULL: the engine has none.
  bool (*sum)(void *engine, int lane, const lm_engine_sum *x, int n, int *request, char *error);
  // *left: how many messages, or sums, of the request are not complete. The request is released
  // when none is.
  bool (*test)(void *engine, int request, int *left, char *error);
  // All ranks call it, with no request left.
  void (*close)(void *engine);
  // Frees the engine of a run that has failed, alone; NULL: it is left as it is until the process
  // ends.
  void (*drop)(void *engine);
} lm_engine_ops;

typedef const lm_engine_ops *lm_engine_table_fn(void);
#define LM_ENGINE_SYMBOL "lm_engine_table"
#endif
