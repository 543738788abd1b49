// mma.cuh - tensor cores and copies to shared memory. Fragments are laid out as in PTX (m16n8k16,
// ldmatrix): with g = lane / 4 and q = lane % 4, elements 0 and 1 of an accumulator are in row g,
// columns 2q and 2q + 1, elements 2 and 3 in the same columns of row g + 8.
LM_INLINE uint32_t lm_shared_address(const void *p) {
  return (uint32_t)__cvta_generic_to_shared(p);
}

// d += a b; a: 16 x 16 by rows, b: 16 x 8 by columns, bf16 or f16.
#define LM_MMA(TYPE)                                                                               \
  LM_INLINE void lm_mma_##TYPE(float *d, const uint32_t *a, const uint32_t *b) {                   \
    asm("mma.sync.aligned.m16n8k16.row.col.f32." #TYPE "." #TYPE ".f32 {%0, %1, %2, %3}, "         \
        "{%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"                                            \
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])                                           \
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));                       \
  }
LM_MMA(bf16)
LM_MMA(f16)

// d += a b in TF32 as lm_tf32 rounds. a: 16 x 8 by rows, element i of a thread in row g + 8 (i %
// 2), column q + 4 (i / 2); b: 8 x 8 by columns, element i in row q + 4 i, column g.
LM_INLINE uint32_t lm_tf32(float x) {
  uint32_t u;
  asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(u) : "f"(x));
  return u;
}
LM_INLINE void lm_mma_tf32(float *d, const uint32_t *a, const uint32_t *b) {
  asm("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, "
      "%9}, {%0, %1, %2, %3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

// Four 8 x 8 matrices of 16-bit elements; lane l gives the address of row l % 8 of matrix l / 8, at
// tile[at].
LM_INLINE void lm_matrices_load(uint32_t *r, const uint16_t *tile, int32_t at) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(lm_shared_address(tile + at))
               : "memory");
}
LM_INLINE void lm_matrices_load_transposed(uint32_t *r, const uint16_t *tile, int32_t at) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(lm_shared_address(tile + at))
               : "memory");
}

// Copies 16 bytes to tile[at], zeros unless `valid`; complete after lm_copies_wait and a barrier.
#ifdef LM_NARROW
LM_INLINE void lm_copy_async(uint16_t *tile, int32_t at, const uint16_t *from, bool valid) {
  for (int32_t i = 0; i < 8; i++)
    tile[at + i] = valid ? from[i] : (uint16_t)0;
}
#else
LM_INLINE void lm_copy_async(uint16_t *tile, int32_t at, const uint16_t *from, bool valid) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(lm_shared_address(tile + at)),
               "l"(from), "r"(valid ? 16 : 0)
               : "memory");
}
#endif
LM_INLINE void lm_copies_commit() {
  asm volatile("cp.async.commit_group;" ::: "memory");
}
// Waits until at most `left` of this thread's groups are in flight.
#define lm_copies_wait(left) asm volatile("cp.async.wait_group %0;" ::"n"(left) : "memory")
