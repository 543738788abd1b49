// kernel_random_test.c - random graphs as kernels against the interpreter. The first argument is
// the first seed, the second the number of graphs; a failure prints its module and kernels.
#include "tests/codegen/cache.h"
#include "tests/codegen/run.h"

enum {
  VALUES = 64,
  AXES = 20,
  MAX_ELEMENTS = 60000
};
static const struct {
  const char *name;
  int size;
} axes[AXES] = {
    {"a", 2},   {"b", 3},  {"c", 4},  {"d", 6},  {"e", 12},  {"f", 24},  {"g", 5},
    {"h", 7},   {"t", 64}, {"u", 40}, {"a1", 2}, {"b1", 3},  {"c1", 4},  {"d1", 6},
    {"e1", 12}, {"g1", 5}, {"h1", 7}, {"k", 1},  {"t1", 64}, {"u1", 40},
};

typedef struct val {
  lm_dtype dtype;
  int rank, axis[8];
} val;
typedef struct graph {
  lm_buf text;
  uint64_t state;
  val v[VALUES];
  int n;
} graph;

static int below(graph *g, int n) {
  g->state = g->state * 6364136223846793005u + 1442695040888963407u;
  return (int)((g->state >> 33) % (uint64_t)n);
}

static int find(const val *v, int axis) {
  for (int i = 0; i < v->rank; i++)
    if (v->axis[i] == axis)
      return i;
  return -1;
}

static int64_t elements(const val *v) {
  int64_t n = 1;
  for (int i = 0; i < v->rank; i++)
    n *= axes[v->axis[i]].size;
  return n;
}

static bool subset(const val *a, const val *b) {
  for (int i = 0; i < a->rank; i++)
    if (find(b, a->axis[i]) < 0)
      return false;
  return true;
}

static void put_type(graph *g, const val *v) {
  lm_buf_puts(&g->text, lm_dtype_name(v->dtype));
  for (int i = 0; i < v->rank; i++)
    lm_buf_printf(&g->text, "%s%s", i ? ", " : "[", axes[v->axis[i]].name);
  if (v->rank)
    lm_buf_puts(&g->text, "]");
}

// Starts a line that defines a new value.
static int begin(graph *g, val v) {
  g->v[g->n] = v;
  lm_buf_printf(&g->text, "  %%v%d = ", g->n);
  return g->n++;
}

static int pick(graph *g, lm_dtype t) {
  for (int i = 0; i < 40; i++) {
    int k = i < 20 ? g->n - 1 - below(g, g->n < 8 ? g->n : 8) : below(g, g->n);
    if (g->v[k].dtype == t)
      return k;
  }
  return -1;
}

static int partner(graph *g, const val *v, int size) { // an axis of this size that v lacks
  for (int i = 0; i < 30; i++) {
    int a = below(g, AXES);
    if (axes[a].size == size && find(v, a) < 0)
      return a;
  }
  return -1;
}

static void tame(graph *g, const char *expression, val v) { // keeps values in (-1, 1)
  int k = begin(g, v);
  lm_buf_printf(&g->text, "%s\n", expression);
  begin(g, v);
  lm_buf_printf(&g->text, "tanh %%v%d\n", k);
}

static void unary(graph *g, int x) {
  static const char *const ops[] = {"neg", "exp", "sin", "cos", "tanh", "erf"};
  begin(g, g->v[x]);
  lm_buf_printf(&g->text, "%s %%v%d\n", ops[below(g, LM_COUNT(ops))], x);
}

static void binary(graph *g, int x) {
  static const char *const ops[] = {"add", "sub", "mul", "mul"};
  for (int i = 0; i < 10; i++) {
    int y = pick(g, g->v[x].dtype);
    if (y < 0)
      return;
    bool in = subset(&g->v[y], &g->v[x]);
    if (!in && !subset(&g->v[x], &g->v[y]))
      continue;
    val t = in && (g->v[x].rank >= g->v[y].rank) ? g->v[x] : g->v[y];
    char line[64];
    snprintf(line, sizeof line, "%s %%v%d, %%v%d", ops[below(g, LM_COUNT(ops))], x, y);
    if (t.dtype == LM_F32)
      tame(g, line, t);
    else {
      begin(g, t);
      lm_buf_printf(&g->text, "%s\n", line);
    }
    return;
  }
}

