// port.c - see port.h.
#include "contract/port.h"

#include <string.h>

const lm_column_info lm_column_table[LM_COLUMNS] = {
#define COLUMN(ID, NAME, TYPE, MIN, IS_INDEX) {#NAME, LM_##TYPE, MIN, IS_INDEX},
#include "contract/columns.def"
};

const lm_port_info lm_port_table[LM_PORTS] = {
#define PORT(ID, NAME, ROLE, TYPE) {NAME, LM_ROLE_##ROLE, LM_##TYPE},
#include "contract/ports.def"
};

#define COLUMN(ID, NAME, TYPE, ...)                                                                \
  _Static_assert((int)LM_COLUMN_##ID == (int)LM_PORT_##ID, "columns are the first ports");         \
  _Static_assert(sizeof(lm_c_##TYPE) == LM_COLUMN_BYTES, "the size of column " #NAME);
#include "contract/columns.def"

const char LM_COLUMN_PREFIX[] = "data.";

const char *lm_column_name_of(const char *port) {
  size_t n = sizeof LM_COLUMN_PREFIX - 1;
  return strncmp(port, LM_COLUMN_PREFIX, n) ? NULL : port + n;
}

bool lm_column_is_prompt(const char *name) {
  return !strcmp(name, "prompt");
}

const char *const lm_source_column_names[LM_SOURCE_COLUMNS] = {"source", "source_pos",
                                                               "source_seg"};

lm_source_column lm_source_column_find(const char *name) {
  int k = 0;
  while (k < LM_SOURCE_COLUMNS && strcmp(lm_source_column_names[k], name))
    k++;
  return (lm_source_column)k;
}

lm_column_id lm_column_find(const char *name) {
  lm_port_id port = lm_port_find(name);
  return (int)port < LM_COLUMNS ? (lm_column_id)port : LM_COLUMNS;
}

const char *const lm_role_names[LM_ROLES] = {[LM_ROLE_PARAM] = "param",
                                             [LM_ROLE_GRAD] = "grad",
                                             [LM_ROLE_STATE] = "state",
                                             [LM_ROLE_COPY] = "copy"};

lm_arena_id lm_role_arena(lm_port_role role) {
  switch (role) {
  case LM_ROLE_PARAM: return LM_ARENA_PARAM;
  case LM_ROLE_GRAD: return LM_ARENA_GRAD;
  case LM_ROLE_STATE: return LM_ARENA_STATE;
  case LM_ROLE_COPY: return LM_ARENA_COPY;
  default: return LM_ARENA_IO;
  }
}

lm_port_id lm_port_find(const char *name) {
  int i = 0;
  while (i < LM_PORTS && strcmp(lm_port_table[i].name, name))
    i++;
  return (lm_port_id)i;
}
