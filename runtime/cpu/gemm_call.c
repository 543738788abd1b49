// gemm_call.c - see gemm_call.h.
#include "runtime/cpu/gemm_call.h"

#include <dnnl.h>
#include <string.h>

#include "runtime/base/base.h"
#include "runtime/cpu/half.h"
#include "runtime/cpu/onednn.h"

enum {
  BAD_STRIDE = 1024, // floats; a row stride that is a multiple of it makes the library slow
  PACK_USES = 16,    // minimum uses of each packed element for packing to be profitable then
};

// ---- layouts

static lm_gemm_layout layout_find(int64_t rows, int64_t cols, int64_t row, int64_t col) {
  if (rows == 1 && row < cols)
    row = cols; // the stride along an axis of size 1 is arbitrary
  if (cols == 1 && col < rows)
    col = rows;
  if ((col == 1 || cols == 1) && row >= cols)
    return (lm_gemm_layout){'N', row};
  if ((row == 1 || rows == 1) && col >= rows)
    return (lm_gemm_layout){'T', col};
  return (lm_gemm_layout){0, 0};
}

lm_gemm_layouts lm_gemm_layouts_find(const lm_gemm_shape *s) {
  return (lm_gemm_layouts){layout_find(s->m, s->k, s->a_m, s->a_k),
                           layout_find(s->k, s->n, s->b_k, s->b_n),
                           layout_find(s->m, s->n, s->c_m, s->c_n)};
}

static bool packs(uint8_t dtype, const lm_gemm_layout *f, int64_t uses) {
  return dtype != LM_F32 || !f->trans || (f->ld % BAD_STRIDE == 0 && uses >= PACK_USES);
}

// ---- packing

// Converts or gathers n elements, `stride` apart.
static void line_widen(uint8_t dtype, const char *from, int64_t stride, int64_t n, float *to) {
  const uint16_t *half = (const uint16_t *)from;
  const float *full = (const float *)from;
  if (dtype == LM_F16) {
    lm_f16_widen(half, stride, n, to);
  } else if (dtype == LM_BF16 && stride == 1) {
#pragma omp simd
    for (int64_t i = 0; i < n; i++)
      to[i] = lm_bf16_to_f32(half[i]);
  } else if (dtype == LM_BF16) {
    for (int64_t i = 0; i < n; i++)
      to[i] = lm_bf16_to_f32(half[i * stride]);
  } else if (stride == 1) {
    memcpy(to, full, (size_t)n * sizeof *to);
  } else {
    for (int64_t i = 0; i < n; i++)
      to[i] = full[i * stride];
  }
}

// Packs a matrix of rows x cols. *f is its layout and becomes the copy's; trans is kept if set.
static const float *pack(uint8_t dtype, const char *from, int64_t row, int64_t col, int64_t rows,
                         int64_t cols, lm_gemm_layout *f, float *to) {
  bool transposed = f->trans == 'T';
  int64_t lines = transposed ? cols : rows;
  int64_t length = transposed ? rows : cols;
  int64_t line = transposed ? col : row;
  int64_t step = transposed ? row : col;
  *f = (lm_gemm_layout){transposed ? 'T' : 'N', length + LM_GEMM_GAP};
  if (length == 1)
    step = 1;
  for (int64_t i = 0; i < lines; i++)
    line_widen(dtype, from + i * line * lm_dtype_bytes((lm_dtype)dtype), step, length,
               to + i * f->ld);
  return to;
}

// ---- the call

// dnnl_sgemm allocates its panels by posix_memalign in each call. The alignment leaves small
// remainders, which the GNU C library keeps in the thread's cache, up to seven of a size, where
// they count as in use. A freed panel between two remainders is too small for the next call, so
// about twenty panels of 0.9 MB would accumulate before the cache is full. Filling it first
// prevents that.
void lm_gemm_call_thread_begin(void) {
  enum {
    CACHED = 7,
    SIZE_STEP = 16,
    SIZE_MAX_CACHED = 512
  };
  void *blocks[CACHED];
  lm_onednn_begin();
  for (size_t size = SIZE_STEP / 2; size <= SIZE_MAX_CACHED; size += SIZE_STEP) {
    for (int i = 0; i < CACHED; i++)
      blocks[i] = lm_alloc(size);
    for (int i = 0; i < CACHED; i++)
      lm_free(blocks[i]);
  }
}

