// advise.h - chooses a model and a number of steps for a text, a machine and a time.
//
//   seconds of a token  (6 N + 12 depth seq d) / (FLOP/s of GEMMs of width d x EFFICIENCY)
//   loss to expect      1.69 + 406.4 / N^0.34 + 410.7 / D^0.28       (Hoffmann et al. 2022,
//   approach 3)
//
// N parameters; D training tokens: as many as the time allows, at most EPOCHS epochs (more
// repetition teaches little; Muennighoff et al. 2023). Of a list of shapes the one with the lowest
// loss is chosen. None has more than PARAMS_PER_TOKEN parameters for each token of the text, or
// PARAMS_LEAST if that is more: a larger model would memorise the text.
#ifndef LM_DRIVER_ADVISE_H
#define LM_DRIVER_ADVISE_H
#include "driver/advise/load.h"

enum {
  LM_MACHINE_WIDTHS = 4
};
typedef struct lm_machine {
  lm_load load;  // before the measurement
  double memory; // bytes
  // FLOP/s of the GEMMs of a layer of width 64, 128, 256, 512
  double flops[LM_MACHINE_WIDTHS];
} lm_machine;
void lm_machine_measure(lm_machine *out); // takes well under a second

typedef struct lm_text_facts {
  double tokens, bytes_per_token;
  int64_t vocab;
} lm_text_facts;

typedef enum {
  LM_BOUND_TIME,
  LM_BOUND_TEXT,
  LM_BOUND_MEMORY,
  LM_BOUND_ASKED, // the number of parameters was given
} lm_bound;
typedef struct lm_advice {
  int64_t depth, d, ff, heads, vocab, seq, batch, micro, steps, warmup, every;
  double params, lr, holdout; // holdout: a share of the text
  double flops;               // FLOP/s at the chosen width
  double tokens_per_s;        // expected
  lm_bound bound;             // why a larger model would not be better
  bool text_ends;             // all epochs take less than the time
} lm_advice;

enum {
  LM_ADVICE_SAMPLE = 120,
  LM_ADVICE_REPORTS = 5,
  LM_ADVICE_EPOCHS = 4
}; // tokens of a sample; evaluations; epochs
// Size of a vocabulary for a text of that size; 256: bytes. text_alone: files that are not text lie
// beside it.
int64_t lm_advise_vocab(double bytes, bool text_alone);
// least: layers that the model has at least.
void lm_advise(const lm_machine *m, const lm_text_facts *text, double seconds, int64_t least,
               lm_advice *out);
// The same for a model of this shape, which has `params` parameters.
void lm_advise_shape(const lm_machine *m, const lm_text_facts *text, double seconds, int64_t depth,
                     int64_t d, double params, lm_advice *out);
// Layers that suit a width.
int64_t lm_advise_depth(int64_t d);
double lm_advice_memory(const lm_advice *a); // bytes of training
// True if the vocabulary has at most two thirds of the parameters, or has the minimum size.
bool lm_advice_balanced(const lm_advice *a);
// Sets the number of steps, and the values that depend on it, for steps of `step_seconds`.
void lm_advise_steps(lm_advice *a, const lm_text_facts *text, double seconds, double step_seconds);
#endif
