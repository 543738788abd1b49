// lanes.c - loops over the threads of a team.
#include "codegen/cuda/emit.h"

const char *cuda_lane_of(const cuda_emit *e, int k) {
  if (!e->stages[k].lanes)
    return "lane";
  int group = e->stages[1].lanes;
  return lm_arena_printf(e->g.arena, k ? "lane %% %d" : "lane / %d", group);
}

static bool has_dyn(const cuda_emit *e, int k) {
  const lm_gen_domain *d = &e->g.domains[e->g.pass];
  for (int i = 0; i < d->n; i++)
    if (e->stage_of[i] == k && d->loop[i].dyn)
      return true;
  return false;
}

int cuda_team_rounds(const cuda_emit *e, int k) {
  enum {
    UNROLLED = 4
  };
  int64_t n = (int64_t)cuda_trips(e, k);
  int lanes = cuda_stage_lanes(e, k);
  if (has_dyn(e, k))
    return 0;
  if (n <= lanes)
    return 1;
  return n % lanes == 0 && n / lanes <= UNROLLED ? (int)(n / lanes) : 0;
}

const char *cuda_round_index(cuda_emit *e) {
  e->rounds.indexed = true;
  return lm_arena_printf(e->g.arena, "(%s - lane) / %d", e->rounds.index, e->team);
}

// True if the rounds of a loop may not be in flight together, since their vectors do not fit into
// registers.
static bool rounds_are_large(const cuda_emit *e, int k) {
  enum {
    FLOATS = 128
  };
  int n = 0;
  for (uint32_t i = 0; i < e->g.n_accesses; i++)
    n += e->g.accesses[i].memory && e->g.accesses[i].pass == e->g.pass;
  n *= e->width[e->g.pass] * cuda_team_rounds(e, k);
  return n > FLOATS;
}

void cuda_team_head(cuda_emit *e, int k, const char *name, const char *count, bool whole,
                    lm_buf *out) {
  const char *type = e->g.target->index;
  const char *lane = cuda_lane_of(e, k);
  int rounds = cuda_team_rounds(e, k);
  int lanes = cuda_stage_lanes(e, k);
  int64_t n = (int64_t)cuda_trips(e, k);
  if (rounds == 1) {
    if (n < lanes)
      lm_buf_printf(out, "if (%s < %lld) ", lane, (long long)n);
    lm_buf_printf(out, "{\nconst %s %s = %s;\n", type, name, lane);
  } else if (rounds) {
    const char *u = lm_gen_temp_name(&e->g, "u");
    lm_buf_puts(out, !whole && rounds_are_large(e, k) ? "LM_UNROLL_2\n" : "LM_UNROLL\n");
    lm_buf_printf(out, "for (int32_t %s = 0; %s < %d; %s++) {\n", u, u, rounds, u);
    lm_buf_printf(out, "const %s %s = %s + %s * %d;\n", type, name, lane, u, lanes);
  } else {
    lm_buf_printf(out, "for (%s %s = %s; %s < %s; %s += %d) {\n", type, name, lane, name, count,
                  name, lanes);
  }
}
