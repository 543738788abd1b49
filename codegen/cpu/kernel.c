// kernel.c - a kernel operation as one C function: operands, points, passes; and the function table
// for the planner.
#include <string.h>
#include "codegen/common/attend.h"
#include "codegen/common/scan.h"
#include "codegen/cpu/emit.h"
#include "compiler/ir/dot.h"
#include "compiler/ir/scan.h"

enum {
  ATTEMPTS = 64,
  STACK_BYTES = 256 << 10,
  WIDE_CHUNK = 2048 // sums of a chunk that are added in double
};

struct lm_embedded {
  const char *path, *text;
};
extern const struct lm_embedded lm_common_prelude[], lm_cpu_prelude[];

static const lm_gen_target target = {.index = "int64_t", .held = cpu_held};

// ---- attempts

static void parallel_vars(cpu_emit *e) {
  for (int i = 0; i < e->g.kernel->attr.n_axes; i++) {
    const lm_axis_info *a = &e->g.m->axes[e->g.kernel->attr.axes[i]];
    const char *name =
        lm_arena_printf(e->g.arena, "i_%s", lm_gen_axis_name(&e->g, e->g.kernel->attr.axes[i]));
    e->g.parallel[i] = lm_var_add(
        &e->g.vars,
        (lm_var){
            .kind = LM_VAR_PARALLEL, .name = name, .size = a->size, .dyn = a->dyn, .hi = a->size});
  }
  for (int g = 0; g < e->n_groups; g++)
    for (int i = e->groups[g].first; i < e->groups[g].last; i++)
      e->g.vars.v[e->g.parallel[i]].into = e->g.parallel[e->groups[g].last];
}

static void attempt(cpu_emit *e) {
  lm_gen_attempt(&e->g);
  parallel_vars(e);
  for (uint32_t i = 0; i < e->g.s->n_passes; i++)
    cpu_pass_emit(e, (int)i);
}

// A generator with all passes written.
static cpu_emit *emit_make(const lm_module *m, const lm_op *kernel, lm_arena *arena) {
  cpu_emit *e = LM_NEW(arena, cpu_emit);
  if (kernel->code == LM_OP_SCAN) {
    e->scan = kernel;
    kernel = lm_gen_scan_position(arena, kernel);
  }
  lm_gen_init(&e->g, &target, m, kernel, lm_schedule_make(m, kernel, true, arena), arena);
  cpu_groups_reset(e);
  for (int i = 0; i < ATTEMPTS; i++) {
    attempt(e);
    if (!lm_gen_request_apply(&e->g))
      break;
  }
  cpu_shape_choose(e);
  attempt(e);
  return e;
}

// ---- the function around the passes

static const char *group_extent(cpu_emit *e, int g) {
  const cpu_group *group = &e->groups[g];
  int64_t front = lm_axis_size(e->g.m, e->g.kernel->attr.axes[group->first]);
  return group->dyn ? lm_gen_extent(&e->g, front, group->dyn, group->size / front)
                    : lm_gen_extent(&e->g, group->size, 0, 1);
}

static int64_t blocks(const cpu_emit *e, int64_t size) {
  return (size + e->block - 1) / e->block;
}

// The points: the product of the groups that are not lanes, times the blocks of the first lane
// group.
static lm_plan_extent space_of(const cpu_emit *e) {
  lm_plan_extent x = {.fixed = 1};
  if (e->g.kernel->attr.n_to)
    return (lm_plan_extent){.fixed = lm_axis_size(e->g.m, e->g.kernel->attr.to[0])};
  for (int g = 0; g < e->n_groups - e->n_lane_groups; g++) {
    const cpu_group *group = &e->groups[g];
    x.fixed *= group->dyn ? group->size / lm_axis_size(e->g.m, e->g.kernel->attr.axes[group->first])
                          : group->size;
    if (group->dyn)
      x.dyn[x.n_dyn++].var = group->dyn - 1;
  }
  if (e->block)
    x.fixed *= blocks(e, e->groups[e->n_groups - e->n_lane_groups].size);
  return x;
}

static int64_t max_points(const cpu_emit *e) {
  if (e->g.kernel->attr.n_to)
    return lm_axis_size(e->g.m, e->g.kernel->attr.to[0]);
  int64_t n = e->block ? blocks(e, e->groups[e->n_groups - e->n_lane_groups].size) : 1;
  for (int g = 0; g < e->n_groups - e->n_lane_groups; g++)
    n *= e->groups[g].size;
  return n;
}

