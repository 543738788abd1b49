// matmul.c - see matmul.h.
#include "runtime/cpu/matmul.h"

#include <dnnl.h>
#include <string.h>

#include "runtime/base/base.h"
#include "runtime/cpu/onednn.h"

enum {
  WORKSPACE_MAX = 8 << 20 // bytes per thread; primitives that need more are not made
};

typedef enum {
  SRC,
  WEIGHTS,
  DST,
  SCRATCHPAD,
  N_ARGS
} argument;
static const int ARGUMENTS[N_ARGS] = {DNNL_ARG_SRC, DNNL_ARG_WEIGHTS, DNNL_ARG_DST,
                                      DNNL_ARG_SCRATCHPAD};

typedef struct key {
  int64_t v[10];
} key;

struct lm_matmul {
  key key;
  dnnl_primitive_t primitive; // NULL: the library has no fast one, or it needs too much workspace
  const char *name;
  dnnl_memory_t (*memory)[N_ARGS]; // by thread
  _Atomic bool begun;
};

struct lm_matmuls {
  lm_arena *arena;
  dnnl_engine_t engine;
  dnnl_stream_t *streams; // by thread
  int threads;
  lm_matmul **v;
  uint32_t n;
  uint32_t cap;
  int64_t workspace;
};

// ---- keys: everything that a primitive depends on

static key key_of(const lm_gemm_shape *s, bool add) {
  lm_gemm_layouts f = lm_gemm_layouts_find(s);
  int64_t types =
      s->ab | s->cc << 4 | add << 8 | (f.a.trans == 'T') << 9 | (f.b.trans == 'T') << 10;
  return (key){{s->m, s->n, s->k, types, f.a.ld, f.b.ld, f.c.ld}};
}

static lm_matmul *matmul_find(const lm_matmuls *all, const key *k) {
  for (uint32_t i = 0; i < all->n; i++)
    if (!memcmp(&all->v[i]->key, k, sizeof *k))
      return all->v[i];
  return NULL;
}

lm_matmul *lm_matmuls_find(const lm_matmuls *all, const lm_gemm_shape *s, bool add) {
  key k = key_of(s, add);
  lm_matmul *x = matmul_find(all, &k);
  return x && x->primitive ? x : NULL;
}

// ---- creating a primitive

static bool ok(dnnl_status_t s) {
  if (s == dnnl_out_of_memory)
    lm_out_of_memory(LM_ONEDNN_MEMORY);
  return s == dnnl_success;
}

_Static_assert((int)LM_ONEDNN_F32 == dnnl_f32 && (int)LM_ONEDNN_BF16 == dnnl_bf16 &&
                   (int)LM_ONEDNN_INT == dnnl_s32,
               "contract/dtypes.def has oneDNN's numbers");

static bool matrix_describe(uint8_t dtype, int64_t rows, int64_t cols, lm_gemm_layout f,
                            dnnl_memory_desc_t *out) {
  dnnl_dims_t size = {rows, cols}, stride = {f.trans == 'N' ? f.ld : 1, f.trans == 'N' ? 1 : f.ld};
  return f.trans && ok(dnnl_memory_desc_init_by_strides(
                        out, 2, size, (dnnl_data_type_t)lm_dtype_table[dtype].onednn, stride));
}

static bool attributes_make(bool add, dnnl_primitive_attr_t *out) {
  dnnl_post_ops_t sum = NULL;
  bool made = ok(dnnl_primitive_attr_create(out)) &&
              ok(dnnl_primitive_attr_set_scratchpad_mode(*out, dnnl_scratchpad_mode_user));
  if (made && add)
    made = ok(dnnl_post_ops_create(&sum)) && ok(dnnl_post_ops_append_sum(sum, 1.0f)) &&
           ok(dnnl_primitive_attr_set_post_ops(*out, sum));
  if (sum)
    dnnl_post_ops_destroy(sum);
  return made;
}

static bool descriptor_make(const lm_matmuls *all, const lm_gemm_shape *s, bool add,
                            dnnl_primitive_desc_t *out) {
  lm_gemm_layouts f = lm_gemm_layouts_find(s);
  dnnl_memory_desc_t a, b, c;
  dnnl_matmul_desc_t d;
  dnnl_primitive_attr_t attr = NULL;
  bool made = f.c.trans == 'N' && matrix_describe(s->ab, s->m, s->k, f.a, &a) &&
              matrix_describe(s->ab, s->k, s->n, f.b, &b) &&
              matrix_describe(s->cc, s->m, s->n, f.c, &c) &&
              ok(dnnl_matmul_desc_init(&d, &a, &b, NULL, &c)) && attributes_make(add, &attr) &&
              ok(dnnl_primitive_desc_create(out, &d, attr, all->engine, NULL));
  if (attr)
    dnnl_primitive_attr_destroy(attr);
  return made;
}

