// kernel_test.c - every operation, and the groups of operations of language models, as generated
// kernels against the interpreter. Sizes are odd unless a case needs otherwise.
// Build: plain
#include "tests/codegen/cache.h"
#include "tests/codegen/run.h"

#define HEAD "stage step\n"
typedef struct kernel_case {
  const char *name, *text;
  double tolerance;
  int kernels; // on a CPU; on a GPU at most so many; 0: any number
  bool rounds; // as run_options.rounds
} kernel_case;

static const kernel_case cases[] = {
    {"unary",
     HEAD "axis b = 3, d = 37\n"
          "func @f(%x: f32[b, d]) -> (a: f32[b, d], b: f32[b, d], c: f32[b, d], d: f32[b, d], e: "
          "f32[b, d], f: f32[b, d], g: f32[b, d], h: f32[b, d], i: f32[b, d], j: bool[b, d]) {\n"
          "  %one = const 1.5 : f32\n  %p = add %x, %one\n  %n = neg %x\n  %e = exp %x\n  %l = log "
          "%p\n  %s = sqrt %p\n  %r = rsqrt %p\n"
          "  %si = sin %x\n  %co = cos %x\n  %t = tanh %x\n  %er = erf %x\n  %c = gt %x, %p\n  %nn "
          "= not %c\n"
          "  return %n, %e, %l, %s, %r, %si, %co, %t, %er, %nn\n}\n",
     1e-6, 1},
    {"rounding",
     HEAD "axis b = 3, d = 37\n"
          "func @f(%x: f32[b, d]) -> (a: f32[b, d], b: f32[b, d], c: f32[b, d], d: f64[b, d], e: "
          "f32[b, d], f: f32[b, d], g: f64[b, d]) {\n"
          "  %three = const 3 : f32\n  %y = mul %x, %three\n  %a = floor %y\n  %b = round %y\n"
          "  %q = mul %x, %x\n  %c = log1p %q\n  %w = cast %y : f64[b, d]\n  %f = floor %w\n"
          "  %b1 = binade %y\n  %b2 = binade %w\n"
          "  %r = round %w\n  %q6 = cast %q : f64[b, d]\n  %l6 = log1p %q6\n  %g = add %f, %r\n"
          "  %s6 = logistic %w\n  %h = add %g, %s6\n  %d = add %h, %l6\n  %e = logistic %y\n"
          "  return %a, %b, %c, %d, %e, %b1, %b2\n}\n",
     1e-6, 1},
    {"binary",
     HEAD "axis b = 5, d = 9\n"
          "func @f(%x: f32[b, d], %y: f32[d], %i: int[b, d], %k: int[b]) -> (a: f32[b, d], b: "
          "f32[b, d], c: f32[b, d], d: f32[b, d], e: f32[b, d], f: int[b, d], g: int[b, d], h: "
          "bool[b, d], i: int[b, d], j: f32[b, d]) {\n"
          "  %two = const 2 : f32\n  %q = add %y, %two\n  %a = sub %x, %y\n  %b = mul %x, %q\n  %c "
          "= div %x, %q\n  %d = pow %q, %x\n  %e = mod %x, %q\n"
          "  %three = const 3 : int\n  %m = sub %i, %three\n  %f = idiv %m, %k\n  %g = mod %m, "
          "%three\n  %l = le %i, %k\n  %n = ne %i, %three\n  %h = or %l, %n\n"
          "  %s = select %h, %m, %k\n  %z = select %l, %x, %two\n  return %a, %b, %c, %d, %e, %f, "
          "%g, %h, %s, %z\n}\n",
     1e-6, 1},
    {"casts",
     HEAD "axis n = 77\n"
          "func @f(%x: f32[n], %h: bf16[n], %i: int[n], %d: f64[n]) -> (a: int[n], b: bf16[n], c: "
          "f32[n], d: f64[n], e: f32[n], f: bool[n], g: bf16[n]) {\n"
          "  %c = const 100.5 : f32\n  %w = mul %x, %c\n  %a = cast %w : int[n]\n  %b = cast %w : "
          "bf16[n]\n  %f = cast %i : f32[n]\n  %g = cast %x : f64[n]\n"
          "  %e = exp %d\n  %k = add %g, %e\n  %l = cast %k : f32[n]\n  %m = cast %i : bool[n]\n  "
          "%o = mul %h, %h\n  return %a, %b, %f, %k, %l, %m, %o\n}\n",
     1e-6, 3},
    {"casts to halves and codes",
     HEAD "axis b = 3, n = 72\n"
          "func @f(%x: f32[b, n], %h: f16[b, n], %q: e4m3[b, n], %s: e5m2[b, n], %i: i8[b, n], %u: "
          "u8[b, n], %d: f64[n]) -> (a: f16[b, n], b: e4m3[b, n], c: e5m2[b, n], d: i8[b, n], e: "
          "u8[b, n], f: f32[b, n], g: e4m3[b, n], h: int[b, n], i: f64[b, n], j: e4m3[b, n], k: "
          "bool[b, n], l: e4m3[n]) {\n"
          "  %big = const 1024 : f32\n  %y = mul %x, %big\n  %a = cast %y : f16[b, n]\n  %b = cast "
          "%y : e4m3[b, n]\n  %c = cast %x : e5m2[b, n]\n  %e = cast %y : i8[b, n]\n  %f = cast "
          "%y : u8[b, n]\n  %q1 = cast %q : f32[b, n]\n  %s1 = cast %s : f32[b, n]\n  %g = mul "
          "%q1, %s1\n  %h1 = cast %h : f32[b, n]\n  %o = add %g, %h1\n  %r = cast %u : e4m3[b, "
          "n]\n  %v = cast %i : int[b, n]\n  %w = cast %u : int[b, n]\n  %z = add %v, %w\n  %t = "
          "cast %i : f64[b, n]\n  %no = const 0 : int\n  %p = gt %v, %no\n  %zero = const 448 : "
          "e4m3\n  %sel = select %p, %q, %zero\n  %bo = cast %i : bool[b, n]\n  %de = cast %d : "
          "e4m3[n]\n  return %a, %b, %c, %e, %f, %o, %r, %z, %t, %sel, %bo, %de\n}\n",
     0, 3},
    {"casts to dynamic maps",
     HEAD "axis b = 3, n = 72\n"
          "func @f(%x: f32[b, n], %q: dyn8[b, n], %s: udyn8[b, n]) -> (a: dyn8[b, n], b: udyn8[b, "
          "n], c: f32[b, n], d: int[b, n]) {\n"
          "  %a = cast %x : dyn8[b, n]\n  %y = mul %x, %x\n  %b = cast %y : udyn8[b, n]\n"
          "  %q1 = cast %q : f32[b, n]\n  %s1 = cast %s : f32[b, n]\n  %c = add %q1, %s1\n"
          "  %d = cast %q : int[b, n]\n  return %a, %b, %c, %d\n}\n",
     1e-7, 2},
    {"update with states in blocks",
     HEAD "axis r = 33, c = 64, k = 33, n = 64\n"
          "func @f(%p: f32[r, c], %g: f32[r, c], %q: dyn8[k, n], %s: f32[k], %v: e4m3[k, n]) -> "
          "(p: f32[k, n], q: dyn8[k, n], s: f32[k], v: e4m3[k, n]) {\n"
          "  %p1 = view %p (r, c) -> (k, n)\n  %g1 = view %g (r, c) -> (k, n)\n"
          "  %q1 = cast %q : f32[k, n]\n  %m = mul %q1, %s\n  %h = const 0.5 : f32\n"
          "  %m1 = mul %m, %h\n  %m2 = add %m1, %g1\n  %neg = neg %m2\n  %no = const 0 : f32\n"
          "  %lt = lt %m2, %no\n  %a = select %lt, %neg, %m2\n  %t = max %a over(n)\n"
          "  %y = div %m2, %t\n  %q2 = cast %y : dyn8[k, n]\n  %v1 = cast %v : f32[k, n]\n"
          "  %v2 = mul %v1, %v1\n  %gg = mul %g1, %g1\n  %v3 = add %v2, %gg\n"
          "  %v4 = sqrt %v3\n  %v5 = cast %v4 : e4m3[k, n]\n  %one = const 1 : f32\n"
          "  %z = add %v4, %one\n  %d = div %m2, %z\n  %p2 = sub %p1, %d\n"
          "  return %p2, %q2, %t, %v5\n}\n",
     1e-6, 2},
    {"largest of a row as e4m3",
     HEAD "axis b = 5, q = 3, n = 256\n"
          "func @f(%x: f32[b, q, n]) -> (c: e4m3[b, q, n], s: f32[b, q], u: u8[b, q, n]) {\n"
          "  %neg = neg %x\n  %pos = gt %x, %neg\n  %a = select %pos, %x, %neg\n  %m = max %a "
          "over(n)\n  %k = const 256 : f32\n  %y = mul %x, %k\n  %c = cast %y : e4m3[b, q, n]\n"
          "  %z = mul %a, %k\n  %u = cast %z : u8[b, q, n]\n  return %c, %m, %u\n}\n",
     0, 2},
    // On a GPU in tiles of 64 x 128 and 128 x 64, along two axes of the operand; and a permuted
    // operand, beside one of fewer elements along the other axis.
    {"codes in two orders of axes",
     HEAD
     "axis b = 2, t = 128, g = 2, e = 64, n = 256\n"
     "func @f(%x: bf16[b, t, g, e], %y: f32[e, n], %s: f32[t], %z: bf16[n, t], %w: bf16[t]) "
     "-> (a: e5m2[b, t, g, e], b: e5m2[g, e, b, t], c: e4m3[e, n], d: e4m3[n, e], e: u8[t, n], "
     "f: e4m3[b, e, g, t]) {\n"
     "  %k = const 64 : f32\n  %x1 = cast %x : f32[b, t, g, e]\n  %x2 = mul %x1, %s\n"
     "  %a = cast %x2 : e5m2[b, t, g, e]\n  %a1 = permute %a : e5m2[g, e, b, t]\n"
     "  %b = cast %a1 : e5m2[g, e, b, t]\n  %y1 = mul %y, %k\n  %c = cast %y1 : e4m3[e, n]\n"
     "  %c1 = permute %c : e4m3[n, e]\n  %d = cast %c1 : e4m3[n, e]\n"
     "  %z1 = cast %z : f32[n, t]\n  %w1 = cast %w : f32[t]\n  %z2 = mul %z1, %w1\n"
     "  %z3 = mul %z2, %k\n  %z4 = permute %z3 : f32[t, n]\n  %e = cast %z4 : u8[t, n]\n"
     "  %f1 = cast %x1 : e4m3[b, t, g, e]\n  %f2 = permute %f1 : e4m3[b, e, g, t]\n"
     "  %f = cast %f2 : e4m3[b, e, g, t]\n  return %a, %b, %c, %d, %e, %f\n}\n",
     0, 3},
    {"scan of lanes",
     HEAD
     "axis b = 3, t = 7, d = 301, e = 5\n"
     "func @f(%h0: f32[b, d], %a: f32[t, b, d], %x: bf16[t, b, d], %pos: int[t, b], %w: f32[d]) "
     "-> (h: f32[b, d], y: bf16[t, b, d], z: f32[t, b, d]) {\n"
     "  %h9, %y, %z = scan over(t) [1, 3, 0] (%h = %h0, %a1 = %a, %x1 = %x, %p = %pos, %w1 = "
     "%w) {\n"
     "    %one = const 1 : int\n  %in = gt %p, %one\n  %no = const 0 : f32\n  %k = select %in, "
     "%h, %no\n  %m = mul %k, %a1\n  %c = cast %x1 : f32[b, d]\n  %s = mul %c, %w1\n"
     "    %n = add %m, %s\n  %o = tanh %n\n  %u = cast %o : bf16[b, d]\n  yield %o, %u, %h\n  }\n"
     "  return %h9, %y, %z\n}\n",
     1e-5, 1},
    {"scan of a small region",
     HEAD "axis b = 3, t = 48, d = 37\n"
          "func @f(%h0: f32[b, d], %a: f32[t, b, d], %x: bf16[t, b, d], %g: f32[t, b]) "
          "-> (h: f32[b, d], y: f32[t, b, d], z: bf16[t, b, d]) {\n"
          "  %h9, %y, %z = scan over(t) [1, 3, 1] (%h = %h0, %a1 = %a, %x1 = %x, %g1 = %g) {\n"
          "    %m = mul %h, %a1\n  %c = cast %x1 : f32[b, d]\n  %s = mul %c, %g1\n"
          "    %n = add %m, %s\n  %u = cast %h : bf16[b, d]\n  yield %n, %n, %u\n  }\n"
          "  return %h9, %y, %z\n}\n",
     1e-5, 1},
    {"scan with sums",
     HEAD
     "axis b = 3, t = 6, d = 37, n = 5\n"
     "func @f(%h0: f32[b, d, n], %a: f32[t, b, d], %x: f32[t, b, n], %w: f32[d, n], %m0: f32[b]) "
     "-> (h: f32[b, d, n], m: f32[b], y: f32[t, b, d], z: f32[t, b]) {\n"
     "  %h9, %m9, %y, %z = scan over(t) [2, 2, 1] (%h = %h0, %m = %m0, %a1 = %a, %x1 = %x, %w1 = "
     "%w) {\n"
     "    %v = mul %h, %a1\n  %f = expand %w1 : f32[b, d, n]\n  %c = mul %f, %a1\n  %e = expand "
     "%x1 : f32[b, d, n]\n  %q = mul %e, "
     "%c\n  %g = add %v, %q\n  %i = tanh %g\n  %s = sum %i over(n)\n  %k = max %x1 over(n)\n"
     "    %j = add %k, %m\n  yield %i, %j, %s, %m\n  }\n"
     "  return %h9, %m9, %y, %z\n}\n",
     1e-5, 1},
    {"rmsnorm",
     HEAD
     "axis b = 3, t = 7, d = 45\n"
     "func @f(%x: f32[b, t, d], %y: f32[b, t, d], %w: f32[d]) -> (u: f32[b, t, d], n: f32[b, t, "
     "d], r: f32[b, t]) {\n"
     "  %u = add %x, %y\n  %q = mul %u, %u\n  %s = sum %q over(d)\n  %k = const "
     "0.022222222222222223 : f32\n  %m = mul %s, %k\n  %e = const 1e-6 : f32\n  %a = add %m, %e\n"
     "  %r = rsqrt %a\n  %v = mul %u, %r\n  %n = mul %v, %w\n  return %u, %n, %r\n}\n",
     1e-6, 1},
    {"softmax with a mask",
     HEAD "axis b = 2, t = 33, g = 3, h = 2, s = 33\n"
          "func @f(%a: f32[b, t, g, h, s], %pos: int[b, t], %seg: int[b, t]) -> (p: f32[b, t, g, "
          "h, s], m: f32[b, t, g, h]) {\n"
          "  %ps = rename %pos (t) -> (s)\n  %ss = rename %seg (t) -> (s)\n  %pe = expand %pos : "
          "int[b, t, s]\n  %se = expand %seg : int[b, t, s]\n"
          "  %c = ge %pe, %ps\n  %d = eq %se, %ss\n  %k = and %c, %d\n  %h = const 0.125 : f32\n  "
          "%as = mul %a, %h\n  %low = const -1e30 : f32\n  %z = select %k, %as, %low\n"
          "  %m = max %z over(s)\n  %y = sub %z, %m\n  %e = exp %y\n  %sum = sum %e over(s)\n  %p "
          "= div %e, %sum\n  return %p, %m\n}\n",
     1e-6, 1},
    {"rope by concat",
     HEAD
     "axis b = 2, t = 5, g = 3, e = 16, two = 2, c = 8, one = 1\n"
     "func @f(%x: f32[b, t, g, e], %w: f32[e], %a: f32[b, t, c]) -> (y: f32[b, t, g, e]) {\n"
     "  %q = mul %x, %x\n  %s = sum %q over(e)\n  %r = rsqrt %s\n  %xr = mul %x, %r\n  %n = mul "
     "%xr, %w\n  %co = cos %a\n  %si = sin %a\n"
     "  %v = view %n (e) -> (two, c)\n  %lo = slice %v (two) -> () [0, 1]\n  %hi = slice %v (two) "
     "-> () [1, 1]\n"
     "  %lc = mul %lo, %co\n  %hs = mul %hi, %si\n  %y0 = sub %lc, %hs\n  %hc = mul %hi, %co\n  "
     "%ls = mul %lo, %si\n  %y1 = add %hc, %ls\n"
     "  %e0 = expand %y0 : f32[b, t, g, one, c]\n  %e1 = expand %y1 : f32[b, t, g, one, c]\n  %y = "
     "concat %e0, %e1 (one, one) -> (two)\n  %z = view %y (two, c) -> (e)\n  return %z\n}\n",
     1e-6, 0},
    {"cross-entropy and its derivative",
     HEAD
     "axis b = 3, t = 11, v = 403\n"
     "func @f(%z: f32[b, t, v], %y: int[b, t], %w: f32[b, t]) -> (sum: f32, dz: f32[b, t, v]) {\n"
     "  %m = max %z over(v)\n  %x = sub %z, %m\n  %e = exp %x\n  %s = sum %e over(v)\n  %l = log "
     "%s\n  %g = gather %x, %y over(v)\n  %n = sub %l, %g\n  %lw = mul %n, %w\n"
     "  %t = sum %lw over(b, t)\n  %o = neg %w\n  %h = scatter_add %o, %y over(v) : f32[b, t, v]\n "
     " %q = div %w, %s\n  %p = mul %e, %q\n  %d = add %h, %p\n  return %t, %d\n}\n",
     1e-6, 0},
    {"logarithms of sums of exponentials, with -inf",
     HEAD "axis b = 5, d = 1031, e = 2048, f = 24, g = 300\n"
          "func @f(%x: f32[b, d], %y: bf16[b, e], %z: f32[b, f], %u: f32[b, f, g]) -> (l: f32[b], "
          "k: f32[b], p: bf16[b, e], j: f32[b], i: f32[b, g]) {\n"
          "  %k1 = const 150 : f32\n  %low = const -inf : f32\n  %t = const 0.4 : f32\n"
          "  %x0 = mul %x, %k1\n  %xc = gt %x, %t\n  %x1 = select %xc, %x0, %low\n"
          "  %m = max %x1 over(d)\n  %xd = sub %x1, %m\n  %xe = exp %xd\n  %xs = sum %xe over(d)\n"
          "  %xl = log %xs\n  %l = add %xl, %m\n"
          "  %y0 = cast %y : f32[b, e]\n  %y1 = mul %y0, %k1\n  %n = max %y1 over(e)\n"
          "  %yd = sub %y1, %n\n  %ye = exp %yd\n  %ys = sum %ye over(e)\n  %yl = log %ys\n"
          "  %k = add %yl, %n\n  %yp = div %ye, %ys\n  %p = cast %yp : bf16[b, e]\n"
          "  %o = max %z over(f)\n  %zd = sub %z, %o\n  %ze = exp %zd\n  %j = sum %ze over(f)\n"
          "  %q = max %u over(f)\n  %ud = sub %u, %q\n  %ue = exp %ud\n  %i = sum %ue over(f)\n"
          "  return %l, %k, %p, %j, %i\n}\n",
     1e-6, 0},
    {"derivative of a norm: rows and many rows",
     HEAD "axis b = 8, t = 129, d = 70\n"
          "func @f(%x: f32[b, t, d], %dy: f32[b, t, d], %w: f32[d]) -> (dx: f32[b, t, d], dw: "
          "f32[d], db: f32[d]) {\n"
          "  %q = mul %x, %x\n  %s = sum %q over(d)\n  %r = rsqrt %s\n  %n = mul %x, %r\n  %g = "
          "mul %dy, %n\n  %dw = sum %g over(b, t)\n  %db = sum %dy over(b, t)\n"
          "  %h = mul %dy, %w\n  %k = mul %h, %n\n  %a = sum %k over(d)\n  %na = mul %n, %a\n  %c "
          "= sub %h, %na\n  %dx = mul %c, %r\n  return %dx, %dw, %db\n}\n",
     1e-6, 2},
    {"derivative of a wide bias, whose summands are stored",
     HEAD "axis b = 3, t = 88, d = 3072\n"
          "func @f(%x: bf16[b, t, d], %y: bf16[b, t, d]) -> (dx: bf16[b, t, d], db: f32[d]) {\n"
          "  %t = mul %x, %y\n  %f = cast %t : f32[b, t, d]\n  %db = sum %f over(b, t)\n  return "
          "%t, %db\n}\n",
     1e-6, 0, true},
    {"a gate of two GEMMs, which a GPU computes for each of them",
     HEAD
     "axis b = 20, d = 24, m = 16\n"
     "func @f(%x: bf16[b, d], %y: bf16[b, d], %w: bf16[d, m]) -> (r: f32[b, d], z: bf16[b, m]) "
     "{\n  %l = logistic %x\n  %s = cast %l : f32[b, d]\n  %q = mul %s, %s\n"
     "  %p = cast %q : bf16[b, d]\n  %g = mul %y, %p\n  %z = dot %g, %w over(d)\n"
     "  %u = dot %z, %w over(m)\n  %h = mul %u, %p\n  %r = cast %h : f32[b, d]\n"
     "  return %r, %z\n}\n",
     8e-3, 0},
    {"derivative of a norm of rotated heads",
     HEAD "axis b = 300, e = 64, two = 2, c = 32, one = 1\n"
          "func @f(%g: bf16[b, e], %x: bf16[b, e], %co: f32[b, c], %si: f32[b, c], %w: bf16[e]) -> "
          "(dx: bf16[b, e], dw: f32[e]) {\n"
          "  %gf = cast %g : f32[b, e]\n  %v = view %gf (e) -> (two, c)\n"
          "  %lo = slice %v (two) -> () [0, 1]\n  %hi = slice %v (two) -> () [1, 1]\n"
          "  %lc = mul %lo, %co\n  %hs = mul %hi, %si\n  %y0 = add %lc, %hs\n"
          "  %hc = mul %hi, %co\n  %ls = mul %lo, %si\n  %y1 = sub %hc, %ls\n"
          "  %e0 = expand %y0 : f32[b, one, c]\n  %e1 = expand %y1 : f32[b, one, c]\n"
          "  %z = concat %e0, %e1 (one, one) -> (two)\n  %zv = view %z (two, c) -> (e)\n"
          "  %zb = cast %zv : bf16[b, e]\n  %h = mul %zb, %x\n  %hf = cast %h : f32[b, e]\n"
          "  %dw = sum %hf over(b)\n  %zw = mul %zb, %w\n  %zf = cast %zw : f32[b, e]\n"
          "  %xf = cast %x : f32[b, e]\n  %q = mul %zf, %xf\n  %s = sum %q over(e)\n"
          "  %d = mul %s, %xf\n  %r = sub %zf, %d\n  %dx = cast %r : bf16[b, e]\n"
          "  return %dx, %dw\n}\n",
     8e-3, 0},
    {"derivative of a layer norm of 768",
     HEAD
     "axis b = 3, t = 88, d = 768\n"
     "func @f(%x: f32[b, t, d], %dy: f32[b, t, d], %w: f32[d]) -> (dx: f32[b, t, d], dw: "
     "f32[d], db: f32[d]) {\n"
     "  %i = const 0.00130208333 : f32\n  %s1 = sum %x over(d)\n  %m = mul %s1, %i\n  %c = "
     "sub %x, %m\n  %q = mul %c, %c\n  %s2 = sum %q over(d)\n  %v = mul %s2, %i\n  %r = "
     "rsqrt %v\n  %n = mul %c, %r\n  %g = mul %dy, %n\n  %dw = sum %g over(b, t)\n  %db = sum "
     "%dy over(b, t)\n  %h = mul %dy, %w\n  %k = mul %h, %n\n  %a = sum %k over(d)\n  %ai = mul "
     "%a, %i\n  %na = mul %n, %ai\n  %e = sum %h over(d)\n  %ei = mul %e, %i\n  %u = sub %h, "
     "%na\n  %z = sub %u, %ei\n  %dx = mul %z, %r\n  return %dx, %dw, %db\n}\n",
     2e-6, 2},
    {"derivative of a norm of 2048, in bf16",
     HEAD
     "axis b = 3, t = 88, d = 2048\n"
     "func @f(%x: bf16[b, t, d], %dy: bf16[b, t, d], %w: f32[d]) -> (dx: bf16[b, t, d], dw: "
     "f32[d]) {\n"
     "  %xf = cast %x : f32[b, t, d]\n  %df = cast %dy : f32[b, t, d]\n  %q = mul %xf, %xf\n  "
     "%s = sum %q over(d)\n  %i = const 0.00048828125 : f32\n  %v = mul %s, %i\n  %r = rsqrt "
     "%v\n  %n = mul %xf, %r\n  %g = mul %df, %n\n  %dw = sum %g over(b, t)\n  %h = mul %df, "
     "%w\n  %k = mul %h, %n\n  %a = sum %k over(d)\n  %ai = mul %a, %i\n  %na = mul %n, %ai\n  "
     "%c = sub %h, %na\n  %dx0 = mul %c, %r\n  %dx = cast %dx0 : bf16[b, t, d]\n  return %dx, "
     "%dw\n}\n",
     1e-6, 2},
    {"sums that do not fit into shared memory",
     HEAD "axis b = 264, d = 8192\n"
          "func @f(%x: bf16[b, d], %y: bf16[b, d]) -> (s: f32[d], t: f32[d], u: f32[d], v: f32[d]) "
          "{\n"
          "  %xf = cast %x : f32[b, d]\n  %yf = cast %y : f32[b, d]\n  %xy = mul %xf, %yf\n  %xx = "
          "mul %xf, %xf\n  %s = sum %xf over(b)\n  %t = sum %yf over(b)\n  %u = sum %xy over(b)\n  "
          "%v = sum %xx over(b)\n  return %s, %t, %u, %v\n}\n",
     1e-6, 0},
    {"sums that fit into shared memory once, of two passes",
     HEAD "axis b = 264, k = 4, d = 1536\n"
          "func @f(%x: bf16[b, d], %w: f32[b, k]) -> (y: bf16[b, d], s: f32[d], t: f32[k, d]) {\n"
          "  %y = mul %x, %x\n  %yf = cast %y : f32[b, d]\n  %s = sum %yf over(b)\n"
          "  %ye = expand %yf : f32[b, k, d]\n  %p = mul %ye, %w\n  %t = sum %p over(b)\n"
          "  return %y, %s, %t\n}\n",
     1e-6, 0, true},
    // On a GPU points are numbered with d, or c and d, varying fastest, not in the order of a
    // result.
    {"sums whose results have the axes in another order than the operands",
     HEAD
     "axis a = 3, b = 17, c = 5, d = 37\n"
     "func @f(%x: bf16[a, b, c, d], %y: f32[a, d, b, c]) -> (s: f32[c, d, a], t: f32[d, c, a]) "
     "{\n"
     "  %xf = cast %x : f32[a, b, c, d]\n  %q = mul %xf, %xf\n  %u = sum %q over(b)\n"
     "  %u1 = permute %u : f32[c, d, a]\n  %s = exp %u1\n  %p = permute %y : f32[a, b, c, d]\n"
     "  %z = mul %xf, %p\n  %v = sum %z over(b)\n  %v1 = permute %v : f32[d, c, a]\n  %t = sin "
     "%v1\n"
     "  return %s, %t\n}\n",
     1e-6, 0},
    {"sums of every kind",
     HEAD "axis a = 3, b = 17, c = 5, d = 29\n"
          "func @f(%x: f32[a, b, c, d]) -> (p: f32[a, b, c], q: f32[b, c, d], r: f32[a, c], s: "
          "f32[b, d], t: f32, u: f32[d], v: f32[a], w: f32[c], m: f32[b, d], n: f32[c]) {\n"
          "  %p = sum %x over(d)\n  %q = sum %x over(a)\n  %r = sum %x over(b, d)\n  %s = sum %x "
          "over(a, c)\n  %t = sum %x over(a, b, c, d)\n  %u = sum %x over(a, b, c)\n"
          "  %v = sum %x over(b, c, d)\n  %w = sum %x over(a, b, d)\n  %m = max %x over(a, c)\n  "
          "%n = max %x over(a, b, d)\n  return %p, %q, %r, %s, %t, %u, %v, %w, %m, %n\n}\n",
     1e-6, 0},
    {"long sums",
     HEAD
     "axis a = 311, b = 401, c = 7\n"
     "func @f(%x: f32[a, b], %y: f32[a, b, c]) -> (s: f32, q: f32, r: f32[c], t: f32[a]) {\n"
     "  %s = sum %x over(a, b)\n  %x2 = mul %x, %x\n  %q = sum %x2 over(a, b)\n  %y2 = mul %y, "
     "%y\n  %r = sum %y2 over(a, b)\n  %t = sum %y2 over(b, c)\n  return %s, %q, %r, %t\n}\n",
     3e-6, 0},
    {"one long row",
     HEAD "axis n = 100003\n"
          "func @f(%x: f32[n]) -> (s: f32, m: f32, i: int) {\n  %x2 = mul %x, %x\n  %s = sum %x2 "
          "over(n)\n  %m = max %x over(n)\n  %i = argmax %x over(n)\n  return %s, %m, %i\n}\n",
     1e-7, 0},
    {"long column sums, in chunks and without",
     HEAD "axis a = 40009, b = 1801, c = 7\n"
          "func @f(%x: f32[a, c], %y: f32[b, c]) -> (s: f32[c], t: f32[c]) {\n"
          "  %x2 = mul %x, %x\n  %s = sum %x2 over(a)\n  %y2 = mul %y, %y\n  %y3 = exp %y2\n"
          "  %t = sum %y3 over(b)\n  return %s, %t\n}\n",
     RUN_IS_GPU ? 1e-6 : 1.5e-7, 0},
    {"argmax and its ties",
     HEAD "axis b = 4, c = 6, d = 13\n"
          "func @f(%x: int[b, c, d], %y: f32[b, c, d]) -> (i: int[b, c], j: int[d], k: int[c], l: "
          "int[b]) {\n"
          "  %i = argmax %x over(d)\n  %j = argmax %x over(b, c)\n  %k = argmax %y over(b, d)\n  "
          "%l = argmax %y over(d, c)\n  return %i, %j, %k, %l\n}\n",
     0, 0},
    {"embedding and its derivative",
     HEAD "axis b = 3, t = 41, v = 5, d = 70\n"
          "func @f(%w: f32[v, d], %i: int[b, t], %g: f32[b, t, d]) -> (x: f32[b, t, d], dw: f32[v, "
          "d], n: f32[v]) {\n"
          "  %x = gather %w, %i over(v)\n  %h = mul %g, %x\n  %dw = scatter_add %h, %i over(v) : "
          "f32[v, d]\n  %one = const 1 : f32[b, t]\n  %n = scatter_add %one, %i over(v) : f32[v]\n "
          " return %x, %dw, %n\n}\n",
     1e-6, 0},
    {"scatters of many indices, into wide rows and into one column",
     HEAD "axis n = 4500, v = 7, d = 9, k = 30, w = 600, e = 1100\n"
          "func @f(%i: int[n], %g: f32[n, d], %h: bf16[n], %j: int[k], %u: bf16[k, e]) -> (dw: "
          "f32[v, d], dc: f32[v], du: f32[w, e]) {\n"
          "  %dw = scatter_add %g, %i over(v) : f32[v, d]\n  %hf = cast %h : f32[n]\n"
          "  %dc = scatter_add %hf, %i over(v) : f32[v]\n  %uf = cast %u : f32[k, e]\n"
          "  %c = const 149 : int\n  %jw = mul %j, %c\n"
          "  %du = scatter_add %uf, %jw over(w) : f32[w, e]\n  return %dw, %dc, %du\n}\n",
     2e-6, 0},
    {"embedding and its derivative, out of range",
     HEAD "axis b = 3, t = 41, v = 5, d = 70\n"
          "func @f(%w: f32[v, d], %i: int[b, t], %g: f32[b, t, d]) -> (x: f32[b, t, d], dw: f32[v, "
          "d], n: f32[v], e: f32[b, t, v]) {\n"
          "  %three = const 3 : int  %i3 = mul %i, %three  %j = sub %i3, %three  %u = gather %g, "
          "%i over(d)\n"
          "  %x = gather %w, %j over(v)\n  %h = mul %g, %x\n  %dw = scatter_add %h, %j over(v) : "
          "f32[v, d]\n  %one = const 1 : f32[b, t]\n"
          "  %n = scatter_add %one, %j over(v) : f32[v]  %e = scatter_add %u, %j over(v) : f32[b, "
          "t, v]\n  return %x, %dw, %n, %e\n}\n",
     1e-6, 0},
    {"gathers out of range and along batches",
     HEAD
     "axis b = 4, v = 3, d = 6, k = 2\n"
     "func @f(%w: f32[b, v, d], %i: int[b, k], %j: int[b, d]) -> (x: f32[b, d], y: f32[b, d]) {\n"
     "  %m = const 2 : int\n  %jj = sub %j, %m\n  %x = gather %w, %jj over(v)\n  %w2 = exp %w\n  "
     "%y = gather %w2, %j over(v)\n  return %x, %y\n}\n",
     1e-6, 0},
    {"movements",
     HEAD
     "axis a = 3, b = 4, c = 6, ab = 12, c1 = 2, c2 = 3, bb = 4, u = 5, w = 11, z = 9, one = 1\n"
     "func @f(%x: f32[a, b, c], %y: f32[a, b, u]) -> (p: f32[c, a, b], q: f32[ab, c], r: f32[b, "
     "ab], s: f32[a, b, w], t: f32[a, b, z], u: f32[a, c, b, one], v: f32[c2, a, b, c1], w: f32[b, "
     "c, a]) {\n"
     "  %p = permute %x : f32[c, a, b]\n  %q = view %x (a, b) -> (ab)\n    %e = exp %x\n"
     "  %pe = permute %e : f32[b, a, c]\n  %s4 = slice %pe (c) -> (bb) [4, -1]\n  %r = view %s4 "
     "(a, bb) -> (ab)\n"
     "  %s = concat %x, %y (c, u) -> (w)\n  %t = pad %y (u) -> (z) [2, 1]\n  %pu = permute %x : "
     "f32[a, c, b]\n  %u = pad %pu () -> (one) [0, 1]\n"
     "  %vv = view %x (c) -> (c1, c2)\n  %v = permute %vv : f32[c2, a, b, c1]\n  %n = neg %p\n  "
     "%ww = permute %n : f32[b, c, a]\n  return %p, %q, %r, %s, %t, %u, %v, %ww\n}\n",
     1e-6, 0},
    {"strided pads and slices",
     HEAD
     "axis b = 5, j = 4, n = 11, k = 3, m = 4\n"
     "func @f(%x: f32[b, j], %y: f32[b, n]) -> (p: f32[b, n], q: f32[b, k], r: f32[b, n], s: "
     "f32[b]) {\n"
     "  %p = pad %x (j) -> (n) [1, 3]\n  %q = slice %y (n) -> (k) [9, -4]\n  %e = exp %x\n  %r = "
     "pad %e (j) -> (n) [10, -2]\n  %s = slice %y (n) -> () [7, 1]\n  return %p, %q, %r, %s\n}\n",
     1e-6, 0},
    {"windows",
     HEAD
     "axis b = 3, t = 9, u = 4, k = 3, d = 24, m = 2\n"
     "func @f(%x: f32[b, t, d], %y: f32[b, u, k, d], %i: int[b, t]) -> (p: f32[b, t, d], q: f32[b, "
     "u, k, d], r: f32[b, t, d], s: int[b, t, m], z: f32[b, d, u, k]) {\n"
     "  %xw = window %x (t) -> (t, k) [2, 1, 1]  %p = sum %xw over(k)\n"
     "  %e = exp %x  %q = window %e (t) -> (u, k) [1, 2, 3]\n"
     "  %yw = unwindow %y (u, k) -> (t, k) [1, 2, 3]  %r = sum %yw over(k)\n"
     "  %s = window %i (t) -> (t, m) [0, 1, 5]\n"
     "  %xt = permute %x : f32[b, d, t]  %z = window %xt (t) -> (u, k) [4, 3, 1]\n"
     "  return %p, %q, %r, %s, %z\n}\n",
     1e-6, 0},
    {"iota and random numbers",
     HEAD "axis b = 3, d = 25\n"
          "func @f(%step: int, %row: int) -> (r: f32[b, d], i: int[b, d], z: f32[b, d]) {\n"
          "  %l = const 4 : int\n  %ib = iota : int[b]\n  %rows = add %ib, %row\n"
          "  %r = rng %step, %rows, %l, %l [1337, 99, 29] : f32[b, d]\n  %i = iota : int[d]\n  %ie "
          "= expand %i : int[b, d]\n  %h = const 0.5 : f32\n  %c = lt %r, %h\n  "
          "%zero = const 0 : f32\n"
          "  %z = select %c, %r, %zero\n  return %r, %ie, %z\n}\n",
     0, 0},
    {"optimizer",
     HEAD "axis blk = 7, el = 1024\n"
          "func @f(%p: f32[blk, el], %g: f32[blk, el], %m: f32[blk, el], %v: f32[blk, el], %lr: "
          "f32, %scale: f32) -> (p: f32[blk, el], m: f32[blk, el], v: f32[blk, el]) {\n"
          "  %b1 = const 0.9 : f32\n  %c1 = const 0.1 : f32\n  %b2 = const 0.95 : f32\n  %c2 = "
          "const 0.05 : f32\n  %gs = mul %g, %scale\n  %m1 = mul %m, %b1\n  %g1 = mul %gs, %c1\n  "
          "%mm = add %m1, %g1\n"
          "  %vv0 = mul %v, %v\n  %v1 = mul %vv0, %b2\n  %g2 = mul %gs, %gs\n  %g3 = mul %g2, "
          "%c2\n  %vv = add %v1, %g3\n  %s = sqrt %vv\n  %eps = const 1e-2 : f32\n  %se = add %s, "
          "%eps\n  %q = div %mm, %se\n  %d = mul %q, %lr\n"
          "  %pp = sub %p, %d\n  return %pp, %mm, %vv\n}\n",
     1e-6, 1},
    {"scalars in f64",
     HEAD "axis one = 1\n"
          "func @f(%k: f64, %lr: f64) -> (a: f64, b: f32, c: f64) {\n  %b1 = const 0.9 : f64\n  %p "
          "= pow %b1, %k\n  %one = const 1 : f64\n  %d = sub %one, %p\n  %q = div %lr, %d\n  %f = "
          "cast %q : f32\n"
          "  %e = exp %k\n  %l = log %e\n  %t = tanh %l\n  %u = erf %t\n  %v = sin %u\n  %w = cos "
          "%v\n  return %q, %f, %w\n}\n",
     1e-7, 1},
    {"bf16",
     HEAD "axis b = 65, d = 67\n"
          "func @f(%x: bf16[b, d], %w: bf16[d]) -> (y: bf16[b, d], s: bf16[b], c: bf16[d], m: "
          "bf16[b], e: bf16[d, b]) {\n"
          "  %a = mul %x, %w\n  %y = exp %a\n  %s = sum %a over(d)\n  %c = sum %a over(b)\n  %m = "
          "max %y over(d)\n  %e = permute %y : bf16[d, b]\n  return %y, %s, %c, %m, %e\n}\n",
     1e-6, 0},
    {"whole numbers",
     HEAD "axis b = 65, d = 67\n"
          "func @f(%x: int[b, d], %w: int[d]) -> (s: int[b], c: int[d], m: int[b], n: int[d], t: "
          "int) {\n"
          "  %a = mul %x, %w\n  %n0 = neg %a\n  %s = sum %a over(d)\n  %c = sum %n0 over(b)\n  %m "
          "= max %n0 over(d)\n  %n = max %a over(b)\n  %t = sum %x over(b, d)\n  return %s, %c, "
          "%m, %n, %t\n}\n",
     0, 0},
    {"softmax over a middle axis",
     HEAD "axis b = 9, r = 21, d = 130\n"
          "func @f(%x: f32[b, r, d]) -> (p: f32[b, r, d], q: f32[b, r, d]) {\n  %m = max %x "
          "over(r)\n  %y = sub %x, %m\n  %e = exp %y\n  %s = sum %e over(r)\n  %p = div %e, %s\n"
          "  %m2 = max %x over(b)\n  %y2 = sub %x, %m2\n  %e2 = exp %y2\n  %s2 = sum %e2 over(b)\n "
          " %q = div %e2, %s2\n  return %p, %q\n}\n",
     1e-6, 0},
    {"two reductions of one row",
     HEAD "axis b = 40, g = 6, e = 10\n"
          "func @f(%x: f32[b, g, e]) -> (y: f32[b, g, e], z: f32[b, e], k: f32[b, g, e]) {\n  %s = "
          "sum %x over(e)\n  %t = sum %x over(g)\n  %u = sub %x, %s\n  %v = sub %u, %t\n  %w = exp "
          "%v\n  %z = sum %w over(g)\n  %y = div %w, %z\n  %a = sum %y over(g, e)\n"
          "  %k = mul %x, %a\n  return %y, %z, %k\n}\n",
     1e-6, 1},
    {"a loop",
     HEAD "axis n = 4, b = 3, d = 50\n"
          "func @f(%x: f32[b, d], %w: f32[n, d]) -> (y: f32[b, d], a: f32[n, b]) {\n  %y, %a = "
          "loop 4 over(n) %i carry(%c = %x) {\n    %wi = at %w, %i [0, 1]\n    %m = mul %c, %wi\n  "
          "  %if = cast %i : f32\n    %t = tanh %m\n    %k = add %t, %if\n    %s = sum %k "
          "over(d)\n    yield %k, %s\n  } : f32[b, d], f32[n, b]\n  return %y, %a\n}\n",
     2e-6, 0},
};

