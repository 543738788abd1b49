// print.c - prints the IR as text. The text parses to the same module, including value numbers and
// locations.
//
//   stage graph
//   file "llama.lm"
//   mesh dp = 2, tp = 2
//   axis b = 4, t = 64, s = 64 dyn 1, n = 128 dyn 3 (1 * 2), blk = 18 blocks, b@dp = 2
//   param @layers.wq : f32[layers, d, e] stacked 1 as @layers.#.wq = normal(0.02)
//   func @loss(%tok.0: int[b, t]) -> (sum: f32, weight: f32) {
//     %x.3 = dot %a.1, %b.2 over(d) : f32[b, t, e] recompute   loc(1:12:9)
//   }
// Files are numbered in the order of their lines; a location is file:line:column.
#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "compiler/ir/internal.h"

typedef struct printer {
  const lm_module *m;
  lm_buf *out;
  uint16_t *files;
} printer; // files[source] = number, or files NULL

static bool plain(const char *s) {
  if (!isalpha((unsigned char)*s) && *s != '_')
    return false;
  for (; *s; s++)
    if (!isalnum((unsigned char)*s) && *s != '_' && *s != '.' && *s != '#' && *s != '@')
      return false;
  return true;
}

static void put_name(lm_buf *out, const char *s) {
  if (plain(s))
    lm_buf_puts(out, s);
  else
    lm_buf_json(out, s);
}

static void put_sym(lm_buf *out, const char *s) {
  lm_buf_puts(out, "@");
  put_name(out, s);
}

static void put_value(lm_buf *out, const lm_value *v) {
  if (v->name && plain(v->name) && !strpbrk(v->name, "#@"))
    lm_buf_printf(out, "%%%s.%u", v->name, v->id);
  else
    lm_buf_printf(out, "%%%u", v->id);
}

static void put_type(const lm_module *m, lm_buf *out, lm_type t) {
  lm_buf_puts(out, lm_dtype_name(t.dtype));
  for (int i = 0; i < t.rank; i++) {
    lm_buf_puts(out, i ? ", " : "[");
    put_name(out, m->axes[t.axis[i]].name);
  }
  if (t.rank)
    lm_buf_puts(out, "]");
}

static void put_mesh_axis(const lm_module *m, lm_buf *out, int mesh) {
  lm_buf_puts(out, " over(");
  put_name(out, m->mesh.axis[mesh - 1].name);
  lm_buf_puts(out, ")");
}

static void put_axes(const lm_module *m, lm_buf *out, const lm_axis *axes, int n) {
  lm_buf_puts(out, "(");
  for (int i = 0; i < n; i++) {
    if (i)
      lm_buf_puts(out, ", ");
    put_name(out, m->axes[axes[i]].name);
  }
  lm_buf_puts(out, ")");
}

// " partial(dp, tp)"
static void put_partial(const lm_module *m, lm_buf *out, lm_mesh_set set) {
  for (int i = 0, n = 0; i < m->mesh.n; i++)
    if (set >> i & 1) {
      lm_buf_puts(out, n++ ? ", " : " partial(");
      put_name(out, m->mesh.axis[i].name);
    }
  lm_buf_puts(out, set ? ")" : "");
}

static void put_loc(printer *p, lm_loc at) {
  if (p->files && at.file && p->files[at.file])
    lm_buf_printf(p->out, "   loc(%u:%u:%u)", p->files[at.file], at.line, at.col);
}

// ---- operations

// [%i, %j * -1 + 23]: the indices of `param`, `accum` and `append`
static void put_indices(lm_buf *out, const lm_op *op, uint32_t n) {
  for (uint32_t i = 0; i < n; i++) {
    lm_buf_puts(out, i ? ", " : "[");
    put_value(out, op->in[i]);
    int64_t first = op->attr.imm[2 * i];
    int64_t step = op->attr.imm[2 * i + 1];
    if (first || step != 1)
      lm_buf_printf(out, " * %lld + %lld", (long long)step, (long long)first);
  }
  if (n)
    lm_buf_puts(out, "]");
}

