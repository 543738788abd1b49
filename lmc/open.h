// open.h - a command's options as arguments of the driver: the recipe, the target, passes, kernels,
// and the run or file of a trained model.
#ifndef LMC_OPEN_H
#define LMC_OPEN_H
#include "driver/chat.h"
#include "lmc/command.h"

#define LM_OPT_TARGET                                                                              \
  {                                                                                                \
    .name = "target", .kind = LM_OPT_TEXT, .value = "TARGET",                                      \
    .help = "cpu, cuda (this machine's GPU), native (that if there is one), an architecture "      \
            "(sm_80, sm_89, sm_90a, sm_100a, sm_103, sm_120) or a machine such as h100 (cpu)"      \
  }
// Of commands that take RUN|FILE.
#define LM_OPT_STEP                                                                                \
  {                                                                                                \
    .name = "step", .kind = LM_OPT_TEXT, .value = "N|best|last",                                   \
    .help = "which checkpoint of the run (last)"                                                   \
  }

lm_recipe_choice lm_cli_recipe(const lm_cli *cli); // the command's file, --recipe and --set
lm_status lm_cli_open(lm_cli *cli, lm_session *s); // opens it
lm_status lm_cli_target(const lm_cli *cli, lm_target *out);
lm_variant lm_cli_variant(const lm_cli *cli);          // LM_OPT_PASSES
void lm_cli_kernels(const lm_cli *cli, lm_session *s); // LM_OPT_KERNELS, before it is started
lm_status lm_cli_open_trained(lm_cli *cli, lm_session *s, const char **out_weights); // RUN|FILE
lm_sampler lm_cli_sampler(const lm_args *a, double temperature); // temperature: the default
lm_status lm_cli_request(const lm_session *s, const lm_args *a, const char *weights, lm_request *);
// Reads messages and commands to the end of the input; json: prints only the whole conversation.
lm_status lm_cli_talk(lm_chatter *chat, const char *system, bool terminal, bool json);
#endif
