// checkpoint_files.c - see checkpoint_files.h.
#include "runtime/train/checkpoint_files.h"

#include <string.h>

static const char *const STEMS[] = {"model", "optimizer"};
static const char *const NAMES[] = {"model.safetensors", "optimizer.safetensors"};

const char *lm_checkpoint_set_file(lm_checkpoint_set set) {
  return NAMES[set];
}

// ---- tensors

static lm_status tensor_add(lm_checkpoint_tensors *l, const char *name, lm_plan_tensor x) {
  const lm_plan_param *p = x.param;
  lm_st_tensor *to = &l->of[l->n];
  if (p->rank > LM_ST_RANK)
    return lm_fail(LM_USER, "parameter %s has %d axes; a checkpoint supports at most %d", p->path,
                   p->rank, LM_ST_RANK);
  *to = (lm_st_tensor){
      .name = name,
      .dtype = lm_dtype_table[lm_plan_tensor_dtype(x)].stored,
      .rank = p->rank,
      .elements = p->elements,
  };
  for (int k = 0; k < p->rank; k++)
    to->shape[k] = p->shape[k];
  l->planned[l->n++] = x;
  return NULL;
}

static lm_status states_list(lm_arena *a, const lm_plan *plan, const lm_train_state *states,
                             lm_checkpoint_tensors *out) {
  for (int k = 0; k < plan->n_states; k++)
    for (int i = 0; i < plan->n_params; i++) {
      const lm_plan_param *p = &plan->params[i];
      const char *name = states ? lm_arena_printf(a, "%s.%s", states[k].name, p->path) : p->path;
      LM_TRY(tensor_add(out, name, (lm_plan_tensor){p, LM_ROLE_STATE, k}));
    }
  for (int i = 0; i < plan->n_own_states; i++) {
    const lm_plan_param *p = &plan->states[i];
    LM_TRY(tensor_add(out, p->path, (lm_plan_tensor){p, LM_ROLE_PARAM}));
  }
  return NULL;
}

lm_status lm_checkpoint_tensors_list(lm_arena *a, const lm_plan *plan, const lm_train_state *states,
                                     lm_checkpoint_set set, lm_checkpoint_tensors *out) {
  bool model = set == LM_CHECKPOINT_MODEL;
  size_t n = (size_t)plan->n_params * (model ? 1 : (size_t)plan->n_states);
  size_t most = n + (model ? 0 : (size_t)plan->n_own_states);
  *out = (lm_checkpoint_tensors){
      .of = LM_NEW_N(a, lm_st_tensor, most + 1),
      .planned = LM_NEW_N(a, lm_plan_tensor, most + 1),
  };
  if (!model)
    return states_list(a, plan, states, out);
  for (int i = 0; i < plan->n_params; i++) {
    const lm_plan_param *p = &plan->params[i];
    LM_TRY(tensor_add(out, p->path, (lm_plan_tensor){p, LM_ROLE_PARAM}));
  }
  return NULL;
}

// ---- files

static int64_t bytes_of(const lm_st_tensor *t) {
  return t->elements * lm_st_dtype_bytes(t->dtype);
}

// The file of the tensors of l from index `first` on.
static lm_checkpoint_file file_cut(const lm_checkpoint_tensors *l, size_t first, int64_t max) {
  lm_checkpoint_file f = {.tensors = {
                              .of = l->of + first,
                              .planned = l->planned + first,
                          }};
  for (size_t i = first; i < l->n; i++) {
    if (i > first && f.bytes + bytes_of(&l->of[i]) > max)
      break;
    f.bytes += bytes_of(&l->of[i]);
    f.tensors.n++;
  }
  return f;
}

static void set_divide(lm_arena *a, const lm_checkpoint_tensors *l, lm_checkpoint_set set,
                       int64_t max, lm_checkpoint_files *out) {
  uint32_t first = out->n;
  size_t at = 0;
  do { // a set without tensors has a file too
    lm_checkpoint_file f = file_cut(l, at, max);
    f.set = set;
    f.name = NAMES[set];
    LM_PUSH(a, out->v, out->n, out->cap) = f;
    at += f.tensors.n;
  } while (at < l->n);
  uint32_t n = out->n - first;
  for (uint32_t i = 0; n > 1 && i < n; i++)
    out->v[first + i].name =
        lm_arena_printf(a, "%s-%05u-of-%05u.safetensors", STEMS[set], i + 1, n);
}

static void writers_choose(lm_arena *a, int ranks, lm_checkpoint_files *f) {
  int64_t *load = LM_NEW_N(a, int64_t, (size_t)ranks);
  for (uint32_t i = 0; i < f->n; i++) {
    int least = 0;
    for (int r = 1; r < ranks; r++)
      if (load[r] < load[least])
        least = r;
    f->v[i].writer = least;
    load[least] += f->v[i].bytes;
  }
}

lm_status lm_checkpoint_files_list(lm_arena *a, const lm_plan *plan, const lm_train_state *states,
                                   int64_t max, lm_checkpoint_files *out) {
  *out = (lm_checkpoint_files){0};
  for (lm_checkpoint_set set = 0; set < LM_CHECKPOINT_SETS; set++) {
    lm_checkpoint_tensors l;
    LM_TRY(lm_checkpoint_tensors_list(a, plan, states, set, &l));
    set_divide(a, &l, set, max, out);
  }
  writers_choose(a, lm_plan_mesh_ranks(plan), out);
  return NULL;
}

// ---- the index

const char *lm_checkpoint_index_name(lm_arena *a, const lm_checkpoint_files *f,
                                     lm_checkpoint_set set) {
  int n = 0;
  for (uint32_t i = 0; i < f->n; i++)
    n += f->v[i].set == set;
  return n > 1 ? lm_arena_printf(a, "%s.index.json", NAMES[set]) : NULL;
}

void lm_checkpoint_index_print(lm_buf *b, const lm_checkpoint_files *f, lm_checkpoint_set set) {
  int64_t bytes = 0;
  for (uint32_t i = 0; i < f->n; i++)
    if (f->v[i].set == set)
      bytes += f->v[i].bytes;
  lm_buf_printf(b, "{\n  \"metadata\": {\n    \"total_size\": %lld\n  },\n  \"weight_map\": {",
                (long long)bytes);
  const char *separator = "";
  for (uint32_t i = 0; i < f->n; i++)
    for (size_t k = 0; f->v[i].set == set && k < f->v[i].tensors.n; k++) {
      lm_buf_printf(b, "%s\n    ", separator);
      lm_buf_json(b, f->v[i].tensors.of[k].name);
      lm_buf_printf(b, ": \"%s\"", f->v[i].name);
      separator = ",";
    }
  lm_buf_puts(b, "\n  }\n}\n");
}

// ---- sizes

int64_t lm_checkpoint_most_bytes(const lm_plan *plan, int64_t max) {
  lm_arena *a = lm_arena_create();
  lm_checkpoint_files f;
  int64_t most = 0;
  lm_status none = lm_checkpoint_files_list(a, plan, NULL, max, &f);
  int64_t *load = LM_NEW_N(a, int64_t, (size_t)lm_plan_mesh_ranks(plan));
  for (uint32_t i = 0; !none && i < f.n; i++) {
    int64_t *own = &load[f.v[i].writer];
    *own += f.v[i].bytes;
    most = *own > most ? *own : most;
  }
  lm_status_free(none); // reported when it is saved
  lm_arena_destroy(a);
  return most;
}
