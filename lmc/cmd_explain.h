// explain.h - what `lmc explain FILE …` can show beside a key of the recipe.
#ifndef LMC_EXPLAIN_H
#define LMC_EXPLAIN_H
#include "lmc/open.h"

lm_status lm_explain_cost(const lm_cli *cli,
                          lm_session *s); // what each kernel of a training step costs
lm_status lm_explain_memory(const lm_cli *cli,
                            lm_session *s); // who holds the memory of a training step, and when
#endif