static void put_operand(cpu_emit *e, lm_buf *b, lm_type t, const char *name, bool read,
                        uint32_t buffer) {
  const char *type = lm_gen_memory_type(t.dtype);
  const char *constant = read ? "const " : "";
  lm_buf_printf(b, "%s%s *%s = (%s%s *)buf[%u]", constant, type, name, constant, type, buffer);
  lm_gen_type_note(&e->g, b, t);
}

static void put_operands(cpu_emit *e, lm_buf *b) {
  const lm_op *op = e->scan ? e->scan : e->g.kernel;
  for (uint32_t i = 0; i < op->n_in; i++) {
    const char *name =
        e->scan ? lm_gen_scan_operand(e->g.arena, op, i) : lm_arena_printf(e->g.arena, "a%u", i);
    put_operand(e, b, op->in[i]->type, name, true, i);
  }
  for (uint32_t i = 0; i < op->n_out; i++)
    put_operand(e, b, op->out[i]->type, lm_arena_printf(e->g.arena, e->scan ? "out%u" : "r%u", i),
                false, op->n_in + i);
  if (e->scan)
    lm_gen_scan_put_carries(&e->g, op, lm_arena_printf(e->g.arena, "buf[%u]", op->n_in + op->n_out),
                            b);
  for (int i = 0; i < 32; i++)
    if (e->g.extents >> i & 1)
      lm_buf_printf(b, "const int64_t n%d = var[%d];\n", i, i);
}

// An array of a point: on the stack, as long as all of them have at most STACK_BYTES there, else in
// its part of the workspace. Returns true if it is on the stack.
static bool array_place(cpu_emit *e, const char *type, const char *name, int64_t bytes, lm_buf *b) {
  enum {
    LINE = 64
  };
  if (e->stack_bytes + bytes <= STACK_BYTES) {
    e->stack_bytes += bytes;
    return true;
  }
  lm_buf_printf(b, "%s *%s = (%s *)(part + %lld);\n", type, name, type, (long long)e->part_bytes);
  e->part_bytes += (bytes + LINE - 1) / LINE * LINE;
  return false;
}

static void put_rows(cpu_emit *e, lm_buf *b, lm_buf *in_loop) {
  for (uint32_t i = 0; i < e->g.s->n_nodes; i++) {
    const lm_node *n = &e->g.s->nodes[i];
    if (!cpu_held_in_row(e, n))
      continue;
    lm_dtype t = n->op->out[0]->type.dtype;
    int64_t elements = cpu_row_elements(e, n);
    bool wide = cpu_row_is_wide(e, n);
    int64_t bytes = elements * (t == LM_F64 || wide ? 8 : 4);
    const char *type = wide ? "double" : lm_gen_held_type(t);
    if (!array_place(e, type, lm_arena_printf(e->g.arena, "h%u", i), bytes, in_loop))
      continue;
    lm_buf_printf(b, "%s h%u[%lld] __attribute__((aligned(64)))", type, i, (long long)elements);
    lm_gen_type_note(&e->g, b, lm_kernel_inner(e->g.kernel, n->op->out[0]->type));
  }
}

// The workspace for the arrays of points that are not on the stack.
static void put_part(cpu_emit *e, lm_buf *b) {
  if (!e->part_bytes)
    return;
  lm_buf_printf(b, "char *const part = buf[%d] + point * %lld;\n",
                (int)(e->g.kernel->n_in + e->g.kernel->n_out) + e->n_workspaces,
                (long long)e->part_bytes);
  e->workspace[e->n_workspaces++] = e->part_bytes * max_points(e);
}

// The elements of the sums c of a chunk in result i; 0 if it has no sums.
static int64_t chunk_elements(const cpu_emit *e, uint32_t i) {
  if (!lm_kernel_result_summed(e->g.kernel, i))
    return 0;
  lm_type t = e->g.kernel->out[i]->type;
  return lm_type_elements(e->g.m, t) / lm_axis_size(e->g.m, t.axis[0]);
}

// True if the sums of a chunk in result i are added in double, outside of the result.
static bool chunk_is_wide(const cpu_emit *e, uint32_t i) {
  return e->g.kernel->out[i]->type.dtype == LM_F32 && chunk_elements(e, i) <= WIDE_CHUNK;
}

static void put_sums_zero(cpu_emit *e, lm_buf *b) {
  for (uint32_t i = 0; i < e->g.kernel->n_out; i++) {
    long long n = chunk_elements(e, i);
    if (!n)
      continue;
    const char *name = lm_arena_printf(e->g.arena, "c%u", i);
    bool wide = chunk_is_wide(e, i);
    if (wide && array_place(e, "double", name, n * 8, b)) {
      lm_buf_printf(b, "double %s[%lld] __attribute__((aligned(64))) = {0};\n", name, n);
      continue;
    }
    const char *type = lm_gen_memory_type(e->g.kernel->out[i]->type.dtype);
    if (!wide)
      lm_buf_printf(b, "%s *%s = r%u + point * %lld;\n", type, name, i, n);
    lm_buf_printf(b, "for (int64_t z = 0; z < %lld; z++) %s[z] = 0;\n", n, name);
  }
}

