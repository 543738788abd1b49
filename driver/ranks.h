// ranks.h - a run of several ranks: checks of the recipe's mesh, and the order of their
// preparations.
#ifndef LM_DRIVER_RANKS_H
#define LM_DRIVER_RANKS_H
#include "driver/session.h"

// Reports a mesh of another size than the ranks of s->comm, and what ranks do not support yet, and
// makes the groups of ranks along its axes. Call it when the session is open.
lm_status lm_ranks_check(const lm_session *s);
// Reports a mesh that does not divide the rows of a micro-batch, at every sequence length.
lm_status lm_ranks_rows_check(const lm_session *s);
// Sets the threads and the memory of this rank: its share of its machine.
lm_status lm_ranks_share(lm_session *s);
// Calls the function on the first rank of each machine and then on the others, which find the
// results in the cache. `what` names them in messages.
lm_status lm_ranks_in_order(lm_comm *c, const char *what, lm_status (*call)(void *user),
                            void *user);
// LM_ENV unless all ranks have compiled the same plan and read the same data.
lm_status lm_ranks_compare(const lm_session *s);
#endif
