// replay.h - finished batches from a file: tok, pos, seg, next [steps, rows, seq] I32 and w of the
// same shape, F32.
#ifndef LM_DATA_REPLAY_H
#define LM_DATA_REPLAY_H
#include "runtime/data/feed/data.h"

typedef struct lm_replay lm_replay;
lm_status lm_replay_open(const char *path, lm_replay **out);
void lm_replay_close(lm_replay *r); // NULL is fine
void lm_replay_shape(const lm_replay *r, int64_t *out_steps, int64_t *out_rows, int64_t *out_seq);
lm_status lm_replay_key(const lm_replay *r, int64_t steps,
                        uint64_t *out);          // of all bytes of the first steps
unsigned lm_replay_unshared(const lm_replay *r); // as lm_data_info
lm_status lm_replay_unchanged(lm_replay *r);     // LM_ENV: the file was changed since it was opened
void lm_replay_limits(const lm_replay *r, int32_t *out_max_id, int32_t *out_max_pos);
// Rows first … first + n - 1, counted through all steps.
// LM_ENV: the file has become shorter, or holds what it did not when it was opened.
lm_status lm_replay_fill(const lm_replay *r, int64_t first, int64_t n, const lm_batch *b);
#endif
