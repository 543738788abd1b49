// route.cuh - rows sorted by group: a block counts or sorts the rows of one group. Rows of equal
// groups keep their order, and an id beyond the last group is that group. Ids below 0 have no
// group: they have no row, and the rows behind those of all groups have no element, both of which
// -1 says.
enum {
  LM_ROUTE_THREADS = 256,
  LM_ROUTE_WARPS = LM_ROUTE_THREADS / 32,
  LM_ROUTE_ROUNDS = 16, // ids that a thread reads of a chunk
  LM_ROUTE_PART = 32 * LM_ROUTE_ROUNDS,
  LM_ROUTE_CHUNK = LM_ROUTE_WARPS * LM_ROUTE_PART
};

LM_INLINE int32_t lm_group_of(int32_t id, int32_t groups) {
  return id < groups ? id : groups - 1;
}

LM_INLINE int32_t lm_group_count(const int32_t *id, int64_t rows, int32_t groups, int32_t group,
                                 double *partials) {
  int32_t n = 0;
  for (int64_t i = lm_thread(); i < rows; i += LM_ROUTE_THREADS)
    n += lm_group_of(id[i], groups) == group;
  return lm_block_sum_int(n, partials);
}

// The rows of all groups before `group`.
LM_INLINE int32_t lm_group_start(const int32_t *counts, int32_t group, double *partials) {
  int32_t n = 0;
  for (int32_t g = lm_thread(); g < group; g += LM_ROUTE_THREADS)
    n += counts[g];
  return lm_block_sum_int(n, partials);
}

// Writes the order of the rows of a group, from position `start` on: order[position] = i, or the
// inverse. A warp
// reads a part of each chunk; `found` has its number of rows, so that the next one knows where its
// own begin.
LM_INLINE void lm_group_sort(const int32_t *id, int64_t rows, int32_t groups, int32_t group,
                             int64_t start, int32_t *out, bool inverse, int32_t *found) {
  const int32_t lane = lm_thread() % 32, warp = lm_thread() / 32;
  for (int64_t from = 0; from < rows; from += LM_ROUTE_CHUNK) {
    const int64_t part = from + warp * LM_ROUTE_PART + lane;
    uint32_t here[LM_ROUTE_ROUNDS];
    int32_t n = 0;
    LM_UNROLL
    for (int32_t k = 0; k < LM_ROUTE_ROUNDS; k++) {
      const int64_t i = part + k * 32;
      here[k] = lm_ballot(i < rows && lm_group_of(id[i < rows ? i : 0], groups) == group);
      n += lm_bits_count(here[k]);
    }
    if (lane == 0)
      lm_put(found, warp, n);
    lm_barrier();
    int64_t at = start;
    for (int32_t w = 0; w < LM_ROUTE_WARPS; w++) {
      at += w < warp ? lm_get(found, w) : 0;
      start += lm_get(found, w);
    }
    LM_UNROLL
    for (int32_t k = 0; k < LM_ROUTE_ROUNDS; k++) {
      const int64_t i = part + k * 32, to = at + lm_bits_count(here[k] & ((1u << lane) - 1u));
      const bool mine = here[k] >> lane & 1;
      if (inverse && group == 0 && i < rows && id[i] < 0)
        out[i] = -1;
      if (mine && inverse)
        out[i] = (int32_t)(to < rows ? to : rows - 1);
      if (mine && !inverse && to < rows)
        out[to] = (int32_t)i;
      at += lm_bits_count(here[k]);
    }
    lm_barrier();
  }
  const bool last = !inverse && group == groups - 1;
  for (int64_t i = start + lm_thread(); last && i < rows; i += LM_ROUTE_THREADS)
    out[i] = -1;
}
