// simt_async.c - the shim's tensor cores: GEMMs of warps, and asynchronous GEMMs of warpgroups.
#include "tests/cuda/simt_state.h"

#include <string.h>

#include "contract/floats.h"

#define API __attribute__((visibility("default"), used))

// ---- tensor cores: fragments as defined by PTX

static float float_of(uint32_t bits) {
  float x;
  memcpy(&x, &bits, sizeof x);
  return x;
}
static float bf16_of(uint32_t word, int half) {
  return float_of(half ? word & 0xffff0000u : word << 16);
}
static float f16_of(uint32_t word, int half) {
  return lm_f16_load((uint16_t)(word >> 16 * half));
}

// mma.m16n8k16: with g = lane / 4, q = lane % 4, a[0..3] hold rows g, g + 8, g, g + 8 at columns
// 2q, 2q, 2q + 8, 2q + 8; b[0..1] rows 2q, 2q + 8 of column g.
void simt_mma_complete(int warp, bool f16) {
  float (*of)(uint32_t word, int half) = f16 ? f16_of : bf16_of;
  float a[16][16], b[16][8];
  for (int l = 0; l < WARP; l++) {
    const fiber *f = &simt.fibers[warp + l];
    int g = l / 4;
    int q = l % 4;
    for (int i = 0; i < 4; i++)
      for (int h = 0; h < 2; h++)
        a[g + i % 2 * 8][2 * q + h + i / 2 * 8] = of(f->a[i], h);
    for (int i = 0; i < 2; i++)
      for (int h = 0; h < 2; h++)
        b[2 * q + h + i * 8][g] = of(f->b[i], h);
  }
  for (int l = 0; l < WARP; l++)
    for (int i = 0; i < 4; i++) {
      int row = l / 4 + i / 2 * 8;
      int col = l % 4 * 2 + i % 2;
      float sum = 0;
      for (int k = 0; k < 16; k++)
        sum += a[row][k] * b[k][col];
      simt.fibers[warp + l].d[i] += sum;
    }
}

// mma.m16n8k8 of TF32: a[0..3] hold rows g, g + 8, g, g + 8 at columns q, q, q + 4, q + 4; b[0..1]
// rows q, q + 4 of column g. The lower 13 bits of an operand are ignored.
void simt_mma_tf32_complete(int warp) {
  float a[16][8], b[8][8];
  for (int l = 0; l < WARP; l++) {
    const fiber *f = &simt.fibers[warp + l];
    int g = l / 4;
    int q = l % 4;
    for (int i = 0; i < 4; i++)
      a[g + i % 2 * 8][q + i / 2 * 4] = float_of(f->a[i] & ~0x1fffu);
    for (int i = 0; i < 2; i++)
      b[q + i * 4][g] = float_of(f->b[i] & ~0x1fffu);
  }
  for (int l = 0; l < WARP; l++)
    for (int i = 0; i < 4; i++) {
      float sum = 0;
      for (int k = 0; k < 8; k++)
        sum += a[l / 4 + i / 2 * 8][k] * b[k][l % 4 * 2 + i % 2];
      simt.fibers[warp + l].d[i] += sum;
    }
}

// ldmatrix.x4: lane l gives row l % 8 of matrix l / 8 and receives, of each matrix, element 2 (l %
// 4) and the next of row l / 4; transposed: of column l / 4.
void simt_matrices_complete(int warp, bool transposed) {
  for (int l = 0; l < WARP; l++)
    for (int i = 0; i < 4; i++) {
      uint16_t half[2];
      for (int h = 0; h < 2; h++) {
        int line = transposed ? l % 4 * 2 + h : l / 4;
        int at = transposed ? l / 4 : l % 4 * 2 + h;
        memcpy(&half[h], simt.shared + simt.fibers[warp + 8 * i + line].offset + 2 * at,
               sizeof half[h]);
      }
      simt.fibers[warp + l].r[i] = half[0] | (uint32_t)half[1] << 16;
    }
}

static void mma(warp_kind kind, float *d, const uint32_t *a, const uint32_t *b, int line) {
  fiber *f = &simt.fibers[simt.current];
  f->d = d;
  f->a = a;
  f->b = b;
  simt_exchange(kind, ~0u, 0, 0, line);
}
API void lm_simt_mma_bf16(float *d, const uint32_t *a, const uint32_t *b, int line) {
  mma(MMA, d, a, b, line);
}
API void lm_simt_mma_f16(float *d, const uint32_t *a, const uint32_t *b, int line) {
  mma(MMA_F16, d, a, b, line);
}
API void lm_simt_mma_tf32(float *d, const uint32_t *a, const uint32_t *b, int line) {
  mma(MMA_TF32, d, a, b, line);
}

