// checkpoint_sum.h - checksums.txt of a checkpoint: size and hash of each file, and a hash of these
// lines, which detects damage to checksums.txt itself:
//   23068848 5f0c1b2a3d4e5f60 model.safetensors
//   …
//   0123456789abcdef
#ifndef LM_TRAIN_CHECKPOINT_SUM_H
#define LM_TRAIN_CHECKPOINT_SUM_H
#include "runtime/base/base.h"

#define LM_CHECKPOINT_SUMS "checksums.txt"

// sums[i] is the checksum that was computed while files[i] was written.
lm_status lm_checkpoint_sums_write(lm_arena *a, const char *folder, const char *const *files,
                                   const lm_sum *sums, int n);
// *out_damage describes the damage of checksums.txt or of the first damaged file; NULL: none. A
// file may be NAME of several, of which checksums.txt has NAME.index.json and all others that begin
// as NAME does: model-00001-of-00002.safetensors. The status reports only errors that do not prove
// damage, such as a missing permission.
lm_status lm_checkpoint_sums_check(lm_arena *a, const char *folder, const char *const *files, int n,
                                   const char **out_damage);
#endif
