// attend_query.c - per-query values of the backward pass of attention: -lse, the sum of do * o, and
// the share of each position if all positions are masked.
#include "codegen/cuda/attend.h"

// The sum of do * o. If it is an operand, it is loaded; without the pass attend_delta four lanes
// read a row and lm_row_sum adds them, in vectors if the memory layout allows it.
static const char *row_dot(cuda_attend *e, const char *at) {
  lm_type o = e->f.op->in[LM_ATTEND_O]->type;
  lm_type d = e->f.op->in[LM_ATTEND_DO]->type;
  bool vector = lm_type_equal(o, d) && cuda_attend_in_runs(o, &e->f.v_channels, 8) &&
                (lm_dtype_is_half(o.dtype) || o.dtype == LM_F32);
  lm_buf offset = {0};
  cuda_attend_offset(e, &offset, o, NULL, at, at);
  if (lm_attend_has_delta(e->f.op))
    return lm_arena_printf(e->g.arena, "dot = a%d[%s];\n", LM_ATTEND_O,
                           lm_gen_take(&e->g, &offset));
  if (vector)
    lm_buf_puts(&offset, " + j");
  else
    cuda_attend_channel_offset(e, &offset, o, NULL, &e->f.v_channels, "j");
  const char *where = lm_gen_take(&e->g, &offset);
  const char *kind = lm_dtype_name(o.dtype);
  if (vector)
    return lm_arena_printf(e->g.arena,
                           "%sfor (int32_t j = lm_thread() %% 4 * 8; j < %lld; j += 32) {\nfloat "
                           "x[8], y[8];\nlm_load8_%s(x, a%d + (%s));\nlm_load8_%s(y, a%d + (%s));\n"
                           "LM_UNROLL\nfor (int32_t i = 0; i < 8; i++) dot += x[i] * y[i];\n}\ndot "
                           "= lm_row_sum(dot);\n",
                           e->warpgroups ? "LM_UNROLL_2\n" : "", (long long)e->f.v_channels.size,
                           kind, LM_ATTEND_O, where, kind, LM_ATTEND_DO, where);
  const char *x = lm_gen_load_text(e->g.arena, (lm_dtype)o.dtype,
                                   lm_arena_printf(e->g.arena, "a%d[%s]", LM_ATTEND_O, where));
  const char *y = lm_gen_load_text(e->g.arena, (lm_dtype)d.dtype,
                                   lm_arena_printf(e->g.arena, "a%d[%s]", LM_ATTEND_DO, where));
  return lm_arena_printf(e->g.arena,
                         "for (int32_t j = lm_thread() %% 4; j < %lld; j += 4) dot += %s * "
                         "%s;\ndot = lm_row_sum(dot);\n",
                         (long long)e->f.v_channels.size, x, y);
}

// The term of the exponent: -lse, in powers of 2 if those are used; for a query that is entirely
// masked a value whose exponential is 0.
static const char *neg_lse_text(cuda_attend *e, const char *at) {
  lm_buf offset = {0};
  cuda_attend_offset(e, &offset, e->f.op->in[LM_ATTEND_LSE]->type, NULL, at, at);
  return lm_arena_printf(e->g.arena, "lm_negative_lse(a%d[%s]) * %s", LM_ATTEND_LSE,
                         lm_gen_take(&e->g, &offset), e->half ? "1.44269504f" : "1.0f");
}

// The weight of each position of a query that is entirely masked.
static const char *share_text(cuda_attend *e, const char *neg_lse) {
  return lm_arena_printf(e->g.arena, "%s < -1e38f ? 1.0f / (float)%s : 0.0f", neg_lse,
                         cuda_attend_extent(e, e->f.s));
}

// If rows are queries: in registers, computed by the four lanes of a row together.
void cuda_attend_query_rows(cuda_attend *e, lm_buf *b) {
  lm_buf_puts(
      b, "float neg_lse[2], delta[2], share[2];\nLM_UNROLL\nfor (int32_t r = 0; r < 2; r++) {\n");
  lm_buf_printf(b,
                "const lm_at row = lm_min_index(row0 + lm_frag_row(r), %s);\nfloat dot = 0.0f;\n",
                cuda_attend_extent(e, e->values.row));
  lm_buf_puts(b, row_dot(e, "row"));
  lm_buf_printf(b, "neg_lse[r] = %s;\ndelta[r] = dot;\nshare[r] = %s;\n(void)share;\n}\n",
                neg_lse_text(e, "row"), share_text(e, "neg_lse[r]"));
}

// The index of a column in the arrays that accompany the tiles.
static const char *staged_index(const cuda_attend *e, const char *col) {
  return e->warpgroups ? lm_arena_printf(e->g.arena, "stage * %d + %s", e->cols, col) : col;
}

// If columns are queries: in shared memory. A lane loads the values of a column; if it computes the
// delta, four lanes do.
void cuda_attend_query_cols(cuda_attend *e, lm_buf *b) {
  int lanes = lm_attend_has_delta(e->f.op) ? 1 : 4;
  cuda_attend_pool(e, "float", 4, "neg_lses", -1, (e->warpgroups ? 2 : 1) * e->cols);
  cuda_attend_pool(e, "float", 4, "deltas", -1, (e->warpgroups ? 2 : 1) * e->cols);
  if (e->warpgroups) // by one warp, whose loads are in flight together
    lm_buf_printf(b,
                  "%s\nfor (int32_t j = 0; j < %d; j++) {\nconst int32_t i = me / %d + j * %d;\n",
                  lanes > 1 ? "LM_UNROLL_1" : "LM_UNROLL", e->cols * lanes / CUDA_WARP, lanes,
                  CUDA_WARP / lanes);
  else
    lm_buf_printf(b, "for (int32_t i = lm_thread() / %d; i < %d; i += %d) {\n", lanes, e->cols,
                  2 * e->rows / lanes);
  lm_buf_printf(b, "const lm_at col = lm_min_index(col0 + i, %s);\nfloat dot = 0.0f;\n",
                cuda_attend_extent(e, e->values.col));
  lm_buf_puts(b, row_dot(e, "col"));
  if (lanes > 1)
    lm_buf_puts(b, "if (lm_thread() % 4 == 0) {\n");
  lm_buf_printf(b, "lm_put(neg_lses, %s, %s);\nlm_put(deltas, %s, dot);\n", staged_index(e, "i"),
                neg_lse_text(e, "col"), staged_index(e, "i"));
  lm_buf_puts(b, lanes > 1 ? "}\n}\n" : "}\n");
}

// The values of a column, if the columns are queries.
void cuda_attend_query_col(cuda_attend *e) {
  const char *at = staged_index(e, "lm_frag_col(n, c)");
  lm_buf_printf(&e->by_col,
                "const float neg_lse = lm_get(neg_lses, %s), delta = lm_get(deltas, %s), "
                "share = %s;\n(void)share;\n",
                at, at, share_text(e, "neg_lse"));
}
