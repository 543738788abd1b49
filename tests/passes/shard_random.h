// shard_random.h - random programs at stage graph, as text, for tests of pass `shard`.
//
// Every operation with a derivative, over axes that a mesh may divide; loops with stacked
// parameters and captured values. All are differentiable almost everywhere and stay near 1.
#ifndef LM_TESTS_SHARD_RANDOM_H
#define LM_TESTS_SHARD_RANDOM_H
#include <math.h>
#include <string.h>
#include "runtime/base/base.h"
#include "tests/runtime/check.h"

typedef struct axis_of_test {
  const char *name;
  int size;
} axis_of_test;
static const axis_of_test test_axes[] = {{"b", 4},  {"t", 4}, {"g", 4},  {"h", 2},
                                         {"ff", 8}, {"v", 8}, {"d", 6},  {"e", 2},
                                         {"g2", 4}, {"s", 4}, {"gh", 8}, {"v2", 8}};
enum {
  B,
  T,
  G,
  H,
  FF,
  V,
  D,
  E,
  G2,
  S,
  GH,
  V2,
  AXES,
  VARS = 64
};

typedef struct var {
  int id, n, axis[6];
} var;

typedef struct program {
  uint64_t state;
  lm_buf params, body;
  int n_params, next;
  var v[VARS];
  int n, from; // the values of enclosing regions begin at 0, those of this one at `from`
  int in_loop; // the number of its index, or 0
} program;

static inline uint32_t draw(program *p, uint32_t below) {
  p->state = p->state * 6364136223846793005u + 1442695040888963407u;
  return (uint32_t)(p->state >> 33) % below;
}

static inline int has(const var *x, int axis) {
  for (int i = 0; i < x->n; i++)
    if (x->axis[i] == axis)
      return i;
  return -1;
}

static inline void put_axes_of(lm_buf *out, const var *x) {
  for (int i = 0; i < x->n; i++)
    lm_buf_printf(out, "%s%s", i ? ", " : "[", test_axes[x->axis[i]].name);
  if (x->n)
    lm_buf_puts(out, "]");
}

static inline const char *type_text(program *p, const char *dtype, const var *x) {
  static char text[4][128];
  static int at;
  lm_buf b = {0};
  lm_buf_printf(&b, "%s", dtype);
  put_axes_of(&b, x);
  char *out = text[at++ % 4];
  snprintf(out, sizeof text[0], "%s", b.p);
  lm_buf_free(&b);
  return out;
}

static inline double elements(const var *x) {
  double n = 1;
  for (int i = 0; i < x->n; i++)
    n *= test_axes[x->axis[i]].size;
  return n;
}

// Appends "%N = " and returns the value; `x` has its axes.
static inline var *define(program *p, var x) {
  CHECK(p->n < VARS);
  x.id = p->next++;
  p->v[p->n] = x;
  lm_buf_printf(&p->body, "  %%x%d_ = ", x.id);
  return &p->v[p->n++];
}

static inline var *pick(program *p) {
  int recent = p->n > 6 && draw(p, 3) ? p->n - 6 : 0;
  return &p->v[recent + (int)draw(p, (uint32_t)(p->n - recent))];
}

static inline var param(program *p, var type) {
  int k = p->n_params++;
  bool stacked = p->in_loop && draw(p, 3);
  lm_buf_printf(&p->params, "param @w%d : f32[%s", k, stacked ? "l" : "");
  for (int i = 0; i < type.n; i++)
    lm_buf_printf(&p->params, "%s%s", i || stacked ? ", " : "", test_axes[type.axis[i]].name);
  lm_buf_printf(&p->params, "]%s = ones\n", stacked ? " stacked 1" : "");
  char index[24];
  snprintf(index, sizeof index, "[%%l%d_]", p->in_loop);
  type.id = p->next++;
  lm_buf_printf(&p->body, "  %%x%d_ = param @w%d%s\n", type.id, k, stacked ? index : "");
  return type;
}

static inline void shuffle(program *p, int *a, int n) {
  for (int i = n - 1; i > 0; i--) {
    int j = (int)draw(p, (uint32_t)i + 1), was = a[i];
    a[i] = a[j];
    a[j] = was;
  }
}

