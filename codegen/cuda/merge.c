// merge.c - the kernel of a launch that computes several steps: each part has some of the blocks.
//
// A part is the text of its kernel, of which `lm_block()` is the number of the block within the
// part, or a loop over the elements of a copy. The pointer of a result that is appended to a KV
// cache is that of the position in the cache.
#include <string.h>

#include "codegen/cuda/emit.h"

// ---- the text of a part's kernel: LM_KERNEL(threads) name(type a0, type a1) { ... }

static const char *params_of(const lm_plan_kernel *k) {
  return strchr(strstr(k->source, k->name), '(') + 1;
}

// True if its threads may be some of a block, and its shared memory is none of the block's.
static bool is_any_block(const lm_plan_kernel *k) {
  return !strstr(k->source, "lm_barrier(") && !strstr(k->source, "lm_block_") &&
         !strstr(k->source, "LM_SHARED(");
}

bool cuda_may_merge(const lm_plan_kernel *k) {
  const lm_plan_launch *l = &k->launch;
  return l->threads <= CUDA_THREADS && !l->blocks && !l->adds && !l->shared && !l->extents &&
         !l->n_maps && is_any_block(k);
}

// The text without the indentation of its lines.
static void put_flush(lm_buf *b, const char *text) {
  for (const char *end; *text; text = end) {
    text += strspn(text, " ");
    end = text + strcspn(text, "\n");
    end += *end == '\n';
    lm_buf_add(b, text, (size_t)(end - text));
  }
}

static void put_replaced(lm_buf *b, const char *text, const char *what, const char *with) {
  for (const char *at; (at = strstr(text, what)); text = at + strlen(what)) {
    lm_buf_add(b, text, (size_t)(at - text));
    lm_buf_puts(b, with);
  }
  lm_buf_puts(b, text);
}

// The declaration of parameter i, "type name": the length of its type is in *out_type.
static const char *param_of(const lm_plan_kernel *k, int i, int *out_type, int *out_all) {
  const char *at = params_of(k);
  for (; i; i--)
    at = strchr(at, ',') + 2;
  int all = (int)strcspn(at, ",)"), type = all;
  while (at[type - 1] != ' ' && at[type - 1] != '*')
    type--;
  *out_type = type;
  *out_all = all;
  return at;
}

// ---- parts

typedef struct merged {
  const lm_merge_part *parts;
  int n, threads, n_bufs;
  const lm_merge_part *checks; // the first part that appends; NULL: none does
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

static void put_kernel(const merged *x, const lm_merge_part *p, const char *block) {
  const lm_plan_launch *l = &p->kernel->launch;
  char count[32];
  for (int i = 0, k = 0; i < p->n_bufs; i++) {
    int type, all;
    if (p->appended >= 0 && i == p->at)
      continue;
    const char *param = param_of(p->kernel, k++, &type, &all);
    lm_buf_printf(x->out, "%.*s = p%d", all, param, p->buf[i]);
    if (i == p->appended) {
      const lm_plan_move *m = p->move;
      lm_buf_printf(x->out, " + start * %lld", (long long)(m->dim[m->at_dim].to / m->element));
    }
    lm_buf_puts(x->out, ";\n");
  }
  if (l->threads < x->threads)
    lm_buf_printf(x->out, "if (lm_thread() >= %d) return;\n", l->threads);
  lm_buf flush = {0}, body = {0};
  put_flush(&flush, strstr(params_of(p->kernel), ") {\n") + 4);
  *strrchr(flush.p, '}') = 0; // the end of the function
  put_replaced(&body, flush.p, "lm_block()", block);
  snprintf(count, sizeof count, "%lld", (long long)blocks_of(x, p));
  put_replaced(x->out, body.p, "lm_grid()", count);
  lm_buf_free(&flush);
  lm_buf_free(&body);
}

static void put_copy(const merged *x, const lm_merge_part *p, const char *block) {
  const lm_plan_move *m = p->move;
  int last = p->buf[p->n_bufs - 1];
  lm_buf_printf(x->out,
                "int64_t i = %s * %d + lm_thread();\nif (i >= %lld) return;\nint64_t from = 0, to "
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
static void put_type(const lm_merge_part *p, int b, lm_buf *out) {
  int type, all;
  bool is_at = p->kernel ? p->appended >= 0 && b == p->at : p->n_bufs == 3 && b == 1;
  if (is_at) {
    lm_buf_puts(out, "const int32_t *");
  } else if (!p->kernel) {
    lm_buf_printf(out, "%s%s *", b ? "" : "const ", word_of(p->move->element));
  } else {
    const char *param = param_of(p->kernel, b - (p->appended >= 0 && b > p->at), &type, &all);
    lm_buf_add(out, param, (size_t)type);
  }
}

static void put_params(const merged *x) {
  lm_buf_puts(x->out, "(");
  for (int i = 0; i < x->n_bufs; i++)
    for (int k = 0; k < x->n; k++)
      for (int b = 0; b < x->parts[k].n_bufs; b++) {
        if (x->parts[k].buf[b] != i)
          continue;
        lm_buf_puts(x->out, i ? ", " : "");
        put_type(&x->parts[k], b, x->out);
        lm_buf_printf(x->out, "p%d", i);
      }
  lm_buf_puts(x->out, x->checks ? ", int32_t *fault, int32_t step) {\n" : ") {\n");
}

static int64_t put_parts(const merged *x) {
  int64_t first = 0;
  for (int i = 0; i < x->n; i++) {
    const lm_merge_part *p = &x->parts[i];
    int64_t end = first + blocks_of(x, p);
    char block[48];
    snprintf(block, sizeof block, first ? "(lm_block() - %lld)" : "lm_block()", (long long)first);
    lm_buf_printf(x->out, "if (lm_block() < %lld) {\n", (long long)end);
    if (appends(p))
      put_check(x, p, block);
    (p->kernel ? put_kernel : put_copy)(x, p, block);
    lm_buf_puts(x->out, "return;\n}\n");
    first = end;
  }
  return first;
}

void cuda_merge(const lm_merge_part *parts, int n, lm_arena *arena, lm_kernel_code *out) {
  lm_buf raw = {0}, text = {0};
  merged x = {.parts = parts, .n = n, .threads = CUDA_WARP, .out = &raw};
  for (int i = 0; i < n; i++) {
    int threads = parts[i].kernel ? parts[i].kernel->launch.threads : CUDA_THREADS / 2;
    x.threads = threads > x.threads ? threads : x.threads;
    x.n_bufs += parts[i].n_bufs;
    x.checks = !x.checks && appends(&parts[i]) ? &parts[i] : x.checks;
  }
  put_params(&x);
  *out = (lm_kernel_code){
      .space.fixed = put_parts(&x),
      .launch = {.threads = x.threads, .per_block = 1, .appends = x.checks != NULL},
  };
  lm_buf_puts(&raw, "}\n");
  lm_gen_indent(raw.p, &text);
  out->name = lm_arena_printf(arena, "m%016llx", (unsigned long long)lm_hash(text.p, text.n, 0));
  out->source = lm_arena_printf(arena, "LM_KERNEL(%d) %s%s", x.threads, out->name, text.p);
  lm_buf_free(&raw);
  lm_buf_free(&text);
}
