// cmd_generate.h - what the files of lmc generate share.
#ifndef LM_LMC_CMD_GENERATE_H
#define LM_LMC_CMD_GENERATE_H
#include "driver/request.h"
#include "lmc/command.h"

// The columns of the options of request.def; none if no option is given. The caller frees *out.
lm_status lm_cli_request(const lm_session *s, const lm_args *a, const char *weights,
                         lm_request *out);
#endif