static inline var *scaled(program *p, const var *x, double by) {
  int id = x->id;
  var t = *x;
  lm_buf_printf(&p->body, "  %%c%d_ = const %.17g : f32\n", p->next, by);
  int c = p->next++;
  define(p, t);
  lm_buf_printf(&p->body, "mul %%x%d_, %%c%d_\n", id, c);
  return &p->v[p->n - 1];
}

static inline void emit_dot(program *p) {
  var x = *pick(p), w = {0}, out = {0};
  int sum[6], n_sum = 0;
  for (int i = 0; i < x.n; i++)
    if (x.axis[i] != B && draw(p, 2))
      sum[n_sum++] = x.axis[i];
  for (int i = 0; i < n_sum; i++)
    w.axis[w.n++] = sum[i];
  for (int i = 0; i < x.n; i++) {
    bool summed = has(&w, x.axis[i]) >= 0;
    if (!summed && w.n < 4 && x.axis[i] != B && !draw(p, 5))
      w.axis[w.n++] = x.axis[i];
    if (!summed)
      out.axis[out.n++] = x.axis[i];
  }
  for (int i = 0; i < 2 && out.n < 4 && w.n < 4; i++) {
    int a = (int)draw(p, AXES);
    if (a == B || a == T || has(&x, a) >= 0 || has(&w, a) >= 0)
      continue;
    w.axis[w.n++] = a;
  }
  if (!n_sum || !w.n)
    return;
  int order[6];
  memcpy(order, w.axis, sizeof order);
  shuffle(p, order, w.n);
  memcpy(w.axis, order, sizeof order);
  for (int i = 0; i < w.n; i++)
    if (has(&x, w.axis[i]) < 0)
      out.axis[out.n++] = w.axis[i];
  w = param(p, w);
  double norm = 1;
  for (int i = 0; i < n_sum; i++)
    norm *= test_axes[sum[i]].size;
  var *z = define(p, out);
  lm_buf_printf(&p->body, "dot %%x%d_, %%x%d_ over(", x.id, w.id);
  for (int i = 0; i < n_sum; i++)
    lm_buf_printf(&p->body, "%s%s", i ? ", " : "", test_axes[sum[i]].name);
  lm_buf_puts(&p->body, ")\n");
  scaled(p, z, 1.5 / sqrt(norm));
}

static inline void emit_unary(program *p) {
  static const char *const ops[] = {"tanh", "sin", "neg", "logistic", "cos", "erf"};
  var x = *pick(p);
  if (!draw(p, 8)) { // a value without a gradient
    define(p, x);
    lm_buf_printf(&p->body, "stop_grad %%x%d_\n", x.id);
    return;
  }
  define(p, x);
  lm_buf_printf(&p->body, "%s %%x%d_\n", ops[draw(p, 6)], x.id);
}

static inline void emit_binary(program *p) {
  static const char *const ops[] = {"add", "mul", "sub"};
  var x = *pick(p), y = *pick(p);
  if (draw(p, 2) && x.n) { // a parameter with some of the axes
    var t = {0};
    for (int i = 0; i < x.n; i++)
      if (x.axis[i] != B && draw(p, 2))
        t.axis[t.n++] = x.axis[i];
    y = t.n ? param(p, t) : y;
  }
  for (int i = 0; i < y.n; i++)
    if (has(&x, y.axis[i]) < 0)
      return;
  var out = x;
  int op = (int)draw(p, 4);
  bool swap = draw(p, 2) && y.n < x.n;
  if (op == 3) {
    var *c = define(p, out);
    int id = c->id;
    lm_buf_printf(&p->body, "lt %%x%d_, %%x%d_\n", x.id, y.id);
    p->n--; // bool
    define(p, out);
    lm_buf_printf(&p->body, "select %%x%d_, %%x%d_, %%x%d_\n", id, x.id, y.id);
    return;
  }
  define(p, out);
  lm_buf_printf(&p->body, "%s %%x%d_, %%x%d_\n", ops[op], swap ? y.id : x.id, swap ? x.id : y.id);
}

static inline void emit_reduce(program *p) {
  var x = *pick(p), out = {0};
  int over = x.n ? (int)draw(p, (uint32_t)x.n) : 0;
  if (!x.n || x.axis[over] == B)
    return;
  for (int i = 0; i < x.n; i++)
    if (i != over)
      out.axis[out.n++] = x.axis[i];
  bool max = draw(p, 3) == 0;
  var *z = define(p, out);
  lm_buf_printf(&p->body, "%s %%x%d_ over(%s)\n", max ? "max" : "sum", x.id,
                test_axes[x.axis[over]].name);
  if (!max)
    scaled(p, z, 1 / sqrt(test_axes[x.axis[over]].size));
}

