// cmd_explain.h - the subjects of `lmc explain FILE …` that are not keys of the recipe.
#ifndef LMC_EXPLAIN_H
#define LMC_EXPLAIN_H
#include "lmc/open.h"
lm_status lm_explain_cost(const lm_cli *cli, lm_session *s);
lm_status lm_explain_memory(const lm_cli *cli, lm_session *s);
lm_status lm_explain_changes(const lm_cli *cli, const char *dir); // of a run
#endif
