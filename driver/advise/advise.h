// advise.h - which model, and how long, for a text, a machine and a time.
//
//   seconds of a token  (6 N + 12 depth seq d) / (FLOP/s of products of width d x EFFICIENCY)
//   loss to expect      1.69 + 406.4 / N^0.34 + 410.7 / D^0.28       (Hoffmann et al. 2022,
//   approach 3)
//
// N parameters, D tokens trained on: those that fit in the time, at most EPOCHS rounds through the
// text (further ones teach little; Muennighoff et al. 2023). Of a ladder of shapes that with the
// least loss is taken; none has more than PARAMS_PER_TOKEN parameters for a token of the text, or
// PARAMS_LEAST if that is more: it would only learn the text by heart.
#ifndef LMC_ADVISE_H
#define LMC_ADVISE_H
#include "runtime/base/base.h"

enum {
  LM_MACHINE_WIDTHS = 4
};
typedef struct lm_machine {
  int cores;
  double memory; // bytes
  double load;   // processes that ran or waited to run in the last minute, before the measurement
  // a second, of products as a layer of width 64, 128, 256, 512 makes them
  double flops[LM_MACHINE_WIDTHS];
} lm_machine;
bool lm_machine_is_busy(const lm_machine *m); // other processes leave it less than its cores
void lm_machine_measure(lm_machine *out);     // well under a second

typedef struct lm_text_facts {
  double tokens, bytes_per_token;
  int64_t vocab;
} lm_text_facts;

typedef enum {
  LM_BOUND_TIME,
  LM_BOUND_TEXT,
  LM_BOUND_MEMORY
} lm_bound;
typedef struct lm_advice {
  int64_t depth, d, ff, heads, vocab, seq, batch, micro, steps, warmup, every;
  double params, lr, holdout; // holdout: a share of the text
  double flops;               // a second, of the width that was chosen
  double tokens_per_s;        // to expect
  lm_bound bound;             // what keeps a larger model from being better
  bool text_ends;             // all rounds through the text take less than the time
} lm_advice;

enum {
  LM_ADVICE_SAMPLE = 120,
  LM_ADVICE_REPORTS = 5,
  LM_ADVICE_EPOCHS = 4
};                                     // tokens of a sample; evaluations; rounds
int64_t lm_advise_vocab(double bytes); // tokens of a vocabulary for so much text; 256: bytes
void lm_advise(const lm_machine *m, const lm_text_facts *text, double seconds, lm_advice *out);
// Whether the vocabulary has no more than two thirds of the parameters, or is as small as byte
// pairs can be.
bool lm_advice_balanced(const lm_advice *a);
// Steps, and what follows from them, where a step takes so long.
void lm_advise_steps(lm_advice *a, const lm_text_facts *text, double seconds, double step_seconds);
#endif
