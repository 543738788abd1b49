// arena.h - the arenas of a plan (arenas.def).
#ifndef LM_CONTRACT_ARENA_H
#define LM_CONTRACT_ARENA_H

// The parameters, their gradients and each optimizer state consist of blocks of this many elements.
enum {
  LM_BLOCK = 1024
};

typedef enum {
#define ARENA(ID, NAME, TITLE) LM_ARENA_##ID,
#include "contract/arenas.def"
  LM_ARENAS
} lm_arena_id;
extern const char *const lm_arena_names[LM_ARENAS];  // as in the text of a plan: "param"
extern const char *const lm_arena_titles[LM_ARENAS]; // for people: "parameters"
#endif