static inline void emit_permute(program *p) {
  var x = *pick(p), out = x;
  if (x.n < 2)
    return;
  shuffle(p, out.axis, out.n);
  define(p, out);
  lm_buf_printf(&p->body, "permute %%x%d_ : %s\n", x.id, type_text(p, "f32", &out));
}

static inline void emit_rename(program *p) {
  var x = *pick(p), out = x;
  for (int i = 0; i < x.n; i++)
    for (int a = 0; a < AXES; a++)
      if (a != B && a != T && x.axis[i] != B && test_axes[a].size == test_axes[x.axis[i]].size &&
          has(&x, a) < 0 && !draw(p, 3)) {
        out.axis[i] = a;
        define(p, out);
        bool history = x.axis[i] == T && a == S;
        lm_buf_printf(&p->body, "%s %%x%d_ (%s) -> (%s)\n", history ? "history" : "rename", x.id,
                      test_axes[x.axis[i]].name, test_axes[a].name);
        return;
      }
}

static inline void emit_view(program *p) {
  var x = *pick(p);
  for (int i = 0; i < x.n; i++) {
    var out = x;
    if (x.axis[i] == GH && has(&x, G) < 0 && has(&x, H) < 0 && x.n < 4) {
      out.axis[i] = G;
      memmove(out.axis + i + 2, x.axis + i + 1, (size_t)(x.n - i - 1) * sizeof *x.axis);
      out.axis[i + 1] = H;
      out.n++;
      define(p, out);
      lm_buf_printf(&p->body, "view %%x%d_ (gh) -> (g, h)\n", x.id);
      return;
    }
    bool pair = i + 1 < x.n && x.axis[i] == G && x.axis[i + 1] == H;
    bool other = i + 1 < x.n && x.axis[i] == H && x.axis[i + 1] == G;
    if ((pair || other) && has(&x, GH) < 0) {
      out.axis[i] = GH;
      memmove(out.axis + i + 1, x.axis + i + 2, (size_t)(x.n - i - 2) * sizeof *x.axis);
      out.n--;
      define(p, out);
      lm_buf_printf(&p->body, "view %%x%d_ %s -> (gh)\n", x.id, pair ? "(g, h)" : "(h, g)");
      return;
    }
  }
}

static inline void emit_expand(program *p) {
  var x = *pick(p), out = x;
  int a = (int)draw(p, AXES);
  if (x.n > 3 || a == B || a == T || has(&x, a) >= 0)
    return;
  int at = (int)draw(p, (uint32_t)x.n + 1);
  memmove(out.axis + at + 1, x.axis + at, (size_t)(x.n - at) * sizeof *x.axis);
  out.axis[at] = a;
  out.n++;
  define(p, out);
  lm_buf_printf(&p->body, "expand %%x%d_ : %s\n", x.id, type_text(p, "f32", &out));
}

// Half of an axis, and its counterpart: slice, pad and concat.
static inline void emit_pieces(program *p) {
  var x = *pick(p);
  for (int i = 0; i < x.n; i++) {
    if (x.axis[i] != FF && x.axis[i] != V)
      continue;
    const char *a = test_axes[x.axis[i]].name;
    int id = p->next++;
    lm_buf_printf(&p->body, "  %%p%d_ = slice %%x%d_ (%s) -> (lo) [%u, 1]\n", id, x.id, a,
                  draw(p, 5));
    if (draw(p, 2)) {
      define(p, x);
      lm_buf_printf(&p->body, "pad %%p%d_ (lo) -> (%s) [%u, 1]\n", id, a, draw(p, 5));
    } else {
      lm_buf_printf(&p->body, "  %%q%d_ = tanh %%p%d_\n", id, id);
      define(p, x);
      lm_buf_printf(&p->body, "concat %%q%d_, %%p%d_ (lo, lo) -> (%s)\n", id, id, a);
    }
    return;
  }
}

