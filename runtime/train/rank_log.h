// rank_log.h - logs/rank-N.jsonl in the folder of a run of several ranks: what rank N has done, one
// JSON object a line. Each start of the run appends to the file.
//
//   {"rank":1,"ranks":2,"host":"b","process":17,"from":8}        at the start; the resumed step
//   {"step":9,"seconds":0.5,"waited":0.1}                        of which it waited for others
//   {"end":"…"}                                                  why the run failed; "": it did not
#ifndef LM_TRAIN_RANK_LOG_H
#define LM_TRAIN_RANK_LOG_H
#include "runtime/comm/comm.h"

typedef struct lm_rank_log lm_rank_log;
lm_status lm_rank_log_open(const char *dir, const lm_comm *comm, int64_t step, lm_rank_log **out);
// At the end of a step. l may be NULL, here and below.
lm_status lm_rank_log_step(lm_rank_log *l, int64_t step);
void lm_rank_log_close(lm_rank_log *l, const lm_status end);
#endif