static void choice(graph *g, int x) {
  val t = g->v[x], c = t;
  c.dtype = LM_BOOL;
  int z = begin(g, (val){LM_F32, 0, {0}});
  lm_buf_printf(&g->text, "const 0.1 : f32\n");
  int k = begin(g, c);
  lm_buf_printf(&g->text, "lt %%v%d, %%v%d\n", x, z);
  begin(g, t);
  lm_buf_printf(&g->text, "select %%v%d, %%v%d, %%v%d\n", k, z, x);
}

static void reduce(graph *g, int x) {
  val t = g->v[x], r = {.dtype = t.dtype};
  if (!t.rank)
    return;
  int mask = 1 + below(g, (1 << t.rank) - 1), n = 0;
  for (int i = 0; i < t.rank; i++)
    if (!(mask >> i & 1))
      r.axis[r.rank++] = t.axis[i];
  bool sum = below(g, 3);
  int k = begin(g, r);
  lm_buf_printf(&g->text, "%s %%v%d over(", sum ? "sum" : "max", x);
  for (int i = 0; i < t.rank; i++)
    if (mask >> i & 1)
      lm_buf_printf(&g->text, "%s%s", n++ ? ", " : "", axes[t.axis[i]].name);
  lm_buf_puts(&g->text, ")\n");
  if (!sum || t.dtype != LM_F32)
    return;
  int c = begin(g, (val){LM_F32, 0, {0}});
  lm_buf_printf(&g->text, "const %.9g : f32\n",
                1 / sqrt((double)elements(&t) / (double)elements(&r)));
  begin(g, r);
  lm_buf_printf(&g->text, "mul %%v%d, %%v%d\n", k, c);
}

static void expand(graph *g, int x) {
  val t = g->v[x];
  int a = below(g, AXES);
  if (find(&t, a) >= 0 || t.rank == 5 || elements(&t) * axes[a].size > MAX_ELEMENTS)
    return;
  int at = below(g, t.rank + 1);
  memmove(t.axis + at + 1, t.axis + at, sizeof *t.axis * (size_t)(t.rank++ - at));
  t.axis[at] = a;
  begin(g, t);
  lm_buf_printf(&g->text, "expand %%v%d : ", x);
  put_type(g, &t);
  lm_buf_puts(&g->text, "\n");
}

static void permute(graph *g, int x) {
  val t = g->v[x];
  for (int i = t.rank - 1; i > 0; i--) {
    int j = below(g, i + 1);
    int was = t.axis[i];
    t.axis[i] = t.axis[j];
    t.axis[j] = was;
  }
  begin(g, t);
  lm_buf_printf(&g->text, "permute %%v%d : ", x);
  put_type(g, &t);
  lm_buf_puts(&g->text, "\n");
}

// (axis) -> (to) with an operation that names both
static void move(graph *g, int x, const char *op, int at, int to, const char *imm) {
  val t = g->v[x];
  int from = t.axis[at];
  t.axis[at] = to;
  begin(g, t);
  lm_buf_printf(&g->text, "%s %%v%d (%s) -> (%s) %s\n", op, x, axes[from].name, axes[to].name, imm);
}

static void rename_slice_pad(graph *g, int x) {
  val t = g->v[x];
  char imm[48];
  if (!t.rank)
    return;
  int at = below(g, t.rank);
  int size = axes[t.axis[at]].size;
  int to = below(g, AXES);
  int other = axes[to].size;
  int kind = below(g, 3);
  if (kind == 0)
    to = partner(g, &t, size);
  if (to < 0 || find(&t, to) >= 0 || elements(&t) / size * axes[to].size > MAX_ELEMENTS)
    return;
  if (kind == 0) {
    move(g, x, "rename", at, to, "");
    return;
  }
  bool pad = other > size;
  int whole = pad ? other : size;
  int part = pad ? size : other;
  int step = 1 + below(g, 3);
  if ((part - 1) * step >= whole)
    step = 1;
  int first = below(g, whole - (part - 1) * step);
  bool back = below(g, 3) == 0;
  snprintf(imm, sizeof imm, "[%d, %d]", back ? first + (part - 1) * step : first,
           back ? -step : step);
  move(g, x, pad ? "pad" : "slice", at, to, imm);
}

