// attend.c - attention as CUDA C: the choice of tiles, and the function around them.
#include "codegen/cuda/attend.h"
#include "codegen/cuda/emit.h"
#include "runtime/base/diag_code.h"
#include <math.h>
#include <string.h>

// The tensor maps are part of the text, since kernels with equal text are merged.
static void map_print(const cuda_attend *e, const lm_plan_map *m, lm_buf *b) {
  lm_buf_printf(b, "// m%d: boxes of", m->buf);
  for (int i = 0; i < LM_PLAN_MAP_RANK; i++)
    lm_buf_printf(b, "%s%d", i ? "x" : " ", m->dim[i].box);
  for (int i = 0; i < LM_PLAN_MAP_RANK; i++) {
    const lm_plan_extent *x = &m->dim[i].size;
    lm_buf_printf(b, x->n_dyn ? "%sn%lld" : "%s%lld", i ? "x" : " in ",
                  x->n_dyn ? (long long)x->dyn[0].var : (long long)x->fixed);
  }
  for (int i = 0; i < LM_PLAN_MAP_RANK; i++)
    lm_buf_printf(b, i ? "x%lld" : ", %lld", (long long)m->dim[i].stride);
  lm_buf_puts(b, " bytes apart");
  lm_buf_puts(b, "\n");
}

static void params_add(cuda_attend *e, cuda_code *c, lm_buf *b) {
  const lm_op *op = e->f.op;
  lm_buf maps = {0};
  cuda_attend_operands_add(op, c);
  for (uint32_t i = 0; i < op->n_out; i++)
    cuda_result_add(c, (lm_dtype)op->out[i]->type.dtype, lm_arena_printf(c->arena, "r%u", i));
  for (int i = 0; i < e->n_maps; i++)
    lm_buf_printf(&maps, ", LM_CONSTANT lm_map m%d", e->maps[i].buf);
  c->extents = e->g.extents;
  c->last_params = maps.n ? lm_arena_strndup(c->arena, maps.p, maps.n) : NULL;
  lm_buf_free(&maps);
  for (int i = 0; i < e->n_maps; i++)
    map_print(e, &e->maps[i], b);
  for (uint32_t i = 0; i < op->n_in + op->n_out; i++) {
    bool in = i < op->n_in;
    lm_buf_printf(b, "// %c%u: ", in ? 'a' : 'r', in ? i : i - op->n_in);
    lm_gen_type_print(&e->g, in ? op->in[i]->type : op->out[i - op->n_in]->type, b);
    lm_buf_puts(b, "\n");
  }
}

// The type of all tiles if it is bf16 or f16, else LM_F32.
static lm_dtype half_of(const lm_attend_spec *f) {
  lm_value *const *in = f->op->in;
  lm_dtype t = (lm_dtype)in[LM_ATTEND_V]->type.dtype;
  bool same = lm_dtype_is_half(t);
  for (int i = 0; i < f->n_dots; i++)
    same &= in[f->dots[i].row]->type.dtype == t && in[f->dots[i].col]->type.dtype == t;
  for (int i = 0; f->vjp && i < f->n_sums; i++)
    if (f->sums[i].other >= 0)
      same &= in[f->sums[i].other]->type.dtype == t;
  return same && (!f->vjp || in[LM_ATTEND_DO]->type.dtype == t) ? t : LM_F32;
}

// Writes the kernel with tiles of the given size; returns false if they do not fit into shared
// memory.
static bool attempt(cuda_attend *e, int rows, int cols, lm_buf *body, int64_t *blocks) {
  e->rows = rows;
  e->cols = cols;
  e->threads = 2 * rows;
  e->max_pool = 0;
  e->values.n_names = 0;
  body->n = 0;
  *blocks = e->f.vjp ? cuda_attend_backward(e, body) : cuda_attend_forward(e, body);
  return e->max_pool <= CUDA_MAX_POOL;
}

static const struct {
  int rows;
  int cols;
} sizes[] = {{64, 64}, {64, 32}, {32, 32}, {32, 16}, {16, 16}};

// The first size whose scores and sums are certain to stay in registers.
static size_t size_first(const cuda_attend *e) {
  if (!e->f.vjp)
    return 0;
  if (e->half)
    return cuda_attend_widest(&e->f) > 64;
  return cuda_attend_widest(&e->f) > 96 ? 3 : 1;
}

static bool form_choose(cuda_attend *e, lm_buf *body, int64_t *blocks) {
  const char *why = !e->warpgroups ? NULL
                    : e->f.vjp     ? cuda_attend_warpgroups_backward_why(e)
                                   : cuda_attend_warpgroups_forward_why(e);
  if (why)
    e->note = lm_arena_printf(e->g.arena, "mma.sync on tiles copied by cp.async: %s", why);
  e->warpgroups = e->warpgroups && !why;
  if (e->warpgroups) {
    e->note = "wgmma on tiles that TMA copies";
    e->rows = CUDA_WARPGROUP_ROWS;
    e->cols = e->f.vjp ? 64 : 128;
    *blocks = e->f.vjp ? cuda_attend_backward(e, body) : cuda_attend_warpgroups_forward(e, body);
    return true;
  }
  for (size_t i = size_first(e); i < LM_COUNT(sizes); i++)
    if (attempt(e, sizes[i].rows, sizes[i].cols, body, blocks))
      return true;
  return false;
}

// From the first to the last element of operand k.
static int64_t span(const cuda_attend *e, uint32_t k) {
  lm_type t = e->f.op->in[k]->type;
  int64_t n = 1;
  for (int i = 0; i < t.rank; i++)
    n += (lm_axis_size(e->f.m, t.axis[i]) - 1) * e->stride[k][i];
  return n;
}

