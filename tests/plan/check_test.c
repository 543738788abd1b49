// check_test.c - rings, iterations of steps and collectives in plans: the text parses back, the
// executor computes their addresses, and the checker finds planted mistakes.
#include <string.h>

#include "runtime/base/diag.h"
#include "runtime/cpu/exec.h"
#include "tests/runtime/arena.h"

static lm_plan *parsed(lm_arena *a, const char *text) {
  lm_plan *p;
  lm_buf again = {0};
  CHECK_OK(lm_plan_parse(a, text, strlen(text), &p));
  lm_plan_print(p, &again);
  if (!strstr(again.p, strchr(text, 'f'))) { // from "func" on
    fprintf(stderr, "the text does not come back:\n%s\n%s", text, again.p);
    exit(1);
  }
  lm_buf_free(&again);
  return p;
}

// ---- execution: iteration i copies input i into slot i mod 2, and the slot of i - 1 to output i

static const char ring[] =
    "arena io 192\narena work 128\n"
    "func ring work 128\n"
    "     0 loop i0 < 5\n"
    "     1   copy 4(4,4) io[0+16*i0 : 16] -> work[0+64*(i0 mod 2) : 16]\n"
    "     2   copy when 1..3 4(4,4) work[0+64*(i0+1 mod 2) : 16] -> io[96+16*i0 : 16]\n"
    "     3 end\n"
    "  live 0: work[0 : 128] steps 0..3 slots\n";

static void ring_test(lm_arena *a) {
  lm_plan *p = parsed(a, ring);
  lm_buf why = {0};
  CHECK(lm_plan_check(p, &p->funcs[0], &why));
  CHECK(lm_plan_step_times(&p->funcs[0], 1) == 5 && lm_plan_step_times(&p->funcs[0], 2) == 3);
  for (int i = 1; i <= 2; i++)
    p->funcs[0].steps[i].move->element = 4;
  for (int threads = 1; threads <= 2; threads++) {
    lm_exec *e;
    int32_t io[48] = {0};
    for (int i = 0; i < 20; i++)
      io[i] = 100 + i;
    CHECK_OK(lm_cpu_exec_create(p, &(lm_exec_options){.threads = threads}, &e));
    arena_write(e, p, LM_ARENA_IO, io);
    CHECK_OK(lm_exec_call(e, &p->funcs[0], NULL));
    int32_t *got = arena_read(e, p, LM_ARENA_IO);
    for (int i = 0; i < 5; i++)
      for (int k = 0; k < 4; k++) // in iterations 1 to 3 only
        CHECK(got[24 + 4 * i + k] == (i >= 1 && i <= 3 ? 100 + 4 * (i - 1) + k : 0));
    lm_free(got);
    lm_exec_destroy(e);
  }
}

// ---- the checker: gradients of iteration i are reduced from window i mod 2, while iteration i + 1
// fills the other one

#define HEAD                                                                                       \
  "mesh a 2 io[64 : 4]\nmesh b 4\narena grad 256\narena work 192\nfunc f work 192\n     0 loop "   \
  "i0 < 4\n"
#define WAIT                                                                                       \
  "     1   wait when 2.. 4 + (i0 mod 2) work[0+64*(i0 mod 2) : 64] -> grad[-128+64*i0 : 64]\n"
#define FILL "     2   fill 0x1 -> work[0+64*(i0 mod 2) : 64]\n"
#define LANE(lane, handle)                                                                         \
  "     3   start reduce_scatter sum f32 16 over a lane " lane " as " handle                       \
  " work[0+64*(i0 mod 2) : 64] -> grad[0+64*i0 : 64]\n"
#define START(handle) LANE("0", handle)
#define SLOT "4 + (i0 mod 2)"
#define END "     4 end\n"
#define LAST                                                                                       \
  "     5 wait 4 work[0 : 64] -> grad[128 : 64]\n     6 wait 5 work[64 : 64] -> grad[192 : 64]\n"
#define LIVE "  live 0: work[0 : 128] steps 0..6 windows\n"

