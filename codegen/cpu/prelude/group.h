// group.h - rows sorted by group: a counting sort, which keeps the order of equal ids.
//
// next: by group, the position of its next row. An id beyond the last group is that group. Ids
// below 0 have no group: they have no row, and the rows behind those of all groups have no element,
// both of which -1 says. No position is outside of the rows, whatever the counts are.
LM_INLINE int64_t lm_group_of(int32_t id, int64_t groups) {
  return id >= groups ? groups - 1 : id;
}

LM_INLINE void lm_group_counts(const int32_t *id, int64_t rows, int64_t groups, int32_t *counts) {
  for (int64_t g = 0; g < groups; g++)
    counts[g] = 0;
  for (int64_t i = 0; i < rows; i++)
    if (id[i] >= 0)
      counts[lm_group_of(id[i], groups)]++;
}

// Returns the number of rows of all groups.
LM_INLINE int64_t lm_group_begin(const int32_t *counts, int64_t groups, int64_t *next) {
  int64_t sum = 0;
  for (int64_t g = 0; g < groups; g++) {
    next[g] = sum;
    sum += counts[g];
  }
  return sum;
}

LM_INLINE int64_t lm_group_next(int32_t id, int64_t rows, int64_t groups, int64_t *next) {
  if (id < 0)
    return -1;
  const int64_t at = next[lm_group_of(id, groups)]++;
  return at < 0 ? 0 : at >= rows ? rows - 1 : at;
}

LM_INLINE void lm_group_order(const int32_t *id, const int32_t *counts, int64_t rows,
                              int64_t groups, int64_t *next, int32_t *order) {
  const int64_t used = lm_group_begin(counts, groups, next);
  for (int64_t i = used < 0 ? 0 : used; i < rows; i++)
    order[i] = -1;
  for (int64_t i = 0; i < rows; i++)
    if (id[i] >= 0)
      order[lm_group_next(id[i], rows, groups, next)] = (int32_t)i;
}

LM_INLINE void lm_group_inverse(const int32_t *id, const int32_t *counts, int64_t rows,
                                int64_t groups, int64_t *next, int32_t *inverse) {
  lm_group_begin(counts, groups, next);
  for (int64_t i = 0; i < rows; i++)
    inverse[i] = (int32_t)lm_group_next(id[i], rows, groups, next);
}