// Rows of a table by %tok, picked elements, and their transpose.
static inline void emit_table(program *p) {
  var table = {0}, out = {.n = 2, .axis = {B, T}};
  table.axis[table.n++] = draw(p, 2) ? V : FF;
  int a = (int)draw(p, AXES);
  if (a != B && a != T && a != table.axis[0])
    table.axis[table.n++] = a;
  const char *over = test_axes[table.axis[0]].name;
  if (table.n == 2)
    out.axis[out.n++] = a;
  if (table.n == 2 && draw(p, 2)) {
    table.axis[0] = table.axis[1];
    table.axis[1] = over[0] == 'v' ? V : FF;
  }
  table = param(p, table);
  define(p, out);
  lm_buf_printf(&p->body, "gather %%x%d_, %%tok over(%s)\n", table.id, over);
}

static inline void emit_picked(program *p) {
  var x = *pick(p), out = {0};
  int at = has(&x, V);
  if (at < 0 || x.n != 3 || has(&x, B) < 0 || has(&x, T) < 0)
    return;
  for (int i = 0; i < x.n; i++)
    if (i != at)
      out.axis[out.n++] = x.axis[i];
  const char *index = "%tok";
  if (out.axis[0] == T) {
    lm_buf_printf(&p->body, "  %%i%d_ = permute %%tok : int[t, b]\n", p->next);
    index = NULL;
  }
  int id = p->next++;
  define(p, out);
  if (index)
    lm_buf_printf(&p->body, "gather %%x%d_, %s over(v)\n", x.id, index);
  else
    lm_buf_printf(&p->body, "gather %%x%d_, %%i%d_ over(v)\n", x.id, id);
}

static inline void emit_scatter(program *p) {
  var x = *pick(p), out = {.n = 1, .axis = {V}};
  if (x.n < 2 || x.axis[0] != B || x.axis[1] != T || has(&x, V) >= 0 || x.n > 3)
    return;
  for (int i = 2; i < x.n; i++)
    out.axis[out.n++] = x.axis[i];
  var *z = define(p, out);
  lm_buf_printf(&p->body, "scatter_add %%x%d_, %%tok over(v) : %s\n", x.id,
                type_text(p, "f32", &out));
  scaled(p, z, 0.3);
}

// Random numbers and positions, which have no gradient.
static inline void emit_numbers(program *p) {
  var x = *pick(p);
  int id = p->next++;
  if (!x.n)
    return;
  if (draw(p, 2)) { // rows by the first axis, or equal rows
    var rows = {.n = x.n > 1, .axis = {x.axis[0]}};
    if (rows.n)
      lm_buf_printf(&p->body, "  %%j%d_ = iota : int[%s]  %%r%d_ = add %%j%d_, %%row\n", id,
                    test_axes[x.axis[0]].name, id, id);
    else
      lm_buf_printf(&p->body, "  %%r%d_ = add %%row, %%step\n", id);
    lm_buf_printf(&p->body, "  %%f%d_ = const 0 : int\n", id);
    lm_buf_printf(&p->body, "  %%m%d_ = rng %%step, %%r%d_, %%f%d_, %%step [3, %d, %d] : %s\n", id,
                  id, id, id, test_axes[x.axis[x.n - 1]].size, type_text(p, "f32", &x));
  } else
    lm_buf_printf(
        &p->body,
        "  %%n%d_ = iota : int[%s]  %%o%d_ = cast %%n%d_ : f32[%s]  %%m%d_ = sin %%o%d_\n", id,
        test_axes[x.axis[0]].name, id, id, test_axes[x.axis[0]].name, id, id);
  define(p, x);
  lm_buf_printf(&p->body, "mul %%x%d_, %%m%d_\n", x.id, id);
}

static inline void emit_some(program *p, int n);