static void checks_test(lm_arena *a) {
  static const struct {
    const char *text, *found;
  } cases[] = {
      {HEAD WAIT FILL START(SLOT) END LAST LIVE, NULL},
      {HEAD "     1   wait when 3.. 4 + (i0 mod 2) work[0+64*(i0 mod 2) : 64] -> "
            "grad[-128+64*i0 : 64]\n" FILL START(SLOT) END LAST LIVE,
       "step 2 (), buffer 0: touches the memory of a collective that is under way"},
      {HEAD WAIT FILL START("4") END LAST LIVE, "its handle is that of a collective"},
      {HEAD WAIT FILL LANE("13", SLOT) END LAST LIVE, "the number of its lane is too high"},
      {HEAD WAIT FILL START(SLOT) END "     5 wait 4 work[0 : 64] -> grad[128 : 64]\n" LIVE,
       "nothing waits for this collective"},
      {HEAD WAIT FILL START(SLOT) END LAST "     7 wait 6 work[0 : 64] -> grad[0 : 64]\n" LIVE,
       "waits for a collective that is not under way"},
      {HEAD WAIT FILL START(SLOT) END
       "     5 wait 4 work[64 : 64] -> grad[128 : 64]\n     6 wait 5 work[64 : 64] -> grad[192 : "
       "64]\n" LIVE,
       "has other buffers than the collective that it ends"},
      {HEAD WAIT "     2   fill 0x1 -> work[0+64*(i0+1 mod 2) : 64]\n" START(SLOT) END LAST LIVE,
       "step 3 (), buffer 0: read before it was written"},
      {HEAD WAIT FILL START(SLOT) END
       "     5 copy 16(4,4) grad[128 : 64] -> grad[0 : 64]\n     6 wait 4 work[0 : 64] -> "
       "grad[128 : 64]\n     7 wait 5 work[64 : 64] -> grad[192 : 64]\n"
       "  live 0: work[0 : 128] steps 0..7 windows\n",
       "step 5 (), buffer 0: touches the memory of a collective"},
      {HEAD "     1   fill 0x1 -> work[0+64*(i0 mod 4) : 64]\n     2 end\n"
            "  live 0: work[0 : 192] steps 0..2 windows\n",
       "outside its arena"}};
  for (size_t i = 0; i < LM_COUNT(cases); i++) {
    lm_plan *p = parsed(a, cases[i].text);
    lm_buf why = {0};
    bool good = lm_plan_check(p, &p->funcs[0], &why);
    if (good != !cases[i].found || (!good && !strstr(why.p, cases[i].found))) {
      fprintf(stderr, "case %zu: %s\n", i, why.p ? why.p : "no fault");
      exit(1);
    }
    lm_buf_free(&why);
  }
  lm_exec *e;
  lm_plan *p = parsed(a, "mesh a 2\narena work 64\nfunc f work 64\n"
                         "     0 start all_reduce sum f32 16 over a lane 0 as 0 work[0 : 64] -> "
                         "work[0 : 64]\n     1 wait 0 work[0 : 64] -> work[0 : 64]\n"
                         "  live 0: work[0 : 64] steps 0..1 x\n");
  CHECK_OK(lm_cpu_exec_create(p, NULL, &e));
  CHECK_FAILS(lm_exec_call(e, &p->funcs[0], NULL), LM_BUG_STATUS, "there is one process");
  lm_exec_destroy(e);
}

// ---- the collectives of all ranks

#define SUM(GROUP, HANDLE)                                                                         \
  "start all_reduce sum f32 16 over " GROUP " lane 0 as " HANDLE " work[0 : 64] -> work[0 : 64]"
#define DONE(HANDLE) "wait " HANDLE " work[0 : 64] -> work[0 : 64]"
#define SEND(PEER, HANDLE)                                                                         \
  "start send f32 16 over a peer " PEER " lane 0 as " HANDLE " work[0 : 64]"
#define RECEIVE(PEER, HANDLE)                                                                      \
  "start receive f32 16 over a peer " PEER " lane 0 as " HANDLE " -> work[0 : 64]"

#define SHIFT(PEER)                                                                                \
  "start ring_shift f32 8 over a peer " PEER " lane 0 as 0 work[0 : 32] -> work[32 : 32]\n"        \
  "wait 0 work[0 : 32] -> work[32 : 32]"

