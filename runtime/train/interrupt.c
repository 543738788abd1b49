// interrupt.c - see interrupt.h.
#include "runtime/train/interrupt.h"

#include "runtime/base/base.h"

static volatile sig_atomic_t interrupted;

static void on_signal(int number) {
  if (interrupted) {
    signal(number, SIG_DFL);
    raise(number);
  }
  interrupted = number;
}

static const int SIGNALS[LM_INTERRUPTS] = {SIGINT, SIGTERM, SIGHUP, SIGUSR1};

// nohup ignores SIGHUP; keep it ignored.
void lm_interrupts_catch(lm_interrupts *out) {
  struct sigaction a = {
      .sa_handler = on_signal,
      .sa_flags = SA_RESTART,
  };
  sigemptyset(&a.sa_mask);
  interrupted = 0;
  for (int i = 0; i < LM_INTERRUPTS; i++) {
    sigaction(SIGNALS[i], NULL, &out->old[i]);
    if (SIGNALS[i] != SIGHUP || out->old[i].sa_handler != SIG_IGN)
      sigaction(SIGNALS[i], &a, NULL);
  }
}

void lm_interrupts_release(const lm_interrupts *x) {
  for (int i = 0; i < LM_INTERRUPTS; i++)
    sigaction(SIGNALS[i], &x->old[i], NULL);
}

int lm_interrupted(void) {
  return interrupted;
}
