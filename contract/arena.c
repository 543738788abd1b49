// arena.c - see arena.h.
#include "contract/arena.h"

const char *const lm_arena_names[LM_ARENAS] = {
#define ARENA(ID, NAME, TITLE) NAME,
#include "contract/arenas.def"
};

const char *const lm_arena_titles[LM_ARENAS] = {
#define ARENA(ID, NAME, TITLE) TITLE,
#include "contract/arenas.def"
};