// Two tensors, the same in another order, and tensors of other sizes, which have the same sum.
static const char bucket[] = "start reduce_scatter sum f32 6 over a of 2 lane 0 as 0"
                             " work[0 : 24] work[24 : 24]"
                             " -> grad[0 : 12] grad[12 : 12]\n"
                             "wait 0"
                             " work[0 : 24] work[24 : 24]"
                             " -> grad[0 : 12] grad[12 : 12]";
static const char bucket_permuted[] = "start reduce_scatter sum f32 6 over a of 2 lane 0 as 0"
                                      " work[24 : 24] work[0 : 24]"
                                      " -> grad[12 : 12] grad[0 : 12]\n"
                                      "wait 0"
                                      " work[24 : 24] work[0 : 24]"
                                      " -> grad[12 : 12] grad[0 : 12]";
static const char bucket_of_others[] = "start reduce_scatter sum f32 6 over a of 2 lane 0 as 0"
                                       " work[0 : 32] work[32 : 16]"
                                       " -> grad[0 : 16] grad[16 : 8]\n"
                                       "wait 0"
                                       " work[0 : 32] work[32 : 16]"
                                       " -> grad[0 : 16] grad[16 : 8]";

typedef struct mesh_case {
  const char *rank[4]; // steps; NULL: those of the rank before
  const char *found;   // NULL: there is no mistake
} mesh_case;

static const mesh_case meshes[] = {
    {{SUM("a", "0") "\n" DONE("0") "\n" SUM("b", "0") "\n" SUM("all",
                                                               "1") "\n" DONE("1") "\n" DONE("0")},
     NULL},
    // ranks 0 and 1 send to 2 and 3, in three iterations of two slots
    {{"loop i0 < 3\n" SEND("1", "0 + (i0 mod 2)") "\nwait 0 + (i0 mod 2) work[0 : 64]\nend", NULL,
      "loop i0 < 3\n" RECEIVE("0", "4") "\nwait 4 -> work[0 : 64]\nend"},
     NULL},
    // both send first: the waits are behind the receives
    {{SEND("1", "0") "\n" RECEIVE("1", "1") "\nwait 0 work[0 : 64]\nwait 1 -> work[0 : 64]", NULL,
      SEND("0", "0") "\n" RECEIVE("0", "1") "\nwait 0 work[0 : 64]\nwait 1 -> work[0 : 64]"},
     NULL},
    {{SHIFT("1")}, NULL},
    {{SHIFT("1"), NULL, SHIFT("0")},
     "rank 0 has ring_shift f32 8 peer 1, rank 2 has ring_shift f32 8 peer 0"},
    {{SUM("b", "0") "\n" DONE("0"),
      "start all_reduce sum f32 8 over b lane 0 as 0 work[0 : 32] -> work[0 : 32]\nwait 0 work[0 : "
      "32] -> work[0 : 32]",
      SUM("b", "0") "\n" DONE("0")},
     "number 1 over b: rank 0 has all_reduce sum f32 16, rank 1 has all_reduce sum f32 8"},
    {{SUM("b", "0") "\n" DONE("0"), NULL,
      "start all_reduce max f32 16 over b lane 0 as 0 work[0 : 64] -> work[0 : 64]\n" DONE("0"),
      SUM("b", "0") "\n" DONE("0")},
     "rank 2 has all_reduce max f32 16, rank 3 has all_reduce sum f32 16"},
    {{SUM("a", "0") "\n" DONE("0"), NULL, NULL,
      SUM("a", "0") "\n" DONE("0") "\n" SUM("a", "0") "\n" DONE("0")},
     "over a rank 1 starts 1 collectives, rank 3 2"},
    {{SEND("1", "0") "\nwait 0 work[0 : 64]", NULL, SUM("b", "0") "\n" DONE("0")},
     "over a rank 0 starts 1 send, rank 2 0"},
    {{SEND("2", "0") "\nwait 0 work[0 : 64]"}, "rank 0 has a message to or from 2 over a"},
    {{SUM("a", "0") "\n" DONE("0") "\n" SUM("b", "0") "\n" DONE("0"),
      SUM("b", "0") "\n" DONE("0") "\n" SUM("a", "0") "\n" DONE("0"),
      SUM("b", "0") "\n" DONE("0") "\n" SUM("a", "0") "\n" DONE("0"),
      SUM("a", "0") "\n" DONE("0") "\n" SUM("b", "0") "\n" DONE("0")},
     "the ranks wait for each other: rank 0 in all_reduce sum f32 16 over a"},
    // both wait for the peer's receive before their own
    {{SEND("1", "0") "\nwait 0 work[0 : 64]\n" RECEIVE("1", "1") "\nwait 1 -> work[0 : 64]", NULL,
      SEND("0", "0") "\nwait 0 work[0 : 64]\n" RECEIVE("0", "1") "\nwait 1 -> work[0 : 64]"},
     "the ranks wait for each other: rank 0 in send f32 16 over a"},
    {{bucket}, NULL},
    {{bucket, NULL, bucket_permuted},
     "number 1 over a: rank 0 has reduce_scatter sum f32 6 of 2, tensor 0 of which has 3 elements "
     "from work[0] to grad[0], rank 2 has reduce_scatter sum f32 6 of 2, tensor 0 of which has 3 "
     "elements from work[24] to grad[12]"},
    {{bucket, NULL, bucket_of_others}, "tensor 0 of which has 4 elements from work[0] to grad[0]"},
    {{SUM("a", "0") "\n" DONE("1")}, "rank 0 waits for handle 1, which no step has started"},
};