// Whether there was a call of this shape: the library chooses its code by the shape. Shapes of the
// same hash share an element.
static _Atomic bool *begun_of(const lm_gemm_shape *s, int64_t k, const lm_gemm_layouts *f,
                              bool add) {
  static _Atomic bool begun[1024];
  int64_t key[] = {s->m, s->n, k, f->a.trans, f->b.trans, add};
  return &begun[lm_hash(key, sizeof key, 0) % LM_COUNT(begun)];
}

static void call(const lm_gemm_shape *s, int64_t k, const lm_gemm_layouts *f, const float *a,
                 const float *b, float *c, bool add) {
  _Atomic bool *begun = begun_of(s, k, f, add);
  bool first = lm_onednn_first(begun);
  dnnl_status_t status = dnnl_sgemm(f->a.trans, f->b.trans, s->m, s->n, k, 1.0f, a, f->a.ld, b,
                                    f->b.ld, add ? 1.0f : 0.0f, c, f->c.ld);
  if (first)
    lm_onednn_first_end(begun);
  if (status == dnnl_out_of_memory)
    lm_out_of_memory(LM_ONEDNN_MEMORY);
  if (status != dnnl_success)
    LM_BUG("dnnl_sgemm: status %d", (int)status);
}

bool lm_gemm_packs(const lm_gemm_shape *s) {
  lm_gemm_layouts f = lm_gemm_layouts_find(s);
  return packs(s->ab, &f.a, s->n) || packs(s->ab, &f.b, s->m);
}

void lm_gemm_call(const lm_gemm_shape *s, const char *a, const char *b, float *c, bool add,
                  lm_gemm_workspace *workspace) {
  lm_gemm_layouts f = lm_gemm_layouts_find(s);
  bool pack_a = packs(s->ab, &f.a, s->n);
  bool pack_b = packs(s->ab, &f.b, s->m);
  if (!pack_a && !pack_b) {
    call(s, s->k, &f, (const float *)a, (const float *)b, c, add);
    return;
  }
  LM_ASSERT(s->m <= LM_GEMM_TILE && s->n <= LM_GEMM_TILE);
  for (int64_t k = 0; k < s->k; k += LM_GEMM_PANEL) {
    int64_t n = s->k - k < LM_GEMM_PANEL ? s->k - k : LM_GEMM_PANEL;
    const char *ak = a + k * s->a_k * lm_dtype_bytes((lm_dtype)s->ab);
    const char *bk = b + k * s->b_k * lm_dtype_bytes((lm_dtype)s->ab);
    lm_gemm_layouts g = f;
    const float *x =
        pack_a ? pack(s->ab, ak, s->a_m, s->a_k, s->m, n, &g.a, workspace->a) : (const float *)ak;
    const float *y =
        pack_b ? pack(s->ab, bk, s->b_k, s->b_n, n, s->n, &g.b, workspace->b) : (const float *)bk;
    call(s, n, &g, x, y, c, add || k);
  }
}

// ---- tiles of C

void lm_gemm_tile_load(const lm_gemm_shape *s, const char *c, float *tile) {
  for (int64_t i = 0; i < s->m; i++)
    line_widen(s->cc, c + i * s->c_m * lm_dtype_bytes((lm_dtype)s->cc), s->n > 1 ? s->c_n : 1, s->n,
               tile + i * s->n);
}

static void line_round(lm_dtype dtype, const float *from, int64_t n, int64_t stride, uint16_t *to) {
  if (dtype == LM_F16) {
    lm_f16_narrow(from, n, stride, to);
  } else if (stride == 1) {
#pragma omp simd
    for (int64_t i = 0; i < n; i++)
      to[i] = lm_bf16_from_f32(from[i]);
  } else {
    for (int64_t i = 0; i < n; i++)
      to[i * stride] = lm_bf16_from_f32(from[i]);
  }
}

void lm_gemm_tile_store(const lm_gemm_shape *s, const float *tile, char *c) {
  for (int64_t i = 0; i < s->m; i++) {
    const float *from = tile + i * s->n;
    char *to = c + i * s->c_m * lm_dtype_bytes((lm_dtype)s->cc);
    if (lm_dtype_is_half((lm_dtype)s->cc))
      line_round((lm_dtype)s->cc, from, s->n, s->c_n, (uint16_t *)to);
    else
      for (int64_t j = 0; j < s->n; j++)
        ((float *)to)[j * s->c_n] = from[j];
  }
}