static void one_position(graph *g, int x) {
  val t = g->v[x];
  bool pad = below(g, 2);
  int a = below(g, AXES);
  if (pad && (find(&t, a) >= 0 || t.rank == 5 || elements(&t) * axes[a].size > MAX_ELEMENTS))
    return;
  if (!pad && !t.rank)
    return;
  int at = pad ? t.rank : below(g, t.rank);
  int axis = pad ? a : t.axis[at];
  if (pad)
    t.axis[t.rank++] = a;
  else {
    memmove(t.axis + at, t.axis + at + 1, sizeof *t.axis * (size_t)(t.rank - at - 1));
    t.rank--;
  }
  begin(g, t);
  const char *name = axes[axis].name;
  lm_buf_printf(&g->text, "%s %%v%d (%s) -> (%s) [%d, 1]\n", pad ? "pad" : "slice", x,
                pad ? "" : name, pad ? name : "", below(g, axes[axis].size));
}

// A window over an axis, or the reverse: the same two axes instead of one, or the first of two.
static void window(graph *g, int x) {
  val t = g->v[x];
  bool back = below(g, 3) == 0;
  if (t.rank < 1 + back)
    return;
  int at = below(g, t.rank);
  int from = t.axis[at];
  int taps = back ? t.axis[(at + 1) % t.rank] : below(g, AXES);
  int to = below(g, 2) ? from : below(g, AXES);
  bool taken = to != from && find(&t, to) >= 0;
  if (taken || to == taps || (!back && (find(&t, taps) >= 0 || t.rank == 5)))
    return;
  t.axis[at] = to;
  if (!back) {
    memmove(t.axis + at + 2, t.axis + at + 1, sizeof *t.axis * (size_t)(t.rank++ - at - 1));
    t.axis[at + 1] = taps;
  }
  if (elements(&t) > MAX_ELEMENTS)
    return;
  begin(g, t);
  if (back)
    lm_buf_printf(&g->text, "unwindow %%v%d (%s, %s) -> (%s, %s) ", x, axes[from].name,
                  axes[taps].name, axes[to].name, axes[taps].name);
  else
    lm_buf_printf(&g->text, "window %%v%d (%s) -> (%s, %s) ", x, axes[from].name, axes[to].name,
                  axes[taps].name);
  lm_buf_printf(&g->text, "[%d, %d, %d]\n", below(g, 6), 1 + below(g, 3), 1 + below(g, 3));
}

static void view(graph *g, int x) {
  static const int triples[][3] = {{0, 1, 3}, {1, 2, 4},  {0, 3, 4},    {10, 12, -1}, {0, 4, 5},
                                   {3, 2, 5}, {0, 11, 3}, {11, 12, 14}, {1, 0, 13},   {17, 3, 13}};
  const int *p = triples[below(g, LM_COUNT(triples))];
  val t = g->v[x];
  if (p[2] < 0)
    return;
  int i = find(&t, p[0]);
  int whole = find(&t, p[2]);
  if (i >= 0 && i + 1 < t.rank && t.axis[i + 1] == p[1] && whole < 0) {
    t.axis[i] = p[2];
    memmove(t.axis + i + 1, t.axis + i + 2, sizeof *t.axis * (size_t)(t.rank - i - 2));
    t.rank--;
    begin(g, t);
    lm_buf_printf(&g->text, "view %%v%d (%s, %s) -> (%s)\n", x, axes[p[0]].name, axes[p[1]].name,
                  axes[p[2]].name);
  } else if (whole >= 0 && i < 0 && find(&t, p[1]) < 0 && t.rank < 6) {
    memmove(t.axis + whole + 1, t.axis + whole, sizeof *t.axis * (size_t)(t.rank - whole));
    t.rank++;
    t.axis[whole] = p[0];
    t.axis[whole + 1] = p[1];
    begin(g, t);
    lm_buf_printf(&g->text, "view %%v%d (%s) -> (%s, %s)\n", x, axes[p[2]].name, axes[p[0]].name,
                  axes[p[1]].name);
  }
}