static lm_plan *rank_plan(lm_arena *a, const char *steps, int rank) {
  lm_buf text = {0};
  lm_plan *p;
  lm_buf_puts(&text, "mesh a 2\nmesh b 2\narena grad 64\narena work 64\nfunc f work 64\n");
  for (int n = 0; *steps; n++) {
    int line = (int)strcspn(steps, "\n");
    lm_buf_printf(&text, "  %d %.*s\n", n, line, steps);
    steps += line + (steps[line] != 0);
  }
  CHECK_OK(lm_plan_parse(a, text.p, text.n, &p));
  lm_plan_mesh_place(p, rank);
  lm_buf_free(&text);
  return p;
}

static void mesh_test(lm_arena *a) {
  for (size_t i = 0; i < LM_COUNT(meshes); i++) {
    const lm_plan *plans[4];
    const char *steps = NULL;
    lm_buf why = {0};
    for (int r = 0; r < 4; r++) {
      steps = meshes[i].rank[r] ? meshes[i].rank[r] : steps;
      plans[r] = rank_plan(a, steps, r);
    }
    bool good = lm_plan_check_mesh(plans, "f", &why);
    if (good != !meshes[i].found || (!good && !strstr(why.p, meshes[i].found))) {
      fprintf(stderr, "mesh %zu: %s\n", i, why.p ? why.p : "no fault");
      exit(1);
    }
    lm_buf_free(&why);
  }
}

// ---- mistakes in the text

static void text_test(lm_arena *a) {
  static const char *const lines[] = {
      "fill when 2..1 0x1 -> work[0 : 64]",     // no iteration
      "fill when -1.. 0x1 -> work[0 : 64]",     // before the first
      "fill 0x1 -> work[0+64*(i0 mod 0) : 64]", // no slots
      "fill 0x1 -> work[0+64*(i9 mod 2) : 64]",
      "fill 0x1 -> work[0+64*(i0 mod 2 : 64]",
      "start all_reduce f32 16 over a lane 0 as 0 work[0 : 64] -> work[0 : 64]", // no operation
      "start gather f32 16 over a lane 0 as 0 work[0 : 64] -> work[0 : 64]",
      "start send f32 16 over a lane 0 as 0 work[0 : 64]", // no peer
      "start ring_shift f32 16 over a lane 0 as 0 work[0 : 64] -> work[64 : 64]",
      "wait 4 + (i1 mod 2) work[0 : 64]", // not the innermost loop
      "wait 4 + i0 work[0 : 64]",
      "wait -1 work[0 : 64]"};
  static const char *const good[] = {
      "start all_gather bf16 16 over b lane 1 as 0 work[0 : 32] -> work[64 : 64]",
      "start send f32 16 over a peer 3 lane 0 as 7 work[0 : 64]",
      "start receive f32 16 over a peer 0 lane 0 as 7 -> work[0 : 64]",
      "start ring_shift bf16 16 over a peer 1 lane 0 as 0 work[0 : 32] -> work[64 : 32]",
      ("start all_reduce max f32 16 over all lane 0 as 1 + (i0+1 mod 3) work[0 : 64] -> work[0 : "
       "64]"),
      "wait 1 + (i0+1 mod 3) work[0 : 64] -> work[0 : 64]"};
  lm_plan *q;
  for (size_t i = 0; i < LM_COUNT(lines); i++) {
    const char *text = lm_arena_printf(a, HEAD "     1   %s\n     2 end\n", lines[i]);
    lm_status s = lm_plan_parse(a, text, strlen(text), &q);
    if (!s)
      fprintf(stderr, "accepted: %s\n", lines[i]);
    CHECK_FAILS(s, LM_USER, "line 7");
  }
  for (size_t i = 0; i < LM_COUNT(good); i++)
    parsed(a, lm_arena_printf(a, HEAD "     1   %s\n     2 end\n", good[i]));
}

