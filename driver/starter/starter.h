// starter.h - a first recipe for a text, sized for this machine and for a time.
//
// The text is inspected by a sample and the machine is measured with a few GEMMs;
// driver/advise/advise.h chooses a model from both. The recipe is written and compiled, and one
// step of it is timed, which settles the number of steps.
#ifndef LM_DRIVER_STARTER_H
#define LM_DRIVER_STARTER_H
#include <stdio.h>

#include "driver/advise/advise.h"
#include "driver/advise/dataset.h"
#include "driver/events.h"
#include "driver/weights/zoo.h"

typedef struct lm_starter_options {
  const char *name; // of the recipe; the file is NAME.lm in the working directory
  const char *data; // a file, a folder or a pattern
  const char *time; // of the run: "10" (minutes), "90m", "1h 30m"
  // Optional: a model of examples/zoo; the number of its parameters, "50M".
  const char *arch, *params;
} lm_starter_options;

typedef struct lm_starter {
  lm_ctx *ctx;
  const lm_events *events;        // optional
  const char *name, *path, *data; // NAME, NAME.lm, the path of the text
  const lm_zoo_model *arch;       // NULL: the Llama of the templates
  double params;                  // 0: as many as suit the time
  double seconds;
  lm_dataset dataset;
  lm_text_facts text;
  lm_machine machine;
  lm_advice advice;
  bool timed;            // advice.tokens_per_s is measured, not estimated
  int64_t vocab_of_text; // vocabulary size that suits the amount of text
  const char *prompt;
} lm_starter;

// Writes NAME.lm. Nothing is left of it after an error; an existing file is never overwritten.
// Free *x in any case.
lm_status lm_starter_make(lm_ctx *ctx, const lm_events *events, const lm_starter_options *o,
                          lm_starter *x);
void lm_starter_free(lm_starter *x);
// Writes or replaces the file for the present advice.
lm_status lm_starter_write(const lm_starter *x);

// Layers that the model has at least: a whole period of its kinds of layers.
int64_t lm_starter_depth_least(const lm_starter *x);
// Writes the file, and counts the parameters of its model.
lm_status lm_starter_count(lm_starter *x, double *out);
// Chooses the width and depth for x->params parameters. seconds: of the training. LM_USER if no
// model has about so many.
lm_status lm_starter_size(lm_starter *x, double seconds);

// Prints the findings and the choices with their reasons, wrapped if `to` is a terminal.
void lm_starter_print(const lm_starter *x, FILE *to);
void lm_starter_json(const lm_starter *x, lm_buf *out);
#endif
