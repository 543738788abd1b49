// checkpoint_sum.h - checksums.txt of a checkpoint: size and hash of each of its files, and a hash
// of those lines, so that damage to any file, this one too, is told from what was written:
//   23068848 5f0c1b2a3d4e5f60 model.safetensors
//   …
//   0123456789abcdef
#ifndef LM_TRAIN_CHECKPOINT_SUM_H
#define LM_TRAIN_CHECKPOINT_SUM_H
#include "runtime/base/base.h"

#define LM_CHECKPOINT_SUMS "checksums.txt"

// sums[i]: of what was written to files[i], so that nothing need be read again.
lm_status lm_checkpoint_sums_write(lm_arena *a, const char *folder, const char *const *files,
                                   const lm_sum *sums, int n);
// *out_damage: what is wrong with the checksums or the first of the files that is not what was
// written; NULL: all are. A status only for what says nothing about the files, such as a permission
// that is missing.
lm_status lm_checkpoint_sums_check(lm_arena *a, const char *folder, const char *const *files, int n,
                                   const char **out_damage);
#endif