static void put_operands(lm_buf *out, const lm_op *op, uint32_t from) {
  for (uint32_t i = from; i < op->n_in; i++) {
    lm_buf_puts(out, i > from ? ", " : op->code == LM_OP_CALL ? "" : " ");
    put_value(out, op->in[i]);
  }
}

static void put_imm(lm_buf *out, const lm_op *op) {
  for (int i = 0; i < op->attr.n_imm; i++)
    lm_buf_printf(out, "%s%lld", i ? ", " : " [", (long long)op->attr.imm[i]);
  if (op->attr.n_imm)
    lm_buf_puts(out, "]");
}

static void put_attr_axes(const lm_module *m, lm_buf *out, const lm_op *op) {
  uint32_t has = lm_op_info_of(op)->attrs;
  if (has & LM_A_MESH && op->attr.mesh)
    put_mesh_axis(m, out, op->attr.mesh);
  if (!(has & LM_A_AXES))
    return;
  lm_buf_puts(out, has & LM_A_TO ? " " : " over");
  put_axes(m, out, op->attr.axes, op->attr.n_axes);
  if (!(has & LM_A_TO))
    return;
  lm_buf_puts(out, " -> ");
  put_axes(m, out, op->attr.to, op->attr.n_to);
}

// (%a.4 = %x, …): the region's arguments and the operands
static void put_bindings(lm_buf *out, const lm_op *op, uint32_t first_arg) {
  lm_buf_puts(out, "(");
  for (uint32_t i = 0; i < op->n_in && op->body; i++) {
    if (i)
      lm_buf_puts(out, ", ");
    put_value(out, op->body->args[first_arg + i]);
    lm_buf_puts(out, " = ");
    put_value(out, op->in[i]);
  }
  lm_buf_puts(out, ")");
}

static void put_loop(const lm_module *m, lm_buf *out, const lm_op *op) {
  lm_buf_printf(out, lm_loop_is_reversed(op) ? " %lld reversed" : " %lld",
                (long long)op->attr.imm[0]);
  if (op->attr.n_axes) {
    lm_buf_puts(out, " over");
    put_axes(m, out, op->attr.axes, op->attr.n_axes);
  }
  if (!op->body)
    return;
  lm_buf_puts(out, " ");
  put_value(out, op->body->args[0]);
  lm_buf_puts(out, " carry");
  put_bindings(out, op, 1);
}

static void put_kernel(const lm_module *m, lm_buf *out, const lm_op *op) {
  put_attr_axes(m, out, op);
  put_imm(out, op);
  lm_buf_puts(out, " ");
  put_bindings(out, op, 0);
}

// attend_vjp over(t, s) [32, 32] %g.1 : f32[b, t, s] (%v.2 = %x, …)
static void put_attend(const lm_module *m, lm_buf *out, const lm_op *op) {
  put_attr_axes(m, out, op);
  put_imm(out, op);
  lm_buf_puts(out, " ");
  bool vjp = op->code == LM_OP_ATTEND_VJP;
  if (vjp && op->body) {
    put_value(out, op->body->args[0]);
    lm_buf_puts(out, " : ");
    put_type(m, out, op->body->args[0]->type);
    lm_buf_puts(out, " ");
  }
  put_bindings(out, op, vjp);
}

static uint32_t index_count(const lm_op *op) {
  bool indexed = lm_op_info_indexed(lm_op_info_of(op));
  uint32_t n = indexed ? op->attr.n_imm / 2u : 0;
  return n < op->n_in ? n : op->n_in;
}

static void put_plain(const lm_module *m, lm_buf *out, const lm_op *op) {
  uint32_t has = lm_op_info_of(op)->attrs;
  uint32_t n = index_count(op);
  bool indexed = lm_op_info_indexed(lm_op_info_of(op));
  if (op->attr.sym) {
    lm_buf_puts(out, " ");
    put_sym(out, op->attr.sym);
  }
  put_indices(out, op, n);
  bool call = op->code == LM_OP_CALL;
  if (op->attr.sym && (call || op->n_in > n))
    lm_buf_puts(out, call ? "(" : ",");
  put_operands(out, op, n);
  if (call)
    lm_buf_puts(out, ")");
  put_attr_axes(m, out, op);
  if (!indexed)
    put_imm(out, op);
  if (has & LM_A_NUM) {
    lm_buf_puts(out, " ");
    lm_buf_number(out, op->attr.num);
  }
}