static bool memories_make(lm_matmuls *all, lm_matmul *x, const_dnnl_primitive_desc_t d) {
  static const dnnl_query_t queries[N_ARGS] = {dnnl_query_src_md, dnnl_query_weights_md,
                                               dnnl_query_dst_md, dnnl_query_scratchpad_md};
  x->memory = lm_arena_alloc(all->arena, sizeof *x->memory * (size_t)all->threads);
  for (int t = 0; t < all->threads; t++)
    for (int i = 0; i < N_ARGS; i++)
      if (!ok(dnnl_memory_create(&x->memory[t][i], dnnl_primitive_desc_query_md(d, queries[i], 0),
                                 all->engine, DNNL_MEMORY_NONE)))
        return false;
  return true;
}

static void memories_destroy(const lm_matmuls *all, lm_matmul *x) {
  for (int t = 0; x->memory && t < all->threads; t++)
    for (int i = 0; i < N_ARGS; i++)
      if (x->memory[t][i])
        dnnl_memory_destroy(x->memory[t][i]);
}

// The library lists its reference loops last, so if they are the first match there is no faster
// one.
static bool is_fast(lm_arena *a, const_dnnl_primitive_desc_t d, const char **out_name) {
  const char *name = NULL;
  if (!ok(dnnl_primitive_desc_query(d, dnnl_query_impl_info_str, 0, &name)) || !name)
    return false;
  *out_name = lm_arena_strndup(a, name, strlen(name));
  return strncmp(name, "ref", 3) != 0;
}

static void primitive_make(lm_matmuls *all, lm_matmul *x, const lm_gemm_shape *s, bool add) {
  dnnl_primitive_desc_t d = NULL;
  lm_memory_expect(LM_ONEDNN_MEMORY);
  if (!descriptor_make(all, s, add, &d))
    return;
  const dnnl_memory_desc_t *workspace =
      dnnl_primitive_desc_query_md(d, dnnl_query_scratchpad_md, 0);
  int64_t bytes = workspace ? (int64_t)dnnl_memory_desc_get_size(workspace) : 0;
  bool usable =
      is_fast(all->arena, d, &x->name) && bytes <= WORKSPACE_MAX && memories_make(all, x, d);
  if (usable && ok(dnnl_primitive_create(&x->primitive, d)) && bytes > all->workspace)
    all->workspace = bytes;
  dnnl_primitive_desc_destroy(d);
}

void lm_matmuls_add(lm_matmuls *all, const lm_gemm_shape *s, bool add) {
  key k = key_of(s, add);
  if (matmul_find(all, &k))
    return;
  lm_matmul *x = LM_NEW(all->arena, lm_matmul);
  x->key = k;
  primitive_make(all, x, s, add);
  LM_PUSH(all->arena, all->v, all->n, all->cap) = x;
}

// ---- creation and destruction

lm_matmuls *lm_matmuls_create(int threads) {
  lm_arena *a = lm_arena_create();
  lm_matmuls *all = LM_NEW(a, lm_matmuls);
  *all = (lm_matmuls){
      .arena = a,
      .streams = LM_NEW_N(a, dnnl_stream_t, threads),
      .threads = threads,
  };
  bool made = ok(dnnl_engine_create(&all->engine, dnnl_cpu, 0));
  for (int t = 0; t < threads && made; t++)
    made = ok(dnnl_stream_create(&all->streams[t], all->engine, dnnl_stream_default_flags));
  if (made)
    return all;
  lm_matmuls_destroy(all);
  return NULL;
}

void lm_matmuls_destroy(lm_matmuls *all) {
  if (!all)
    return;
  for (uint32_t i = 0; i < all->n; i++) {
    memories_destroy(all, all->v[i]);
    if (all->v[i]->primitive)
      dnnl_primitive_destroy(all->v[i]->primitive);
  }
  for (int t = 0; t < all->threads; t++)
    if (all->streams[t])
      dnnl_stream_destroy(all->streams[t]);
  if (all->engine)
    dnnl_engine_destroy(all->engine);
  lm_arena_destroy(all->arena);
}

int64_t lm_matmuls_workspace(const lm_matmuls *all) {
  return (all->workspace + 63) / 64 * 64;
}

// ---- running

void lm_matmul_run(const lm_matmuls *all, lm_matmul *x, int thread, const char *a, const char *b,
                   char *c, char *workspace) {
  void *at[N_ARGS] = {[SRC] = (void *)(uintptr_t)a,
                      [WEIGHTS] = (void *)(uintptr_t)b,
                      [DST] = c,
                      [SCRATCHPAD] = workspace};
  dnnl_exec_arg_t args[N_ARGS];
  dnnl_status_t status = dnnl_success;
  for (int i = 0; i < N_ARGS && ok(status); i++) {
    args[i] = (dnnl_exec_arg_t){ARGUMENTS[i], x->memory[thread][i]};
    status = dnnl_memory_set_data_handle(x->memory[thread][i], at[i]);
  }
  bool first = lm_onednn_first(&x->begun);
  if (ok(status))
    status = dnnl_primitive_execute(x->primitive, all->streams[thread], N_ARGS, args);
  if (first)
    lm_onednn_first_end(&x->begun);
  if (!ok(status))
    LM_BUG("matmul %s: status %d", x->name, (int)status);
}
