// vector.cuh - loads and stores of n neighbouring elements, in accesses of up to 16 bytes. The
// address must be a multiple of the access, unless LM_NARROW is defined.
typedef struct LM_ALIGN(16) lm_w4 {
  uint32_t w[4];
} lm_w4;
typedef struct LM_ALIGN(8) lm_w2 {
  uint32_t w[2];
} lm_w2;
typedef struct LM_ALIGN(4) lm_w1 {
  uint32_t w[1];
} lm_w1;

#ifdef LM_NARROW
#define LM_WORDS_LOAD(n, W, words, p) lm_bytes_copy(words, p, 4 * (n))
#define LM_WORDS_STORE(n, W, words, p) lm_bytes_copy(p, words, 4 * (n))
#else
#define LM_WORDS_LOAD(n, W, words, p)                                                              \
  LM_UNROLL for (int32_t i = 0; i < (int32_t)((n)*4 / sizeof(W)); i++) {                           \
    W u;                                                                                           \
    lm_word_get(W, u, p, i);                                                                       \
    LM_UNROLL for (int32_t j = 0; j < (int32_t)(sizeof(W) / 4); j++)                               \
        words[i * (int32_t)(sizeof(W) / 4) + j] = u.w[j];                                          \
  }
#define LM_WORDS_STORE(n, W, words, p)                                                             \
  LM_UNROLL for (int32_t i = 0; i < (int32_t)((n)*4 / sizeof(W)); i++) {                           \
    W u;                                                                                           \
    LM_UNROLL for (int32_t j = 0; j < (int32_t)(sizeof(W) / 4); j++) u.w[j] =                      \
        words[i * (int32_t)(sizeof(W) / 4) + j];                                                   \
    lm_word_put(W, p, i, u);                                                                       \
  }
#endif

LM_INLINE void lm_bytes_copy(void *to, const void *from, int32_t n) {
  for (int32_t i = 0; i < n; i++)
    ((uint8_t *)to)[i] = ((const uint8_t *)from)[i];
}

// f32, f64 and int are copied as words.
#define LM_PLAIN(N, KIND, T, W)                                                                    \
  LM_INLINE void lm_load##N##_##KIND(T *x, const T *p) {                                           \
    enum {                                                                                         \
      WORDS = N * sizeof(T) / 4                                                                    \
    };                                                                                             \
    uint32_t words[WORDS];                                                                         \
    LM_WORDS_LOAD(WORDS, W, words, p);                                                             \
    __builtin_memcpy(x, words, sizeof words);                                                      \
  }                                                                                                \
  LM_INLINE void lm_store##N##_##KIND(T *p, const T *x) {                                          \
    enum {                                                                                         \
      WORDS = N * sizeof(T) / 4                                                                    \
    };                                                                                             \
    uint32_t words[WORDS];                                                                         \
    __builtin_memcpy(words, x, sizeof words);                                                      \
    LM_WORDS_STORE(WORDS, W, words, p);                                                            \
  }
LM_PLAIN(2, f32, float, lm_w2)
LM_PLAIN(4, f32, float, lm_w4)
LM_PLAIN(8, f32, float, lm_w4)
LM_PLAIN(2, f64, double, lm_w4)
LM_PLAIN(4, f64, double, lm_w4)
LM_PLAIN(8, f64, double, lm_w4)
LM_PLAIN(2, int, int32_t, lm_w2)
LM_PLAIN(4, int, int32_t, lm_w4)
LM_PLAIN(8, int, int32_t, lm_w4)

// bf16 and f16 are rounded when they are stored.
#define LM_HALF(N, KIND, W)                                                                        \
  LM_INLINE void lm_load##N##_##KIND(float *x, const uint16_t *p) {                                \
    uint32_t words[N / 2];                                                                         \
    LM_WORDS_LOAD(N / 2, W, words, p);                                                             \
    LM_UNROLL                                                                                      \
    for (int32_t i = 0; i < N; i++)                                                                \
      x[i] = lm_##KIND##_load((uint16_t)(words[i / 2] >> (i % 2 * 16)));                           \
  }                                                                                                \
  LM_INLINE void lm_store##N##_##KIND(uint16_t *p, const float *x) {                               \
    uint32_t words[N / 2];                                                                         \
    LM_UNROLL                                                                                      \
    for (int32_t i = 0; i < N / 2; i++)                                                            \
      words[i] = lm_##KIND##_pair(x[2 * i], x[2 * i + 1]);                                         \
    LM_WORDS_STORE(N / 2, W, words, p);                                                            \
  }
LM_HALF(2, bf16, lm_w1)
LM_HALF(4, bf16, lm_w2)
LM_HALF(8, bf16, lm_w4)
LM_HALF(2, f16, lm_w1)
LM_HALF(4, f16, lm_w2)
LM_HALF(8, f16, lm_w4)

#define LM_BYTES(N, KIND, T)                                                                       \
  LM_INLINE void lm_load##N##_##KIND(int32_t *x, const T *p) {                                     \
    LM_UNROLL                                                                                      \
    for (int32_t i = 0; i < N; i++)                                                                \
      x[i] = p[i];                                                                                 \
  }                                                                                                \
  LM_INLINE void lm_store##N##_##KIND(T *p, const int32_t *x) {                                    \
    LM_UNROLL                                                                                      \
    for (int32_t i = 0; i < N; i++)                                                                \
      p[i] = (T)x[i];                                                                              \
  }
LM_BYTES(2, bool, uint8_t)
LM_BYTES(4, bool, uint8_t)
LM_BYTES(8, bool, uint8_t)

// Codes, in accesses of up to 8 bytes. The words are moved as vectors, and each byte is extended to
// the register.
#define LM_CODES(N, W, KIND, T)                                                                    \
  LM_INLINE void lm_load##N##_##KIND(int32_t *x, const T *p) {                                     \
    uint32_t words[N / 4];                                                                         \
    LM_WORDS_LOAD(N / 4, W, words, p);                                                             \
    LM_UNROLL                                                                                      \
    for (int32_t i = 0; i < N; i++)                                                                \
      x[i] = (T)(words[i / 4] >> (i % 4 * 8));                                                     \
  }                                                                                                \
  LM_INLINE void lm_store##N##_##KIND(T *p, const int32_t *x) {                                    \
    uint32_t words[N / 4];                                                                         \
    LM_UNROLL                                                                                      \
    for (int32_t i = 0; i < N / 4; i++)                                                            \
      words[i] = (uint32_t)(x[4 * i] & 255) | (uint32_t)(x[4 * i + 1] & 255) << 8 |                \
                 (uint32_t)(x[4 * i + 2] & 255) << 16 | (uint32_t)(x[4 * i + 3] & 255) << 24;      \
    LM_WORDS_STORE(N / 4, W, words, p);                                                            \
  }
#define LM_CODES_OF(KIND, T)                                                                       \
  LM_BYTES(2, KIND, T)                                                                             \
  LM_CODES(4, lm_w1, KIND, T)                                                                      \
  LM_CODES(8, lm_w2, KIND, T)
LM_CODES_OF(e4m3, uint8_t)
LM_CODES_OF(e5m2, uint8_t)
LM_CODES_OF(e8m0, uint8_t)
LM_CODES_OF(i8, int8_t)
LM_CODES_OF(u8, uint8_t)
LM_CODES_OF(dyn8, uint8_t)
LM_CODES_OF(udyn8, uint8_t)
