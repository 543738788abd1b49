// ranks.h - a run of several ranks: checks of the recipe's mesh, and the order of their
// preparations.
#ifndef LM_DRIVER_RANKS_H
#define LM_DRIVER_RANKS_H
#include "driver/session.h"

// The session of one of the ranks of s->comm computes a part. Reports a mesh of another size than
// their number, and what ranks do not support yet; makes the groups of ranks along the axes of the
// mesh, and sets the threads and the memory of this rank: its share of its machine.
lm_status lm_ranks_join(lm_session *s);
// Reports what ranks do not support yet, if the recipe's mesh has several.
void lm_ranks_unsupported_report(const lm_session *s);
// Reports a mesh in a session without ranks.
lm_status lm_ranks_need(const lm_session *s);
// The number of parts of the rows of a micro-batch, of which each rank has one. The ranks along pp
// divide them too with one_f_one_b and interleaved, and if the loss is no sum over rows. Needs
// run.pp, run.seq and run.columns.
int lm_ranks_row_parts(lm_session *s);
// Reports a mesh that does not divide the rows of a micro-batch, at every sequence length.
lm_status lm_ranks_rows_check(const lm_session *s);
// Calls the function on the first rank of each machine and then on the others, which find the
// results in the cache. `what` names them in messages.
lm_status lm_ranks_in_order(lm_comm *c, const char *what, lm_status (*call)(void *user),
                            void *user);
// lm_session_data in this order.
lm_status lm_ranks_data(lm_session *s);
// lm_session_start in this order. LM_ENV unless all ranks have compiled the same plan and read the
// same data.
lm_status lm_ranks_session_start(lm_session *s, const lm_exec_options *o);
#endif
