// replay.h - precomputed batches in a safetensors file: tok, pos, seg, next [steps, rows, seq] I32,
// and w [steps, rows, seq] F32; further columns [steps, rows, …], I32 or of a floating-point type.
#ifndef LM_DATA_FEED_REPLAY_H
#define LM_DATA_FEED_REPLAY_H
#include "runtime/data/feed/data.h"

typedef struct lm_replay lm_replay;
// LM_USER: the file is missing, or a tensor is missing or has another shape, type or range.
lm_status lm_replay_open(const char *path, const lm_data_column *more, int n_more, lm_replay **out);
void lm_replay_close(lm_replay *r); // r may be NULL
void lm_replay_shape(const lm_replay *r, int64_t *out_steps, int64_t *out_rows, int64_t *out_seq);
// A hash of the batches of the first `steps` steps.
lm_status lm_replay_key(const lm_replay *r, int64_t steps, uint64_t *out);
unsigned lm_replay_umask(const lm_replay *r); // see lm_data_info
lm_status lm_replay_unchanged(lm_replay *r);  // LM_ENV: the file was changed since it was opened
void lm_replay_limits(const lm_replay *r, int32_t *out_max_id, int32_t *out_max_pos);
lm_data_column_info lm_replay_column(const lm_replay *r, int i); // of the further columns
// Fills rows first … first + n - 1, counted over all steps. LM_ENV: the file was truncated, or
// holds values that it did not hold when it was opened.
lm_status lm_replay_fill(const lm_replay *r, int64_t first, int64_t n, const lm_batch *b);
#endif
