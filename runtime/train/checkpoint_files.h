// checkpoint_files.h - the files of tensors of a checkpoint: what each has, and which rank writes
// it.
//
// The tensors of a set, the model's or the optimizer's, are in one file, model.safetensors, unless
// that would have more bytes of tensors than a limit. Then they are, in their order, in several,
// each with as many as fit the limit, and at least one: Hugging Face's form of sharded weights,
//   model-00001-of-00003.safetensors, …, and model.safetensors.index.json, which names the file of
//   each tensor
// Files depend on sizes alone, so equal states have equal files on every mesh.
#ifndef LM_TRAIN_CHECKPOINT_FILES_H
#define LM_TRAIN_CHECKPOINT_FILES_H
#include "runtime/train/trainer.h"
#include "runtime/weights/safetensors.h"

typedef enum {
  LM_CHECKPOINT_MODEL,     // the parameters
  LM_CHECKPOINT_OPTIMIZER, // the states, one after the other
  LM_CHECKPOINT_SETS
} lm_checkpoint_set;

// The file of a set that is in one file.
const char *lm_checkpoint_set_file(lm_checkpoint_set set); // "model.safetensors"

typedef struct lm_checkpoint_tensors {
  lm_st_tensor *of;
  lm_plan_tensor *planned; // their memory in the plan
  size_t n;
} lm_checkpoint_tensors;

// states: the names of plan->n_states optimizer states; NULL: unnamed, where only sizes matter.
// LM_USER: a tensor has more axes than a file supports.
lm_status lm_checkpoint_tensors_list(lm_arena *a, const lm_plan *plan, const lm_train_state *states,
                                     lm_checkpoint_set set, lm_checkpoint_tensors *out);

typedef struct lm_checkpoint_file {
  const char *name;
  lm_checkpoint_set set;
  lm_checkpoint_tensors tensors;
  int64_t bytes; // of the tensors
  int writer;    // the rank that writes the file
} lm_checkpoint_file;

typedef struct lm_checkpoint_files {
  lm_checkpoint_file *v; // of the model, then of the optimizer
  uint32_t n, cap;
} lm_checkpoint_files;

// max: bytes of tensors in a file. Each file is written by the rank that has the least bytes to
// write so far.
lm_status lm_checkpoint_files_list(lm_arena *a, const lm_plan *plan, const lm_train_state *states,
                                   int64_t max, lm_checkpoint_files *out);
// The name of a set's index; NULL: the set is in one file.
const char *lm_checkpoint_index_name(lm_arena *a, const lm_checkpoint_files *f,
                                     lm_checkpoint_set set);
void lm_checkpoint_index_print(lm_buf *b, const lm_checkpoint_files *f, lm_checkpoint_set set);

// Bytes of the tensors that the rank with the most of them writes.
int64_t lm_checkpoint_most_bytes(const lm_plan *plan, int64_t max);
#endif
