// quad.h - transpose of 4 x 4 elements of 32 bits.
typedef float lm_quad __attribute__((vector_size(16), aligned(4), may_alias));
typedef int32_t lm_quad_int __attribute__((vector_size(16)));

LM_INLINE void lm_quad_transpose(lm_quad *x) {
  lm_quad a = LM_SHUFFLE(lm_quad_int, x[0], x[1], 0, 4, 1, 5);
  lm_quad b = LM_SHUFFLE(lm_quad_int, x[2], x[3], 0, 4, 1, 5);
  lm_quad c = LM_SHUFFLE(lm_quad_int, x[0], x[1], 2, 6, 3, 7);
  lm_quad d = LM_SHUFFLE(lm_quad_int, x[2], x[3], 2, 6, 3, 7);
  x[0] = LM_SHUFFLE(lm_quad_int, a, b, 0, 1, 4, 5);
  x[1] = LM_SHUFFLE(lm_quad_int, a, b, 2, 3, 6, 7);
  x[2] = LM_SHUFFLE(lm_quad_int, c, d, 0, 1, 4, 5);
  x[3] = LM_SHUFFLE(lm_quad_int, c, d, 2, 3, 6, 7);
}