static void concat(graph *g, int x) { // (a, c) -> d, or three b -> ... by size
  val t = g->v[x];
  for (int at = 0; at < t.rank; at++) {
    int size = axes[t.axis[at]].size;
    int to = partner(g, &t, size * 2);
    if (to < 0 || elements(&t) * 2 > MAX_ELEMENTS)
      continue;
    int y = begin(g, t);
    lm_buf_printf(&g->text, "%s %%v%d\n", t.dtype == LM_F32 ? "sin" : "neg", x);
    const char *name = axes[t.axis[at]].name;
    int axis = t.axis[at];
    t.axis[at] = to;
    begin(g, t);
    lm_buf_printf(&g->text, "concat %%v%d, %%v%d (%s, %s) -> (%s)\n", x, y, name, axes[axis].name,
                  axes[to].name);
    return;
  }
}

static void lookup(graph *g, int x) {
  val t = g->v[x];
  int i = pick(g, LM_INT);
  if (!t.rank || i < 0)
    return;
  int at = below(g, t.rank);
  int v = t.axis[at];
  val r = g->v[i], rest = t;
  memmove(rest.axis + at, rest.axis + at + 1, sizeof *rest.axis * (size_t)(rest.rank - at - 1));
  rest.rank--;
  bool shared = false, all = subset(&rest, &r);
  for (int k = 0; k < rest.rank; k++)
    shared |= find(&r, rest.axis[k]) >= 0;
  if (find(&r, v) >= 0 || (shared && !all) || r.rank + rest.rank > 6)
    return;
  r.dtype = t.dtype;
  for (int k = 0; k < rest.rank; k++)
    if (find(&r, rest.axis[k]) < 0)
      r.axis[r.rank++] = rest.axis[k];
  if (elements(&r) > MAX_ELEMENTS)
    return;
  int y = begin(g, r);
  lm_buf_printf(&g->text, "gather %%v%d, %%v%d over(%s)\n", x, i, axes[v].name);
  if (t.dtype != LM_F32 || below(g, 2))
    return;
  begin(g, t);
  lm_buf_printf(&g->text, "scatter_add %%v%d, %%v%d over(%s) : ", y, i, axes[v].name);
  put_type(g, &t);
  lm_buf_puts(&g->text, "\n");
  int c = begin(g, (val){LM_F32, 0, {0}});
  lm_buf_puts(&g->text, "const 0.05 : f32\n");
  char line[48];
  snprintf(line, sizeof line, "mul %%v%d, %%v%d", c - 1, c);
  tame(g, line, t);
}

static void iota(graph *g) {
  int a = below(g, AXES);
  begin(g, (val){LM_INT, 1, {a}});
  lm_buf_printf(&g->text, "iota : int[%s]\n", axes[a].name);
}

static void random_dot(graph *g, int x) {
  int y = pick(g, LM_F32);
  if (y < 0)
    return;
  val t = g->v[x];
  val w = g->v[y];
  val r = {LM_F32, 0, {0}};
  int over = -1;
  for (int i = 0; i < t.rank; i++)
    if (find(&w, t.axis[i]) >= 0 && (over < 0 || below(g, 2)))
      over = t.axis[i];
  if (over < 0)
    return;
  for (int i = 0; i < t.rank; i++)
    if (t.axis[i] != over)
      r.axis[r.rank++] = t.axis[i];
  for (int i = 0; i < w.rank && r.rank < 7; i++)
    if (w.axis[i] != over && find(&r, w.axis[i]) < 0)
      r.axis[r.rank++] = w.axis[i];
  if (r.rank > 5 || elements(&r) > MAX_ELEMENTS)
    return;
  char line[64];
  snprintf(line, sizeof line, "dot %%v%d, %%v%d over(%s)", x, y, axes[over].name);
  tame(g, line, r);
}