// A row that is too long for the stack and is held in the workspace.
static const char workspace_case[] =
    HEAD "axis b = 3, d = 90001\n"
         "func @f(%x: f32[b, d]) -> (y: f32[b, d]) {\n  %m = max %x over(d)\n  %z = sub %x, %m\n  "
         "%e = exp %z\n  %s = sum %e over(d)\n  %q = div %e, %s\n  %r = mul %q, %e\n  %t = sum %r "
         "over(d)\n  %u = mul %r, %t\n  return %u\n}\n";

static const char dynamic_case[] =
    HEAD "axis b = 3, t = 20 dyn 1, s = 40 dyn 2, e = 6, chunky = 64\n"
         "func @f(%a: f32[b, t, s], %p: int[b, t], %q: int[b, s], %v: f32[b, s, e], %w: f32[s, e]) "
         "-> (y: f32[b, t, s], m: f32[b, s], n: f32, o: f32[e], r: f32[b, t, e], u: f32[t, s]) {\n"
         "  %pe = expand %p : int[b, t, s]\n  %k = ge %pe, %q\n  %low = const -1e30 : f32\n  %z = "
         "select %k, %a, %low\n  %mx = max %z over(s)\n  %d = sub %z, %mx\n  %e = exp %d\n  %sum = "
         "sum %e over(s)\n  %y = div %e, %sum\n"
         "  %m = sum %a over(t)\n  %n = sum %a over(b, t, s)\n  %o = sum %v over(b, s)\n  %i = "
         "iota : int[t]\n  %g = gather %w, %p over(s)\n  %r = exp %g\n  %u = max %a over(b)\n  "
         "return %y, %m, %n, %o, %r, %u\n}\n";