static void put_sums(cpu_emit *e, lm_buf *b) {
  for (uint32_t i = 0; i < e->g.kernel->n_out; i++) {
    long long n = chunk_elements(e, i);
    if (n && chunk_is_wide(e, i))
      lm_buf_printf(b,
                    "for (int64_t z = 0; z < %lld; z++) r%u[point * %lld + z] = (float)c%u[z];\n",
                    n, i, n, i);
  }
}

// The coordinates of point p; the last group varies fastest.
static void put_coordinates(cpu_emit *e, lm_buf *b, const char *p) {
  int n = e->n_groups - e->n_lane_groups;
  if (n || e->block)
    lm_buf_printf(b, "int64_t at = %s;\n", p);
  if (e->block) {
    int g = e->n_groups - e->n_lane_groups;
    long long count = blocks(e, e->groups[g].size);
    long long block = e->block;
    lm_buf_printf(b,
                  "const int64_t first = at %% %lld * %lld, last = lm_min64(first + %lld, %s);\n",
                  count, block, block, group_extent(e, g));
    if (n)
      lm_buf_printf(b, "at /= %lld;\n", count);
  }
  for (int g = n - 1; g >= 0; g--) {
    const char *name = e->g.vars.v[cpu_group_var(e, g)].name;
    if (g)
      lm_buf_printf(b, "const int64_t %s = at %% (%s);\nat /= %s;\n", name, group_extent(e, g),
                    group_extent(e, g));
    else
      lm_buf_printf(b, "const int64_t %s = at;\n", name);
  }
}

static void put_points(cpu_emit *e, lm_buf *b, const char *arrays) {
  lm_buf_puts(b, "for (int64_t point = lo; point < hi; point++) {\n");
  lm_buf_puts(b, arrays);
  bool sums = e->g.kernel->attr.n_to;
  if (sums) {
    lm_buf_puts(b, "const int64_t points = 1");
    for (int g = 0; g < e->n_groups; g++)
      lm_buf_printf(b, " * (%s)", group_extent(e, g));
    long long chunks = lm_axis_size(e->g.m, e->g.kernel->attr.to[0]);
    lm_buf_printf(b,
                  ", end = (point + 1) * points / %lld;\nfor (int64_t p = point * points / %lld; p "
                  "< end; p++) {\n",
                  chunks, chunks);
  }
  put_coordinates(e, b, sums ? "p" : "point");
  if (e->scan)
    lm_gen_scan_put_loop(&e->g, e->scan, false, &e->g.body, b);
  else
    lm_buf_add(b, e->g.body.p, e->g.body.n);
  if (sums) {
    lm_buf_puts(b, "}\n");
    put_sums(e, b);
  }
  lm_buf_puts(b, "}\n");
}

// ---- text

static void put_function(cpu_emit *e, lm_buf *out) {
  lm_buf head = {0};
  lm_buf part = {0};
  lm_buf arrays = {0};
  lm_buf text = {0};
  if (e->scan)
    e->workspace[e->n_workspaces++] = lm_gen_scan_workspace(e->g.m, e->scan);
  put_rows(e, &head, &arrays);
  put_sums_zero(e, &arrays);
  put_part(e, &part);
  lm_buf_add(&part, arrays.p, arrays.n);
  lm_buf points = {0};
  put_points(e, &points, part.n ? part.p : "");
  lm_buf_puts(&text, "(char *const *buf, const int64_t *var, int64_t lo, int64_t hi) {\n");
  put_operands(e, &text);
  lm_buf_add(&text, head.p, head.n);
  lm_buf_add(&text, points.p, points.n);
  lm_buf_puts(&text, "}\n");
  lm_gen_indent(text.p, out);
  lm_buf_free(&head);
  lm_buf_free(&part);
  lm_buf_free(&arrays);
  lm_buf_free(&points);
  lm_buf_free(&text);
}