static void put_head(const lm_module *m, lm_buf *out, const lm_op *op) {
  for (uint32_t i = 0; i < op->n_out; i++) {
    if (i)
      lm_buf_puts(out, ", ");
    put_value(out, op->out[i]);
  }
  lm_buf_printf(out, "%s%s", op->n_out ? " = " : "", lm_op_info_of(op)->name);
  if (op->code == LM_OP_LOOP)
    put_loop(m, out, op);
  else if (op->code == LM_OP_KERNEL || op->code == LM_OP_SCAN)
    put_kernel(m, out, op);
  else if (lm_op_attends(op))
    put_attend(m, out, op);
  else
    put_plain(m, out, op);
}

static void put_result_types(const lm_module *m, lm_buf *out, const lm_op *op) {
  for (uint32_t i = 0; i < op->n_out; i++) {
    lm_buf_puts(out, i ? ", " : " : ");
    put_type(m, out, op->out[i]->type);
    lm_buf_puts(out, op->out[i]->on_host ? " on_host" : "");
  }
}

void lm_op_print(const lm_op *op, lm_buf *out) {
  const lm_region *r = op->parent;
  if (!r) {
    lm_buf_puts(out, lm_op_info_of(op)->name);
    put_operands(out, op, 0);
    return;
  }
  put_head(r->func->module, out, op);
  put_result_types(r->func->module, out, op);
}

static void put_region(printer *p, const lm_region *r, int depth) {
  for (const lm_op *op = r->first; op; op = op->next) {
    lm_buf_printf(p->out, "%*s", 2 * depth, "");
    put_head(p->m, p->out, op);
    if (op->body) {
      lm_buf_puts(p->out, " {\n");
      put_region(p, op->body, depth + 1);
      lm_buf_printf(p->out, "%*s}", 2 * depth, "");
    }
    put_result_types(p->m, p->out, op);
    if (lm_remat_choice(op->remat))
      lm_buf_printf(p->out, " %s", lm_remat_names[lm_remat_choice(op->remat)]);
    lm_buf_puts(p->out, op->remat & LM_REMAT_OFFLOAD ? " offload" : "");
    put_loc(p, op->loc);
    lm_buf_puts(p->out, "\n");
  }
}

// ---- functions and the module

static void put_func(printer *p, const lm_func *f) {
  lm_buf_puts(p->out, "func ");
  put_sym(p->out, f->name);
  lm_buf_puts(p->out, "(");
  for (uint32_t i = 0; i < f->body->n_args; i++) {
    if (i)
      lm_buf_puts(p->out, ", ");
    put_value(p->out, f->body->args[i]);
    lm_buf_puts(p->out, ": ");
    put_type(p->m, p->out, f->body->args[i]->type);
  }
  lm_buf_puts(p->out, ") -> (");
  const lm_op *end = f->body->last;
  for (uint32_t i = 0; i < f->n_out; i++) {
    if (i)
      lm_buf_puts(p->out, ", ");
    put_name(p->out, f->out_names[i]);
    lm_buf_puts(p->out, ": ");
    if (end && i < end->n_in)
      put_type(p->m, p->out, end->in[i]->type);
    if (f->out_partial)
      put_partial(p->m, p->out, f->out_partial[i]);
  }
  lm_buf_puts(p->out, ") {\n");
  put_region(p, f->body, 1);
  lm_buf_puts(p->out, "}\n");
}

