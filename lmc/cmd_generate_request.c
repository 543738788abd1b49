// cmd_generate_request.c - the columns of a request from the options of request.def.
#include <string.h>

#include "driver/tokenize.h"
#include "lmc/open.h"

lm_status lm_cli_request(const lm_session *s, const lm_args *a, const char *weights,
                         lm_request *out) {
  const char *text = lm_args_text(a, "source", NULL);
  const char *ids = lm_args_text(a, "source-ids", NULL);
  const char *file = lm_args_text(a, "columns", NULL);
  lm_tokens source = {0};
  if ((text != NULL) + (ids != NULL) + (file != NULL) > 1)
    return lm_fail(LM_USER, "give one of --source TEXT, --source-ids 1,2,3 and --columns FILE");
  if (file)
    return lm_request_file(s, file, out);
  lm_status status = NULL;
  if (ids)
    status = lm_annotate(lm_ids_parse(ids, strlen(ids), &source), "--source-ids %s", ids);
  else if (text)
    status = lm_sample_encode_source(s, weights, text, &source);
  if (!status && (ids || text))
    status = lm_request_source(s, &source, out);
  lm_tokens_free(&source);
  return status;
}