API void lm_simt_matrices(uint32_t *r, const void *tile, int64_t byte, int transposed, int line) {
  fiber *f = &simt.fibers[simt.current];
  f->offset = simt_access_check(tile, byte, 16, ACCESS_READ, line);
  if (f->offset % 16)
    simt_report_add(line, "a matrix row at a misaligned address");
  f->r = r;
  simt_exchange(transposed ? MATRICES_TRANSPOSED : MATRICES, ~0u, 0, 0, line);
}

// ---- wgmma: GEMMs of a warpgroup, which execute at issue or when they are waited for

API void lm_simt_proxy_fence(void) {
  fiber *f = &simt.fibers[simt.current];
  f->fenced = f->clock++;
}

// The offset of element (line, k) of a matrix of 64 or n lines and 16 k, by its descriptor: bits
// 0-13 are the address, 16-29 and 32-45 the leading and the stride offset, all in units of 16
// bytes; 62-63 the swizzle. The others are 0: a sum that leaves its field sets one of them. k has
// unit stride, or, if transposed, lines have.
int64_t simt_matrix_offset(uint64_t at, int line, int k, bool transposed, int text_line) {
  static const int widths[] = {16, 128, 64, 32};
  static const uint64_t others = 0x3fffc000c000c000;
  int64_t start = (int64_t)(at & 0x3fff) << 4;
  int64_t leading = (int64_t)(at >> 16 & 0x3fff) << 4;
  int64_t stride = (int64_t)(at >> 32 & 0x3fff) << 4;
  int64_t offset;
  int width = widths[at >> 62];
  int per = width / 2;
  if (at & others)
    simt_report_add(text_line, "a descriptor with a field that is too large");
  if (start & 0x3ff & ~(width - 1) && width > 16)
    simt_report_add(text_line, "a swizzled matrix that begins within a pattern");
  if (transposed && width == 16)
    offset = start + line / 8 * stride + line % 8 * 2 + k % 8 * 16 + k / 8 * leading;
  else if (transposed)
    offset = start + line / per * leading + line % per * 2 + k % 8 * width + k / 8 * stride;
  else if (width == 16)
    offset = start + line / 8 * stride + line % 8 * 16 + k / 8 * leading + k % 8 * 2;
  else
    offset = start + line / 8 * stride + line % 8 * width + k * 2;
  if (!transposed && width > 16 && start % width + 2 * k >= width)
    simt_report_add(text_line, "a matrix that leaves its lines");
  return width == 16 ? offset : offset ^ (offset >> 7 & (width / 16 - 1)) << 4;
}

// Checks that every warp may read the grain at the offset.
static void grain_read(const array *a, int64_t offset, int text_line) {
  shadow *s = &simt.shadows[offset / GRAIN];
  if (s->write.thread >= 0 && s->write.thread < ENGINE &&
      s->write.clock > simt.fibers[s->write.thread].fenced)
    simt_report_add(text_line,
                    "multiplies %s at byte %lld, which thread %d wrote with no fence since",
                    a->name, (long long)(offset - a->offset), s->write.thread);
  int first = simt.current;
  for (int w = 0; w < GROUP / WARP; w++) {
    simt.current = first + w * WARP;
    simt_grain_check(s, ACCESS_READ, a, offset - a->offset, text_line);
  }
  simt.current = first;
}

static float matrix_element(uint64_t at, int line, int k, bool transposed, int text_line) {
  int64_t offset = simt_matrix_offset(at, line, k, transposed, text_line);
  const array *a = simt_array_at(offset);
  uint16_t half;
  if (!a) {
    simt_report_add(text_line, "a matrix outside of shared memory, at byte %lld",
                    (long long)offset);
    return 0;
  }
  grain_read(a, offset, text_line);
  memcpy(&half, simt.shared + offset, sizeof half);
  return bf16_of(half, 0);
}

