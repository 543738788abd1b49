// quad.h - four times four elements of 32 bits turned, rows to columns, whatever they hold.
typedef float lm_quad __attribute__((vector_size(16), aligned(4), may_alias));
typedef int32_t lm_quad_int __attribute__((vector_size(16)));

static inline __attribute__((always_inline)) void lm_quad_transpose(lm_quad *x) {
  lm_quad_int low = {0, 4, 1, 5}, high = {2, 6, 3, 7}, left = {0, 1, 4, 5}, right = {2, 3, 6, 7};
  lm_quad a = __builtin_shuffle(x[0], x[1], low), b = __builtin_shuffle(x[2], x[3], low);
  lm_quad c = __builtin_shuffle(x[0], x[1], high), d = __builtin_shuffle(x[2], x[3], high);
  x[0] = __builtin_shuffle(a, b, left), x[1] = __builtin_shuffle(a, b, right);
  x[2] = __builtin_shuffle(c, d, left), x[3] = __builtin_shuffle(c, d, right);
}