static bool fits_int(const cuda_attend *e) {
  const lm_op *op = e->f.op;
  int64_t max = 0;
  for (uint32_t i = 0; i < op->n_in + op->n_out; i++) {
    int64_t n = i < op->n_in ? span(e, i) : cuda_result_span(e->f.m, op, i - op->n_in);
    if (n > max)
      max = n;
  }
  return max < (int64_t)1 << 30;
}

static const lm_plan_map *maps_keep(const cuda_attend *e, lm_arena *arena, int *out_n) {
  lm_plan_map *maps = LM_NEW_N(arena, lm_plan_map, e->n_maps + 1);
  memcpy(maps, e->maps, sizeof *maps * (size_t)e->n_maps);
  *out_n = e->n_maps;
  return maps;
}

static void finish(cuda_attend *e, const lm_buf *body, int64_t blocks, lm_arena *arena,
                   lm_kernel_code *out) {
  cuda_code *c = cuda_code_make(arena, e->threads);
  lm_buf raw = {0};
  params_add(e, c, &raw);
  c->whole_block = true;
  // Epilogues read operands in many loads, which are in flight together if they are constants.
  c->read_only = e->instructions > 0;
  lm_buf_printf(&raw, "typedef %s lm_at;\nLM_POOL_DECLARE();\n",
                fits_int(e) ? "int32_t" : "int64_t");
  lm_buf_add(&raw, body->p, body->n);
  cuda_code_body(c, NULL, &raw);
  *out = (lm_kernel_code){.space = {.fixed = blocks},
                          .launch = {.per_block = 1, .shared = e->max_pool},
                          .instructions = e->instructions};
  out->launch.note = e->note ? lm_arena_strndup(arena, e->note, strlen(e->note)) : NULL;
  out->launch.maps = maps_keep(e, arena, &out->launch.n_maps);
  cuda_code_render(c, "a", arena, out);
}

bool cuda_attends(const lm_module *m, const lm_op *op) {
  lm_attend_spec f;
  lm_buf why = {0};
  bool ok = lm_attend_spec_make(m, op, &f, &why);
  lm_buf_free(&why);
  return ok && (!cuda_attend_is_split(&f) || !cuda_attend_split_why(&f));
}

bool cuda_attend_make(const lm_plan_options *o, const lm_op *op, lm_arena *temporary,
                      cuda_attend *out, lm_buf *why) {
  const lm_module *m = lm_op_module(op);
  *out = (cuda_attend){.g =
                           {
                               .target = cuda_gen_target(&o->target, m, op),
                               .arena = temporary,
                               .m = m,
                           },
                       .target = &o->target,
                       .warpgroups = o->target.warpgroups,
                       .gemm_kind = o->tf32 ? "TF32" : "F32"};
  cuda_attend *e = out;
  bool ok = lm_attend_spec_make(m, op, &e->f, why);
  e->half = ok ? half_of(&e->f) : LM_F32;
  if (e->half)
    e->gemm_kind = e->half == LM_BF16 ? "BF16" : "F16";
  e->scale = 1;
  if (ok)
    e->score = e->half ? cuda_attend_unscaled(e->f.score, &e->scale) : e->f.score;
  e->stride = cuda_attend_strides(m, op, temporary);
  e->result_stride = cuda_part_strides(op, temporary);
  cuda_attend_values(e);
  e->has_tile = LM_NEW_N(temporary, bool, op->n_in + 1);
  e->held = LM_NEW_N(temporary, bool, op->n_in + 1);
  return ok;
}

void cuda_attend_free(cuda_attend *e) {
  lm_buf *used[] = {&e->declare, &e->point,      &e->by_row,   &e->by_pair,
                    &e->by_col,  &e->by_element, &e->producer, &e->consumer};
  for (size_t i = 0; i < LM_COUNT(used); i++)
    lm_buf_free(used[i]);
}

int64_t cuda_attend_chunks(const lm_target *t, const lm_op *op, const lm_op *kernel) {
  lm_arena *temporary = lm_arena_create();
  const lm_plan_options o = {.target = *t};
  cuda_attend e;
  lm_buf why = {0};
  bool ok = cuda_attend_make(&o, op, temporary, &e, &why) && e.warpgroups;
  e.rows = CUDA_WARPGROUP_ROWS;
  ok = ok && !cuda_attend_warpgroups_backward_why(&e);
  int64_t n = ok ? cuda_attend_epilogue_chunks(&e, kernel) : 0;
  cuda_attend_free(&e);
  lm_buf_free(&why);
  lm_arena_destroy(temporary);
  return n;
}

bool cuda_attend_emit(const lm_plan_options *o, const lm_op *op, lm_arena *arena,
                      lm_kernel_code *out) {
  const lm_module *m = lm_op_module(op);
  lm_arena *temporary = lm_arena_create();
  cuda_attend e;
  lm_buf why = {0};
  lm_buf body = {0};
  int64_t blocks = 0;
  bool ok = cuda_attend_make(o, op, temporary, &e, &why);
  bool split = ok && cuda_attend_is_split(&e.f);
  if (split)
    cuda_attend_split_emit(&e, !fits_int(&e), arena, out);
  else if (ok && !form_choose(&e, &body, &blocks)) {
    ok = false;
    lm_buf_printf(&why, "heads of %lld elements do not fit into shared memory",
                  (long long)cuda_attend_widest(&e.f));
  }
  if (ok && !split)
    finish(&e, &body, blocks, arena, out);
  if (!ok)
    LM_REPORT(m->ctx, op->loc, E703, why.p);
  cuda_attend_free(&e);
  lm_buf_free(&why);
  lm_buf_free(&body);
  lm_arena_destroy(temporary);
  return ok;
}