// A scan over positions whose number is known at run time, one position among them.
static const char dynamic_scan[] =
    HEAD "axis b = 3, t = 20 dyn 1, s = 40 dyn 2, d = 70\n"
         "func @f(%h0: f32[b, d], %a: f32[t, b, d], %k: f32[b, s]) -> (h: f32[b, d], y: f32[t, b, "
         "d]) {\n"
         "  %h9, %y = scan over(t) [1, 1, 0] (%h = %h0, %a1 = %a, %k1 = %k) {\n"
         "    %m = max %k1 over(s)\n  %v = mul %h, %a1\n  %w = mul %v, %m\n  %n = tanh %w\n  yield "
         "%n, %v\n  }\n"
         "  return %h9, %y\n}\n";

static void run_case(const char *name, const char *text, double tolerance, int kernels,
                     bool rounds) {
  run_options o = {.name = name, .tolerance = tolerance, .rounds = rounds};
  int n = run_both(text, &o);
  if (!kernels || n == kernels || (n < kernels && RUN_IS_GPU))
    return;
  fprintf(stderr, "%s: %d kernels, not %d\n", name, n, kernels);
  exit(1);
}

// ---- the stack

enum {
  SUMS = 15,
  STACK_MOST = 256 << 10 // bytes, as in codegen/cpu/kernel.c
};