static inline void emit_loop(program *p) {
  var x = *pick(p);
  if (p->in_loop || x.n > 4)
    return;
  int n = p->n, carry = p->next++;
  int result = p->next++;
  bool stacks = draw(p, 2) && x.n < 5;
  if (stacks)
    lm_buf_printf(&p->body, "  %%x%d_, %%st%d_ = loop 2 over(l) %%l%d_ carry(%%x%d_ = %%x%d_) {\n",
                  result, result, result, carry, x.id);
  else
    lm_buf_printf(&p->body, "  %%x%d_ = loop 2 %%l%d_ carry(%%x%d_ = %%x%d_) {\n", result, result,
                  carry, x.id);
  p->in_loop = result;
  var c = x;
  c.id = carry;
  p->v[p->n++] = c;
  emit_some(p, 5);
  int last = carry;
  for (int i = n; i < p->n; i++)
    if (p->v[i].n == x.n && !memcmp(p->v[i].axis, x.axis, (size_t)x.n * sizeof *x.axis))
      last = p->v[i].id;
  lm_buf_printf(&p->body, "  %%y%d_ = tanh %%x%d_\n  %%z%d_ = add %%y%d_, %%x%d_\n", result, last,
                result, result, carry);
  const var *kept = &p->v[p->n - 1];
  var kept_type = *kept;
  lm_buf_printf(&p->body, "  yield %%z%d_", result);
  if (stacks)
    lm_buf_printf(&p->body, ", %%x%d_", kept->id);
  lm_buf_puts(&p->body, "\n  }\n");
  p->in_loop = 0;
  p->n = n;
  x.id = result;
  p->v[p->n++] = x;
  if (!stacks)
    return;
  define(p, kept_type);
  lm_buf_printf(&p->body, "sum %%st%d_ over(l)\n", result);
}

static inline void emit_some(program *p, int n) {
  static void (*const emit[])(program *) = {
      emit_dot,    emit_dot,    emit_dot,    emit_dot,     emit_unary, emit_unary,  emit_binary,
      emit_binary, emit_binary, emit_reduce, emit_permute, emit_view,  emit_rename, emit_expand,
      emit_pieces, emit_table,  emit_picked, emit_scatter, emit_loop,  emit_numbers};
  for (int i = 0; i < n; i++)
    if (p->n < VARS - 16)
      emit[draw(p, LM_COUNT(emit))](p);
}

// The loss adds sums of z sin z of several values: of rows, and of parameters alone.
static inline char *program_text(lm_arena *a, uint64_t seed) {
  program p = {.state = seed * 2654435761u + 12345, .next = 1};
  for (int i = 0; i < 8; i++)
    draw(&p, 2);
  lm_buf text = {0};
  var x = {.n = 3, .axis = {B, T, D}};
  var table = param(&p, (var){.n = 2, .axis = {V, D}});
  define(&p, x);
  lm_buf_printf(&p.body, "gather %%x%d_, %%tok over(v)\n", table.id);
  emit_some(&p, 18 + (int)draw(&p, 16));
  int sum = -1;
  for (int i = p.n - 1; i >= 0 && i >= p.n - 5; i--) {
    int id = p.next++;
    const var *z = &p.v[i];
    lm_buf_printf(&p.body, "  %%s%d_ = sin %%x%d_  %%e%d_ = mul %%s%d_, %%x%d_\n", id, z->id, id,
                  id, z->id);
    if (z->n) {
      lm_buf_printf(&p.body, "  %%t%d_ = sum %%e%d_ over(", id, id);
      for (int k = 0; k < z->n; k++)
        lm_buf_printf(&p.body, "%s%s", k ? ", " : "", test_axes[z->axis[k]].name);
      lm_buf_puts(&p.body, ")\n");
    } else
      lm_buf_printf(&p.body, "  %%zero%d_ = const 0 : f32  %%t%d_ = add %%e%d_, %%zero%d_\n", id,
                    id, id, id);
    if (sum >= 0)
      lm_buf_printf(&p.body, "  %%t%d_ = add %%t%d_, %%t%d_\n", p.next, sum, id);
    sum = sum >= 0 ? p.next++ : id;
  }
  lm_buf_puts(&text, "stage graph\naxis l = 2, lo = 4");
  for (int i = 0; i < AXES; i++)
    lm_buf_printf(&text, ", %s = %d", test_axes[i].name, test_axes[i].size);
  lm_buf_printf(&text,
                "\n%sfunc @loss(%%tok: int[b, t], %%w: f32[b, t], %%step: int, %%row: int) -> "
                "(sum: f32, weight: f32) {\n%s  %%weight = sum %%w over(b, t)\n  return %%t%d_, "
                "%%weight\n}\n",
                p.params.p, p.body.p, sum);
  char *out = lm_arena_printf(a, "%s", text.p);
  lm_buf_free(&text);
  lm_buf_free(&p.params);
  lm_buf_free(&p.body);
  return out;
}
#endif
