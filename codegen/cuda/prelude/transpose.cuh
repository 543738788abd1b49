// transpose.cuh - tiles of bytes in shared memory, through which a block stores bytes along another
// axis than the one along which its threads compute them.
//
// A tile has x * y bytes, a block 256 threads. A thread computes 8 neighbours along x of 4 along y:
// word i has those of its i-th x. Rows of the tile are along y, in chunks of 16 bytes. The chunks
// of a row are permuted by its number / 8, so that neither the words that a warp puts nor the
// chunks that a quarter of it reads are in the same banks. Numbers are unsigned: a division of them
// by a power of 2 is a shift.
enum {
  LM_TILE_BYTES = 8192,
  LM_TILE_THREADS = 256,
  LM_TILE_CHUNK = 16
};

// The chunk of the tile that is the given one of row x.
LM_INLINE uint32_t lm_tile_chunk(uint32_t x, uint32_t chunk, uint32_t y) {
  return (x * (y / LM_TILE_CHUNK) + chunk) ^ (x / 8 % 8);
}

LM_INLINE void lm_tile_put(uint32_t *tile, uint32_t y, const uint32_t *words) {
  const uint32_t across = LM_TILE_BYTES / y / 8, thread = (uint32_t)lm_thread();
  const uint32_t x = thread % across * 8, word = thread / across;
  LM_UNROLL
  for (uint32_t i = 0; i < 8; i++)
    lm_put(tile, lm_tile_chunk(x + i, word / 4, y) * 4 + word % 4, words[i]);
}

// Stores the rows, of which neighbours are `stride` bytes apart, in whole chunks.
LM_INLINE void lm_tile_store(uint8_t *to, int64_t stride, const uint32_t *tile, uint32_t y) {
  LM_UNROLL
  for (uint32_t part = 0; part < LM_TILE_BYTES / LM_TILE_CHUNK / LM_TILE_THREADS; part++) {
    const uint32_t number = part * LM_TILE_THREADS + (uint32_t)lm_thread();
    const uint32_t x = number / (y / LM_TILE_CHUNK), chunk = number % (y / LM_TILE_CHUNK);
    const uint32_t at = lm_tile_chunk(x, chunk, y) * 4;
    uint32_t words[4];
    LM_UNROLL
    for (uint32_t k = 0; k < 4; k++)
      words[k] = lm_get(tile, at + k);
    LM_WORDS_STORE(4, lm_w4, words, to + x * stride + chunk * LM_TILE_CHUNK);
  }
}
