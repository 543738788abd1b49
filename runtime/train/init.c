// init.c - initial values of parameters.
#include "runtime/train/init.h"

#include <math.h>
#include <string.h>

#include "runtime/base/philox.h"

static void constant_fill(float *out, int64_t n, float value) {
  for (int64_t i = 0; i < n; i++) out[i] = value;
}

static void normal_pair(uint32_t a, uint32_t b, float std, float *out) {
  float r = std * sqrtf(-2 * logf(lm_philox_unit(a))), angle = 6.2831853f * lm_philox_unit(b);
  out[0] = r * cosf(angle);
  out[1] = r * sinf(angle);
}

static void normal_block(lm_philox4 x, lm_init init, float out[4]) {
  normal_pair(x.v[0], x.v[1], (float)init.a, out);
  normal_pair(x.v[2], x.v[3], (float)init.a, out + 2);
}

static void uniform_block(lm_philox4 x, lm_init init, float out[4]) {
  for (int k = 0; k < 4; k++) out[k] = (float)(init.a + (init.b - init.a) * lm_philox_unit(x.v[k]));
}

static void random_fill(lm_init init, lm_philox_key2 key, float *out, int64_t n) {
  void (*block)(lm_philox4, lm_init, float[4]) = init.kind == LM_INIT_NORMAL ? normal_block : uniform_block;
#pragma omp parallel for schedule(static) if (n > 1 << 14)
  for (int64_t i = 0; i < n; i += 4) {
    float four[4];
    block(lm_philox_block(key, (uint64_t)i / 4), init, four);
    memcpy(out + i, four, sizeof *out * (size_t)(n - i < 4 ? n - i : 4));
  }
}

void lm_init_fill(lm_init init, uint64_t seed, const char *path, float *out, int64_t n) {
  switch (init.kind) {
    case LM_INIT_ZEROS: constant_fill(out, n, 0); break;
    case LM_INIT_ONES: constant_fill(out, n, 1); break;
    case LM_INIT_CONST: constant_fill(out, n, (float)init.a); break;
    case LM_INIT_NORMAL:
    case LM_INIT_UNIFORM: random_fill(init, lm_philox_key(seed, lm_hash(path, strlen(path), 0)), out, n); break;
  }
}

void lm_init_params(const lm_plan *plan, uint64_t seed, float *arena) {
  for (int i = 0; i < plan->n_params; i++) {
    const lm_plan_param *p = &plan->params[i];
    lm_init_fill((lm_init){p->init, p->init_a, p->init_b}, seed, p->path, arena + p->offset, p->elements);
  }
}
