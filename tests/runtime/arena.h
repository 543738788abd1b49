// arena.h - the whole memory of an arena in tests.
#ifndef LM_TESTS_ARENA_H
#define LM_TESTS_ARENA_H
#include "runtime/hal/exec.h"
#include "tests/runtime/check.h"

// A copy, to be freed with lm_free.
static inline void *arena_read(lm_exec *e, const lm_plan *p, lm_arena_id id) {
  void *copy = lm_alloc((size_t)p->arena_bytes[id] + 1);
  CHECK_OK(lm_exec_read(e, id, 0, p->arena_bytes[id], copy));
  return copy;
}

static inline void arena_write(lm_exec *e, const lm_plan *p, lm_arena_id id, const void *from) {
  CHECK_OK(lm_exec_write(e, id, 0, p->arena_bytes[id], from));
}
#endif