static void put_mesh(printer *p) {
  const lm_mesh *mesh = &p->m->mesh;
  for (int i = 0; i < mesh->n; i++) {
    const lm_mesh_axis *a = &mesh->axis[i];
    lm_buf_puts(p->out, i ? ", " : "mesh ");
    put_name(p->out, a->name);
    lm_buf_printf(p->out, " = %d%s%s%s%s%s", a->size, a->rows ? " rows" : "",
                  a->positions ? " positions" : "", a->balanced ? " balanced" : "",
                  a->ring ? " ring" : "", a->experts ? " experts" : "");
    if (a->pipeline)
      lm_buf_printf(p->out, " pipeline %d%s%s", a->pipeline, a->schedule ? " " : "",
                    a->schedule ? lm_pipe_schedule_names[a->schedule] : "");
    if (a->chunks)
      lm_buf_printf(p->out, " %d", a->chunks);
    for (uint32_t k = 0; k < a->n_shard; k++) {
      lm_buf_puts(p->out, k ? ", " : " shard(");
      put_name(p->out, a->shard[k].name);
    }
    lm_buf_puts(p->out, a->n_shard ? ")" : "");
    if (a->zero)
      lm_buf_printf(p->out, " zero %d", a->zero);
    lm_buf_puts(p->out, a->reduce_bf16 ? " reduce bf16" : "");
    lm_buf_puts(p->out, a->library ? " order library" : "");
    lm_buf_puts(p->out, a->bucket ? " bucket" : "");
    lm_buf_puts(p->out, a->overlap ? " overlap" : "");
  }
  if (mesh->n)
    lm_buf_puts(p->out, "\n");
}

static void put_axis_table(printer *p) {
  for (uint32_t i = 1; i < p->m->n_axes; i++) {
    const lm_axis_info *a = &p->m->axes[i];
    lm_buf_puts(p->out, i % 8 == 1 ? "axis " : ", ");
    put_name(p->out, a->name);
    lm_buf_printf(p->out, " = %lld", (long long)a->size);
    if (a->dyn)
      lm_buf_printf(p->out, " dyn %d", a->dyn);
    const lm_extent_info *x = a->dyn ? &p->m->extents[a->dyn - 1] : NULL;
    if (x && x->most)
      lm_buf_printf(p->out, " (%d most %lld)", x->of, (long long)x->most);
    else if (x && x->of)
      lm_buf_printf(p->out, " (%d * %lld)", x->of, (long long)x->times);
    if (i == p->m->blocks)
      lm_buf_puts(p->out, " blocks");
    if (i % 8 == 0 || i + 1 == p->m->n_axes)
      lm_buf_puts(p->out, "\n");
  }
}

static void put_init(lm_buf *out, lm_init v) {
  static const char *const names[] = {"zeros", "ones", "const", "normal", "uniform"};
  static const int numbers[] = {0, 0, 1, 1, 2};
  lm_buf_puts(out, names[v.kind]);
  for (int i = 0; i < numbers[v.kind]; i++) {
    lm_buf_puts(out, i ? ", " : "(");
    lm_buf_number(out, i ? v.b : v.a);
  }
  if (numbers[v.kind])
    lm_buf_puts(out, ")");
}

static bool init_equal(lm_init x, lm_init y) {
  return x.kind == y.kind && x.a == y.a && x.b == y.b;
}

// = normal(0.02) if all elements have it; else = zeros * 3, ones, …
static void put_inits(lm_buf *out, const lm_global *g) {
  lm_buf_puts(out, " = ");
  for (int64_t i = 0, n; i < g->n_paths; i += n) {
    for (n = 1; i + n < g->n_paths && init_equal(g->init[i], g->init[i + n]);)
      n++;
    if (i)
      lm_buf_puts(out, ", ");
    put_init(out, g->init[i]);
    if (n > 1 && n < g->n_paths)
      lm_buf_printf(out, " * %lld", (long long)n);
  }
}

// The path with # for the stacked indices: the first n_stack components of path 0 that are "0".
// NULL if a path is unknown or does not match.
static char *path_template(const lm_module *m, const lm_global *g) {
  if (!g->paths[0])
    return NULL;
  char *t = lm_arena_printf(m->arena, "%s", g->paths[0]);
  int found = 0;
  for (char *s = t; *s && found < g->n_stack; s++)
    if (*s == '0' && (s == t || s[-1] == '.') && (!s[1] || s[1] == '.')) {
      *s = '#';
      found++;
    }
  for (int64_t i = 0; i < g->n_paths; i++) {
    const char *want = lm_path_fill(m, g, t, i);
    if (!want || !g->paths[i] || strcmp(want, g->paths[i]))
      return NULL;
  }
  return t;
}

