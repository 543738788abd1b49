// ranks_fewer.h - the number of ranks with which lost ones are started again.
#ifndef LM_DRIVER_RANKS_FEWER_H
#define LM_DRIVER_RANKS_FEWER_H
#include "driver/project.h"

// How ranks that were lost are started again.
typedef struct lm_ranks_retry {
  lm_recipe_choice from; // the recipe of the run
  const char *dir;       // the run's folder; NULL: the recipe's
  int ranks;             // of the next start
  int least;             // ranks with which the run may continue; 0: with `ranks`
  int losses;
  int64_t newest; // step of the newest checkpoint at the last loss; -1: none
} lm_ranks_retry;

// Called after a loss. If the ranks were lost again without a checkpoint in between, sets
// retry->ranks to the next smaller number for which dp (or fsdp) of the mesh is a divisor of the
// present one, so that it divides the same rows, or leaves it if that is below `least`.
lm_status lm_ranks_retry_next(lm_ctx *c, lm_ranks_retry *retry);
#endif