// sums = a b, with n columns, a multiple of 8. Each sum adds in the order of a.
static void row_multiply(const float a[16], float b[16][256], int n, float *sums) {
  enum {
    COLUMNS = 8 // that the compiler's vectors hold
  };
  for (int c = 0; c < n; c += COLUMNS) {
    float sum[COLUMNS] = {0};
    for (int j = 0; j < 16; j++)
      for (int l = 0; l < COLUMNS; l++)
        sum[l] += a[j] * b[j][c + l];
    memcpy(sums + c, sum, sizeof sum);
  }
}

// Fragments are laid out as for mma, 16 rows for each of four warps, n / 8 of them side by side.
static void wgmma_complete(int first, int k) {
  static float a[64][16], b[16][256], sums[64][256];
  const wgmma *p = &simt.fibers[first].wgmmas[k];
  int before = simt.current;
  simt.current = first;
  for (int i = 0; i < 64; i++)
    for (int j = 0; j < 16; j++) {
      int lane = i % 8 * 4 + j % 8 / 2;
      int word = i % 16 / 8 + j / 8 * 2;
      a[i][j] = p->a_shared
                    ? matrix_element(p->a_at, i, j, p->transposed > 1, p->line)
                    : bf16_of(simt.fibers[first + i / 16 * WARP + lane].wgmmas[k].a[word], j % 2);
    }
  for (int j = 0; j < 16; j++)
    for (int n = 0; n < p->n; n++)
      b[j][n] = matrix_element(p->b_at, n, j, p->transposed > 0, p->line);
  for (int i = 0; i < 64; i++)
    row_multiply(a[i], b, p->n, sums[i]);
  for (int t = 0; t < GROUP; t++) {
    const wgmma *own = &simt.fibers[first + t].wgmmas[k];
    if (own->line != p->line || own->n != p->n || own->b_at != p->b_at || own->a_at != p->a_at)
      simt_report_add(own->line, "threads of a warpgroup multiply different matrices");
    for (int i = 0; i < p->n / 2; i++) {
      int row = t / WARP * 16 + t % WARP / 4 + i % 4 / 2 * 8;
      int col = i / 4 * 8 + t % 4 * 2 + i % 2;
      own->d[i] = (own->add ? own->d[i] : 0) + sums[row][col];
    }
  }
  simt.current = before;
}

bool simt_group_ready(int first) {
  for (int i = first; i < first + GROUP; i++)
    if (i >= simt.threads || simt.wait[i] != AT_GROUP)
      return false;
  return true;
}

void simt_group_complete(int first) {
  fiber *f = &simt.fibers[first];
  int done = 0;
  while (done < f->n_wgmmas &&
         (simt.schedule == SIMT_FORWARD || f->wgmmas[done].group < f->wgmma_group - f->wgmmas_left))
    wgmma_complete(first, done++);
  for (int i = first; i < first + GROUP; i++) {
    fiber *g = &simt.fibers[i];
    if (g->n_wgmmas != f->n_wgmmas || g->line != f->line) {
      simt_report_add(g->line, "meets threads of its warpgroup that wait at line %d", f->line);
      done = g->n_wgmmas;
    }
  }
  for (int i = first; i < first + GROUP; i++) {
    fiber *g = &simt.fibers[i];
    g->n_wgmmas -= done;
    memmove(g->wgmmas, g->wgmmas + done, (size_t)g->n_wgmmas * sizeof *g->wgmmas);
    simt.wait[i] = READY;
  }
}

API void lm_simt_wgmma(float *d, int n, const uint32_t *a, uint64_t a_at, uint64_t b_at,
                       int transposed, int add, int line) {
  fiber *f = &simt.fibers[simt.current];
  if (f->n_wgmmas == WGMMAS)
    LM_BUG("more than %d GEMMs in flight", WGMMAS);
  wgmma *p = &f->wgmmas[f->n_wgmmas++];
  *p = (wgmma){.d = d,
               .n = n,
               .add = add,
               .a_shared = !a,
               .transposed = transposed,
               .a_at = a_at,
               .b_at = b_at,
               .group = f->wgmma_group,
               .line = line};
  if (a)
    memcpy(p->a, a, sizeof p->a);
  if (simt.schedule == SIMT_FORWARD)
    simt_wait_for(AT_GROUP, line);
}
API void lm_simt_wgmma_commit(void) {
  simt.fibers[simt.current].wgmma_group++;
}
API void lm_simt_wgmma_wait(int left, int line) {
  simt.fibers[simt.current].wgmmas_left = left;
  simt_wait_for(AT_GROUP, line);
}