static void put_paths(printer *p, const lm_global *g) {
  const char *t = path_template(p->m, g);
  if (!g->paths[0] || (!g->n_stack && g->paths[0] == g->name))
    return;
  lm_buf_puts(p->out, " as ");
  if (t) {
    put_sym(p->out, t);
    return;
  }
  for (int64_t i = 0; i < g->n_paths; i++) {
    lm_buf_puts(p->out, i ? ", " : "(");
    put_sym(p->out, g->paths[i] ? g->paths[i] : "");
  }
  lm_buf_puts(p->out, ")");
}

static void put_members(printer *p, const lm_global *g) {
  lm_buf_puts(p->out, " along ");
  put_axes(p->m, p->out, &g->along, 1);
  lm_buf_puts(p->out, " (");
  for (uint32_t i = 0; i < g->n_members; i++) {
    lm_buf_puts(p->out, i ? ", " : "");
    put_sym(p->out, g->members[i]);
  }
  lm_buf_puts(p->out, ")");
}

static void put_state(printer *p, const lm_global *g) {
  put_paths(p, g);
  if (g->of) {
    lm_buf_puts(p->out, " of ");
    put_sym(p->out, g->of);
  }
  if (g->first)
    lm_buf_printf(p->out, " from %lld", (long long)g->first);
  if (g->is_param)
    lm_buf_puts(p->out, " = param");
  else
    put_inits(p->out, g);
}

static void put_global(printer *p, const lm_global *g) {
  lm_buf_printf(p->out, "%s ", lm_global_names[g->kind]);
  put_sym(p->out, g->name);
  lm_buf_puts(p->out, " : ");
  put_type(p->m, p->out, g->type);
  if (g->n_stack)
    lm_buf_printf(p->out, " stacked %d", g->n_stack);
  put_partial(p->m, p->out, g->partial);
  if (g->untrained)
    lm_buf_puts(p->out, " untrained");
  lm_buf_puts(p->out, g->whole ? " whole" : "");
  if (lm_global_is_weight(g)) {
    put_paths(p, g);
    put_inits(p->out, g);
  }
  if (g->kind == LM_GLOBAL_STATE)
    put_state(p, g);
  if (g->kind == LM_GLOBAL_PACKED)
    put_members(p, g);
  put_loc(p, g->loc);
  lm_buf_puts(p->out, "\n");
}

static void note_file(lm_op *op, void *user) {
  ((uint16_t *)user)[op->loc.file] = op->loc.file != 0;
}

static uint16_t *number_files(const lm_module *m) {
  uint16_t *files = lm_calloc((size_t)m->ctx->n_sources + 1, sizeof *files);
  uint16_t n = 0;
  for (const lm_func *f = m->funcs; f; f = f->next)
    lm_region_walk(f->body, note_file, files);
  for (uint32_t i = 0; i < m->n_globals; i++)
    files[m->globals[i].loc.file] = m->globals[i].loc.file != 0;
  for (uint32_t i = 1; i < m->ctx->n_sources; i++)
    if (files[i])
      files[i] = ++n;
  return files;
}

void lm_module_print(const lm_module *m, lm_buf *out) {
  printer p = {m, out, number_files(m)};
  lm_buf_printf(out, "stage %s\n", lm_stage_names[m->stage]);
  for (uint32_t i = 1; i < m->ctx->n_sources; i++)
    if (p.files[i]) {
      lm_buf_puts(out, "file ");
      lm_buf_json(out, m->ctx->sources[i].path);
      lm_buf_puts(out, "\n");
    }
  put_mesh(&p);
  put_axis_table(&p);
  for (uint32_t i = 0; i < m->n_globals; i++)
    put_global(&p, &m->globals[i]);
  for (const lm_func *f = m->funcs; f; f = f->next) {
    lm_buf_puts(out, "\n");
    put_func(&p, f);
  }
  lm_free(p.files);
}
