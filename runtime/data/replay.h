// replay.h - finished batches from a file: tok, pos, seg, next [steps, rows, seq] I32 and w of the same shape, F32.
#ifndef LM_DATA_REPLAY_H
#define LM_DATA_REPLAY_H
#include "runtime/data/data.h"

typedef struct lm_replay lm_replay;
lm_status lm_replay_open(const char *path, lm_replay **out);
void lm_replay_close(lm_replay *r);    // NULL is fine
void lm_replay_shape(const lm_replay *r, int64_t *out_steps, int64_t *out_rows, int64_t *out_seq);
uint64_t lm_replay_key(const lm_replay *r, int64_t steps);   // of all bytes of the first steps
void lm_replay_limits(const lm_replay *r, int32_t *out_max_id, int32_t *out_max_pos);
// Rows first … first + n - 1, counted through all steps.
void lm_replay_fill(const lm_replay *r, int64_t first, int64_t n, const lm_batch *b);
#endif