// The part of the positions that each rank has.
static void positions_test(lm_arena *a) {
  static const char text[] = "mesh dp 2 rows\nmesh cp 3 positions\narena io 64\nfunc micro work 0\n"
                             "  in tok: int[2 by dp, 4 by cp] io[0 : 32]\n";
  lm_plan *p = parsed(a, text);
  const lm_plan_port *tok = lm_plan_port_find(&p->funcs[0], "tok", false);
  lm_buf again = {0};
  int part;
  lm_plan_print(p, &again);
  CHECK(strstr(again.p, "mesh cp 3 positions") && strstr(again.p, "int[2 by dp, 4 by cp]"));
  CHECK(tok->by[0] == 1 && tok->by[1] == 2 && lm_plan_positions(p) == 2 && lm_plan_rows(p) == 1);
  lm_plan_mesh_place(p, 5);
  CHECK(lm_plan_parts_of(p, tok->by[1], &part) == 3 && part == 2);
  CHECK(lm_plan_parts(p, &part) == 2 && part == 1);
  lm_buf_free(&again);
}

// Parameters that the ranks of one coordinate alone have.
static void stages_test(lm_arena *a) {
  static const char text[] = "mesh dp 2 rows\nmesh pp 2 rows\narena param 8192\n"
                             "param w 0 : 8\nparam layers.0.w 1024 : 8 at pp 0\n"
                             "param layers.1.w [4, 4 by dp] : 16 at pp 1\n"
                             "  piece 1024 [0, 0] [4, 2] by [2, 1]\nfunc f work 0\n";
  lm_plan *p = parsed(a, text), *q;
  lm_buf again = {0};
  lm_plan_print(p, &again);
  CHECK(strstr(again.p, "param layers.0.w 1024 : 8 at pp 0\n") &&
        strstr(again.p, " : 16 at pp 1\n"));
  CHECK(lm_plan_param_set(&p->params[1]) == 2 && lm_plan_param_set(&p->params[2]) == 3);
  for (int rank = 0; rank < 4; rank++) {
    lm_plan_mesh_place(p, rank);
    for (int i = 0; i < 3; i++)
      CHECK(lm_plan_param_is_here(p, &p->params[i]) == (!i || rank % 2 == i - 1));
  }
  const char *bad = "mesh pp 2 rows\nparam w 0 : 8 at pp 2\n";
  CHECK_FAILS(lm_plan_parse(a, bad, strlen(bad), &q), LM_USER, "line 2");
  bad = "mesh pp 2 rows\nparam w 0 : 8 at xx 1\n";
  CHECK_FAILS(lm_plan_parse(a, bad, strlen(bad), &q), LM_USER, "line 2");
  lm_buf_free(&again);
}

int main(void) {
  lm_arena *a = lm_arena_create();
  ring_test(a);
  checks_test(a);
  mesh_test(a);
  text_test(a);
  positions_test(a);
  stages_test(a);
  lm_arena_destroy(a);
}
