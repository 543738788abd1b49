// mpi_pieces_test.c - sums by MPI in pieces, as those of more elements than MPI counts are made:
// the engine with pieces of a few elements, on 1 to 3 ranks. Of integers, which are exact in any
// order.
#define _GNU_SOURCE // program_invocation_short_name
#define LM_MPI_SUM_MAX 7
#include "runtime/comm/mpi/mpi.c"
#include "tests/comm/expect.h"
#include "tests/comm/mpirun.h"

enum {
  MOST = 64, // elements
};

static float given(int rank, int i) {
  return (float)(rank * 100 + i % 11);
}

static float sum_of(int ranks, int i) {
  return (float)(100 * ranks * (ranks - 1) / 2 + ranks * (i % 11));
}

static int sum_check(engine *e, int lane, int rank, int ranks, int count, bool scatters) {
  float from[3 * MOST], to[MOST];
  char error[LM_ENGINE_TEXT] = "";
  int slot, left, wrong = 0, first = scatters ? rank * count : 0;
  lm_engine_sum x = {scatters, LM_ENGINE_F32, from, to, (size_t)count};
  for (int i = 0; i < 3 * MOST; i++)
    from[i] = given(rank, i);
  for (bool good = mpi_sum(e, lane, &x, 1, &slot, error); good; good = left)
    if (!mpi_test(e, slot, &left, error))
      break;
  for (int i = 0; i < count; i++)
    wrong += to[i] != sum_of(ranks, first + i);
  if (wrong || *error)
    printf("%d of %d elements are wrong: %s\n", wrong, count, error);
  return wrong > 0 || *error;
}

static int rank_main(void) {
  static const int counts[] = {0, 1, 2, 3, 7, 8, 14, 29};
  char error[LM_ENGINE_TEXT] = "";
  void *e;
  int rank, ranks, lane, bad = 0;
  if (!mpi_open(&e, &rank, &ranks, error) || !mpi_split(e, 0, &lane, error)) {
    puts(error);
    return 1;
  }
  for (size_t i = 0; i < LM_COUNT(counts); i++)
    for (int scatters = 0; scatters < 2; scatters++)
      bad += sum_check(e, lane, rank, ranks, counts[i], scatters);
  mpi_close(e);
  return bad > 0;
}

int main(int argc, char **argv) {
  lm_buf out = {0};
  (void)argv;
  if (argc > 1)
    return rank_main();
  for (int ranks = 1; ranks <= 3 && ranks_can_run(); ranks++) {
    int status = ranks_run(ranks, "rank", &out);
    expect(!status, "a sum in pieces", out.p);
  }
  lm_buf_free(&out);
  printf("mpi_pieces_test: %d errors\n", errors);
  return errors != 0;
}
