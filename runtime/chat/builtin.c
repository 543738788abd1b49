// builtin.c - the chat templates of this program.
#include <string.h>

#include "runtime/chat/chat.h"

const char *const lm_chat_builtin_names = "chatml, llama3, plain";

static const struct {
  const char *name;
  const char *text;
} builtins[] = {
    {"chatml", "{% for message in messages %}\n"
               "{{ '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' }}\n"
               "{%- endfor %}\n"
               "{% if add_generation_prompt %}\n"
               "{{ '<|im_start|>assistant\\n' }}\n"
               "{%- endif %}\n"},
    {"llama3", "{{ bos_token if bos_token is defined }}\n"
               "{%- for message in messages %}\n"
               "{{ '<|start_header_id|>' + message.role + '<|end_header_id|>\\n\\n' }}\n"
               "{{- message.content | trim + '<|eot_id|>' }}\n"
               "{%- endfor %}\n"
               "{% if add_generation_prompt %}\n"
               "{{ '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}\n"
               "{%- endif %}\n"},
    {"plain", "{% set names = {'system': 'System', 'user': 'User', 'assistant': 'Assistant'} %}\n"
              "{% for message in messages %}\n"
              "{% if message.role not in names %}\n"
              "{{ raise_exception('the template plain has no role ' + message.role) }}\n"
              "{% endif %}\n"
              "{{ names[message.role] + ': ' + message.content | trim + '\\n' }}\n"
              "{%- endfor %}\n"
              "{% if add_generation_prompt %}\n"
              "{{ 'Assistant:' }}\n"
              "{%- endif %}\n"}};

const char *lm_chat_builtin(const char *name) {
  for (size_t i = 0; i < LM_COUNT(builtins); i++)
    if (!strcmp(builtins[i].name, name))
      return builtins[i].text;
  return NULL;
}