// The bytes of the arrays that a kernel declares: "TYPE NAME[N] __attribute__".
static long stack_bytes(const char *source) {
  long bytes = 0;
  for (const char *at = source; (at = strstr(at, "] __attribute__")); at++) {
    const char *open = at, *line = at;
    while (*open != '[')
      open--;
    while (line > source && line[-1] != '\n')
      line--;
    bytes += strtol(open + 1, NULL, 10) * (strncmp(line + strspn(line, " "), "double", 6) ? 4 : 8);
  }
  return bytes;
}

static void stack_check(const lm_plan *plan) {
  long most = 0;
  for (int i = 0; i < plan->n_kernels; i++) {
    long bytes = stack_bytes(plan->kernels[i].source);
    most = bytes > most ? bytes : most;
  }
  CHECK(most <= STACK_MOST);
  CHECK(most > STACK_MOST / 2); // some arrays are found
}

// Column sums of 2048 elements, which are added in double, and rows of the same size: together they
// are more than a kernel has on the stack.
static void test_stack(void) {
  lm_buf text = {0};
  lm_buf_puts(&text, HEAD "axis b = 80, d = 2048\nfunc @f(%x: f32[b, d], %y: f32[b, d]) -> (");
  for (int i = 0; i < SUMS; i++)
    lm_buf_printf(&text, "s%d: f32[d], ", i);
  lm_buf_puts(&text, "z: f32[b, d]) {\n  %m = max %x over(d)\n  %u = sub %x, %m\n"
                     "  %e = exp %u\n  %q = sum %e over(d)\n  %p = div %e, %q\n"
                     "  %w = mul %p, %y\n  %t = sum %w over(d)\n  %g = sub %w, %t\n"
                     "  %h = tanh %g\n  %n = max %h over(d)\n  %v = sub %h, %n\n");
  for (int i = 0; i < SUMS; i++)
    lm_buf_printf(&text,
                  "  %%k%d = const %d : f32\n  %%a%d = mul %%v, %%k%d\n  %%b%d = mul %%a%d, %%y\n"
                  "  %%s%d = sum %%b%d over(b)\n",
                  i, i + 1, i, i, i, i, i, i);
  lm_buf_puts(&text, "  return ");
  for (int i = 0; i < SUMS; i++)
    lm_buf_printf(&text, "%%s%d, ", i);
  lm_buf_puts(&text, "%v\n}\n");
  run_both(text.p, &(run_options){.name = "stack", .tolerance = 1e-5, .plan = stack_check});
  lm_buf_free(&text);
}

