// open.c - a command's options as arguments of the driver.
#include "lmc/open.h"

#include <string.h>

#include "driver/trained.h"

lm_recipe_choice lm_cli_recipe(const lm_cli *cli) {
  lm_recipe_choice x = {.path = cli->args.rest[0],
                        .comm = cli->comm,
                        .recipe = lm_args_text(&cli->args, "recipe", NULL)};
  x.overrides.sets = lm_args_list(&cli->args, "set", &x.overrides.n_sets);
  return x;
}

lm_status lm_cli_open(lm_cli *cli, lm_session *s) {
  lm_recipe_choice x = lm_cli_recipe(cli);
  s->divides = true;
  return lm_program_open(s, cli->ctx, &cli->events, &x);
}

lm_status lm_cli_target(const lm_cli *cli, lm_target *out) {
  return lm_target_find(lm_args_text(&cli->args, "target", "cpu"), out);
}

lm_variant lm_cli_variant(const lm_cli *cli) {
  return (lm_variant){.off = lm_args_text(&cli->args, "disable-pass", NULL),
                      .on = lm_args_text(&cli->args, "enable-pass", NULL)};
}

void lm_cli_kernels(const lm_cli *cli, lm_session *s) {
  s->dump_dir = lm_args_text(&cli->args, "dump-dir", NULL);
  s->load_dir = lm_args_text(&cli->args, "load-dir", NULL);
}

lm_sampler lm_cli_sampler(const lm_args *a, double temperature) {
  return (lm_sampler){lm_args_number(a, "temperature", temperature),
                      (int32_t)lm_args_whole(a, "top-k", 0), lm_args_number(a, "top-p", 1),
                      (uint64_t)lm_args_whole(a, "seed", 0)};
}

lm_status lm_cli_open_trained(lm_cli *cli, lm_session *s, const char **out_weights) {
  lm_recipe_choice from = lm_cli_recipe(cli);
  lm_trained_choice x = {
      .from = &from, .step = lm_args_text(&cli->args, "step", NULL), .command = cli->command->name};
  return lm_trained_open(s, cli->ctx, &cli->events, &x, out_weights);
}