static void step(graph *g) {
  int kind = below(g, 16);
  int x = pick(g, kind == 15 ? LM_INT : LM_F32);
  if (x < 0)
    return;
  switch (kind) {
  case 0:
  case 1: unary(g, x); return;
  case 2:
  case 3:
  case 4: binary(g, x); return;
  case 5: choice(g, x); return;
  case 6:
  case 7: reduce(g, x); return;
  case 8: expand(g, x); return;
  case 9: permute(g, x); return;
  case 10: rename_slice_pad(g, x); return;
  case 11:
    switch (below(g, 3)) {
    case 0: one_position(g, x); return;
    case 1: concat(g, x); return;
    default: window(g, x); return;
    }
  case 12: view(g, x); return;
  case 13: lookup(g, x); return;
  case 14: random_dot(g, x); return;
  default:
    if (below(g, 3))
      binary(g, x);
    else
      iota(g);
    return;
  }
}

static val random_type(graph *g, lm_dtype t, int rank) {
  val v = {.dtype = t};
  while (v.rank < rank) {
    int a = below(g, AXES);
    if (find(&v, a) < 0 && elements(&v) * axes[a].size <= MAX_ELEMENTS)
      v.axis[v.rank++] = a;
    else
      rank--;
  }
  return v;
}

static char *random_module(uint64_t seed) {
  graph g = {.state = seed * 0x9e3779b97f4a7c15u + 1};
  lm_buf_puts(&g.text, "stage step\naxis ");
  for (int i = 0; i < AXES; i++)
    lm_buf_printf(&g.text, "%s%s = %d", i ? ", " : "", axes[i].name, axes[i].size);
  lm_buf_puts(&g.text, "\nfunc @f(");
  for (int i = 0; i < 5; i++) {
    g.v[g.n] = random_type(&g, i < 3 ? LM_F32 : LM_INT, 1 + below(&g, i < 3 ? 4 : 2));
    lm_buf_printf(&g.text, "%s%%v%d: ", i ? ", " : "", g.n);
    put_type(&g, &g.v[g.n++]);
  }
  size_t head = g.text.n;
  int steps = 6 + below(&g, 24);
  while (steps-- > 0 && g.n < VALUES - 6)
    step(&g);
  lm_buf full = {0};
  lm_buf_add(&full, g.text.p, head);
  lm_buf_puts(&full, ") -> (");
  lm_buf tail = {0};
  lm_buf body = g.text;
  g.text = tail;
  int n_out = 1 + below(&g, 5);
  int first = 5 + below(&g, g.n - 5 > 0 ? g.n - 5 : 1);
  lm_buf_puts(&g.text, "  return ");
  for (int i = 0; i < n_out; i++) {
    int k = i == 0 ? g.n - 1 : first + (g.n - first > 0 ? below(&g, g.n - first) : 0);
    if (k >= g.n)
      k = g.n - 1;
    lm_buf types = g.text;
    g.text = full;
    lm_buf_printf(&g.text, "%sr%d: ", i ? ", " : "", i);
    put_type(&g, &g.v[k]);
    full = g.text;
    g.text = types;
    lm_buf_printf(&g.text, "%s%%v%d", i ? ", " : "", k);
  }
  lm_buf_puts(&full, ") {\n");
  lm_buf_add(&full, body.p + head, body.n - head);
  lm_buf_add(&full, g.text.p, g.text.n);
  lm_buf_puts(&full, "\n}\n");
  lm_buf_free(&body);
  lm_buf_free(&g.text);
  return full.p;
}

int main(int argc, char **argv) {
  cache_begin();
  uint64_t first = argc > 1 ? strtoull(argv[1], NULL, 0) : 1;
  uint64_t count = argc > 2 ? strtoull(argv[2], NULL, 0) : 12;
  for (uint64_t seed = first; seed < first + count; seed++) {
    char *text = random_module(seed), name[32];
    snprintf(name, sizeof name, "seed %llu", (unsigned long long)seed);
    if (getenv("TEXT"))
      printf("%s", text);
    run_both(text, &(run_options){.name = name, .tolerance = 1e-4, .floor = 1e-6, .seed = seed});
    lm_free(text);
  }
  return 0;
}