static void test_dynamic(void) {
  static const int64_t extents[][2] = {{20, 40}, {1, 1}, {7, 40}, {20, 13}, {3, 29}};
  for (size_t i = 0; i < LM_COUNT(extents); i++) {
    run_options o = {.name = "dynamic extents",
                     .tolerance = 1e-6,
                     .extents = extents[i],
                     .n_extents = 2,
                     .seed = i};
    run_both(dynamic_case, &o);
    run_both(dynamic_scan, &o);
  }
}

// LM_TEST_BRIEF in the environment: every other case.
int main(int argc, char **argv) {
  bool brief = getenv("LM_TEST_BRIEF");
  cache_begin();
  if (argc > 1 && !strcmp(argv[1], "--list")) {
    for (size_t i = 0; i < LM_COUNT(cases); i++)
      printf("%s\n", cases[i].name);
    return 0;
  }
  for (size_t i = 0; i < LM_COUNT(cases); i++) {
    if (argc > 1 ? !strstr(cases[i].name, argv[1]) : brief && i % 2)
      continue;
    run_case(cases[i].name, cases[i].text, cases[i].tolerance, cases[i].kernels, cases[i].rounds);
    if (getenv("SHOW"))
      printf("ok %s\n", cases[i].name);
  }
  if (argc > 1)
    return 0;
  run_case("workspace", workspace_case, 1e-6, 0, false);
  test_dynamic();
  if (!RUN_IS_GPU)
    test_stack();
  return 0;
}