bool lm_cpu_kernel_emit(const lm_plan_options *o, const lm_op *kernel, lm_arena *arena,
                        lm_kernel_code *out) {
  if (lm_op_attends(kernel))
    return lm_cpu_attend_emit(o, kernel, arena, out);
  if (lm_op_sorts(kernel))
    return lm_cpu_group_emit(kernel, arena, out);
  lm_arena *temporary = lm_arena_create();
  cpu_emit *e = emit_make(lm_op_module(kernel), kernel, temporary);
  lm_buf text = {0};
  put_function(e, &text);
  *out = (lm_kernel_code){.space = space_of(e),
                          .n_workspaces = e->n_workspaces,
                          .instructions =
                              e->g.instructions *
                              (e->scan ? (double)lm_axis_size(e->g.m, lm_scan_axis(e->scan)) : 1)};
  memcpy(out->workspace, e->workspace, sizeof out->workspace);
  out->name = lm_arena_printf(arena, "k%016llx", (unsigned long long)lm_hash(text.p, text.n, 0));
  out->source = lm_arena_printf(arena, "void %s%s", out->name, text.p);
  lm_buf_free(&text);
  lm_gen_free(&e->g);
  lm_arena_destroy(temporary);
  return true;
}

// ---- computing in place

// True if every read of the operand is at the current indices of the loops, no later than in the
// pass that writes the result.
bool lm_cpu_kernel_in_place(const lm_plan_options *o, const lm_op *kernel, uint32_t operand,
                            uint32_t result) {
  const lm_module *m = lm_op_module(kernel);
  if (kernel->code != LM_OP_KERNEL || lm_kernel_result_summed(kernel, result))
    return false;
  lm_type type = kernel->out[result]->type;
  if (!lm_kernel_fits(m, kernel, operand, result))
    return false;
  lm_arena *temporary = lm_arena_create();
  cpu_emit *e = emit_make(m, kernel, temporary);
  const lm_value *v = lm_kernel_yield(kernel)->in[result];
  int written = (int)e->g.s->n_passes;
  for (uint32_t i = 0; i < e->g.s->n_passes; i++)
    for (uint32_t j = 0; j < e->g.s->passes[i].n_roots; j++)
      if (e->g.s->passes[i].roots[j].v == v &&
          lm_schedule_writes(e->g.s, e->g.s->passes[i].roots[j], result) && (int)i < written)
        written = (int)i;
  bool fine = !(v->def && lm_op_is_reduction(v->def));
  for (uint32_t i = 0; i < e->g.n_accesses; i++) {
    const lm_gen_access *a = &e->g.accesses[i];
    if (a->operand == (int)operand)
      fine &= a->same && lm_type_equal(a->type, type) && a->pass <= written;
  }
  lm_gen_free(&e->g);
  lm_arena_destroy(temporary);
  return fine;
}

const char *lm_cpu_prelude_text(lm_arena *arena) {
  lm_buf b = {0};
  const struct lm_embedded *folders[] = {lm_common_prelude, lm_cpu_prelude};
  for (size_t i = 0; i < LM_COUNT(folders); i++)
    for (const struct lm_embedded *f = folders[i]; f->path; f++)
      lm_buf_printf(&b, "#line 1 \"%s\"\n%s", f->path, f->text);
  const char *text = lm_arena_strndup(arena, b.p, b.n);
  lm_buf_free(&b);
  return text;
}

// On processors with AMX, two cores have at least 4 MB of L2 cache. With more than FEW_PROCESSORS
// cores the tensors of a layer fit the L2 caches, and a few thousand rows are too few to divide, so
// rows are not tiled. For NEON the library has only its reference GEMM.
static void choices_set(lm_target *t) {
  enum {
    NEON = 4,
    CACHED_BYTES = 4 << 20,
    FEW_PROCESSORS = 8
  };
  bool tiles = t->matrix == LM_MATRIX_AMX;
  lm_cpu_panels(t->vector, t->matrix, t->choices.panel);
  t->choices.cached_bytes = tiles && t->units <= FEW_PROCESSORS ? CACHED_BYTES : 0;
  t->choices.attend_tile = 32;
  t->choices.codes_gemms = t->vector == NEON;
}

const lm_codegen lm_cpu_codegen = {.choose = choices_set,
                                   .prelude = lm_cpu_prelude_text,
                                   .kernel = lm_cpu_kernel_emit,
                                   .in_place = lm_cpu_kernel_in_place,
                                   .gemm_is_profitable = lm_cpu_gemm_is_profitable,
                                   .gemm = lm_cpu_gemm_emit,
                                   .library_groups = true,
                                   .attends = lm_attend_is_supported};

lm_plan_options lm_cpu_options(void) {
  lm_plan_options o = {
      .target = lm_target_any(LM_TARGET_CPU),
      .codegen = &lm_cpu_codegen,
  };
  choices_set(&o.target);
  return o;
}
