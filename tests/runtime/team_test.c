// team_test.c - every piece of every work is done once, whatever the number of threads, and a thread alone disturbs none.
#include "runtime/cpu/team.h"

#include <omp.h>

#include "tests/runtime/check.h"

enum { WORKS = 200, PIECES = 37 };

static void pieces_taken(int threads, int (*done)[PIECES]) {
  lm_team team = {0};
#pragma omp parallel num_threads(threads)
  {
    lm_share share = {&team, omp_get_thread_num(), omp_get_num_threads(), 0}, alone = lm_share_alone();
    for (int w = 0; w < WORKS; w++) {
      int pieces = w % (PIECES + 1);                        // none, too
      for (int64_t i; (i = lm_share_take(&share, pieces)) >= 0;) {
#pragma omp atomic
        done[w][i]++;
      }
      int own = 0;
      for (int64_t i; (i = lm_share_take(&alone, pieces)) >= 0;) own += i == own;
      CHECK(own == pieces && !alone.base);
#pragma omp barrier
    }
  }
}

static void places_cut(int all) {
  for (int64_t size = 0; size < 50; size++)
    for (int me = 0; me < all; me++) {
      lm_share s = {.me = me, .all = all}, next = {.me = me + 1, .all = all};
      CHECK(lm_share_first(&s, size) <= lm_share_last(&s, size));
      CHECK(me + 1 == all ? lm_share_last(&s, size) == size : lm_share_last(&s, size) == lm_share_first(&next, size));
      CHECK(me || !lm_share_first(&s, size));
    }
}

int main(void) {
  for (int threads = 1; threads <= 4; threads++) {
    int done[WORKS][PIECES] = {0};
    pieces_taken(threads, done);
    for (int w = 0; w < WORKS; w++)
      for (int i = 0; i < PIECES; i++) CHECK(done[w][i] == (i < w % (PIECES + 1)));
    places_cut(threads);
  }
}
