// merge.c - the kernel of a launch that computes several steps: each part has some of the blocks.
//
// A part is a kernel, whose statements have the blocks of the part (code.c), or a loop over the
// elements of a copy. The pointer of a result that is appended to a KV cache is that of the
// position in the cache.
#include <string.h>

#include "codegen/cuda/emit.h"

bool cuda_may_merge(const lm_kernel_code *k) {
  const lm_plan_launch *l = &k->launch;
  return k->body && !k->body->whole_block && l->threads <= CUDA_THREADS && !l->blocks && !l->adds &&
         !l->shared && !l->extents && !l->n_maps;
}

// ---- parts

typedef struct merged {
  const lm_merge_part *parts;
  int n, threads, n_bufs;
  const lm_merge_part *checks; // the first part that appends; NULL: none does
  lm_arena *arena;
  lm_buf *out;
} merged;

static int64_t elements_of(const lm_plan_move *m) {
  int64_t n = 1;
  for (int i = 0; i < m->rank; i++)
    n *= m->dim[i].size.fixed;
  return n;
}

static int64_t blocks_of(const merged *x, const lm_merge_part *p) {
  int64_t n = p->kernel ? p->points : elements_of(p->move);
  int64_t each = p->kernel ? p->kernel->launch.per_block : x->threads;
  return (n + each - 1) / each;
}

static bool appends(const lm_merge_part *p) {
  return p->move && p->move->at_dim >= 0;
}

// Ends the part if the position is outside of the cache.
static void put_check(const merged *x, const lm_merge_part *p, const char *block) {
  const lm_plan_move *m = p->move;
  lm_buf_printf(x->out, "const int64_t start = *p%d;\n", p->buf[p->kernel ? p->at : 1]);
  lm_buf_printf(x->out, "if (start < 0 || start > %lld) {\n",
                (long long)(m->at_limit - m->dim[m->at_dim].size.fixed));
  if (p == x->checks)
    lm_buf_printf(x->out,
                  "if (%s == 0 && lm_thread() == 0 && fault[0] == 0) {\nfault[1] = "
                  "(int32_t)start;\nfault[0] = step;\n}\n",
                  block);
  lm_buf_puts(x->out, "return;\n}\n");
}

// The arguments of a part's kernel: the buffers of the launch.
static const char **args_of(const lm_merge_part *p, lm_arena *arena) {
  const lm_plan_move *m = p->move;
  const char **out = LM_NEW_N(arena, const char *, p->n_bufs + 1);
  for (int i = 0, k = 0; i < p->n_bufs; i++) {
    if (p->appended >= 0 && i == p->at)
      continue;
    out[k++] = i == p->appended ? lm_arena_printf(arena, "p%d + start * %lld", p->buf[i],
                                                  (long long)(m->dim[m->at_dim].to / m->element))
                                : lm_arena_printf(arena, "p%d", p->buf[i]);
  }
  return out;
}

static void put_kernel(const merged *x, const lm_merge_part *p, const char *block) {
  int threads = p->kernel->launch.threads;
  const char *grid = lm_arena_printf(x->arena, "%lld", (long long)blocks_of(x, p));
  if (threads < x->threads)
    lm_buf_printf(x->out, "if (lm_thread() >= %d) return;\n", threads);
  cuda_code_put(p->kernel->body, args_of(p, x->arena), &(cuda_blocks){.block = block, .grid = grid},
                x->out);
}

static void put_copy(const merged *x, const lm_merge_part *p, const char *block) {
  const lm_plan_move *m = p->move;
  int last = p->buf[p->n_bufs - 1];
  lm_buf_printf(
      x->out,
      "int64_t i = (%s) * %d + lm_thread();\nif (i >= %lld) return;\nint64_t from = 0, to "
      "= 0;\n",
      block, x->threads, (long long)elements_of(m));
  for (int d = m->rank - 1; d >= 0; d--) {
    long long size = (long long)m->dim[d].size.fixed, from = (long long)m->dim[d].from / m->element,
              to = (long long)m->dim[d].to / m->element;
    if (size > 1)
      lm_buf_printf(x->out, "from += i %% %lld * %lld;\nto += i %% %lld * %lld;\ni /= %lld;\n",
                    size, from, size, to, size);
  }
  if (appends(p))
    lm_buf_printf(x->out, "to += start * %lld;\n", (long long)(m->dim[m->at_dim].to / m->element));
  lm_buf_printf(x->out, "p%d[to] = p%d[from];\n", last, p->buf[0]);
}

// ---- the kernel

static const char *word_of(int bytes) {
  return bytes == 1 ? "uint8_t" : bytes == 2 ? "uint16_t" : bytes == 4 ? "uint32_t" : "uint64_t";
}

// The type of buffer b of part p.
static const char *type_of(const lm_merge_part *p, int b, lm_arena *arena) {
  bool is_at = p->kernel ? p->appended >= 0 && b == p->at : p->n_bufs == 3 && b == 1;
  if (is_at)
    return "const int32_t *";
  if (!p->kernel)
    return lm_arena_printf(arena, "%s%s *", b ? "" : "const ", word_of(p->move->element));
  return p->kernel->body->params[b - (p->appended >= 0 && b > p->at)].type;
}

static void params_add(const merged *x, cuda_code *c) {
  for (int i = 0; i < x->n_bufs; i++)
    for (int k = 0; k < x->n; k++)
      for (int b = 0; b < x->parts[k].n_bufs; b++)
        if (x->parts[k].buf[b] == i)
          cuda_code_param(c, type_of(&x->parts[k], b, x->arena),
                          lm_arena_printf(x->arena, "p%d", i));
  c->last_params = x->checks ? ", int32_t *fault, int32_t step" : NULL;
}

static int64_t put_parts(const merged *x) {
  int64_t first = 0;
  for (int i = 0; i < x->n; i++) {
    const lm_merge_part *p = &x->parts[i];
    int64_t end = first + blocks_of(x, p);
    char block[48];
    snprintf(block, sizeof block, first ? "lm_block() - %lld" : "lm_block()", (long long)first);
    lm_buf_printf(x->out, "if (block < %lld) {\n", (long long)end);
    if (appends(p))
      put_check(x, p, block);
    (p->kernel ? put_kernel : put_copy)(x, p, block);
    lm_buf_puts(x->out, "return;\n}\n");
    first = end;
  }
  return first;
}

void cuda_merge(const lm_merge_part *parts, int n, lm_arena *arena, lm_kernel_code *out) {
  lm_buf body = {0};
  merged x = {
      .parts = parts,
      .n = n,
      .threads = CUDA_WARP,
      .arena = arena,
      .out = &body,
  };
  for (int i = 0; i < n; i++) {
    int threads = parts[i].kernel ? parts[i].kernel->launch.threads : CUDA_THREADS / 2;
    x.threads = threads > x.threads ? threads : x.threads;
    x.n_bufs += parts[i].n_bufs;
    x.checks = !x.checks && appends(&parts[i]) ? &parts[i] : x.checks;
  }
  cuda_code *c = cuda_code_make(arena, x.threads);
  params_add(&x, c);
  *out = (lm_kernel_code){
      .space.fixed = put_parts(&x),
      .launch = {.per_block = 1, .appends = x.checks != NULL},
  };
  c->whole_block = true;
  cuda_code_body(c, NULL, &body);
  cuda_code_render(c, "m", arena, out);
}
