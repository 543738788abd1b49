// interrupt.h - the signals that end a run after its current step: SIGINT, SIGTERM, SIGHUP and
// SIGUSR1. A second signal has its default action, which ends the process. A process can catch them
// for only one run at a time, since a handler can access only global state.
#ifndef LM_TRAIN_INTERRUPT_H
#define LM_TRAIN_INTERRUPT_H
#include <signal.h>

enum {
  LM_INTERRUPTS = 4
};
typedef struct lm_interrupts {
  struct sigaction old[LM_INTERRUPTS];
} lm_interrupts;

void lm_interrupts_catch(lm_interrupts *out);
void lm_interrupts_release(const lm_interrupts *x);
int lm_interrupted(void); // the signal; 0: none since lm_interrupts_catch
#endif
