// explain.h - what `lmc explain FILE …` can show beside a key of the recipe.
#ifndef LMC_EXPLAIN_H
#define LMC_EXPLAIN_H
#include "lmc/session.h"

lm_status lm_explain_cost(lm_session *s);   // what each kernel of a training step costs
lm_status lm_explain_memory(lm_session *s); // who holds the memory of a training step, and when
#endif
